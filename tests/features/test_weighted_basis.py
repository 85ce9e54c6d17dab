"""Features of standardised covariates."""

import pytest
import torch

from torchdpcate.features.weighted_basis import Feature, WeightedBasis, all_features, step


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


def test_products_with_a_step_are_those_of_their_covariates():
    z = torch.tensor([[0.5, -1.0, 1.0], [2.0, 0.3, 0.0]], dtype=torch.float64)
    features = all_features([False, False, True], "t")
    assert features == tuple(Feature("t", *pair) for pair in ((0, 1), (1, 0), (2, 0), (2, 1)))
    psi = WeightedBasis(features, torch.full((5,), 0.2, dtype=torch.float64))(z) / 0.2**0.5
    expected = torch.stack([z[:, f.i] * step(z[:, f.j]) for f in features], 1)
    torch.testing.assert_close(psi[:, 1:], expected, rtol=1e-14, atol=1e-14)
