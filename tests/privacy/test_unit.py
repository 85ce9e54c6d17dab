import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from torchdpcate.data.assignment import Pairs
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.worst_case import centred_sums_game
from torchdpcate.privacy.accounting import compose, privacy_curve
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import DPSGDEvent, GaussianEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.unit import RECORD, PrivacyUnit, _person

BUDGETS = [PrivacyBudget(1.0, 1e-5), PrivacyBudget(0.1, 1e-6), PrivacyBudget(4.0, 1e-5)]
KS = [2, 3, 5, 10, 100]


def test_the_budget_of_a_record_is_the_formula() -> None:
    own = PrivacyUnit.person("id", 2).record_budget(PrivacyBudget(1.0, 1e-5))
    assert (own.epsilon, own.delta) == (pytest.approx(0.5), pytest.approx(3.7754e-06, rel=1e-4))
    assert RECORD.record_budget(BUDGETS[0]) is BUDGETS[0]
    assert PrivacyUnit.person("id", 3).record_budget(PrivacyBudget(1.0, 0.0)).delta == 0


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("k", KS)
def test_cost_is_the_inverse_and_never_more(budget: PrivacyBudget, k: int) -> None:
    unit = PrivacyUnit.person("id", k)
    own = unit.record_budget(budget)
    epsilon, delta = unit.cost(own.epsilon, own.delta)
    assert budget.epsilon * (1 - 1e-9) < epsilon <= budget.epsilon
    assert budget.delta * (1 - 1e-9) < delta <= budget.delta
    assert delta == pytest.approx(own.delta * sum(math.exp(j * own.epsilon) for j in range(k)), rel=1e-9)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("k", KS)
def test_k_gaussian_records_keep_the_budget_with_little_to_spare(budget: PrivacyBudget, k: int) -> None:
    own = PrivacyUnit.person("id", k).record_budget(budget)
    sigma = analytic_gaussian_sigma(own.epsilon, own.delta)
    curve = privacy_curve([(GaussianEvent(sigma / k), 1)], [budget.epsilon])
    assert curve[0] <= budget.delta
    assert 1 <= sigma / (k * analytic_gaussian_sigma(budget.epsilon, budget.delta)) < 1.04


@pytest.mark.parametrize("k", [2, 4])
def test_a_subsampled_step_that_may_hold_any_of_the_records_keeps_the_bound(k: int) -> None:
    sigma, rate, delta = 0.8, 0.1, 1e-4
    epsilon = compose([(DPSGDEvent(sigma, rate), 1)], delta)
    bound, lost = PrivacyUnit.person("id", k).cost(epsilon, delta)
    x = np.linspace(-30, 30, 60_001)
    chances = binom.pmf(np.arange(k + 1), k, rate)
    p, q = (sum(w * norm.pdf(x, s * j, sigma) for j, w in enumerate(chances)) for s in (1, -1))
    assert np.trapezoid(np.maximum(p - math.exp(bound) * q, 0), x) <= lost
    assert np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x) > delta  # the bound of one record is broken


def test_the_declared_pair_is_as_far_apart_as_a_person_can_be() -> None:
    game = _person(PrivacyBudget(1.0, 1e-5))
    draws = [game.draw(dataset, 20_000, NoiseSource.fixed(dataset)).mean().item() for dataset in (0, 1)]
    own = PrivacyUnit.person("p", 4).record_budget(PrivacyBudget(1.0, 1e-5))
    error = analytic_gaussian_sigma(own.epsilon, own.delta) * math.sqrt(2 / 20_000)
    assert draws[1] - draws[0] == pytest.approx(4.0, abs=6 * error)


def test_ledger_and_session_name_the_unit(tmp_path) -> None:
    unit, budget = PrivacyUnit.person("id", 3), PrivacyBudget(0.5, 1e-6)
    session = FitSession.open({"records": 30}, budget, NoiseSource.system(), tmp_path / "l.sqlite", unit=unit)
    assert session.charging(["records"], "x").unit == unit
    assert Ledger.load(tmp_path / "l.sqlite").unit == unit
    with pytest.raises(InputError, match="unit"):
        Ledger({"records": budget}, tmp_path / "l.sqlite")


def test_units_are_read_back_and_others_refused() -> None:
    for unit in (RECORD, PrivacyUnit.person("id", 3), Pairs("eye").unit):
        assert PrivacyUnit.from_dict(unit.to_dict()) == unit
    bare, more = {"column": "id"}, {"column": "id", "records": 1, "pair": 2}
    for stated in (bare, {**bare, "records": 0}, {"column": 3, "records": 1}, {"records": 2.0}, more):
        with pytest.raises(InputError):
            PrivacyUnit.from_dict(stated)
    with pytest.raises(InputError, match="leave delta = 0 by record"):
        PrivacyUnit.person("id", 2).record_budget(PrivacyBudget(3000.0, 1e-5))


@pytest.mark.parametrize("k", [2, 3])
def test_replacing_all_records_of_a_person_keeps_her_budget_and_breaks_that_of_a_record(k: int) -> None:
    """Three sums of an average effect, each scaled by those before it; exact log-likelihood ratios of releases."""
    own = PrivacyUnit.person("id", k).record_budget(PrivacyBudget(1.5, 0.0))
    game = centred_sums_game(own, replaced=k)
    ratios = [game.evidence(game.draw(dataset, 20_000, NoiseSource.fixed(dataset))) for dataset in (0, 1)]
    most = max(ratio.abs().max().item() for ratio in ratios)
    assert own.epsilon < most <= 1.5
