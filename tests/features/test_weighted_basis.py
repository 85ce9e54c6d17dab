"""Features of standardised covariates."""

import torch

from torchdpcate.features.weighted_basis import Feature, WeightedBasis, all_features, step


def normal() -> tuple[torch.Tensor, torch.Tensor]:
    """Points and weights of a standard normal covariate."""
    z = torch.linspace(-8, 8, 40_001, dtype=torch.float64)
    return z, torch.softmax(-z.square() / 2, 0)


def test_a_step_is_bounded_and_has_nearly_nothing_of_a_line():
    z, weight = normal()
    h = step(z)
    # the constants are rounded: 1.512 and .89 at most, by quadrature
    assert 1.51 < float(h.abs().max()) < 1.52
    assert abs(float((weight * h.square()).sum()) - 1) < 0.25
    assert abs(float((weight * h * z).sum())) < 0.005


def test_products_with_a_step_are_those_of_their_covariates():
    z = torch.tensor([[0.5, -1.0, 1.0], [2.0, 0.3, 0.0]], dtype=torch.float64)
    features = all_features([False, False, True], "t")
    assert features == tuple(Feature("t", *pair) for pair in ((0, 1), (1, 0), (2, 0), (2, 1)))
    psi = WeightedBasis(features, torch.full((5,), 0.2, dtype=torch.float64))(z) / 0.2**0.5
    expected = torch.stack([z[:, f.i] * step(z[:, f.j]) for f in features], 1)
    torch.testing.assert_close(psi[:, 1:], expected, rtol=1e-14, atol=1e-14)
