"""Norms of minimisers and distances of gradients: attained, by brute force over the disk and by extreme data sets."""

import math

import pytest
import torch

from torchdpcate.errors import InputError
from torchdpcate.fit.arms.linear_fits import CoefficientBlock, LogisticFits, RidgeFits
from torchdpcate.fit.arms.stability import (
    logistic_gradient_bound,
    logistic_gradient_distance,
    logistic_norm,
    multinomial_gradient_bound,
    multinomial_norm,
    multinomial_range,
    ridge_gradient_bound,
    ridge_gradient_distance,
    ridge_norm,
)

RIDGES = [50 / 21, 1.0, 0.3, 0.05]


def widest(size: torch.Tensor, cosine: torch.Tensor) -> float:
    """Largest distance of two vectors, of these signed sizes along points of these cosines to an axis, on any side."""
    sine = (1 - cosine**2).clamp(min=0).sqrt()
    along, across = size * cosine, (size * sine).abs()
    return ((along[:, None] - along) ** 2 + (across[:, None] + across) ** 2).max().sqrt().item()


def one_crowd(place: list[float], arms: int = 2) -> CoefficientBlock:
    psi = torch.tensor([place], dtype=torch.float64).expand(20, -1)
    return CoefficientBlock(psi, torch.full((20,), 0.5).double(), torch.ones(20, dtype=torch.long), arms)


def test_the_notes_gradient():
    assert logistic_gradient_bound(math.sqrt(21), 50.0, localised=True) == pytest.approx(2.558730, abs=5e-7)
    assert ridge_gradient_bound(math.sqrt(21), 50.0) == pytest.approx(math.sqrt(21) * (0.5 + math.sqrt(21 / 200)))


@pytest.mark.parametrize("ridge", RIDGES)
def test_a_crowd_attains_the_norms(ridge):
    place = min(1.0, math.sqrt(ridge))
    ridge_fit = RidgeFits(one_crowd([place, 0.0]), ridge).fit()[1].norm().item()
    assert ridge_fit == pytest.approx(ridge_norm(1.0, ridge), rel=1e-12)
    bound = logistic_norm(1.0, ridge)
    # the features' norm at which v sigmoid(-v) is largest, where that is within the ball
    place = min(1.0, 1.2784645427610738 / bound)
    found = LogisticFits(one_crowd([place, 0.0]), ridge, 1e-13).fit().norm().item()
    assert found == pytest.approx(bound, rel=1e-9)


@pytest.mark.first(4)
@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("arms", [2, 3])
def test_no_data_set_passes_the_norms(ridge, arms):
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        psi = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        psi = psi / psi.norm(dim=1, keepdim=True) * torch.rand(3, 1, generator=generator, dtype=torch.float64).sqrt()
        count = torch.randint(1, 20, (3,), generator=generator)
        z, arm = (torch.randint(2, (3,), generator=generator) - 0.5), torch.randint(arms, (3,), generator=generator)
        block = CoefficientBlock(*(part.repeat_interleave(count, 0) for part in (psi, z.double(), arm)), arms)
        assert RidgeFits(block, ridge).fit().norm(dim=1).max() <= ridge_norm(1.0, ridge) * (1 + 1e-12)
        most = logistic_norm(1.0, ridge) if arms == 2 else multinomial_norm(1.0, ridge, arms)
        assert LogisticFits(block, ridge, 1e-12).fit().norm() <= most * (1 + 1e-9)


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


@pytest.mark.parametrize("ridge", RIDGES)
def test_distances_are_at_most_two_gradients_and_scale_with_the_radius(ridge):
    for distance, bound in (
        (ridge_gradient_distance, ridge_gradient_bound),
        (logistic_gradient_distance, logistic_gradient_bound),
    ):
        assert distance(1.0, ridge) <= 2 * bound(1.0, ridge, True) <= 2 * bound(1.0, ridge, False)
        assert distance(3.0, 9 * ridge) == pytest.approx(3 * distance(1.0, ridge))


@pytest.mark.parametrize("arms", [3, 5])
def test_multinomial_gradients_within_the_reach_of_the_logits(arms):
    generator = torch.Generator().manual_seed(0)
    for ridge in RIDGES:
        distance = multinomial_norm(1.0, ridge, arms)
        u = torch.randn(100_000, arms, generator=generator, dtype=torch.float64)
        p = (distance * u / u.norm(dim=1, keepdim=True)).softmax(1)
        gradient = (p - torch.eye(arms)[0]).norm(dim=1).max()
        least, most = multinomial_range(distance, arms)
        assert least <= p.min()
        assert p.max() <= most
        bound = multinomial_gradient_bound(1.0, ridge, arms, localised=True)
        assert gradient <= bound <= math.sqrt(2)


def test_refusals():
    with pytest.raises(InputError, match="ridge = 0"):
        ridge_norm(1.0, 0.0)
    with pytest.raises(InputError, match="radius"):
        logistic_norm(-1.0, 1.0)
