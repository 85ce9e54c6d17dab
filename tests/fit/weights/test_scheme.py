"""Weights that need no fit, what all schemes share, and why weights are neither normalised nor the same for both arms.

Numbers are those of the theory note ``policy_learning``, section 8, unless said otherwise.
"""

import pytest
import torch

from tests.experiments.dp_2erm.cases import DOMAIN, confounded, omega, unpaid, with_first
from tests.sessions import noted
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.fit.weights import WEIGHTS, ConstantWeights, FittedWeights, KnownWeights, PrivateWeights, WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource

SCHEMES = [WEIGHTS.make(name, WeightScheme) for name in WEIGHTS if name != "known"]


def trial(propensity: float) -> Domain:
    return Domain.from_dict(DOMAIN.to_dict() | {"overlap": 0.1, "propensity": propensity})


def fitted(scheme, records, domain=DOMAIN):
    return scheme.fit(records, domain, budget=None, session=noted(NoiseSource.fixed(0), unpaid))


def test_a_trial_has_the_sensitivity_of_its_rarer_arm():
    for rarer in (0.3, 0.7):
        bounds = KnownWeights().bounds(400, trial(rarer))
        assert bounds.first == pytest.approx(10 / 3)
        assert bounds.own


def test_weights_that_sum_to_n_would_spill():
    """Exact supremum over how many are treated and which arm the record has and gets."""

    def weights(treated: int) -> tuple[float, float]:
        share = 400 / (treated / 0.3 + (400 - treated) / 0.7)
        return share / 0.7, share / 0.3

    def first(others: int, a: int, b: int) -> float:
        before, after = weights(others + a), weights(others + b)
        others_moved = (399 - others) * abs(before[0] - after[0]) + others * abs(before[1] - after[1])
        return others_moved + before[a] + after[b]

    arms = ((0, 0), (0, 1), (1, 0), (1, 1))
    assert max(first(k, *pair) for k in range(400) for pair in arms) == pytest.approx(4.651163, abs=1e-6)


def test_equal_weights_know_no_propensity():
    records, domain = confounded(20, 2)
    equal = fitted(ConstantWeights(), records, domain)
    assert equal.weights(records).tolist() == [1.0] * 20
    assert equal.propensity(records.x) is None
    assert equal.bounds == WeightBounds(1.0, 2.0, 1.0, own=True)


def test_own_arm_weights_find_the_contrast_and_one_arms_weights_for_all_do_not():
    """E[omega (2a - 1) y | x] is half the effect; 1 / pi(1|x) for everybody gives pi mu1 - (1 - pi) mu0 over pi."""
    pi, mu0, mu1 = 0.8, 1.0, 0.5
    treated, not_treated = (CausalData(torch.zeros(1, 1), torch.tensor([a]), torch.zeros(1)) for a in (1.0, 0.0))
    w1, w0 = (omega(KnownWeights(), record, trial(pi)).item() for record in (treated, not_treated))
    assert pi * w1 * mu1 - (1 - pi) * w0 * mu0 == pytest.approx((mu1 - mu0) / 2)
    universal = pi * w1 * mu1 - (1 - pi) * w1 * mu0
    assert universal == pytest.approx((pi * mu1 - (1 - pi) * mu0) / (2 * pi))
    assert universal > 0 > mu1 - mu0  # it treats whom treatment harms


def test_noise_multipliers():
    """W1 / (share of epsilon) at epsilon = 1, weights about one, least propensity 1/4; section 4.4 ends with 7, 15."""
    private = PrivateWeights(budget_fraction=0.25)
    multipliers = {
        "unweighted": ConstantWeights().bounds(400, DOMAIN).first,
        "known": KnownWeights().bounds(400, trial(0.25)).first,
        "private": private.bounds(400, DOMAIN).first / (1 - private.budget_fraction),
    }
    assert list(multipliers.values()) == pytest.approx([2, 4, 5.3], abs=0.05)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_scheme_keeps_its_bounds(scheme):
    records, domain = confounded(200, 2)
    known = fitted(scheme, records, domain)
    w, before = known.weights(records), scheme.bounds(200, domain)
    assert w.dtype == torch.float64
    assert w.shape == (200,)
    assert w.min() >= 0
    assert w.max() <= known.bounds.most <= before.most
    assert known.bounds.first <= before.first
    assert known.bounds.second <= before.second
    assert 0.5 < w.mean() < 1.5
    assert scheme.level is Level.CERTIFIED


@pytest.mark.parametrize("scheme", [KnownWeights(), ConstantWeights()], ids=lambda scheme: scheme.name)
def test_weights_without_a_fit_do_not_spill(scheme):
    records, domain = confounded(50, 1)[0], trial(0.4)
    assert torch.equal(omega(scheme, records, domain)[1:], omega(scheme, with_first(records, 1.0, 0.0), domain)[1:])


class Wild(FittedWeights):
    """Somebody's own weights."""

    def _omega(self, records):
        return records.y


@pytest.mark.parametrize("value", [-0.1, 2.1, float("nan")])
def test_weights_outside_their_bound_are_refused(value):
    weights = Wild(WeightBounds.per_record(2.0), {})
    y = torch.tensor([1.0, value, 2.0])
    with pytest.raises(InputError, match=r"1 of 3 lie outside \[0, 2\]"):
        weights.weights(CausalData(y[:, None], y, y))


REFUSED = {
    "told by nobody": (
        lambda: KnownWeights().check(3, DOMAIN, None),
        r"not known; give propensity: 0.5 in the domain .* or weights=private",
    ),
    "unknown name": (
        lambda: WEIGHTS.make("nearest", WeightScheme),
        "choose one of constant, known, private",
    ),
    "ridge too small for the budget": (
        lambda: PrivateWeights(ridge=0.1).check(100, DOMAIN, PrivacyBudget(0.1, 0.0)),
        r"ridge = 0.1: .* raise weights.budget_fraction",
    ),
    "no budget for the fit": (lambda: PrivateWeights(budget_fraction=0.0), "weights.budget_fraction = "),
    "nothing but the fit": (lambda: PrivateWeights(budget_fraction=1.0), "weights.budget_fraction = "),
    "negative ridge": (lambda: PrivateWeights(ridge=-1.0), "weights.ridge = "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_and_the_ways(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make()
