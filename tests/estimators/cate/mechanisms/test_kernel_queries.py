"""Finite-query mechanisms on the kernel head: scales, levels, and neighbours."""

import dataclasses
import math

import pytest
import torch

from tests.release.helpers import DOMAIN, QUERIES, block
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import (
    kernel_local_sensitivity,
    local_sensitivity,
    smooth_bound,
)
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.kernel_system import ResidualLoss
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.privacy.budget import PrivacyBudget

BUDGET = PrivacyBudget(1.0, 1e-5)


def stage(n: int = 80, ridge: float = 0.05, loss: ResidualLoss | None = None) -> KernelStage:
    return KernelStage(block(n), UnitKernel(0.8, DOMAIN), ridge, loss or ResidualLoss())


def test_sensitivities_are_those_of_the_exact_features():
    fitted = stage()
    pool = torch.cat([fitted.block.x, QUERIES])
    values, vectors = torch.linalg.eigh(fitted.covariance(pool, pool))
    psi = vectors * values.clamp(min=0).sqrt()
    b = fitted.block
    problem = LinearProblem(psi[:80], b.s, b.w, fitted.ridge, b.bounds.weight, b.bounds.target)
    expected = local_sensitivity(problem, psi[80:])
    assert kernel_local_sensitivity(fitted, QUERIES) == pytest.approx(expected, rel=1e-9)


def test_local_sensitivity_covers_every_searched_neighbour():
    fitted = stage()
    local, worst = kernel_local_sensitivity(fitted, QUERIES)
    assert local <= worst
    before, b, reached = fitted.correction(QUERIES), fitted.block, 0.0
    for x in QUERIES[:4]:
        for a, y in ((0.0, -2.0), (0.0, 2.0), (1.0, -2.0), (1.0, 2.0)):
            s, w = b.regression(x[None], torch.tensor([a]).double(), torch.tensor([y]).double())
            moved = dataclasses.replace(
                b, x=torch.cat([x[None], b.x[1:]]), s=torch.cat([s, b.s[1:]]), w=torch.cat([w, b.w[1:]])
            )
            after = dataclasses.replace(fitted, block=moved)
            reached = max(reached, (after.correction(QUERIES) - before).norm().item())
            ratio = kernel_local_sensitivity(after, QUERIES)[0] / local
            assert abs(math.log(ratio)) <= math.log1p(fitted.condition)
            pairs = ((local, worst), (ratio * local, worst))
            scales = [smooth_bound(*pair, fitted.condition, 0.01) for pair in pairs]
            assert abs(math.log(scales[1] / scales[0])) <= 0.01
    assert 0.02 * local < reached <= local
