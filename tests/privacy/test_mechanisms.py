import math

import pytest
import torch
from scipy.stats import gamma, kstest

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.mechanisms import GaussianMechanism, KNormMechanism, LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource, float_loss

BUDGET = PrivacyBudget(1.0, 1e-5)
MECHANISMS = [GaussianMechanism(BUDGET, 0.25), LaplaceMechanism(1.0, 0.25)]
BALL, CUBE = KNormMechanism(1.0, 0.25), KNormMechanism(1.0, 0.25, order=math.inf)


def test_scales_match_the_theory():
    assert GaussianMechanism(BUDGET, 0.133333333333).scale == pytest.approx(0.497417551, abs=1e-9)
    assert LaplaceMechanism(0.5, 3.0).scale == 6.0


def test_events_cost_the_budget():
    event = GaussianMechanism(BUDGET, 0.25).event
    assert isinstance(event, GaussianEvent)
    assert 1 - 1e-9 < compose([(event, 1)], 1e-5) <= 1.0
    assert LaplaceMechanism(0.5, 3.0).event == PureEvent(0.5)


@pytest.mark.parametrize("mechanism", [*MECHANISMS, BALL])
def test_rounding_is_paid_for(mechanism):
    size, norm = 400, mechanism.norm
    scale = mechanism.released_scale(size)
    step = NoiseSource.grid(scale)
    enlarged = mechanism.sensitivity + size ** (1 / norm) * step
    assert scale / enlarged >= mechanism.scale / mechanism.sensitivity
    assert mechanism.scale < scale < 1.002 * mechanism.scale
    with pytest.raises(InputError, match="too many"):
        mechanism.released_scale(10**15)


@pytest.mark.parametrize("mechanism", [BALL, CUBE])
def test_k_norm_releases_are_the_value_plus_noise_of_the_norm(mechanism):
    value = torch.full((10_000, 3), math.pi, dtype=torch.float64)
    out = mechanism.add_noise(value, NoiseSource.system())
    size = torch.linalg.vector_norm((out - value) / mechanism.released_scale(3), mechanism.norm, dim=1)
    assert kstest(size.numpy(), gamma(3).cdf).pvalue > 1e-8  # false alarm
    assert mechanism.event == PureEvent(1.0)


def test_rounding_a_cube_costs_one_step_in_any_dimension():
    # each coordinate moves by at most half a step on either side, and their largest counts; float64 takes the rest
    for size in (10, 1000):
        scale = CUBE.released_scale(size)
        assert (CUBE.sensitivity + 2.0**-20 * scale) / scale == pytest.approx(CUBE.epsilon - float_loss(size, math.inf))
        assert NoiseSource.grid(scale) <= 2.0**-20 * scale


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_release_is_the_value_on_the_grid_plus_noise(mechanism):
    value = torch.full((20, 100), math.pi, dtype=torch.float32)
    out = mechanism.release(value, NoiseSource.system())
    assert out.shape == value.shape
    assert out.dtype == torch.float64
    scale = mechanism.released_scale(value.numel())
    steps = out / NoiseSource.grid(scale)
    assert torch.equal(steps, steps.round())
    law = "norm" if mechanism.norm == 2 else "laplace"
    # false alarm below 1e-8
    assert kstest(((out - value.double()) / scale).flatten().numpy(), law).pvalue > 1e-8
