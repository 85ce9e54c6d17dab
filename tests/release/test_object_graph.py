import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import registered
from tests.fit import own_maps
from tests.registered import (
    AverageEffect,
    CovariateBalancingEffect,
    DRLearner,
    InfluencePerturbation,
    KnownPropensityEffect,
    OutcomeWeightedLearner,
    PolicySelector,
    RLearner,
    SubgroupEffects,
    TwoStageRule,
)
from tests.release.object_graph import arrays
from torchdpcate import Domain, KernelSecondStage, LinearSecondStage, NuisanceConfig, PrivacyBudget
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import FunctionPolicies
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.fit.feature_maps import Representation
from torchdpcate.heads.recipes import PlugInSecondStage
from torchdpcate.privacy.noise import NoiseSource

N, BLOCK = 1_086, 543  # no other size of these fits
DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.1, better="higher")
TRIAL = Domain.from_dict(DOMAIN.to_dict() | {"propensity": 0.5})
BUDGET, PURE = PrivacyBudget(6.0, 1e-5), PrivacyBudget(6.0, 0.0)
QUICK = NuisanceConfig(width=8, batch_size=60, epochs=1)
NETWORKS = NuisanceConfig(width=0, batch_size=50, epochs=1)
QUERIES = DOMAIN.grid(2)


def planted() -> tuple[Tensor, Tensor, Tensor]:
    """Records whose numbers of 53 bits occur nowhere else."""
    random = torch.Generator().manual_seed(5)
    u = torch.rand(N, 3, generator=random).double() / 2 + torch.rand(N, 3, generator=random).double() / 2**26
    x = torch.stack([u[:, 0], 2 * u[:, 1] - 0.5], 1)
    a = (torch.rand(N, generator=random) < 0.5).double()
    return x, a, 1.5 * u[:, 2] - 0.75


RECORDS = planted()


def held(start: Any) -> list[str]:
    """Where an object holds a covariate or an outcome of a record, or an array as long as the records or a block.

    In single precision a weight may be some record's number by chance (1e-4): there two of one record count, or four.
    """
    own = torch.cat([RECORDS[0], RECORDS[2][:, None]], 1).numpy()
    found = []
    for path, array in arrays(start):
        if array.dtype.kind == "f":
            values = array.astype(np.float64)
            single = np.isin(own.astype(np.float32), values.astype(np.float32))
            if np.isin(values, own).any() or single.sum() > 3 or (single.sum(1) > 1).any():
                found.append(f"a number of a record at {path}")
        if {N, BLOCK} & set(array.shape):
            found.append(f"{array.shape} at {path}")
    return found


def cate(kind: type = RLearner, release: str = "function", mechanism: Any = "objective", **settings: Any) -> Any:
    settings = {"nuisance": NETWORKS, "second_stage": LinearSecondStage(), **settings}
    mechanism = registered.mechanism(mechanism)
    learner = kind(DOMAIN, BUDGET, **settings).fit(*RECORDS)
    if release == "function":
        return learner.release_function(mechanism)
    return learner.release_queries(QUERIES, mechanism, include_nuisances=release == "with nuisances")


def rule(kind: type, **settings: Any) -> Any:
    return kind(TRIAL, PURE, **settings).fit(*RECORDS).release()


def selection(**settings: Any) -> Any:
    policies = settings.pop("policies", [Constants([0, 1]), Thresholds("x0", [0.25, 0.5])])
    return PolicySelector(DOMAIN, settings.pop("budget", PURE), policies=policies, **settings).fit(*RECORDS).release()


def effect(kind: type, budget: PrivacyBudget = PURE, **settings: Any) -> Any:
    return kind(DOMAIN, budget, **settings).fit(*RECORDS).release()


def trial(kind: type, budget: PrivacyBudget = PURE, **settings: Any) -> Any:
    known = Domain.from_dict({**DOMAIN.to_dict(), "propensity": 0.5})
    return kind(known, budget, **settings).fit(*RECORDS).release()


KINDS: dict[str, Callable[[], Any]] = {
    "objective, convex, DR": partial(cate, DRLearner),
    "owl": partial(rule, OutcomeWeightedLearner),
    "composed": partial(cate, mechanism=None, nuisance=None, second_stage=AdaptiveSecondStage()),
    "subgroups": partial(effect, SubgroupEffects, propensity="randomised", subgroups=[{"x0": [0.5]}, {"x1": [0.0]}]),
    "selection, fixed": partial(selection, nuisance=FixedNuisances()),
    "covariate_balancing": partial(effect, CovariateBalancingEffect),
    "average of a trial": partial(trial, KnownPropensityEffect),
    "average by lines": partial(trial, AverageEffect, BUDGET, estimand="ATT", subgroups=[{"x0": [0.5]}]),
    "objective, networks": partial(cate, nuisance=QUICK),
    "objective, representation": partial(
        cate, nuisance=QUICK, second_stage=LinearSecondStage(features=Representation())
    ),
    "plug_in": partial(cate, mechanism="plug_in", nuisance=QUICK, second_stage=PlugInSecondStage()),
    "queries with networks": partial(cate, release="with nuisances", nuisance=QUICK),
    "influence": partial(cate, release="queries", mechanism=InfluencePerturbation(starts=2)),
    "gaussian_process": partial(
        cate, release="queries", mechanism="gaussian_process", second_stage=KernelSecondStage()
    ),
    "two_stage": partial(rule, TwoStageRule),
    "selection, composed": selection,
    "selection among functions": partial(
        selection,
        policies=FunctionPolicies([lambda x: x[:, 0] > 0.5, lambda x: x[:, 0] > 0.2], names=["half", "fifth"]),
    ),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", KINDS)
def test_no_record_can_be_reached_from_a_release(name):
    release = KINDS[name]()
    assert held(release) == []
    assert held(copy.deepcopy(release)) == []


@pytest.mark.parametrize("name", ["composed", pytest.param("objective, networks", marks=pytest.mark.slow)])
def test_a_pickled_release_holds_no_record(name):
    release = KINDS[name]()
    text = pickle.dumps(release)
    assert held(pickle.loads(text)) == []
    for part in (RECORDS[0][:, 0], RECORDS[2]):
        for width in (np.float32, np.float64):
            assert part[0].numpy().astype(width).tobytes() not in text


def test_what_a_reader_keeps_of_an_online_service_holds_no_record(tmp_path):
    # the service itself is the curator's: it has the function without noise
    learner = RLearner(DOMAIN, BUDGET, nuisance=NETWORKS, second_stage=KernelSecondStage()).fit(*RECORDS)
    service = learner.answer_online(tmp_path / "online")
    service.answer(QUERIES.numpy())
    assert held(service.release(QUERIES)) == []
    assert held(learner.stage_) != []


def test_a_map_that_keeps_what_it_is_shown_is_released_as_it_was_made():
    x, a, y = RECORDS
    keeping = own_maps.Keeping()
    releases = [cate(second_stage=LinearSecondStage(features=keeping), mechanism="objective")]
    for learner in (
        TwoStageRule(DOMAIN, PURE, features=keeping),
        CovariateBalancingEffect(DOMAIN, PURE, basis=keeping),
    ):
        learner.fit(x, a, y)
        if isinstance(learner, TwoStageRule):
            learner.nonprivate_score(x)
        else:
            learner.weights_.propensity(x)
        releases.append(learner.release())
    for release in releases:
        assert release.privacy.level == "conditional"
        assert held(release) == []
        assert {tuple(value) for path, value in arrays(release) if path.endswith(".mean")} == {(0.0, 0.0)}


def test_the_search_finds_records_wherever_they_are_kept():
    x, _, y = RECORDS
    row = x[3].clone()
    weight = torch.zeros(1, requires_grad=True)
    graph = (weight * row).sum()
    module = torch.nn.Linear(1, 1)
    module.register_forward_hook(lambda *_: y)
    module.weight.grad = row[:1, None].float()
    held_back = {
        "a view": torch.cat([torch.zeros(2), y])[:2],
        "a closure": lambda: row,
        "a partial": partial(print, row.numpy()),
        "a graph": graph,
        "a hook": module,
        "a method": NoiseSource.system().__class__,
        "a list of numbers": [{"deep": (float(y[0]), 1.0)}],
        "a generator": (value for value in [row]),
    }
    found = {name: bool(held(value)) for name, value in held_back.items()}
    assert found == {name: name != "a method" for name in held_back}


def test_single_precision_is_told_by_a_record_or_by_four_numbers():
    x, _, y = (part.float() for part in RECORDS)
    chance = torch.zeros(20)
    chance[3], chance[7] = x[5, 0], x[9, 1]
    assert held(chance) == []
    for kept in (x[5], torch.stack([x[5, 1], y[5]]).double(), y[:4].flip(0)):
        assert held([chance, kept]) != []
