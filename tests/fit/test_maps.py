"""Feature maps against SciPy, the kernel they stand for, and their norm bound."""

import math

import pytest
import torch
from scipy.special import eval_legendre

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FEATURE_MAPS, Fourier, Identity, Legendre, Products, Representation
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.fit.weighted_basis import TRIPLE, Feature, Levels, WeightedBasis, all_features, hump, step

DOMAIN = Domain([-1.0, 10.0, 0.0], [3.0, 20.0, 1.0], 0.0, 1.0)


def maps(domain: Domain = DOMAIN):
    torch.manual_seed(0)
    nuisances = Nuisances(domain, width=16).double().requires_grad_(False)
    return {name: cls().setup(domain, nuisances) for name, cls in FEATURE_MAPS.items()}


def test_uncentred_covariates_lie_between_zero_and_one():
    x = DOMAIN.grid(64)
    psi = Identity(centred=False).setup(DOMAIN)
    unit = (x - DOMAIN.covariate_low) / (DOMAIN.covariate_high - DOMAIN.covariate_low)
    torch.testing.assert_close(psi(x), torch.cat([torch.ones(64, 1), unit], 1) / 2, rtol=0, atol=1e-15)
    assert psi.twin()(x).equal(psi(x))


def test_fourier_norm_is_one_and_estimates_the_gaussian_kernel():
    psi = Fourier(pairs=20_000, bandwidth=0.7, seed=1).setup(DOMAIN)
    x = DOMAIN.grid(6)
    gram = psi(x) @ psi(x).T
    # one but for the margin of rounding, 9e-12 for 40,000 features
    torch.testing.assert_close(gram.diagonal(), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-10)
    kernel = torch.exp(-torch.cdist(DOMAIN.scale(x), DOMAIN.scale(x)).square() / (2 * 0.7**2))
    # Each entry is a mean of 20,000 terms of sd below 0.71: 6 sd is 0.03.
    assert (gram - kernel).abs().max().item() < 0.03


def gaussian_kernel(x, y, bandwidth: float):
    return torch.exp(-torch.cdist(DOMAIN.scale(x), DOMAIN.scale(y)).square() / (2 * bandwidth**2))


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_products_in_batches_are_those_of_the_features(name, monkeypatch):
    psi, x = maps()[name], DOMAIN.grid(11)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(2, psi.dimension, dtype=torch.float64, generator=generator)
    matrix = psi(x)
    monkeypatch.setattr("torchdpcate.fit.feature_maps._CHUNK_ELEMENTS", 4 * psi.dimension)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(psi.product(theta, x), theta @ matrix.T, **close)
    torch.testing.assert_close(psi.product(theta[0], x), matrix @ theta[0], **close)
    torch.testing.assert_close(psi.norm(x), matrix.norm(dim=1), **close)
    torch.testing.assert_close(psi.covariance(x, x[:4]), matrix @ matrix[:4].T, **close)
    assert psi.product(theta, x[:0]).shape == (2, 0)


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


@pytest.mark.parametrize("squares", [False, True])
def test_products_are_all_pairs_of_scaled_covariates(squares):
    x = DOMAIN.grid(64)
    psi = Products(squares).setup(DOMAIN)
    a, b, c = DOMAIN.scale(x).T
    expected = [torch.ones(64), a, b, c, a * b, a * c, b * c]
    expected += [eval_legendre(2, z) for z in (a, b, c)] if squares else []
    assert psi.dimension == len(expected)
    torch.testing.assert_close(psi(x), torch.stack(expected, 1) / len(expected) ** 0.5, rtol=0, atol=1e-14)
    assert psi.twin()(x).equal(psi(x))
    assert Products(squares).setup(Domain([0.0], [1.0], 0.0, 1.0)).dimension == 2 + squares


def normal() -> tuple[torch.Tensor, torch.Tensor]:
    """Points and weights of a standard normal covariate."""
    z = torch.linspace(-8, 8, 40_001, dtype=torch.float64)
    return z, torch.softmax(-z.square() / 2, 0)


def test_a_step_is_bounded_and_has_nearly_nothing_of_a_line():
    z, weight = normal()
    h = step(z)
    assert float(h.abs().max()) == pytest.approx(1.5108, abs=1e-4)
    assert float((weight * h.square()).sum()) == pytest.approx(0.7862, abs=1e-4)  # by quadrature, as the next one
    assert abs(float((weight * h * z).sum())) < 0.001


def test_a_hump_is_bounded_and_its_products_are_apart_from_others():
    z, weight = normal()
    c, slope = hump(z), z.clamp(-1.5, 1.5)
    assert (float(c.min()), float(c.max())) == (pytest.approx(-1.5 / math.sqrt(2)), 2.25)
    square = float((weight * c.square()).sum()) * float((weight * slope.square()).sum())
    assert square == pytest.approx(0.8523, abs=1e-4)  # by quadrature
    assert abs(float((weight * c * z).sum())) + abs(float((weight * c * step(z)).sum())) < 1e-12


@pytest.mark.parametrize("kind", ["t", "q", TRIPLE])
def test_chosen_products_are_those_of_their_covariates_but_for_what_says_where_one_is_missing(kind):
    z = torch.tensor([[0.5, -1.0, 1.0, 1.2], [2.0, 0.3, 0.0, -1.0], [-2.0, 3.0, -3.0, 9.0]], dtype=torch.float64)
    features = all_features(Levels([False, False, True, False], (None, 2, None, None)), kind)
    places = ("01", "03", "10", "13", "20", "23", "30", "31") if kind != TRIPLE else ("013", "023")
    assert features == tuple(Feature(kind, *map(int, each)) for each in places)
    basis = WeightedBasis(features, torch.full((1 + len(features),), 1.0, dtype=torch.float64))
    s, c = z.clamp(-1.5, 1.5), 1.5 * ((z.square() - 1) / math.sqrt(2)).clamp(-1.5, 1.5)
    products = {"t": lambda i, j: z[:, i] * step(z[:, j]), "q": lambda i, j: s[:, i] * c[:, j]}
    products |= {TRIPLE: lambda *places: 1.5 * s[:, places].prod(1)}
    expected = torch.stack([products[kind](*f[1 : 3 + (kind == TRIPLE)]) for f in features], 1)
    for psi in (basis(z), basis.traced(z)):
        torch.testing.assert_close(psi[:, 1:], expected, rtol=1e-14, atol=1e-14)
    assert WeightedBasis.from_config(basis.config(), basis.feature_weights, 4).features == features
    with pytest.raises(ValueError, match="features of unknown kind"):
        WeightedBasis.from_config([[kind, 0, 1], [kind, 0, 1, 3]], basis.feature_weights[:3], 4)
