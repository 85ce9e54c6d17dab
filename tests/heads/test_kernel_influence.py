"""The kernel head's influence function against the theory note, refits, and features; its bound against searches."""

import pytest
import torch

from tests.heads.cases import real, relative
from torchdpcate.causal.score import ScoreBounds
from torchdpcate.data.domain import Domain
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.kernel import KernelInfluenceFunction, KernelStage
from torchdpcate.heads.kernel_system import SQUARED, ResidualLoss
from torchdpcate.heads.stage import SecondStageBlock
from torchdpcate.heads.supremum import gross_error_sensitivity

LOSSES = (SQUARED, ResidualLoss(0.3))


def regression(x, a, y):
    """s = y; the weight grows along the first covariate, and changes sign with the arm."""
    return y, (a - 0.5) * (1 + 0.8 * x[:, 0])


def records(x, s, w) -> SecondStageBlock:
    q = x.shape[1]
    domain = Domain([0.0] * q, [1.0] * q, -1.0, 1.0)
    return SecondStageBlock(x, s, w, regression, domain, ScoreBounds(0.9, 1.0, 0.81, 0.9))


def note_stage() -> KernelStage:
    """Test value 8 of the theory note: a bandwidth of .3 is .6 where [0, 1] is scaled to [-1, 1]."""
    w, phi = real(0.25, 0.16, 0.36, 0.09, 0.49).sqrt(), real(1, -0.5, 0.75, 2, -1)
    block = records(real(0.1, 0.35, 0.5, 0.8, 0.95)[:, None], w * phi, w)
    return KernelStage(block, UnitKernel(0.6, block.domain), 0.05)


def random_stage(loss: ResidualLoss = SQUARED, n: int = 60, q: int = 2, **settings) -> KernelStage:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(n, q, dtype=torch.float64, generator=generator)
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = (torch.sin(6 * x[:, 0]) * (a - 0.5) + 0.4 * torch.randn(n, dtype=torch.float64, generator=generator)).clamp(
        -1, 1
    )
    s, w = regression(x, a, y)
    w[:3] = 0.0
    block = records(x, s, w)
    return KernelStage(block, UnitKernel(0.9, block.domain), 5e-3, loss, **settings)


def grid(count: int, q: int = 2) -> torch.Tensor:
    return Domain([0.0] * q, [1.0] * q, -1.0, 1.0).grid(count)


def test_value_8_of_the_theory_note():
    F = KernelInfluenceFunction(note_stage(), real(0.2, 0.6)[:, None])
    h, _ = F.direction(real(0.7)[:, None])
    torch.testing.assert_close(h[0], real(-0.2293473501, 6.6059461814), rtol=0, atol=5e-11)
    w = real(0.2).sqrt()
    moved = F.at(real(0.7)[:, None], 1.5 * w, w)[0]
    torch.testing.assert_close(moved, real(-0.1783581652, 1.6774607495), rtol=0, atol=5e-11)
    assert F.operator_norm() == pytest.approx(8.991520141, abs=5e-10)


def test_supremum_of_value_8():
    """The note's 7.692312847 at .16825 is a point of a grid; the supremum is 7.6923128579 at .168235."""
    F = KernelInfluenceFunction(note_stage(), real(0.2, 0.6)[:, None])
    x = torch.linspace(0.1682, 0.1683, 10_001, dtype=torch.float64)[:, None]
    norms = F.direction(x)[0].norm(dim=1)
    assert norms.max().item() == pytest.approx(7.6923128579, abs=1e-9)
    assert x[norms.argmax()].item() == pytest.approx(0.168235, abs=2e-6)
    assert F.direction(real(0.16825)[:, None])[0].norm().item() == pytest.approx(7.692312847, abs=1e-8)
    assert norms.max().item() < F.operator_norm()


def test_it_is_the_feature_paths_influence_function():
    """Exact features of the kernel at records, queries and points span all that matters there."""
    stage, queries, points = random_stage(), grid(5), grid(9)[5:]
    pool = torch.cat([stage.block.x, queries, points])
    values, vectors = torch.linalg.eigh(stage.covariance(pool, pool))
    psi = vectors * values.clamp(min=0).sqrt()
    s, w, n = stage.block.s, stage.block.w, stage.n
    v = w[:, None] * psi[:n]
    A = v.T @ v / n + stage.ridge * torch.eye(len(pool), dtype=torch.float64)
    theta = torch.linalg.solve(A, v.T @ s / n)

    def model(theta, row):
        return row @ theta

    other = InfluenceFunction(model, theta, psi[:n], s, w, stage.ridge, psi[n : n + 5])
    F = KernelInfluenceFunction(stage, queries)
    s, w = real(0.4, -0.9, 0.0, 1.0), real(0.5, -0.7, 0.9, 0.0)
    assert relative(F.at(points, s, w), other.at(psi[n + 5 :], s, w)) < 1e-8
    assert relative(F.offset, other.offset) < 1e-8


def test_finite_differences_of_huber_refits():
    """Between two kinks the Huber fit moves as its influence function says: the record is one of the sample."""
    stage, queries, step = random_stage(ResidualLoss(0.3)), grid(5), 1e-6
    F, block, n = KernelInfluenceFunction(stage, queries), stage.block, stage.n
    psi = _exact_features(stage, queries)
    assert 0 < int((stage.fit.residual.abs() > 0.3).sum()) < n
    for i in (10, int(stage.fit.residual.abs().argmax())):
        ends = []
        for weight in (step, -step):
            c = torch.full((n,), (1 - weight) / n, dtype=torch.float64)
            c[i] += weight
            ends.append(psi[n:] @ _weighted_huber(psi[:n], c, stage))
        moved = F.at(block.x[i : i + 1], block.s[i : i + 1], block.w[i : i + 1])[0]
        assert relative((ends[0] - ends[1]) / (2 * step), moved) < 1e-6


def _exact_features(stage: KernelStage, queries: torch.Tensor) -> torch.Tensor:
    pool = torch.cat([stage.block.x, queries])
    values, vectors = torch.linalg.eigh(stage.covariance(pool, pool))
    return vectors * values.clamp(min=0).sqrt()


def _weighted_huber(psi: torch.Tensor, c: torch.Tensor, stage: KernelStage) -> torch.Tensor:
    """Minimiser of sum c_i H(s_i - w_i psi_i'theta) + ridge ||theta||^2 while no record changes sides."""
    s, residual = stage.block.s, stage.fit.residual
    inside, v = stage.loss.inside(residual), stage.block.w[:, None] * psi
    A = v.T @ ((c * inside)[:, None] * v) + stage.ridge * torch.eye(psi.shape[1], dtype=torch.float64)
    outer = torch.where(inside, s, stage.loss.pull(residual))
    theta = torch.linalg.solve(A, v.T @ (c * outer))
    assert torch.equal(stage.loss.inside(s - v @ theta), inside)
    return theta


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("largest_dense", [100, 10])
def test_the_sample_average_is_zero(loss, largest_dense):
    stage = random_stage(loss, largest_dense=largest_dense)
    moved = KernelInfluenceFunction(stage, grid(6)).at(stage.block.x, stage.block.s, stage.block.w)
    assert moved.mean(0).norm().item() < 1e-9 * moved.norm(dim=1).max().item()


def test_norms_of_several_records_at_one_place(monkeypatch):
    F, x = KernelInfluenceFunction(random_stage(ResidualLoss(0.3)), grid(4)), grid(6)
    s, w = torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 6), torch.full((2, 6), 0.7, dtype=torch.float64)
    expected = torch.stack([F.at(x, s[k], w[k]).norm(dim=1) for k in range(2)])
    torch.testing.assert_close(F.norm(x, s, w), expected)
    monkeypatch.setattr("torchdpcate.heads.kernel._BLOCK_ELEMENTS", 100)
    torch.testing.assert_close(F.norm(x, s, w), expected)
    assert torch.autograd.gradcheck(lambda x: F.norm(x, s, w), x.requires_grad_())


@pytest.mark.first(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("q", [1, 2, 6])
def test_no_search_exceeds_the_certified_bound(loss, q):
    stage = random_stage(loss, q=q)
    F = KernelInfluenceFunction(stage, grid(5, q))
    found = gross_error_sensitivity(F, regression, stage.block.domain, starts=64, climbs=16)
    x, y = real(*found.x.tolist())[None], real(found.y)
    s, w = regression(x, real(found.a), y)
    assert F.norm(x, s, w).item() == pytest.approx(found.value, rel=1e-12)
    assert F.norm(stage.block.x, stage.block.s, stage.block.w).max().item() <= found.value * (1 + 1e-9)
    h = F.direction(grid(512, q))[0].norm(dim=1).max().item()
    assert 0.1 * F.operator_norm() < h <= F.operator_norm()
    pull = min(loss.threshold, stage.target_bound + stage.weight_bound * stage.norm)
    assert found.value <= stage.weight_bound * pull * F.operator_norm() + F.offset.norm().item()
