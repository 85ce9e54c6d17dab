"""Root-polytope noise: the triangulation, the law of the draws, and what one record can do to a table.

Draws have fixed seeds; a right sampler fails one of these tests with a probability below 1e-6.
"""

import math

import pytest
import torch
from scipy.stats import chisquare, gamma, ks_2samp, kstest

from experiments.covariate_balancing.root_polytope import (
    RootPolytopeMechanism,
    TableEstimate,
    error_width,
    root_norm,
    root_polytope,
    root_simplices,
)
from torchdpcate.errors import InputError
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource, float_loss

ALARM = 1e-7


def draws(runs: int = 40_000, seed: int = 1) -> torch.Tensor:
    return root_polytope(NoiseSource.fixed(seed), runs, 1.0)


def points_of_k(count: int, seed: int = 0) -> torch.Tensor:
    cube = 2 * torch.rand(20 * count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    return cube[root_norm(cube) < 1][:count]


def by_signs_and_dirichlet(runs: int) -> torch.Tensor:
    """Another way to the same law: number of positives, their places, a uniform point of either corner simplex."""
    generator = torch.Generator().manual_seed(5)
    chances = torch.tensor([1.0, 16.0, 36.0, 16.0, 1.0])
    positives = torch.multinomial(chances, runs, replacement=True, generator=generator)
    places = torch.rand(runs, 4, generator=generator).argsort(1)
    rows = []
    for k, order in zip(positives.tolist(), places, strict=True):
        row = torch.zeros(4, dtype=torch.float64)
        for part, sign in ((order[:k], 1.0), (order[k:], -1.0)):
            weights = torch.empty(len(part) + 1, dtype=torch.float64).exponential_(generator=generator)
            row[part] = sign * (weights / weights.sum())[:-1]
        rows.append(row)
    lengths = torch.empty(runs, 5, dtype=torch.float64).exponential_(generator=generator).sum(1, keepdim=True)
    return torch.stack(rows) * lengths


def test_the_simplices_are_a_partition_of_k_into_equal_volumes():
    simplices = root_simplices()
    assert simplices.shape == (70, 4, 4)
    assert torch.linalg.det(simplices).abs().tolist() == [1.0] * 70
    assert root_norm(simplices).unique().tolist() == [1.0]
    # weights of the corners; a point lies in a simplex if they are positive and sum to less than 1
    weights = torch.einsum("pd,sdc->psc", points_of_k(500), torch.linalg.inv(simplices))
    inside = (weights > 0).all(2) & (weights.sum(2) < 1)
    assert inside.sum(1).tolist() == [1] * 500


def test_the_last_simplices_mirror_the_first():
    assert torch.equal(root_simplices().flip(0), -root_simplices())


def test_covariance():
    v = root_simplices()
    total = v.sum(1)
    exact = (v.mT @ v).mean(0) + (total[:, :, None] * total[:, None]).mean(0)
    expected = torch.full((4, 4), -1.2, dtype=torch.float64)
    expected.fill_diagonal_(4.8)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-12)
    # of a product of two entries the deviation is below 15
    torch.testing.assert_close(torch.cov(draws().T), expected, rtol=0, atol=6 * 15 / 200)


def test_signs_lengths_and_functionals():
    z = draws()
    counts = torch.bincount((z > 0).sum(1), minlength=5)
    assert chisquare(counts, len(z) * torch.tensor([1, 16, 36, 16, 1]).double() / 70).pvalue > ALARM
    assert kstest(root_norm(z), gamma(4).cdf).pvalue > ALARM
    other = by_signs_and_dirichlet(4_000)
    for direction in ([1.0, 0, 0, 0], [0, 0, 0, 1.0], [1.0, 1, 1, 1], [1.0, -1, 0, 0], [0.7, -0.3, -0.6, 0.4]):
        c = torch.tensor(direction, dtype=torch.float64)
        assert ks_2samp((z @ c).numpy(), (other @ c).numpy()).pvalue > ALARM, direction


def test_differences_of_records_lie_in_k():
    generator, bound = torch.Generator().manual_seed(0), 3.0
    w = bound * torch.rand(2, 1000, 1, generator=generator, dtype=torch.float64)
    w[:, :100] = bound
    y, z = (torch.rand(2, 1000, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    y, z = (y * 3 - 1).clamp(0, 1), (z > 0.5).double()
    one, other = w * torch.cat([z * y, z * (1 - y), (1 - z) * y, (1 - z) * (1 - y)], 2)
    moved = root_norm(one - other)
    assert moved.amax() <= bound * (1 + 1e-12)
    assert moved.amax() > 0.999 * bound
    assert (one - other).abs().sum(1).amax() > 1.99 * bound  # what Laplace noise must answer for


def test_the_mechanism_scales_with_the_bound_and_covers_rounding():
    mechanism = RootPolytopeMechanism(0.5, 10.0)
    assert mechanism.scale == 20.0
    assert mechanism.event == PureEvent(0.5)
    assert mechanism.released_scale(4) == pytest.approx(
        20.0 / (1 - (4 * 2.0**-20 + float_loss(4, math.inf)) * 2.0), rel=1e-12
    )
    value = torch.tensor([1e6, 2e6, 3e6, 4e6], dtype=torch.float64)
    outputs = mechanism.add_noise(value.expand(5000, 4), NoiseSource.fixed(2)) - value
    assert kstest(root_norm(outputs) / 20.0, gamma(4).cdf).pvalue > ALARM
    for settings in ((0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(InputError):
            RootPolytopeMechanism(*settings)
    with pytest.raises(InputError, match="for the 4 cells of a table"):
        mechanism.release(torch.zeros(3), NoiseSource.fixed(0))


def test_the_pair_of_an_arm_attains_the_claim():
    """Tables of a treated record of full weight with a high outcome, and of a control in its place."""
    mechanism = RootPolytopeMechanism(2.0, 1.0)
    tables = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    outputs = mechanism.add_noise(tables[0].expand(2000, -1), NoiseSource.fixed(0))
    near, far = (root_norm(outputs - table) for table in (tables[1], tables[0]))
    evidence = (far - near) / mechanism.scale
    assert evidence.abs().amax() <= 2.0 + 1e-9
    assert (evidence < -1.999).double().mean() > 0.2


@pytest.mark.first(2)
@pytest.mark.parametrize("c", [(1, 0, 0, 0), (0.5, -0.5, -0.5, 0.5), (1, 1, 1, 1), (1, -0.3, 0.5, 0), (1, -1, 0, 0)])
@pytest.mark.parametrize("s", [0.0, 0.7])
def test_root_polytope_parts_agree_with_draws(c, s):
    runs, noise = 400_000, NoiseSource.fixed(7)
    x = root_polytope(noise, runs, 1.0) @ torch.tensor(c, dtype=torch.float64)
    if s:
        x += noise.gaussian(runs, s)
    one, factors = torch.ones(1, dtype=torch.float64), torch.tensor([c], dtype=torch.float64)
    found = TableEstimate(one, s * one, one[:, None][:, :0], one < 0, one, {}, factors)
    for level in (0.5, 0.95):
        inside = (x.abs() <= error_width(level, found)).double().mean().item()
        # six deviations of a share of 400,000, and the little that is added
        assert inside == pytest.approx(level, abs=6 * math.sqrt(level * (1 - level) / runs) + 1e-4)
