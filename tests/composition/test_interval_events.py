"""Sensitivities of the interval steps: worst pairs of records reach them, and none goes beyond."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.composition.cases import rows
from torchdpcate.composition.interval_events import (
    Correction,
    Counts,
    Matrix,
    counts_sensitivity,
    interval_plan,
    matrix_sensitivity,
    overlaps,
    private_correction,
    private_counts,
    private_matrix,
)
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.composition.steps import CORRECTION, NoisySteps, Shares
from torchdpcate.data.domain import Domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

BOUNDS = (0.3, 0.6)
EXACT = NoisySteps(FitSession(NoiseSource.fixed(0)), Shares(math.inf, {}))
_MANY = 400
NORMAL = 0.769
"""Deviations of normal residuals at the quantile that S is planned to be, about."""


def records(psi: Tensor, residual: Tensor, a: Tensor, pi: Tensor) -> InMemory:
    return rows(psi, residual, a - pi, pi)


def as_they_are(z: Tensor) -> Tensor:
    return z


FACTS = as_they_are, BOUNDS
ZERO = torch.zeros(3).double()


def drawn(n: int, seed: int, bounds: tuple[float, float] = BOUNDS) -> InMemory:
    """Records over everything that a record may be, corners among them."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    psi = torch.randn(n, 3, generator=generator, dtype=torch.float64) * 4 * uniform(n, 1)
    psi[:, 0] = 0.05
    pi = torch.where(uniform(n) < 0.5, bounds[0] + (bounds[1] - bounds[0]) * uniform(n), bounds[0])
    pi = torch.where(uniform(n) < 0.3, bounds[1], pi)
    return records(psi, 20 * (uniform(n) - 0.5) * uniform(n), (uniform(n) < 0.5).double(), pi)


def moved(statistic: Callable[[InMemory], Tensor]) -> float:
    """Largest distance that was found between the sums of two single records."""
    sets = (drawn(_MANY, seed) for seed in (1, 2))
    one, other = (torch.stack([statistic(single(of, i)) for i in range(_MANY)]) for of in sets)
    return float(torch.cdist(one, other).max())


def single(of: InMemory, i: int) -> InMemory:
    return InMemory(of.records.subset(torch.tensor([i])))


def frobenius(m: Tensor) -> Tensor:
    row, column = torch.triu_indices(len(m), len(m))
    return m[row, column] * torch.where(row == column, 1.0, math.sqrt(2))


def test_the_matrix_moves_by_its_sensitivity_and_no_more() -> None:
    def statistic(of: InMemory) -> Tensor:
        return frobenius(private_matrix(of, Matrix(*FACTS, 2.0, 3), EXACT))

    sensitivity = matrix_sensitivity(BOUNDS, 2.0)
    assert moved(statistic) <= sensitivity
    half = torch.tensor([0.5], dtype=torch.float64)
    pair = [records(torch.tensor([row]).double(), half, half, half) for row in ([0.0, 3.0, 0.0], [0.0, 0.0, 5.0])]
    assert float((statistic(pair[0]) - statistic(pair[1])).norm()) == pytest.approx(sensitivity)


def test_counts_move_by_their_sensitivity_and_no_more() -> None:
    low, high = overlaps(BOUNDS)

    def statistic(of: InMemory) -> Tensor:
        kappa, pull, h = private_counts(of, Counts(*FACTS, ZERO, 1.0), EXACT)
        return torch.stack([kappa * h / 0.7**2, pull, (h - low) / (high - low)])

    assert moved(statistic) <= counts_sensitivity(BOUNDS) == pytest.approx(math.sqrt(3))
    psi, pi = torch.ones(1, 3).double(), torch.tensor([0.5]).double()
    inside = records(psi, torch.zeros(1).double(), torch.ones(1).double(), torch.tensor([0.3]).double())
    outside = records(psi, torch.tensor([9.0]).double(), torch.ones(1).double(), torch.tensor([0.3]).double())
    assert float((statistic(inside) - statistic(outside))[:2].norm()) == pytest.approx(math.sqrt(2))
    balanced = records(psi, torch.zeros(1).double(), pi, pi)
    assert float((statistic(balanced) - statistic(outside))[1:].norm()) == pytest.approx(math.sqrt(2), rel=0.01)


def test_the_correction_moves_by_one_and_no_more() -> None:
    def statistic(of: InMemory) -> Tensor:
        found = private_correction(of, Correction(*FACTS, ZERO, 2.0), EXACT)
        return torch.stack([found[0] / 2, math.sqrt(0.65) * found[1]])

    assert moved(statistic) <= 1
    d = torch.linspace(0, 2, 200_001, dtype=torch.float64)
    joint = d.square() / 4 + 0.65 * d.square() * (2 - d).square()
    assert joint.max() <= 1
    assert joint.max() == pytest.approx(1)


@pytest.mark.parametrize(("kind", "scale"), [("binary", 1.0), ("continuous", 0.9), ("continuous", 0.05)])
def test_residuals_spread_no_further_than_outcomes(kind: str, scale: float) -> None:
    """4 S over the normal quantile is 5.2 times the range of a binary outcome, whose S is that range."""
    domain = Domain([0.0], [1.0], 0.0, 1.0, propensity=0.5, outcome_kind=kind)
    plan = AdaptiveSecondStage().plan(2000, PrivacyBudget(1.0, 1e-5), domain)
    facts = interval_plan(plan.effect().basis, scale, (0.5, 0.5), domain.outcome_range, plan)
    assert facts.spread == pytest.approx(min(plan.interval_spread * scale / NORMAL, 1.0), rel=0.2)
    assert facts.spread <= domain.outcome_range
    assert facts.correction_noise <= facts.spread / plan.shares.of(CORRECTION) * 1.001


@pytest.mark.slow
def test_noise_of_the_steps_is_what_the_law_counts_on() -> None:
    share = {f"interval {name}": 0.25 for name in ("matrix", "counts", "correction", "average")}
    steps = NoisySteps(FitSession(NoiseSource.fixed(4)), Shares(0.5, share))
    of = drawn(100, 5)
    runs = 1000
    noisy = torch.stack([private_matrix(of, Matrix(*FACTS, 2.0, 3), steps) for _ in range(runs)])
    sd = steps.scale("interval matrix", matrix_sensitivity(BOUNDS, 2.0)) / 100
    error = 6 * (2 * runs) ** -0.5
    assert noisy.std(0)[1, 1] == pytest.approx(sd, rel=error)
    assert noisy.std(0)[0, 2] == pytest.approx(sd / math.sqrt(2), rel=error)
    assert torch.equal(noisy, noisy.transpose(1, 2))
    sums = torch.stack([private_correction(of, Correction(*FACTS, ZERO, 2.0), steps)[0] for _ in range(runs)])
    assert sums.std() * 0.7 * 2 == pytest.approx(steps.scale("interval correction", 2 * 0.7 * 2.0), rel=error)
