import torch

from tests.registered import CovariateBalancingEffect
from torchdpcate import Domain
from torchdpcate.estimators.average.weighted import EITHER


def test_one_arm_whose_mean_is_linear_is_not_enough():
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(20_000, 2, generator=generator, dtype=torch.float64) - 1
    product = x[:, 0] * x[:, 1]
    z = (torch.rand(20_000, generator=generator) < torch.sigmoid(3 * product)).double()
    errors = []
    for slope in (0.0, 0.4):  # of the treated's mean in the product; that of the controls is constant
        domain = Domain([-1.0, -1.0], [1.0, 1.0], 0.0, 1.0, better="higher")
        fitted = CovariateBalancingEffect(domain, None).fit(x, z, 0.4 + z * (0.1 + slope * product))
        errors.append(abs(fitted.nonprivate_estimate().value - 0.1 - slope * product.mean().item()))
    assert errors[0] < 0.01
    assert errors[1] > 0.03
    assert "the mean outcomes of both arms are" in EITHER
