"""The neighbour that moves the noise scale: its gradient against finite differences, its move against a new search."""

import pytest
import torch

from experiments.audit.neighbours import refitted
from experiments.audit.scale_search import ScaleSearch
from tests.release.helpers import DOMAIN, QUERIES, block
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.stage import LinearStage
from torchdpcate.heads.supremum import Supremum, gross_error_sensitivity

pytestmark = pytest.mark.studies


def searched(stage: LinearStage) -> Supremum:
    own = stage.block
    influence = InfluenceFunction(stage.model, stage.theta, own.x, own.s, own.w, stage.ridge, QUERIES)
    return gross_error_sensitivity(influence, own.regression, own.domain, starts=128)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_scale_search_follows_its_gradient_and_moves_gamma(sign):
    stage = LinearStage(block(100), Legendre(2).setup(DOMAIN), 0.01)
    gamma = searched(stage)
    search = ScaleSearch(stage, QUERIES, gamma, sign)
    x = torch.tensor([[0.2, 0.3], [0.8, -0.7], [0.5, 0.9]], dtype=torch.float64, requires_grad=True)
    a, y = torch.tensor([0.0, 1.0, 1.0]).double(), torch.tensor([2.0, -2.0, 2.0]).double()
    index = torch.tensor([0, 5, 50])
    (gradient,) = torch.autograd.grad(search._value(x, a, y, index).sum(), x)
    step = torch.zeros(2, dtype=torch.float64)
    for j in range(2):
        step.zero_()[j] = 1e-6
        with torch.no_grad():
            slope = (search._value(x + step, a, y, index) - search._value(x - step, a, y, index)) / 2e-6
        torch.testing.assert_close(gradient[:, j], slope, rtol=1e-5, atol=1e-7)
    moved = searched(refitted(stage, search.worst_block(64, 0)))
    assert sign * (moved.value - gamma.value) > 0.05 * gamma.value
