"""Weights that need no fit, what all schemes share, and why weights are neither normalised nor the same for both arms.

Numbers are those of the theory note ``policy_learning``, section 8, unless said otherwise.
"""

import pytest
import torch

from tests.nuisance.weights.cases import DOMAIN, confounded, omega, unpaid, with_first
from tests.sessions import noted
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.private_fit import WeightBounds
from torchdpcate.errors import InputError
from torchdpcate.nuisance.weights.balancing import LogisticWeights, TiltingWeights
from torchdpcate.nuisance.weights.mmd import MMDWeights
from torchdpcate.nuisance.weights.private import PrivateWeights
from torchdpcate.nuisance.weights.scheme import WEIGHTS, ConstantWeights, FittedWeights, KnownWeights, WeightScheme
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource

SCHEMES = [KnownWeights(0.4), *(WEIGHTS.make(name, WeightScheme) for name in WEIGHTS if name != "known")]
COLUMN = Domain([0.1, 0.0], [0.8, 1.0], -1.0, 1.0, overlap=0.2, names=["p", "z"])


def fitted(scheme, records, domain=DOMAIN):
    return scheme.fit(records, domain, budget=None, session=noted(NoiseSource.fixed(0), unpaid))


def test_a_trial_has_the_sensitivity_of_its_rarer_arm():
    assert KnownWeights(0.3).bounds(400, DOMAIN).first == pytest.approx(3.333333, abs=1e-6)
    assert KnownWeights(0.7).bounds(400, DOMAIN).first == pytest.approx(10 / 3)
    assert KnownWeights(0.3).bounds(400, DOMAIN).own


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


def test_known_weights_are_inverse_propensities():
    records = CausalData(
        torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.8, 1.0]]), torch.tensor([1.0, 0.0, 1.0]), torch.ones(3)
    )
    by_column = fitted(KnownWeights("p"), records, COLUMN)
    assert by_column.weights(records).tolist() == pytest.approx([1.0, 0.5 / 0.8, 0.5 / 0.8])
    assert by_column.propensity(records.x).tolist() == pytest.approx([0.5, 0.2, 0.8])  # 0.1 clipped to the overlap
    assert by_column.bounds.most == pytest.approx(0.5 / 0.2)
    by_number = fitted(KnownWeights(0.3), records, COLUMN)
    assert by_number.weights(records).tolist() == pytest.approx([0.5 / 0.3, 0.5 / 0.7, 0.5 / 0.3])
    assert by_number.propensity(records.x).tolist() == [0.3] * 3


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
    w1, w0 = (omega(KnownWeights(pi), record).item() for record in (treated, not_treated))
    assert pi * w1 * mu1 - (1 - pi) * w0 * mu0 == pytest.approx((mu1 - mu0) / 2)
    universal = pi * w1 * mu1 - (1 - pi) * w1 * mu0
    assert universal == pytest.approx((pi * mu1 - (1 - pi) * mu0) / (2 * pi))
    assert universal > 0 > mu1 - mu0  # it treats whom treatment harms


def test_noise_multipliers():
    """W1 / (share of epsilon) at epsilon = 1, weights about one, least propensity 1/4; section 4.4 ends with 7, 15."""
    private = PrivateWeights(budget_fraction=0.25)
    multipliers = {
        "unweighted": ConstantWeights().bounds(400, DOMAIN).first,
        "known": KnownWeights(0.25).bounds(400, DOMAIN).first,
        "private": private.bounds(400, DOMAIN).first / (1 - private.budget_fraction),
        "ipw, rho = 1": LogisticWeights(1.0).bounds(400, DOMAIN).first,
        "ipw, rho = 0.1": LogisticWeights(0.1).bounds(400, DOMAIN).first,
    }
    assert list(multipliers.values()) == pytest.approx([2, 4, 5.3, 2.9, 6.5], abs=0.05)


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


@pytest.mark.parametrize("scheme", [KnownWeights(0.4), ConstantWeights()], ids=lambda scheme: scheme.name)
def test_weights_without_a_fit_do_not_spill(scheme):
    records = confounded(50, 1)[0]
    assert torch.equal(omega(scheme, records)[1:], omega(scheme, with_first(records, 1.0, 0.0))[1:])


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


@pytest.mark.parametrize("value", [0.0, 1.0, -0.3, float("nan")])
def test_a_propensity_outside_its_range_is_refused(value):
    with pytest.raises(InputError, match="propensity = "):
        KnownWeights(value)


def test_a_column_must_be_there_and_lie_strictly_inside():
    with pytest.raises(InputError, match="no such covariate; choose one of p, z"):
        KnownWeights("q").check(10, COLUMN, None)
    with pytest.raises(InputError, match=r"public bounds \[0, 1\] must lie strictly between 0 and 1"):
        KnownWeights("z").check(10, COLUMN, None)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="choose one of constant, entropy, ipw, known, mmd, private"):
        WEIGHTS.make("nearest", WeightScheme)


@pytest.mark.parametrize("scheme", [LogisticWeights(), TiltingWeights(), MMDWeights()], ids=lambda s: s.name)
def test_balancing_weights_belong_to_their_records(scheme):
    records, domain = confounded(30, 1)
    known = fitted(scheme, records, domain)
    assert torch.equal(known.weights(records.subset(torch.arange(30))), known.weights(records))
    assert known.propensity(records.x) is None  # nobody paid for it
    with pytest.raises(InputError, match="other records than the 30"):
        known.weights(with_first(records, 0.0, 1.0 - records.a[0].item()))


@pytest.mark.parametrize("make", [LogisticWeights, TiltingWeights, MMDWeights], ids=lambda make: make.name)
def test_a_first_stage_without_ridge_has_no_certificate(make):
    with pytest.raises(InputError, match=r"weights.ridge = 0"):
        make(ridge=0.0)


@pytest.mark.parametrize("make", [LogisticWeights, TiltingWeights, MMDWeights], ids=lambda make: make.name)
def test_a_spill_is_never_said_to_exceed_what_there_is_to_move(make):
    scheme = make(ridge=1e-9)
    least, most = scheme.span(DOMAIN)
    assert scheme.bounds(5, DOMAIN).indirect == pytest.approx(4 * (most - least))


@pytest.mark.parametrize("scheme", [LogisticWeights(1.0), TiltingWeights(1.0)], ids=lambda scheme: scheme.name)
def test_a_statement_has_the_bounds_of_its_weights(scheme):
    records, domain = confounded(200, 2)
    known = fitted(scheme, records, domain)
    assert type(scheme).restated(known.public, 200, domain) == (known.bounds, known.public)
    assert known.bounds.most < 2.8
