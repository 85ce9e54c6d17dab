"""Releases of a composition keep the contract of plans."""

from typing import ClassVar

import pytest
import torch

from tests.contract import PlanContract, plan_of, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.test_composed import BUDGET, MADE, N
from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.constants import PlanConstants, of_kind
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.composition.sites import Site
from torchdpcate.composition.steps import EFFECT_UNITS, total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.composition_plan import planned_composition
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRelease

LEFT_OUT = ("fixed noise", "own solver", "queries")
"""Nothing is claimed, a condition is open, or answers follow from a function that is not in the file."""


def released(kind: str = "continuous", **settings: object) -> ComposedRelease:
    """A release of confounded records with an effect of each."""
    generator = torch.Generator().manual_seed(3)
    low, high = {"continuous": (-1.0, 1.0), "binary": (0.0, 1.0), "count": (0.0, 9.0)}[kind]
    domain = Domain([0.0, 0.0], [1.0, 1.0], low, high, overlap=0.25, outcome_kind=kind)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.3 + 0.4 * x[:, 1]).double()
    y = low + (high - low) * torch.rand(N, generator=generator, dtype=torch.float64) ** (2 - a * x[:, 0])
    y = y if kind == "continuous" else y.round()
    return RLearner(domain, BUDGET, second_stage=AdaptiveSecondStage(**settings)).fit(x, a, y).release_function()


def of_arms(known: bool = False, kind: str = "continuous", **settings: object) -> ComposedRelease:
    """A release of three arms."""
    generator = torch.Generator().manual_seed(4)
    arms = {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"}
    covariates = {name: {"low": 0, "high": 1} for name in ("x0", "x1")}
    facts = {"treatment": arms, "outcome": {"name": "y", "low": 0, "high": 1, "kind": kind}, "covariates": covariates}
    facts |= {"propensity": [0.25, 0.25, 0.5]} if known else {"overlap": 0.1}
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = 1 + torch.multinomial(torch.tensor([0.5, 0.25, 0.25]), N, True, generator=generator).double()
    y = torch.rand(N, generator=generator, dtype=torch.float64) ** (2 - (a == 3) * x[:, 0])
    learner = RLearner(TableSchema.from_dict(facts), BUDGET, second_stage=AdaptiveSecondStage(**settings))
    return learner.fit(x, a, y if kind == "continuous" else y.round()).release_function()


def weighted(delta: float = 1e-5) -> ComposedRelease:
    """A release of a trial whose records have weights, and may lack an outcome."""
    generator = torch.Generator().manual_seed(5)
    facts = {"weights": {"name": "w", "high": 4}, "missing": {"outcome": "drop"}}
    domain = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0, propensity=0.5, **facts)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a, w = (torch.rand(2, N, generator=generator) < 0.5).double()
    y = (x[:, 0] - 0.5 + a * (x[:, 1] - 0.5)).masked_fill(torch.rand(N, generator=generator) < 0.1, torch.nan)
    return RLearner(domain, PrivacyBudget(1.0, delta)).fit(x, a, y, weight=1 + w).release_function()


def censored(delta: float = 1e-5, **facts: object) -> ComposedRelease:
    """A release of a trial with an outcome by a horizon, whose follow-up may end before."""
    generator = torch.Generator().manual_seed(7)
    outcome = {"time": "t", "event": "d", "horizon": 2.0, "kind": "event_by_horizon", "censoring": {"floor": 0.5}}
    known = facts or {"propensity": 0.5}
    domain = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0, outcome_kind="binary", censoring=outcome, **known)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.5).double()
    event, end = (-torch.rand(2, N, generator=generator, dtype=torch.float64).log()) * torch.tensor([[2.0], [5.0]])
    event = event * (1 + a * x[:, 0])
    both = torch.stack([torch.minimum(event, end), (event <= end).double()], 1)
    return RLearner(domain, PrivacyBudget(1.0, delta)).fit(x, a, both).release_function()


def with_units(known: bool = True) -> ComposedRelease:
    """A release with features of hidden units: a step along a direction of two covariates."""
    facts = {"propensity": 0.5} if known else {"overlap": 0.25}
    domain = Domain([-2.0] * 2, [2.0] * 2, -3.0, 3.0, **facts)
    generator, n = torch.Generator().manual_seed(8), 50_000
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64).clamp(-2, 2)
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = a * torch.tanh(4 * (x[:, 0] - x[:, 1])) + torch.rand(n, generator=generator, dtype=torch.float64)
    constants = PlanConstants(step_bounds=(10, 10))
    stage = AdaptiveSecondStage(constants=constants)
    found = RLearner(domain, PrivacyBudget(20.0, 1e-5), second_stage=stage).fit(x, a, y).release_function()
    assert found.basis.units is not None
    return found


class Silent:
    """A link to two sites that send nothing but zeros."""

    def agree(self, facts: object) -> None:
        pass

    def total(self, step: str, values: torch.Tensor) -> torch.Tensor:
        return values


OTHERS = {
    "sites": lambda: released(site=Site("a", dict.fromkeys("abc", N), Silent(), again=True)),
    "hidden units": with_units,
    "hidden units, estimated propensity": lambda: with_units(known=False),
    "arms": of_arms,
    "arms of a trial": lambda: of_arms(known=True),
    "arms, binary": lambda: of_arms(kind="binary"),
    "arms, one number": lambda: of_arms(constant_only=True),
    "censored": censored,
    "censored, estimated propensity": lambda: censored(overlap=0.25),
    "censored, pure": lambda: censored(delta=0.0),
    "weights": weighted,
    "weights, pure": lambda: weighted(delta=0.0),
    "estimated propensity, intervals": lambda: released(intervals=True),
    "binary": lambda: released(kind="binary"),
    "count": lambda: released(kind="count"),
}


class TestContract(PlanContract):
    made: ClassVar = {name: MADE[name] for name in MADE if name not in LEFT_OUT} | OTHERS
    default = ("censored",)
    untold = ("learner", "rule", "columns", "features")
    untold_in: ClassVar = dict.fromkeys(  # whose plan is that of one number anyway
        (
            *("small budget", "pure and constant", "binary", "arms, binary"),
            *("weights", "weights, pure", "censored", "censored, estimated propensity", "censored, pure"),
        ),
        ("constant_only",),
    )
    worked_out = ("theta", "feature_weights", "units.correlations", "units.mixed", "units.less", "units.shares")
    concludes = False


@pytest.mark.parametrize(("n", "epsilon"), [(5_000, 1_000.0), (4_000, 300.0), (19_000, 14.0)])
def test_few_records_train_no_hidden_units_however_large_the_budget_is(n, epsilon):
    plan = composed_plan(n, PrivacyBudget(epsilon, 1e-5), 8, hidden=True)
    assert plan.size >= 40_000
    assert not plan.units
    assert composed_plan(400_000, PrivacyBudget(epsilon, 1e-5), 8, hidden=True).units


@pytest.mark.parametrize(("n", "epsilon"), [(20_000, 20.0), (20_000, 1_000.0), (1_000_000, 1.0)])
def test_units_are_trained_by_no_more_than_sampling_leaves_of_their_gradients(n, epsilon):
    budget, of = PrivacyBudget(epsilon, 1e-5), of_kind("effect")["units"]
    shares, without = (composed_plan(n, budget, 8, hidden=units).shares.shares for units in (True, False))
    own = min(of["share"], of["noise"] / (n * total_mu(budget) ** 2))
    assert shares[EFFECT_UNITS] == pytest.approx(own * without["effect"], rel=1e-9)


def test_planned_noise_says_whether_hidden_units_are_trained():
    domain = Domain([0.0] * 8, [1.0] * 8, 0.0, 1.0)
    plans = [composed_plan(n, PrivacyBudget(1.0, 1e-6), 8, hidden=True) for n in (100_000, 1_000_000)]
    remarks = [planned_composition(plan, TableSchema.from_domain(domain)).remarks[0] for plan in plans]
    assert [remark.endswith("covariates, and hidden units for it") for remark in remarks] == [False, True]
