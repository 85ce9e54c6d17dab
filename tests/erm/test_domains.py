import pytest
import torch

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


def test_a_radius_must_be_positive():
    with pytest.raises(InputError, match="radius"):
        Ball(0.0)
