"""The paper's certified fits: the note's numbers, neighbours that attain the bounds, and fits of another library."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from experiments.spillover.stable import (
    IndirectBound,
    StableFits,
    indirect_bound,
    logistic_fit,
    logistic_gradient_distance,
    logistic_norm,
    ridge_fit,
    ridge_gradient_distance,
    ridge_norm,
)
from torchdpcate.causal.score import dr_scores
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError

RIDGES = [50 / 21, 1.0, 0.3, 0.05]


def test_numbers_of_the_note():
    """Section 8: R_x = sqrt(21), lambda = 50, m = n = 1,500."""
    printed = indirect_bound(1500, 50.0, 0.1, radius=math.sqrt(21), localised=False)
    assert printed.beta_mu == pytest.approx(4.614607e-4, abs=5e-11)
    assert printed.beta_e == pytest.approx(1.4e-4, rel=1e-12)
    assert printed.rho == pytest.approx(0.019076068, abs=5e-10)
    assert printed.paper(1500) == pytest.approx(28.614102, abs=5e-7)
    assert printed.paper_range_sensitivity(1500) == pytest.approx(57.228204, abs=1e-6)
    assert printed.range_sensitivity(1500) == pytest.approx(27.200361, abs=5e-7)
    localised = indirect_bound(1500, 50.0, 0.1, radius=math.sqrt(21))
    assert localised.overlap == pytest.approx(0.452618, abs=1e-6)
    assert localised.residual == pytest.approx(0.5 + 21 / (2 * 71))
    assert localised.range_sensitivity(1500) == 2 * localised.own == pytest.approx(2.862845, abs=1e-6)
    # at equal propensities both arms' models count alike, so that two of them moving adds up
    assert IndirectBound(1.0, 0.9, 0.0, 0.5).indirect(1) == pytest.approx(1.8)


def widest(size, cosine):
    """Largest distance of two vectors, of these signed sizes along points of these cosines to an axis, on any side."""
    along, across = size * cosine, (size * (1 - cosine**2).clamp(min=0).sqrt()).abs()
    return ((along[:, None] - along) ** 2 + (across[:, None] + across) ** 2).max().sqrt().item()


@pytest.mark.parametrize("ridge", RIDGES)
def test_distances_of_gradients_are_those_of_the_disk(ridge):
    cosine = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    linear = widest(0.5 + ridge_norm(1.0, ridge) * cosine, cosine)
    assert linear == pytest.approx(ridge_gradient_distance(1.0, ridge), rel=1e-5)
    z = logistic_norm(1.0, ridge)
    logistic = widest(torch.sigmoid(z * cosine), cosine)
    assert logistic <= logistic_gradient_distance(1.0, ridge) * (1 + 1e-12)
    if z <= 1.5:
        assert logistic == pytest.approx(logistic_gradient_distance(1.0, ridge), rel=1e-5)


@pytest.mark.parametrize("ridge", [50 / 21, 0.3])
def test_neighbours_attain_the_bounds_and_never_pass_them(ridge):
    """Any two of many data sets that differ in record 0 are neighbours: the range over all of them is the worst."""
    m, bound = 100, indirect_bound(100, ridge, 0.1)
    angle = torch.arange(0, 2 * math.pi, 2 * math.pi / 30, dtype=torch.float64)
    circle, means, logits = torch.stack([angle.cos(), angle.sin()], 1), [], []
    place = torch.tensor([[min(1.0, math.sqrt(ridge)), 0.0]], dtype=torch.float64)
    for row in circle:
        for z, arm in ((-0.5, 0), (0.5, 0), (0.5, 1)):
            psi, outcomes = place.repeat(m, 1), torch.full((m,), 0.5, dtype=torch.float64)
            arms = torch.zeros(m, dtype=torch.long)
            psi[0], outcomes[0], arms[0] = row, z, arm
            means.append(ridge_fit(psi, outcomes, arms, ridge) @ circle.T)
            psi[1:] = torch.tensor([1.0, 0.0])
            logits.append(logistic_fit(psi, arms.double(), ridge) @ circle.T)
    moved = [torch.stack(part) for part in (means, logits)]
    assert 0.95 < (moved[0].amax(0) - moved[0].amin(0)).max() / bound.beta_mu <= 1
    e = moved[1].sigmoid()
    assert 0.95 < (e.amax(0) - e.amin(0)).max() / bound.beta_e <= 1


def test_fits_are_those_of_another_library():
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    psi /= psi.norm(dim=1, keepdim=True)
    z, arm = torch.rand(300, generator=generator, dtype=torch.float64) - 0.5, torch.randint(2, (300,))
    for a, found in enumerate(ridge_fit(psi, z, arm, 0.01)):
        own = arm == a
        other = Ridge(alpha=3.0, fit_intercept=False).fit(psi[own].numpy(), z[own].numpy())
        np.testing.assert_allclose(found.numpy(), other.coef_, rtol=1e-9)
    other = LogisticRegression(C=1 / 3, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(psi.numpy(), arm.numpy())
    np.testing.assert_allclose(logistic_fit(psi, arm.double(), 0.01).numpy(), other.coef_[0], atol=1e-6)


def drawn(n: int, seed: int) -> CausalData:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = torch.randint(2, (n,), generator=generator)
    return CausalData(x, a.double(), torch.rand(n, generator=generator, dtype=torch.float64))


def test_a_replaced_record_spreads_all_sums_within_the_certificate():
    """Worst policies of each pair of neighbours: every scoring record counts where the change is on one side."""
    stable = StableFits(Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0), 0.1, training=200, scoring=300)
    assert stable.bound.indirect(300) == pytest.approx(0.1 * 2 * stable.bound.own)
    score, worst = drawn(300, 1), 0.0
    for seed in range(20):
        train, scores = drawn(200, 0), []
        for corner in (0.0, 1.0):
            train.x[0], train.a[0], train.y[0] = torch.rand(2).round(), float(seed % 2), corner
            found = stable.fit(train)
            e = found.propensity(score.x)
            scores.append(dr_scores(score.a.long(), score.y, torch.stack([1 - e, e], 1), found.outcome(score.x)))
        moved = scores[1] - scores[0]
        worst = max(worst, float((moved.amax(1) - moved.amin(1)).sum()))
    assert 0.01 < worst / stable.bound.indirect(300) < 1
    with pytest.raises(InputError, match="ridge = 0"):
        StableFits(stable.domain, 0.1, 200, 300, 0.0)
