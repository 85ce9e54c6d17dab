"""The selector as a whole: blocks, budgets, refusals, and what it releases."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor

from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import FunctionPolicies, PolicyLibrary
from torchdpcate.data.checked import fingerprint
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.estimators.selection.worst_case import _selector
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.release.file import load_release
from torchdpcate.release.rule import SCORING

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], outcome_low=-0.5, outcome_high=0.5, overlap=0.1, better="higher")
BUDGET = PrivacyBudget(4.0, 0.0)
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.25, 0.5, 0.75])]


def records(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Treat where x0 > 1/2: gains and losses of 0.4, treated by a fair coin."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=random, dtype=torch.float64) * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
    a = torch.rand(n, generator=random).lt(0.5).long()
    y = (0.4 * a * (2 * (x[:, 0] > 0.5) - 1) + 0.1 * torch.randn(n, generator=random)).clamp(-0.5, 0.5)
    return x, a, y.double()


def selector(**settings) -> PolicySelector:
    own = {} if "nuisance" in settings else {"nuisance_guarantee": "fixed"}
    return PolicySelector(DOMAIN, BUDGET, **{"policies": POLICIES, **own, **settings})


def test_the_best_policy_is_chosen_and_paid_once():
    chosen = selector().fit(*records(8000))
    release = chosen.release()
    # its utility is ahead by hundreds of scales: any other choice has probability below e^-20
    assert release.name == "x0 > 0.5"
    assert release.decide([[0.2, 0.0], [0.8, 0.0]]).tolist() == [0, 1]
    assert release.privacy.level == "certified"
    assert release.privacy.epsilon == pytest.approx(4.0)
    assert release.privacy.delta == 0
    assert set(chosen.blocks_) == {entry.block for entry in chosen.ledger_.entries} == {SCORING}
    assert chosen.release() is release


def test_spread_of_constant_nuisances():
    fixed = PolicySelector(DOMAIN, BUDGET, policies=POLICIES, nuisance_guarantee="fixed").fit(*records(100))
    assert fixed.range_sensitivity_ == pytest.approx(2.0, abs=1e-9)


def test_the_declared_pair_attains_the_spread_and_no_searched_one_passes_it():
    before, after = (_selector(dataset) for dataset in (0, 1))
    move = after.utilities_ - before.utilities_
    assert (move.max() - move.min()).item() == pytest.approx(before.range_sensitivity_, rel=1e-9)
    assert before.range_sensitivity_ == after.range_sensitivity_
    x, a, y = records(40, seed=3)
    policies = [Constants([0, 1]), Thresholds(["x0", "x1"], [0.3, 0.6])]
    random, worst = np.random.default_rng(0), 0.0
    fit = lambda x, a, y: PolicySelector(DOMAIN, None, policies=policies, nuisance_guarantee="fixed").fit(x, a, y)  # noqa: E731
    base = fit(x, a, y)
    for _ in range(100):
        x2, a2, y2 = x.clone(), a.clone(), y.clone()
        x2[0] = torch.tensor(random.uniform([0, -1], [1, 1]))
        a2[0], y2[0] = int(random.integers(2)), random.choice([-0.5, 0.5, random.uniform(-0.5, 0.5)])
        move = fit(x2, a2, y2).utilities_ - base.utilities_
        worst = max(worst, (move.max() - move.min()).item())
    assert 0.5 * base.range_sensitivity_ < worst <= base.range_sensitivity_


def test_learned_scores_without_a_certificate_are_refused_in_two_lines():
    for nuisance in (HistGradientBoostingRegressor(), NuisanceConfig(width=0, batch_size=50, epochs=1)):
        with pytest.raises(InputError, match="double robustness is none") as refusal:
            selector(nuisance=nuisance).fit(*records(100))
        assert len(str(refusal.value).splitlines()) == 2
    with pytest.raises(InputError, match="nuisance_guarantee = centred: FixedNuisances has the guarantee fixed"):
        selector(nuisance=FixedNuisances(), nuisance_guarantee="centred").fit(*records(100))
    with pytest.raises(InputError, match="choose one of auto, centred, composed, fixed"):
        selector(nuisance_guarantee="hope").fit(*records(100))


def test_policies_made_from_these_records_are_refused():
    x, a, y = records(200)
    own = fingerprint(x, a, y)
    with pytest.raises(InputError, match="policies: made from these very records"):
        selector(policies=[Thresholds("x0", [0.4, 0.5], fitted_on=own)]).fit(x, a, y)
    selector(policies=[Thresholds("x0", [0.4, 0.5], fitted_on=own)]).fit(*records(200, seed=1))
    y[::10] = torch.nan
    domain = Domain([0.0, -1.0], [1.0, 1.0], -0.5, 0.5, missing={"outcome": "drop"}, propensity=0.5, better="higher")
    policies = [Thresholds("x0", [0.4, 0.5], fitted_on=fingerprint(x, a, y))]
    with pytest.raises(InputError, match="policies: made from these very records"):
        PolicySelector(domain, PrivacyBudget(1.0, 1e-5), policies=policies).fit(x, a, y)


def test_without_a_budget_nothing_is_released_and_seeds_do_not_decide_the_noise():
    with pytest.raises(InputError, match="without privacy"):
        PolicySelector(DOMAIN, None, policies=POLICIES).fit(*records(200)).release()
    with pytest.raises(InputError, match="not fitted"):
        selector().release()
    weak = PolicySelector(DOMAIN, PrivacyBudget(1e-3, 0.0), policies=POLICIES, nuisance_guarantee="fixed")
    names = {clone(weak).fit(*records(100)).release().name for _ in range(40)}
    assert len(names) > 1  # all forty alike: below 5 * 0.21^39


def test_a_function_policy_is_released_by_its_path(tmp_path):
    policies = PolicyLibrary.of([FunctionPolicies([upper_half]), Constants([0])])
    release = selector(policies=policies, nuisance_guarantee="fixed").fit(*records(2000)).release()
    assert release.privacy.level == "conditional"
    assert "row by row" in release.privacy.to_markdown()
    loaded = load_release(release.save(tmp_path / "release.safetensors"))
    with pytest.raises(InputError, match="bind"):
        loaded.decide([[0.9, 0.0]])
    assert loaded.bind(upper_half).decide([[0.9, 0.0], [0.1, 0.0]]).tolist() == [1, 0]


def upper_half(x):
    return x[:, 0] > 0.5


def test_copies_spend_one_budget():
    chosen = selector(nuisance_guarantee="fixed").fit(*records(400))
    other = copy.deepcopy(chosen)
    chosen.release()
    with pytest.raises(InputError, match="left"):
        other.release()
    with pytest.raises(TypeError, match="ledger_path"):
        pickle.dumps(chosen)


def test_the_spread_holds_the_rounding_of_scores_and_their_last_places():
    """Two roundings of two policies are two steps, which leave nothing for what float64 is off by in the scores."""
    largest = DOMAIN.outcome_range * (0.5 + 1 / DOMAIN.overlap)
    for n in (8, 100):
        chosen = selector(nuisance_guarantee="fixed").fit(*records(n))
        margin = chosen.range_sensitivity_ - chosen.guaranteed_.range_sensitivity - 2 * sum_grid(n, largest)
        assert margin >= 2.0**-48 * largest
