"""Scores against hand-computed records, the theory note's values and their bounds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchdpcate.causal.score import DRScore, RegressionScore, RScore
from torchdpcate.data.domain import Domain
from torchdpcate.nuisance.model import NuisanceValues

SCORES = [RScore(), DRScore()]


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


RECORD = (column(1.0), column(0.8), NuisanceValues(column(0.3), column(0.2), column(0.6)))


def test_r_score_of_the_theory_notes_record():
    a, y, values = RECORD
    score = RScore()
    assert score.rho(a, values.pi).item() == pytest.approx(0.49, abs=1e-15)
    assert pseudo_outcome(score, a, y, values).item() == pytest.approx(0.685714286, abs=1e-9)
    s, w = score.regression(a, y, values)
    assert s.item() == pytest.approx(0.48, abs=1e-15)
    assert w.item() == pytest.approx(0.7, abs=1e-15)


def pseudo_outcome(score, a, y, values):
    return score.rho_phi(a, y, values) / score.rho(a, values.pi)


def test_dr_score_of_the_theory_notes_record():
    a, y, values = RECORD
    assert pseudo_outcome(DRScore(), a, y, values).item() == pytest.approx(1.066666667, abs=1e-9)
    assert DRScore().rho(a, values.pi).item() == 1.0


def test_control_record_by_hand():
    # a = 0, pi = .25, y = 2, mu0 = 1.5, mu1 = 4: R phi = (y - mu0)/(0 - pi) + mu1 - mu0 = -2 + 2.5
    a, y = column(0.0), column(2.0)
    values = NuisanceValues(column(0.25), column(1.5), column(4.0))
    assert pseudo_outcome(RScore(), a, y, values).item() == pytest.approx(0.5, abs=1e-14)
    # DR phi = 2.5 - (y - mu0) / (1 - pi) = 2.5 - 2/3
    assert pseudo_outcome(DRScore(), a, y, values).item() == pytest.approx(2.5 - 2 / 3, abs=1e-14)


class TreatedScore(RegressionScore):
    """lambda = pi: the effect on the treated; only the two methods that the weight needs."""

    regression = bounds = None

    def weight(self, pi):
        return pi

    def derivative(self, pi):
        return torch.ones_like(pi)


def test_a_new_weight_needs_only_lambda_and_its_derivative():
    # lambda = pi gives rho = a, and for a control rho phi = -pi / (1 - pi) (y - mu0).
    values = NuisanceValues(column(0.25), column(1.5), column(4.0))
    assert TreatedScore().rho(column(0.0), values.pi).item() == 0.0
    assert TreatedScore().rho_phi(column(0.0), column(2.0), values).item() == pytest.approx(-0.5 / 3)


def test_the_general_form_of_r_agrees_with_its_own():
    pi, a = torch.linspace(0.05, 0.95, 19, dtype=torch.float64).repeat(2), column(*[0] * 19, *[1] * 19)
    general = RegressionScore.rho(RScore(), a, pi)
    torch.testing.assert_close(general, RScore().rho(a, pi), rtol=0, atol=1e-15)
    torch.testing.assert_close(RegressionScore.ratio(RScore(), pi), RScore().ratio(pi), rtol=1e-14, atol=0)


finite = st.floats(-1, 1)
unit = st.floats(0, 1)


@given(st.sampled_from(SCORES), st.floats(0.01, 0.45), st.sampled_from([0.0, 1.0]), unit, unit, unit, unit)
def test_bounds_hold_on_the_whole_domain(score, overlap, a, y, pi, mu0, mu1):
    domain = Domain([0.0], [1.0], -2.0, 3.0, overlap=overlap)
    pi, y, mu0, mu1 = overlap + (1 - 2 * overlap) * pi, *(5 * v - 2 for v in (y, mu0, mu1))
    values = NuisanceValues(column(pi), column(mu0), column(mu1))
    bounds = score.bounds(domain)
    for offset in (0.0, column(mu1 - mu0)):
        s, w = score.regression(column(a), column(y), values, offset)
        assert abs(w.item()) <= bounds.weight * (1 + 1e-12)
        assert abs(s.item()) <= bounds.target * (1 + 1e-12)
    assert score.rho(column(a), column(pi)).item() <= bounds.rho * (1 + 1e-12)
    assert abs(score.rho_phi(column(a), column(y), values).item()) <= bounds.rho_phi * (1 + 1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_bounds_are_attained(score):
    domain = Domain([0.0], [1.0], -2.0, 3.0, overlap=0.1)
    grid = torch.cartesian_prod(column(0, 1), column(-2, 3), column(0.1, 0.5, 0.9), column(-2, 3), column(-2, 3))
    a, y, pi, mu0, mu1 = grid.T
    s, w = score.regression(a, y, NuisanceValues(pi, mu0, mu1))
    bounds = score.bounds(domain)
    assert w.abs().max().item() == pytest.approx(bounds.weight, rel=1e-12)
    assert s.abs().max().item() == pytest.approx(bounds.target, rel=1e-12)


@given(st.sampled_from(SCORES), st.sampled_from([0.0, 1.0]), finite, st.floats(0.05, 0.95), finite, finite, finite)
def test_regression_is_the_weighted_loss(score, a, y, pi, mu0, mu1, g):
    """(s - w f)^2 = rho (phi - offset - f)^2 for f = g - offset, and rho (phi - g) is half its derivative."""
    values = NuisanceValues(column(pi), column(mu0), column(mu1))
    offset = column(mu1 - mu0)
    s, w = score.regression(column(a), column(y), values, offset)
    residual = s - w * (g - offset)
    rho, phi = score.rho(column(a), values.pi), pseudo_outcome(score, column(a), column(y), values)
    torch.testing.assert_close(residual**2, rho * (phi - g) ** 2, rtol=1e-9, atol=1e-10)
    product = score.rho_phi(column(a), column(y), values) - rho * g
    torch.testing.assert_close(w * residual, product, rtol=1e-9, atol=1e-10)
