"""Feature maps against SciPy, the kernel they stand for, and their norm bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import eval_legendre

from torchdpcate.data import Domain
from torchdpcate.errors import InputError
from torchdpcate.nuisance import Nuisances
from torchdpcate.second_stage import FEATURE_MAPS, Fourier, Identity, Legendre, Representation

DOMAIN = Domain([-1.0, 10.0, 0.0], [3.0, 20.0, 1.0], 0.0, 1.0)


def maps(domain: Domain = DOMAIN):
    torch.manual_seed(0)
    nuisances = Nuisances(domain, width=16).double().requires_grad_(False)
    return {name: cls().setup(domain, nuisances) for name, cls in FEATURE_MAPS.items()}


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_norm_is_at_most_one_on_the_whole_domain(name):
    psi = maps()[name]
    corners = torch.cartesian_prod(*torch.stack([DOMAIN.covariate_low, DOMAIN.covariate_high], 1))
    x = torch.cat([DOMAIN.grid(4096), corners])
    values = psi(x)
    assert values.shape == (len(x), psi.dimension)
    assert values.dtype == torch.float64
    assert values.norm(dim=1).max().item() <= 1 + 1e-12


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_norm_bound_property(unit):
    x = DOMAIN.covariate_low + torch.tensor([unit], dtype=torch.float64) * (
        DOMAIN.covariate_high - DOMAIN.covariate_low
    )
    for psi in maps().values():
        assert psi(x).norm().item() <= 1 + 1e-12


def test_fourier_norm_is_exactly_one_and_estimates_the_gaussian_kernel():
    psi = Fourier(pairs=20_000, bandwidth=0.7, seed=1).setup(DOMAIN)
    x = DOMAIN.grid(6)
    gram = psi(x) @ psi(x).T
    torch.testing.assert_close(gram.diagonal(), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)
    kernel = torch.exp(-torch.cdist(DOMAIN.scale(x), DOMAIN.scale(x)).square() / (2 * 0.7**2))
    # Each entry is a mean of 20,000 terms of sd below 0.71: 6 sd is 0.03.
    assert (gram - kernel).abs().max().item() < 0.03


def test_fourier_seed_is_public_and_reproducible():
    x = DOMAIN.grid(3)
    assert torch.equal(Fourier(seed=4).setup(DOMAIN)(x), Fourier(seed=4).setup(DOMAIN)(x))
    assert not torch.equal(Fourier(seed=4).setup(DOMAIN)(x), Fourier(seed=5).setup(DOMAIN)(x))


def test_legendre_polynomials_are_scipys():
    x = DOMAIN.grid(50)
    psi = Legendre(4).setup(DOMAIN)(x) * (1 + 3 * 4) ** 0.5
    z = DOMAIN.scale(x).numpy()
    for k in range(1, 5):
        block = psi[:, 1 + 3 * (k - 1) : 1 + 3 * k].numpy()
        assert block == pytest.approx(eval_legendre(k, z), abs=1e-12)


def test_identity_is_intercept_and_scaled_covariates():
    psi = Identity().setup(DOMAIN)(DOMAIN.covariate_high[None])
    torch.testing.assert_close(psi, torch.full((1, 4), 0.5, dtype=torch.float64))


def test_representation_is_the_clipped_hidden_layer():
    torch.manual_seed(0)
    nuisances = Nuisances(DOMAIN, width=16).double().requires_grad_(False)
    x = DOMAIN.grid(20)
    hidden = torch.cat([torch.full((20, 1), 0.5, dtype=torch.float64), nuisances.representation(x)], 1)
    expected = hidden / hidden.norm(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(Representation().setup(DOMAIN, nuisances)(x), expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Legendre(0), r"features\.degree = 0"),
        (lambda: Fourier(pairs=0), r"features\.pairs = 0"),
        (lambda: Fourier(bandwidth=-1.0), r"features\.bandwidth = -1"),
        (lambda: Representation(scale=0.0), r"features\.scale = 0"),
        (lambda: Representation().setup(DOMAIN), "needs the trained nuisances"),
    ],
)
def test_bad_settings_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
