"""Sufficient statistics: the sensitivity by search, the noise seen on draws, every ridge, and the file."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from sklearn.linear_model import Ridge

from tests.estimators.cate.mechanisms.test_mechanisms import ForbiddenNoise
from tests.release.helpers import DOMAIN, QUERIES, SCHEMA, Charges, nuisances, stage
from tests.release.test_file import STATEMENT
from tests.sessions import noted
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.estimators.cate.mechanisms import perturbation
from torchdpcate.estimators.cate.mechanisms.perturbation import SufficientStatistics, statistics_units
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.fit.minimise import NormalEquations
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.heads.recipes import NeuralSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import load_release
from torchdpcate.release.statistics import StatisticsRelease

BUDGET = PrivacyBudget(1.0, 1e-5)
VAST = PrivacyBudget(1e12, 1e-5)  # next to no noise


def whitened(problem: LinearProblem, B: float, S: float) -> torch.Tensor:
    """The exact statistics in the units in which one record should move them by at most one."""
    matrix, vector = statistics_units(B, S)
    units = (matrix, matrix / math.sqrt(2), vector)
    blocks = perturbation._blocks(perturbation._equations(problem, S))
    return torch.cat([block / unit for block, unit in zip(blocks, units, strict=True)])


@pytest.mark.slow
def test_one_record_moves_the_statistics_by_at_most_one_and_by_one():
    """Both records, lengths, angle and targets searched; targets beyond S are clipped first."""
    B, S, generator = 0.8, 0.3, torch.Generator().manual_seed(0)
    largest = 0.0
    for trial in range(3_000):
        near = trial >= 1_500  # the second half near the ends, where the supremum lies
        lengths = torch.rand(2, generator=generator) if not near else torch.ones(2)
        turn = 2 * math.pi * torch.rand(2, generator=generator)
        targets = 4 * S * torch.rand(2, generator=generator) - 2 * S if not near else torch.tensor([S, -S])
        moved = []
        for length, angle, target in zip(lengths, turn, targets, strict=True):
            psi = torch.stack([angle.cos(), angle.sin()])[None].double() * length
            w = torch.full((1,), B, dtype=torch.float64)
            moved.append(whitened(LinearProblem(psi, target[None].double(), w, 0.1, B, 9.0, S), B, S))
        largest = max(largest, (moved[0] - moved[1]).norm().item())
    assert 0.999 < largest <= 1 + 1e-6  # float32 angles

    angle, pair = math.pi / 3, []
    for turned, target in ((0.0, S), (angle, -S)):
        psi = torch.tensor([[math.cos(turned), math.sin(turned)]], dtype=torch.float64)
        s, w = torch.tensor([target], dtype=torch.float64), torch.tensor([B], dtype=torch.float64)
        pair.append(whitened(LinearProblem(psi, s, w, 0.1, B, 9.0, S), B, S))
    assert (pair[0] - pair[1]).norm().item() == pytest.approx(1.0, rel=1e-12)


def test_the_notes_constants_are_larger():
    """2 B^4 / sigma_A^2 + 4 B^2 S^2 / sigma_b^2 <= sigma_AG^-2 with equal shares requests sqrt 6, not sqrt 4.5."""
    matrix, vector = statistics_units(0.9, 1.0)
    assert 2 * 0.9**4 / matrix**2 + 4 * 0.9**2 / vector**2 == pytest.approx(6 / 4.5)


@pytest.mark.slow
def test_noise_has_the_declared_variances():
    """20,000 draws of 5 numbers: each sum of squares is chi-squared; two-sided error of all five below 1e-7."""
    fitted = stage()
    problem = dataclasses.replace(fitted.problem, psi=fitted.problem.psi[:, :2])
    ready = SufficientStatistics().prepare(perturbation.given_stage(problem), BUDGET)
    draws, runs = ready.draw(NoiseSource.system(), 20_000), 20_000
    assert ready.noise_scale is None
    exact = torch.cat(perturbation._blocks(perturbation._equations(problem, problem.threshold)))
    sigma = analytic_gaussian_sigma(1.0, 1e-5)
    matrix, vector = (sigma * unit for unit in statistics_units(problem.weight_bound, problem.threshold))
    scales = torch.tensor([matrix, matrix, matrix / math.sqrt(2), vector, vector], dtype=torch.float64)
    assert ready.public["matrix_scale"] == pytest.approx(matrix, rel=1e-4)
    assert ready.public["vector_scale"] == pytest.approx(vector, rel=1e-4)
    total = ((draws - exact) / scales).square().sum(0)
    low, high = chi2.ppf([1e-8, 1 - 1e-8], runs)
    assert bool(((low < total) & (total < high * 1.0005)).all())
    correlation = torch.corrcoef((draws - exact).T) - torch.eye(5, dtype=torch.float64)
    assert correlation.abs().max().item() < 6 / math.sqrt(runs)


def clipped_ridge(fitted, ridge: float) -> np.ndarray:
    problem = fitted.problem
    s = problem.s.clamp(-problem.threshold, problem.threshold)
    model = Ridge(alpha=problem.n * ridge, fit_intercept=False, tol=1e-14)
    return model.fit(problem.v.numpy(), s.numpy()).coef_


def release_from(head) -> StatisticsRelease:
    return SufficientStatistics().make_release(
        stage(), head, features=stage().features, nuisances=nuisances(), schema=SCHEMA, privacy=STATEMENT
    )


@pytest.mark.parametrize("threshold", [0.1, math.inf])
def test_without_noise_every_ridge_is_the_closed_form(threshold):
    fitted, charges = dataclasses.replace(stage(), threshold=threshold), Charges()
    head = SufficientStatistics(ridge=0.05).privatize(fitted, VAST, noted(NoiseSource.system(), charges))
    assert [level for _, level in charges.made] == [Level.CERTIFIED]
    release = release_from(head)
    np.testing.assert_allclose(release.theta.numpy(), clipped_ridge(fitted, 0.05), atol=1e-4)
    for ridge in (0.01, 0.3, 2.0):
        swept = release.at_ridge(ridge)
        np.testing.assert_allclose(swept.theta.numpy(), clipped_ridge(fitted, ridge), atol=1e-4)
        assert (swept.ridge, swept.privacy.public["ridge"]) == (ridge, ridge)
    assert len(charges.made) == 1
    np.testing.assert_array_equal(release.at_ridge(0.05).effect(QUERIES), release.effect(QUERIES))


def test_the_target_bound_is_the_clip():
    fitted = stage(threshold=0.1)
    wide = SufficientStatistics().prepare(fitted.squared(), BUDGET).public
    narrow = SufficientStatistics().prepare(fitted, BUDGET).public
    assert narrow["matrix_scale"] == wide["matrix_scale"]
    assert narrow["vector_scale"] / wide["vector_scale"] == pytest.approx(0.1 / fitted.problem.target_bound)


def test_the_ridge_is_the_given_one_or_large_enough_for_the_matrix_noise():
    fitted = stage(n=400, ridge=1e-4)
    ready, p = SufficientStatistics().prepare(fitted, BUDGET), fitted.features.dimension
    assert ready.public["ridge"] == pytest.approx(0.3 * ready.public["matrix_scale"] * math.sqrt(2 * p) / 400)
    assert SufficientStatistics().prepare(stage(ridge=5.0), BUDGET).public["ridge"] == 5.0
    assert SufficientStatistics(ridge=1e-3).prepare(fitted, BUDGET).public["ridge"] == 1e-3


def test_the_ledger_is_charged_before_noise_is_drawn():
    charges = Charges()
    SufficientStatistics().privatize(stage(), BUDGET, noted(ForbiddenNoise(charges), charges))
    assert len(charges.made) == 1


def test_round_trip_and_no_band(tmp_path):
    head = SufficientStatistics().privatize(stage(), BUDGET, noted(NoiseSource.system(), Charges()))
    release = release_from(head)
    loaded = load_release(release.save(tmp_path / "r.safetensors"))
    assert isinstance(loaded, StatisticsRelease)
    np.testing.assert_allclose(loaded.effect(QUERIES), release.effect(QUERIES), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loaded.at_ridge(0.3).effect(QUERIES), release.at_ridge(0.3).effect(QUERIES), atol=1e-12)
    assert loaded.statistics.n == release.statistics.n == 400
    with pytest.raises(InputError, match="has no public noise scale"):
        loaded.noise_band(QUERIES)
    with pytest.raises(InputError, match="ridge = -1"):
        loaded.at_ridge(-1.0)


def damaged(change) -> NormalEquations:
    private = SufficientStatistics().privatize(stage(), BUDGET, noted(NoiseSource.system(), Charges()))
    equations = release_from(private).statistics
    change(equations)
    return equations


@pytest.mark.parametrize(
    "change",
    [
        lambda equations: equations.matrix[0, 1:2].add_(1.0),
        lambda equations: equations.matrix.fill_(math.nan),
        lambda equations: setattr(equations, "matrix", equations.matrix[:-1]),
        lambda equations: setattr(equations, "vector", equations.vector[:-1]),
        lambda equations: setattr(equations, "n", 0),
    ],
)
def test_statistics_that_do_not_fit_are_refused(change, tmp_path):
    head = SufficientStatistics().privatize(stage(), BUDGET, noted(NoiseSource.system(), Charges()))
    broken = dataclasses.replace(release_from(head), statistics=damaged(change))
    with pytest.raises(ReleaseFileError, match="do not fit together"):
        load_release(broken.save(tmp_path / "r.safetensors"))


def test_what_has_no_bound_is_refused():
    with pytest.raises(InputError, match="no sensitivity bound"):
        SufficientStatistics().check(NeuralSecondStage(), 0.9, 400, BUDGET)
    with pytest.raises(InputError, match=r"mechanism\.ridge = 0"):
        SufficientStatistics(ridge=0.0)
    many = dataclasses.replace(stage(n=5), features=Fourier(pairs=2_049).setup(DOMAIN))
    with pytest.raises(InputError, match="take at most 4,096"):
        SufficientStatistics().prepare(many, BUDGET)
