import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.heads.cases import draws, real
from torchdpcate.data.domain import Domain
from torchdpcate.heads.supremum import maximise_over_box


def unit(q):
    return torch.zeros(q, dtype=torch.float64), torch.ones(q, dtype=torch.float64)


def waves(x):
    """Many local maxima on [0, 1], the largest between grid points."""
    t = x[:, 0]
    return torch.sin(37 * t) * t + 0.5 * torch.cos(91 * t**2)


def test_a_wavy_line_reaches_the_grid_truth():
    truth = float(waves(torch.linspace(0, 1, 2_000_001, dtype=torch.float64)[:, None]).max())
    for seed in range(2):
        value, _ = maximise_over_box(waves, *unit(1), starts=64, seed=seed)
        assert truth * (1 - 1e-12) <= value <= truth * (1 + 1e-9)


def test_a_place_puts_the_search_where_the_function_varies():
    """A peak of width 1e-6 of the box, which a search even in x does not see."""
    domain = Domain([0.0], [1e6], 0.0, 1.0, typical=[(10.0, 20.0)])
    ends = domain.covariate_low, domain.covariate_high
    value, x = maximise_over_box(lambda x: torch.exp(-((x[:, 0] - 15) ** 2)), *ends, starts=64, place=domain.from_unit)
    assert value == pytest.approx(1)
    assert x.item() == pytest.approx(15, abs=1e-3)


@pytest.mark.parametrize("centre", [(0.3, 0.4, 0.5), (0.3, 1.7, 0.5), (-1.0, 2.0, -3.0)])
def test_interior_face_and_corner(centre):
    c = real(*centre)
    low, high = real(-1, 0, 2), real(1, 1, 2)
    value, x = maximise_over_box(lambda x: 3 - ((x - c) ** 2).sum(1), low, high)
    expected = torch.clamp(c, low, high)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)
    assert abs(value - (3 - float(((expected - c) ** 2).sum()))) < 1e-11


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), q=st.integers(1, 5), starts=st.integers(1, 40))
def test_the_point_is_in_the_box_and_has_the_value(seed, q, starts):
    M, low = draws(4, q, seed=seed), draws(q, seed=seed + 1)
    high = low + draws(q, seed=seed + 2).abs()

    def function(x):
        return torch.sin(3 * x @ M.T).sum(1) - torch.relu(x).sum(1)

    value, x = maximise_over_box(function, low, high, starts=starts, climbs=8, polishes=2, seed=seed)
    assert bool((x >= low).all() and (x <= high).all())
    assert abs(float(function(x[None])) - value) < 1e-12
    assert value >= float(function(((low + high) / 2)[None])) - 1e-12


def test_constant_functions_and_tiny_values():
    assert maximise_over_box(lambda x: 0 * x.sum(1), *unit(2))[0] == 0
    _, x = maximise_over_box(lambda x: 1e-12 * (1 - (x[:, 0] - 1 / 3) ** 2), *unit(1))
    assert abs(float(x) - 1 / 3) < 1e-6
