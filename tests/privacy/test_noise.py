"""Statistical tests: each false alarm has probability below 1e-8, the file's together below 1e-6."""

import copy
import math
import pickle
import secrets

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from torchdpcate.errors import InputError
from torchdpcate.privacy import noise as noise_module
from torchdpcate.privacy.noise import NoiseSource

ALARM = 1e-8
SOURCES = {"system": NoiseSource.system, "fixed": lambda: NoiseSource.fixed(7)}


@pytest.fixture(params=list(SOURCES))
def noise(request):
    return SOURCES[request.param]()


@pytest.mark.parametrize(("kind", "law"), [("gaussian", "norm"), ("laplace", "laplace")])
@pytest.mark.parametrize("scale", [3.7, 1e-9])
def test_draws_have_the_law_of_their_scale(noise, kind, law, scale):
    draws = getattr(noise, kind)(10_000, scale)
    assert draws.dtype == torch.float64
    assert kstest((draws / scale).numpy(), law).pvalue > ALARM


ON_GRID = {
    "gaussian": lambda noise: noise.gaussian(1000, 0.3),
    "laplace": lambda noise: noise.laplace(1000, 0.3),
    "ball": lambda noise: noise.k_norm(100, 4, 0.3, 2.0),
    "cube": lambda noise: noise.k_norm(100, 4, 0.3, math.inf),
}


@pytest.mark.parametrize("kind", ON_GRID)
def test_system_draws_lie_on_the_public_grid(kind):
    steps = ON_GRID[kind](NoiseSource.system()) / NoiseSource.grid(0.3)
    assert torch.equal(steps, steps.round())


@pytest.mark.parametrize("scale", [1e-12, 0.5, 1.0, 1.0000001, 3.0, 2.0**40])
def test_grid_is_a_power_of_two_near_a_millionth_of_the_scale(scale):
    step = NoiseSource.grid(scale)
    assert math.frexp(step)[0] == 0.5
    assert 2.0**-21 < step / scale <= 2.0**-20


def test_every_order_of_four_records_is_as_likely_as_any_other():
    noise = NoiseSource.system()
    draws = torch.stack([noise.permutation(4) for _ in range(12_000)])
    counts = torch.unique(draws @ torch.tensor([64, 16, 4, 1]), return_counts=True)[1]
    assert len(counts) == 24
    assert chisquare(counts.numpy()).pvalue > ALARM


def test_keys_that_are_the_same_are_drawn_anew(monkeypatch):
    """Else the order of a sort would decide between them, and not all orders would be as likely."""
    keys = [np.array([3, 5, 3], dtype=np.int64), np.array([7, 1, -2], dtype=np.int64)]
    monkeypatch.setattr(secrets, "token_bytes", lambda size: keys.pop(0).tobytes())
    assert NoiseSource.system().permutation(3).tolist() == [2, 1, 0]
    assert keys == []


def test_a_fixed_source_leaves_the_order_and_its_other_draws_alone():
    noise, other = NoiseSource.fixed(3), NoiseSource.fixed(3)
    assert noise.permutation(5).tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(noise.gaussian(4, 1.0), other.gaussian(4, 1.0))
    for n in (0, -1, 2.5):
        with pytest.raises(InputError, match="n = "):
            NoiseSource.system().permutation(n)


def test_k_norm_directions_are_uniform_on_the_ball_and_on_the_cube(noise):
    round_, square = (noise.k_norm(10_000, 3, 1.0, order) for order in (2.0, math.inf))
    # Archimedes: a coordinate of a uniform point of the sphere is uniform
    assert kstest((round_[:, 0] / round_.norm(dim=1)).numpy(), "uniform", (-1, 2)).pvalue > ALARM
    shape = square / square.abs().amax(1, keepdim=True)
    face = shape.abs().argmax(1)
    signs = shape.gather(1, face[:, None])[:, 0]
    counts = torch.bincount(face + 3 * (signs > 0), minlength=6)  # the six faces are equally likely
    assert chisquare(counts.numpy()).pvalue > ALARM
    within = shape[face != 0, 0]  # and on a face the other coordinates are uniform
    assert kstest(within.numpy(), "uniform", (-1, 2)).pvalue > ALARM


def test_fixed_noise_repeats_with_its_seed_alone():
    def everything(seed):
        noise = NoiseSource.fixed(seed)
        streams = [torch.rand(2, generator=noise.generator()) for _ in range(2)]
        return torch.cat([noise.gaussian(3, 2.0), noise.laplace(3, 2.0), *streams])

    assert torch.equal(everything(3), everything(3))
    assert not torch.equal(everything(3), everything(4))
    assert not torch.equal(everything(3)[6:8], everything(3)[8:10])  # each generator is another stream


def test_privacy_flag_and_no_state_to_be_seen():
    system, fixed = NoiseSource.system(), NoiseSource.fixed(12345)
    assert system.private
    assert not fixed.private
    assert "12345" not in repr(fixed)
    assert pickle.loads(pickle.dumps(system)).private
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(fixed)
    assert copy.deepcopy(fixed) is fixed


@pytest.mark.parametrize("scale", [1.0, 3.7, 1.999 * 2**-30])
def test_gaussian_noise_is_rounded_continuous_noise_but_for_a_part_in_1e20(scale, monkeypatch):
    """In 60 digits: the law that OpenDP is requested against cells of a normal one, up to forty deviations."""
    requested = []
    dp = noise_module._opendp()
    make = dp.m.make_gaussian
    monkeypatch.setattr(
        dp.m, "make_gaussian", lambda *space, scale: requested.append(scale) or make(*space, scale=scale)
    )
    NoiseSource.system().gaussian(1, scale)
    with mpmath.workdps(60):
        steps = mpmath.sqrt(mpmath.mpf(requested[0]) ** 2 - mpmath.mpf(1) / 12)
        assert 1 <= steps * NoiseSource.grid(scale) / scale < 1 + 1e-15

        def log_ratio(z: int) -> mpmath.mpf:
            """Log of the cell's mass over the discrete one, over what it is at zero."""
            cell = mpmath.quad(lambda u: mpmath.exp(-(z * u + u * u / 2) / steps**2), [-0.5, 0, 0.5])
            middle = mpmath.quad(lambda u: mpmath.exp(-u * u / 2 / steps**2), [-0.5, 0, 0.5])
            return mpmath.log(cell / middle) - mpmath.mpf(z) ** 2 / 2 * (
                1 / steps**2 - 1 / mpmath.mpf(requested[0]) ** 2
            )

        assert max(abs(log_ratio(int(x * steps))) for x in (1, 3, 10, 40)) < 1e-20
