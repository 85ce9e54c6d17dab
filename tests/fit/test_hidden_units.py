"""Hidden units as features: what they have beyond others, and files that say something else."""

import pytest
import torch

from torchdpcate.fit.weighted_basis import HiddenUnits, WeightedBasis, all_features

K = 2
ONE = torch.eye(K, dtype=torch.float64)


def points(n=2_000):
    return torch.randn(n, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-3, 3)


def basis(kinds="12x"):
    features = all_features([False] * K, kinds)
    return WeightedBasis(features, torch.full((1 + len(features),), 0.1, dtype=torch.float64))


def weights(units=5):
    draws = torch.randn(units, K + 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return 2 * draws[:, :K], draws[:, K]


def test_they_are_uncorrelated_with_features_and_with_each_other():
    found, z = HiddenUnits.beyond(*weights(), basis(), ONE, points()), points()
    c = found(z)
    torch.testing.assert_close(c.T @ c / len(z), torch.eye(len(found.shares)).double(), atol=1e-4, rtol=0)
    assert float((basis()(z).T @ c / len(z)).abs().max()) < 1e-4
    assert found.fit(basis(), z)
    assert float(found.shares.sum()) == pytest.approx(1)


def test_with_the_features_they_have_all_that_the_units_have():
    (w, b), z = weights(2), points()
    found = HiddenUnits.beyond(w, b, basis(), ONE, z)
    both = torch.cat([basis()(z), found(z)], 1)
    units = torch.tanh(z @ w.T + b)
    rest = units - both @ torch.linalg.lstsq(both, units).solution
    assert float(rest.abs().max()) < 1e-3


def test_units_that_features_have_are_none():
    flat = torch.zeros(3, K, dtype=torch.float64)
    assert HiddenUnits.beyond(flat, flat[:, 0] + 0.5, basis(), ONE, points()) is None


def test_a_basis_has_them_after_its_own_features():
    own, found, z = basis(), HiddenUnits.beyond(*weights(), basis(), ONE, points()), points(50)
    features = (*own.features, *found.features)
    both = WeightedBasis(features, torch.full((1 + len(features),), 0.1, dtype=torch.float64), found)
    torch.testing.assert_close(both(z), torch.cat([own(z), found(z) * 0.1**0.5], 1))
    again = WeightedBasis.from_config(both.config(), both.feature_weights, K, found)
    torch.testing.assert_close(again(z), both(z))
    with pytest.raises(ValueError, match="unknown kind"):
        WeightedBasis.from_config(both.config(), both.feature_weights, K)


@pytest.mark.parametrize("name", ["weights", "biases", "mixed", "less", "shares"])
def test_other_numbers_do_not_fit(name):
    found, z = HiddenUnits.beyond(*weights(), basis(), ONE, points()), points()
    tensors = {part: tensor.clone() for part, tensor in found.tensors().items()}
    assert HiddenUnits.from_tensors(tensors, found.base.config(), K).fit(basis(), z)
    tensors[name].view(-1)[0] += 0.1 * float(tensors[name].abs().max())
    if name == "shares":
        tensors[name] /= tensors[name].sum()
    assert not HiddenUnits.from_tensors(tensors, found.base.config(), K).fit(basis(), z)
    assert not found.fit(basis("12"), z)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("less"), "weights, biases, correlations, mixed, less, shares"),
        (lambda t: t.update(mixed=t["mixed"][:, :1]), "mixed is float64"),
        (lambda t: t.update(weights=t["weights"].float()), "weights is float64"),
        (lambda t: t.update(biases=t["biases"] * torch.nan), "biases is float64"),
        (lambda t: t.update(shares=-t["shares"]), "shares are positive"),
        (lambda t: t.update(correlations=-ONE), "positive definite"),
    ],
)
def test_malformed_numbers_are_refused(change, said):
    found = HiddenUnits.beyond(*weights(), basis(), ONE, points())
    tensors = found.tensors()
    change(tensors)
    with pytest.raises(ValueError, match=said):
        HiddenUnits.from_tensors(tensors, found.base.config(), K)
    with pytest.raises(ValueError, match="unknown kind"):
        HiddenUnits.from_tensors(found.tensors(), [["h", 0, 0]], K)


@pytest.mark.parametrize("size", [0.0, 1e-9])
def test_a_feature_that_is_nothing_at_nearly_all_points_is_left_alone(size):
    """A product of two levels that are rare: no equation is singular, and what is made anew is the same."""
    z = points()
    z[:, 1] *= size
    found = HiddenUnits.beyond(*weights(), basis(), ONE, z)
    assert found.fit(basis(), z)
    assert all(bool(tensor.isfinite().all()) for tensor in found.tensors().values())


@pytest.mark.parametrize("size", [0.03, 0.1])
def test_units_that_have_nearly_nothing_beyond_features_are_known_again(size):
    """Over their own size, which they are divided by, what the ridge leaves is not small."""
    w, b = weights()
    found = HiddenUnits.beyond(size * w, b, basis("12"), ONE, points())
    assert found.fit(basis("12"), points())
