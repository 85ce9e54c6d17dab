import pytest
import torch
from scipy.optimize import minimize

from torchdpcate.erm.descent import Ball, L1Ball
from torchdpcate.errors import InputError

NORMS = {Ball: 2, L1Ball: 1}


@pytest.mark.parametrize("make", [Ball, L1Ball])
def test_projections_obey_the_variational_inequality(make):
    """P is the projection if P lies inside and (x - P)'(z - P) <= 0 for all z inside; corners are enough for the l1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64) * torch.logspace(-2, 2, 200).double()[:, None]
    domain = make(1.5)
    P = domain.project(x)
    sizes = torch.linalg.vector_norm(P, NORMS[make], dim=1)
    assert (sizes <= 1.5 * (1 + 1e-12)).all()
    away = x - P
    # sup of away'z over the domain: the dual norm
    support = 1.5 * (away.norm(dim=1) if make is Ball else away.abs().amax(1))
    assert (support - (away * P).sum(1) <= 1e-9 * (1 + x.norm(dim=1) ** 2)).all()
    inside = torch.linalg.vector_norm(x, NORMS[make], dim=1) <= 1.5
    assert inside.any()
    assert (~inside).any()
    assert torch.equal(P[inside], x[inside])


def test_l1_projection_agrees_with_a_quadratic_program():
    x = torch.tensor([[1.0, -0.8, 0.3, 0.05]], dtype=torch.float64)
    found = L1Ball(1.2).project(x)[0]

    def distance(z):
        theta = z[:4] - z[4:]  # the parts above and below zero
        return ((theta - x[0].numpy()) ** 2).sum()

    limit = {"type": "ineq", "fun": lambda z: 1.2 - z.sum()}
    z = minimize(distance, [0.1] * 8, bounds=[(0, None)] * 8, constraints=[limit], tol=1e-14).x
    assert found.tolist() == pytest.approx(list(z[:4] - z[4:]), abs=1e-6)


def test_a_radius_must_be_positive():
    with pytest.raises(InputError, match="radius"):
        Ball(0.0)
