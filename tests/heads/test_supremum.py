import itertools

import pytest
import torch

from tests.heads.cases import LinearHead, box, kernel_head, real
from torchdpcate.data.domain import Domain
from torchdpcate.heads.supremum import gross_error_sensitivity

LINE = Domain([0.0], [1.0], -1.0, 2.0)


def r_regression(x, a, y):
    """An R-learner's (s, w) with kinked, clipped nuisances of one covariate."""
    t = x[:, 0]
    pi = (0.2 + torch.relu(1.5 * t - 0.4)).clamp(0.1, 0.9)
    m = torch.sin(4 * t) - torch.relu(0.6 - t)
    return y - m, a - pi


def grid_truth(influence, regression, domain, points=20_001):
    """Supremum on a grid of x, with y inside the interval too."""
    x = torch.linspace(float(domain.covariate_low), float(domain.covariate_high), points).double()[:, None]
    norms = []
    for a, y in itertools.product((0.0, 1.0), torch.linspace(domain.outcome_low, domain.outcome_high, 7).tolist()):
        s, w = regression(x, torch.full((points,), a).double(), torch.full((points,), y).double())
        norms.append(influence.norm(x, s, w))
    return float(torch.stack(norms).max())


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_line_reaches_the_grid_truth(seed):
    influence = kernel_head().influence()
    truth = grid_truth(influence, r_regression, LINE)
    found = gross_error_sensitivity(influence, r_regression, LINE, starts=64, seed=seed)
    assert truth * (1 - 1e-12) <= found.value <= truth * (1 + 1e-6)
    s, w = r_regression(found.x[None], real(found.a), real(found.y))
    assert abs(float(influence.norm(found.x[None], s, w)) - found.value) < 1e-12 * found.value
    assert found.y in (-1.0, 2.0)
    assert found.a in (0, 1)


@pytest.mark.parametrize("q", [4, 11])
def test_corners_have_the_supremum_of_a_linear_head_without_residuals(q):
    x, zero = box(40, q), torch.zeros(40, dtype=torch.float64)
    head = LinearHead(lambda x: torch.cat([x.new_ones(len(x), 1), x], 1), x, zero, zero + 1, 0.1, box(3, q, seed=1))
    corners = torch.tensor(list(itertools.product((-1.0, 2.0), repeat=q)), dtype=torch.float64)
    truth = 3 * float((head.psi(corners) @ torch.linalg.solve(head.A, head.psi(head.queries).T)).norm(dim=1).max())
    found = gross_error_sensitivity(
        head.influence(), lambda x, a, y: (y, torch.ones_like(y)), Domain([-1.0] * q, [2.0] * q, -2.0, 3.0)
    )
    assert abs(found.value / truth - 1) < 1e-12
    assert found.y == 3.0
