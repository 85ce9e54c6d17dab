import math

import pytest
import torch

from torchdpcate.release.meta_analysis import pool

BCG = [
    (4, 119, 11, 128),
    (6, 300, 29, 274),
    (3, 228, 11, 209),
    (62, 13536, 248, 12619),
    (33, 5036, 47, 5761),
    (180, 1361, 372, 1079),
    (8, 2537, 10, 619),
    (505, 87886, 499, 87892),
    (29, 7470, 45, 7232),
    (17, 1699, 65, 1600),
    (186, 50448, 141, 27197),
    (5, 2493, 3, 2338),
    (27, 16886, 29, 17825),
]
"""Thirteen trials of the BCG vaccine: cases and others among the vaccinated, cases and others of the controls."""
Y = torch.tensor([math.log(a * (c + d) / (c * (a + b))) for a, b, c, d in BCG], dtype=torch.float64)
V = torch.tensor([1 / a - 1 / (a + b) + 1 / c - 1 / (c + d) for a, b, c, d in BCG], dtype=torch.float64)


def test_restricted_likelihood_as_metafor_publishes_it() -> None:
    found = pool(Y, V)
    assert [round(float(x), 4) for x in (found.mean, found.error, found.tau2)] == [-0.7145, 0.1798, 0.3132]
    assert round(100 * found.i2.item(), 2) == 92.22
    assert round(found.q.item(), 2) == 152.23


def test_as_statsmodels() -> None:
    other = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects(Y.numpy(), V.numpy())
    found = pool(Y, V, between="fixed")
    assert found.mean.item() == pytest.approx(other.mean_effect_fe)
    assert found.error.item() == pytest.approx(other.sd_eff_w_fe)
    assert found.q.item() == pytest.approx(other.q)
    # Hartung and Knapp at the variance of ours: weights alone differ from its own
    given = pool(Y, V)
    weights = 1 / (V + given.tau2)
    spread = (weights * (Y - given.mean).square()).sum() / (12 * weights.sum())
    assert given.spread_error.item() == pytest.approx(spread.sqrt().item())


@pytest.mark.parametrize("ratio", [1, 16])
@pytest.mark.parametrize("sites", [3, 5, 8, 20])
@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_coverage_of_normal_estimates(sites: int, tau: float, ratio: int) -> None:
    """Of sites with one effect it is too much, since intervals are never narrower than the fixed one.

    Of a new site it would be .84 by tau^2 alone, of 20 that differ by .5.
    """
    variances = torch.logspace(0, math.log10(ratio), sites, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(3000, sites, generator=generator, dtype=torch.float64) * (variances + tau**2).sqrt()
    found = pool(y.T, variances[:, None].expand(-1, 3000))
    held = (found.mean.abs() <= found.half_width(0.95)).double().mean().item()
    assert 0.93 <= held <= (0.996 if sites == 3 else 0.985)
    new = tau * torch.randn(3000, generator=generator, dtype=torch.float64)
    assert ((new - found.mean).abs() <= found.new_half_width(0.95)).double().mean() > 0.9
    alone = found._student(0.95) * torch.hypot(found.tau2.sqrt(), found.deviation)
    assert (sites, tau, ratio) != (20, 0.5, 1) or ((new - found.mean).abs() <= alone).double().mean() < 0.88


def test_sites_of_very_unequal_size_that_differ() -> None:
    """Restricted likelihood often finds no variance between three such sites: weights by it alone cover .89."""
    generator = torch.Generator().manual_seed(2)
    log = torch.rand(3, 4000, generator=generator, dtype=torch.float64) - 0.5
    variances = (log * math.log(256)).exp()
    y = torch.randn(3, 4000, generator=generator, dtype=torch.float64) * (variances + 1).sqrt()
    found = pool(y, variances)
    assert (found.mean.abs() <= found.half_width(0.95)).double().mean() > 0.93


def test_what_a_new_site_may_have_of_equal_sites() -> None:
    """The closed form: restricted likelihood is the variance of the estimates less that of their errors."""
    y, v = torch.tensor([0.1, 0.4, 1.3, 0.2]).double(), torch.full((4,), 0.04).double()
    square = y.var().item()
    half = 3.182446 * (square - 0.04 + square / 4) ** 0.5
    assert pool(y, v).new_half_width(0.95).item() == pytest.approx(half, rel=1e-6)
    near = 0.5 + 0.1 * y  # they differ by no more than their errors: half their variance is counted
    found = pool(near, v)
    assert (found.tau2.item(), near.var().item() < 0.04) == (0, True)
    assert found.new_half_width(0.95).item() == pytest.approx(3.182446 * (0.02 + 0.01) ** 0.5, rel=1e-6)
    shared = pool(y, v, torch.full_like(v, 0.5)).new_half_width(0.95).item()
    assert shared == pytest.approx(math.hypot(half, 1.959964 * 0.5), rel=1e-6)
    assert pool(y[:2], v[:2]).new_half_width(0.95) == math.inf


def test_errors_that_sites_share_do_not_average_out() -> None:
    y, v = torch.zeros(20, 1).double(), torch.ones(20, 1).double()
    shared = torch.full_like(v, 0.5)
    alone, together = (pool(y, v, common, "fixed").half_width(0.95).item() for common in (None, shared))
    assert together == pytest.approx(math.hypot(alone, 1.959964 * 0.5), rel=1e-6)


def test_what_noise_dominates_says_nothing() -> None:
    inf = math.inf
    y = torch.tensor([[0.1, 5.0, 5.0], [0.3, 0.3, 5.0]], dtype=torch.float64)
    v = torch.tensor([[0.01, inf, inf], [0.02, 0.02, inf]], dtype=torch.float64)
    found = pool(y, v)
    assert pool(y, v, between="fixed").half_width(0.95)[2] == inf
    assert found.sites.tolist() == [2, 1, 0]
    assert found.mean.tolist()[1:] == pytest.approx([0.3, 0.0])
    assert found.half_width(0.95).tolist()[1:] == [inf, inf]
    assert pool(y, v, between="fixed").half_width(0.95)[1].item() == pytest.approx(1.959964 * 0.02**0.5)
