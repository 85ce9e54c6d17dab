"""The kernel head against the theory note, scikit-learn, its own features, and worst neighbours."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge

from experiments.audit.refit import refit
from tests.heads.cases import real
from tests.heads.test_kernel_influence import note_stage
from tests.release.helpers import DOMAIN, QUERIES, block
from torchdpcate.causal.score import ScoreBounds
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.heads import kernel_system
from torchdpcate.heads.kernel import KernelSecondStage, KernelStage
from torchdpcate.heads.kernel_system import SQUARED, DenseSystem, ResidualLoss, minimise
from torchdpcate.heads.linear import LinearProblem, solve, worst_pair
from torchdpcate.heads.stage import SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma, gaussian_epsilon

LOSSES = (ResidualLoss(), ResidualLoss(0.3), ResidualLoss(0.02))


def plain_block(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor, S: float = 1.0) -> SecondStageBlock:
    """Records with covariates in [0, 1] and their (s, w) as given."""
    q = x.shape[1]
    domain = Domain([0.0] * q, [1.0] * q, -1.0, 1.0)
    return SecondStageBlock(x, s, w, lambda x, a, y: (y, 0 * y + 0.9), domain, ScoreBounds(0.9, S, 0.81, S))


def random_stage(loss: ResidualLoss = SQUARED, n: int = 150, ridge: float = 1e-3, **settings) -> KernelStage:
    """Weights of both signs and of zero, two records at one place."""
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    w = torch.rand(n, dtype=torch.float64, generator=generator) * 1.8 - 0.9
    w[:4], x[5] = 0.0, x[6]
    s = (torch.sin(6 * x[:, 0]) * w + 0.4 * torch.randn(n, dtype=torch.float64, generator=generator)).clamp(-1, 1)
    records = plain_block(x, s, w)
    return KernelStage(records, UnitKernel(0.8, records.domain), ridge, loss, **settings)


def exact_features(kernel: UnitKernel, x: torch.Tensor) -> torch.Tensor:
    """Rows psi with psi psi' = K(x, x): on these points the Hilbert space is Euclidean space."""
    values, vectors = torch.linalg.eigh(kernel(x, x))
    return vectors * values.clamp(min=0).sqrt()


def test_value_8_of_the_theory_note():
    stage = note_stage()
    alpha = real(0.5756038622, -0.5803957862, 0.5609720854, 0.7545178770, -1.1785359309)
    torch.testing.assert_close(stage.coefficients, alpha, rtol=0, atol=5e-11)
    answers = stage.correction(real(0.2, 0.6)[:, None])
    torch.testing.assert_close(answers, real(0.4228788448, 0.2714852355), rtol=0, atol=5e-11)
    assert stage.norm == pytest.approx(0.7796653172, abs=5e-11)
    assert stage.gradient_norm <= stage.tolerance


def test_the_kernel_is_scikit_learns_with_ones_on_the_diagonal():
    domain = Domain([0.0, -2.0, 5.0], [1.0, 2.0, 6.0], 0.0, 1.0)
    x = domain.grid(40)
    x[7] = x[3]
    kernel, z = UnitKernel(0.7, domain), domain.scale(x).numpy()
    expected = torch.from_numpy(RBF(0.7)(z))
    for found in (kernel(x, x), kernel(x, x.clone()), kernel(x[:1], x)):
        torch.testing.assert_close(found, expected[: len(found)], rtol=0, atol=1e-14)
    assert kernel(x[3:4], x[7:8]).item() == pytest.approx(1.0, abs=1e-15)
    others = x[20:24]
    assert torch.autograd.gradcheck(lambda x: kernel(x, others), x[:3].clone().requires_grad_())


@pytest.mark.parametrize("bandwidth", [1e-8, 1e-6, 1e-2, 1.0, 1e8])
def test_the_kernel_is_positive_and_one_between_equal_points_at_every_bandwidth(bandwidth):
    """Twins of points and near neighbours, in tensors of their own."""
    kernel, base = UnitKernel(bandwidth, DOMAIN), DOMAIN.grid(20)
    width = DOMAIN.covariate_high - DOMAIN.covariate_low
    near = DOMAIN.clip_covariates(base + 0.3 * min(bandwidth, 1.0) * width)
    x = torch.cat([base, near])
    K = kernel(x, x.clone())
    torch.testing.assert_close(K.diagonal(), torch.ones(40).double(), rtol=0, atol=1e-14)
    assert K.max().item() <= 1 + 1e-14
    torch.testing.assert_close(K, K.T, rtol=1e-12, atol=0)
    assert torch.linalg.eigvalsh(K)[0].item() > -1e-13


def test_squared_head_is_scikit_learns_weighted_kernel_ridge():
    stage = random_stage()
    w, z = stage.block.w[4:], stage.system.z[4:].numpy()
    ridge = KernelRidge(alpha=stage.n * stage.ridge, kernel="rbf", gamma=0.5)
    ridge.fit(z, (stage.block.s[4:] / w).numpy(), sample_weight=w.square().numpy())
    answers = stage.correction(stage.block.x)
    np.testing.assert_allclose(answers.numpy(), ridge.predict(stage.system.z.numpy()), atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_vanishes_as_autograd_sees_it(loss):
    """In coordinates of the Hilbert space, so that the solver does not judge itself."""
    stage = random_stage(loss)
    psi, (s, w) = exact_features(stage.kernel, stage.block.x), (stage.block.s, stage.block.w)

    def objective(theta: torch.Tensor) -> torch.Tensor:
        r, tau = (s - w * (psi @ theta)).abs(), loss.threshold
        beyond = 2 * tau * r - tau**2 if math.isfinite(tau) else 0.0
        return torch.where(r <= tau, r**2, beyond).mean() + stage.ridge * theta @ theta

    theta = (psi.T @ stage.coefficients).requires_grad_()
    value = objective(theta)
    (gradient,) = torch.autograd.grad(value, theta)
    assert gradient.norm().item() <= 1.01 * stage.tolerance + 1e-14
    assert value < objective(torch.zeros_like(theta))
    perturbed = theta.detach() + 1e-3 * torch.randn(20, len(theta), dtype=torch.float64)
    assert all(objective(other) > value for other in perturbed)


@pytest.mark.parametrize("loss", LOSSES[1:])
def test_tiles_in_float32_give_the_fit_of_the_factor(loss, monkeypatch):
    """Tiles that do not divide n, few landmarks, and no array of n^2 numbers anywhere."""
    monkeypatch.setattr(kernel_system, "_TILE", 32)
    monkeypatch.setattr(kernel_system, "_LANDMARKS", 8)
    dense, lazy = random_stage(loss), random_stage(loss, largest_dense=10)
    seen = []
    rough = lazy.system._rough

    def watched(z, other):
        seen.append((z.dtype, len(z) * len(other)))
        return rough(z, other)

    lazy.system._rough = watched
    assert dense.system.norm(dense.fit.u - lazy.fit.u) <= dense.tolerance / dense.ridge
    assert lazy.gradient_norm <= lazy.tolerance
    assert {size for _, size in seen} == {32 * 32, 32 * 22, 22 * 22}
    assert {dtype for dtype, _ in seen} == {torch.float32}
    # the gradient norm is not of the fit's own products: by the whole matrix of differences
    excess = loss.pull(lazy.block.s - lazy.block.w * (lazy.covariance(lazy.block.x, lazy.block.x) @ lazy.coefficients))
    excess = excess - lazy.system.shift * lazy.fit.u
    assert 2 / lazy.n * dense.system.norm(excess) <= 1.01 * lazy.tolerance


def test_a_preconditioner_and_groups_change_no_solution(monkeypatch):
    stage, active = random_stage(largest_dense=10), torch.arange(150) % 5 > 0
    B = torch.randn(150, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w, shift = stage.block.w * active, stage.system.shift
    A = shift * torch.eye(150, dtype=torch.float64) + w[:, None] * stage.covariance(stage.block.x, stage.block.x) * w
    expected = torch.linalg.solve(A, B)
    for landmarks, elements in ((1, 2**24), (100, 2**24), (100, 300)):
        monkeypatch.setattr(kernel_system, "_LANDMARKS", landmarks)
        monkeypatch.setattr(kernel_system, "_GROUP_ELEMENTS", elements)
        found = dataclasses.replace(stage).system.solve(B, active)
        assert float((found - expected).norm() / expected.norm()) < 1e-8


@pytest.mark.parametrize(("bandwidth", "exact"), [(0.1, False), (0.5, True), (3.0, True)])
def test_distances_by_products_are_used_where_they_are_exact(bandwidth, exact):
    kernel = dataclasses.replace(note_stage().kernel, bandwidth=bandwidth)
    assert kernel.exact_by_products is exact
    z = kernel.units(torch.linspace(0, 1, 60, dtype=torch.float64)[:, None])
    gap = (kernel.between_by_products(z, z.clone()) - kernel.between(z, z)).abs().max().item()
    assert gap <= 1e-14 * max(1.0, 1 / bandwidth**2)


def test_updates_of_a_factor_are_exact():
    """Records come and go; the restricted systems are solved densely beside."""
    stage = random_stage()
    system, generator = stage.system, torch.Generator().manual_seed(0)
    w, shift = stage.block.w, system.shift
    K = w[:, None] * stage.covariance(stage.block.x, stage.block.x) * w
    B = torch.randn(150, 3, dtype=torch.float64, generator=generator)
    start = torch.rand(150, generator=generator) < 0.7
    for changes in (0, 1, 4, 6, 90):
        active = start.clone()
        flipped = torch.randperm(150, generator=generator)[:changes]
        active[flipped] = ~active[flipped]
        A = shift * torch.eye(150, dtype=torch.float64) + K * active * active[:, None]
        torch.testing.assert_close(system.solve(B, active), torch.linalg.solve(A, B), rtol=1e-9, atol=1e-9)
    none = torch.zeros_like(start)
    torch.testing.assert_close(system.solve(B, none), B / shift)


def test_a_missed_tolerance_releases_nothing(monkeypatch):
    monkeypatch.setattr(kernel_system, "_MOST_STEPS", 1)
    with pytest.raises(NumericalError, match="nothing is released"):
        _ = random_stage(ResidualLoss(0.1)).fit


@pytest.mark.parametrize("largest_dense", [1_000, 10])
def test_a_kernel_matrix_that_is_not_positive_definite_is_refused(largest_dense, monkeypatch):
    """So wide a kernel has rank 20 in float64, and so small a ridge does not show beside it."""
    monkeypatch.setattr(kernel_system, "_CG_STEPS", 30)
    stage = random_stage(largest_dense=largest_dense)
    wide = dataclasses.replace(stage, kernel=dataclasses.replace(stage.kernel, bandwidth=50.0), ridge=1e-22)
    with pytest.raises(NumericalError, match=r"(not positive definite|residual).*raise second_stage\.ridge"):
        _ = wide.fit


def test_sensitivities_of_the_theory_note():
    """Test value 6 and that of the output page, with the solver's inexactness on top."""
    records = plain_block(torch.zeros(1350, 1, dtype=torch.float64), torch.zeros(1350), torch.zeros(1350))
    kernel = UnitKernel(1.0, records.domain)
    for loss, expected in ((ResidualLoss(), 0.397714482), (ResidualLoss(1.0), 0.133333333)):
        stage = KernelStage(records, kernel, 0.01, loss)
        assert stage.sensitivity - stage.tolerance / 0.01 == pytest.approx(expected, abs=1e-9)
    assert stage.tolerance == pytest.approx(0.9e-10)


@pytest.mark.parametrize("threshold", [math.inf, 1.0, 0.1])
def test_no_replaced_record_moves_the_head_beyond_the_bound(threshold):
    """Real neighbours and worst records: every one of 30 records by each of 68 others, 2,040 refits at once.

    On these finitely many points the Hilbert space is Euclidean, so that ``refit`` gives its distances.
    """
    records, n = block(60), 30
    corners = torch.cartesian_prod(real(0, 0.5, 1), real(-1, 1))
    s, w = records.regression(corners, real(1, 0, 1, 0, 1, 0), real(2, 2, -2, -2, 2, -2))
    extreme = real(records.bounds.target, -records.bounds.target)
    x = torch.cat([records.x, corners, records.x[:2]])
    s, w = torch.cat([records.s, s, extreme]), torch.cat([records.w, w, real(0.9, 0.9)])
    base = dataclasses.replace(records, x=x[:n], s=s[:n], w=w[:n])
    stage = KernelStage(base, UnitKernel(0.5, DOMAIN), 0.02, ResidualLoss(threshold))
    psi = exact_features(stage.kernel, x)
    problem = LinearProblem(psi[:n], s[:n], w[:n], 0.02, 0.9, base.bounds.target, threshold)
    index = torch.arange(n).repeat_interleave(len(x))
    every = torch.arange(len(x)).repeat(n)
    moved = (refit(problem, index, psi[every], s[every], w[every]) - solve(problem).theta).norm(dim=1)
    assert moved.max().item() <= stage.sensitivity
    assert moved.max().item() > 0.05 * stage.sensitivity
    worst = int(moved.argmax())
    parts = (x, s, w)
    x, s, w = (torch.cat([t[:n][torch.arange(n) != index[worst]], t[every[worst]][None]]) for t in parts)
    neighbour = dataclasses.replace(stage, block=dataclasses.replace(base, x=x, s=s, w=w))
    assert distance(stage, neighbour) == pytest.approx(moved.max().item(), rel=1e-7)


def distance(stage: KernelStage, other: KernelStage) -> float:
    """||f - f'||_H of two stages of one kernel."""
    x = torch.cat([stage.block.x, other.block.x])
    c = torch.cat([stage.coefficients, -other.coefficients])
    return math.sqrt(float(c @ stage.covariance(x, x) @ c))


def attaining_pair(q: int, n: int, ridge: float, threshold: float, bandwidth: float = 1.0) -> list[KernelStage]:
    """Neighbours that attain the Huber bound: one record apart, s = S or -S, all others far beyond the threshold."""
    x = torch.zeros(n, q, dtype=torch.float64)
    x[0] = 1.0
    domain = Domain([0.0] * q, [1.0] * q, -1.0, 1.0)
    kernel = UnitKernel(bandwidth, domain)
    stages = []
    for s0 in (1.0, -1.0):
        s = torch.ones(n, dtype=torch.float64)
        s[0] = s0
        records = SecondStageBlock(x, s, torch.ones_like(s), lambda x, a, y: (y, a), domain, ScoreBounds(1, 1, 1, 1))
        stages.append(KernelStage(records, kernel, ridge, ResidualLoss(threshold)))
    return stages


def test_the_huber_bound_is_attained():
    pair = attaining_pair(q=2, n=50, ridge=0.05, threshold=0.01)
    assert distance(*pair) == pytest.approx(pair[0].sensitivity, rel=1e-7)


def test_lemma_1s_constant_is_too_small_for_a_concrete_pair():
    """The paper's eq. 19 at q = 8, h = 1, nominal (1, 1e-5): one query distinguishes the pair with epsilon 9.98.

    Its kernel is kappa^2 = (sqrt(2 pi) h)^{-q} times the unit one, so its lambda is lambda kappa^2 here, and norms
    of the same function are 1 / kappa times as large.
    """
    q, n, tau, lam = 8, 50, 0.01, 0.05 * (2 * math.pi) ** -4
    kappa = (2 * math.pi) ** (-q / 4)
    first, second = attaining_pair(q, n, lam / kappa**2, tau, bandwidth=1.0)
    moved = distance(first, second) / kappa  # in the norm of the paper's kernel
    right, printed = 2 * tau * kappa / (lam * n), 4 * 2 * tau * kappa**2 / (lam * n)
    assert moved == pytest.approx(right, rel=1e-7)
    assert printed / right == pytest.approx(4 * kappa)
    shift = moved / (printed * math.sqrt(2 * math.log(2e5)))  # in standard deviations of the noise, at one query
    here = first.block.x[:1]
    answers = (first.correction(here) - second.correction(here)).item()
    assert answers == pytest.approx(moved * kappa, rel=1e-7)  # of noise r kappa there: one query has the full shift

    assert gaussian_epsilon(1 / shift, 1e-5) == pytest.approx(9.98, abs=0.005)


def test_the_squared_bound_is_nearly_attained():
    """The linear head's worst pair, solved with its own kernel."""
    pair, thetas = worst_pair(0.9, 1.0, 0.02, 400), []
    for problem in (pair.first, pair.second):
        system = DenseSystem(lambda z, other: z @ other.T, problem.psi, problem.w, 400 * 0.02)
        thetas.append(problem.psi.T @ (problem.w * minimise(system, problem.s, ResidualLoss(), 1e-12).u))
    bound = random_stage(n=400, ridge=0.02).sensitivity
    moved = (thetas[0] - thetas[1]).norm().item()
    assert 0.8 * bound < moved <= bound
    assert moved == pytest.approx(pair.change, rel=1e-8)


def test_answers_are_the_same_in_blocks(monkeypatch):
    stage = random_stage(ResidualLoss(0.2))
    answers = stage.correction(stage.block.x)
    torch.testing.assert_close(answers, stage.covariance(stage.block.x, stage.block.x) @ stage.coefficients)
    monkeypatch.setattr("torchdpcate.heads.kernel._BLOCK_ELEMENTS", 300)
    torch.testing.assert_close(stage.correction(stage.block.x), answers, rtol=0, atol=1e-12)
    assert stage.correction(stage.block.x[:1].float()).dtype == torch.float64


def test_recipe_gives_the_stage():
    records, budget = block(50), PrivacyBudget(1.0, 1e-5)
    stage = KernelSecondStage(noise_ratio=0.3).fit(records, threshold=0.4, budget=budget)
    assert stage.loss == ResidualLoss(0.4)
    assert stage.kernel.bandwidth == math.sqrt(2)
    assert stage.sensitivity * analytic_gaussian_sigma(1.0, 1e-5) == pytest.approx(0.3 * 0.4, rel=1e-6)
    assert KernelSecondStage(threshold=0.2, ridge=0.1).fit(records).loss == ResidualLoss(0.2)
    assert KernelSecondStage(loss="squared").fit(records).loss == ResidualLoss()
    assert stage.correction(QUERIES).shape == (8,)


def test_the_median_bandwidth_is_of_the_domain_alone():
    """|U - V| on [-1, 1] has its median at 2 - sqrt(2)."""
    bandwidth = KernelSecondStage(bandwidth="median").bandwidth_for(Domain([3.0], [9.0], 0, 1))
    assert bandwidth == pytest.approx(2 - math.sqrt(2), abs=2e-3)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        *((KernelSecondStage, {"bandwidth": b}, rf"second_stage\.bandwidth = {b}") for b in (0, -1, math.nan, "mean")),
        (KernelSecondStage, {"loss": "absolute"}, r"second_stage\.loss = absolute"),
        (KernelSecondStage, {"ridge": 0.0}, r"second_stage\.ridge = 0"),
        (partial(dataclasses.replace, note_stage()), {"ridge": 0.0}, r"ridge = 0"),
        (partial(dataclasses.replace, note_stage()), {"loss": ResidualLoss(0.0)}, r"threshold = 0"),
    ],
)
def test_bad_settings_are_refused(make, settings, message):
    with pytest.raises(InputError, match=message):
        make(**settings)
