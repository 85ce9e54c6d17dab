"""Means, ranks and views: closed forms, honest bands under clipping, and a whole learner's release."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from tests.release.helpers import DOMAIN, QUERIES, SCHEMA, nuisances
from torchdpcate import PrivacyBudget, RLearner
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import Fourier, Legendre
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.post_processing import clipped, mean_effect, monotone, noise_scales, rank
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement

CERTIFIED = PrivacyStatement("output", "", "certified", "(1, 1e-05)", 1.0, 1e-5, 100, ())
POINTS = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
POINTS[:, 0] = POINTS[:, 0].abs()
Z95 = 1.959963984540054


class Answers(QueryRelease):
    """Effects by a formula, answered anywhere, each with noise of the same scale."""

    formula = staticmethod(lambda x: torch.sin(6 * x[:, 0]) + 0.5 * x[:, 1])

    def effect_tensor(self, x):
        return self.formula(x)

    def _noise_scale(self, x):
        return 0.1 + 0.2 * x[:, 0]


def answers(privacy=CERTIFIED) -> Answers:
    return Answers(QUERIES, torch.zeros(8, dtype=torch.float64), SCHEMA, privacy)


def function(features=None, scale=0.05, theta=None, privacy=CERTIFIED) -> FunctionRelease:
    features = (features or Legendre(2)).setup(DOMAIN)
    theta = torch.linspace(-0.5, 0.5, features.dimension, dtype=torch.float64) if theta is None else theta
    return FunctionRelease(theta, features, nuisances(), SCHEMA, privacy, scale)


def test_means_over_strata_are_means():
    labels = np.array(["b", "a"] * 20)
    table = mean_effect(answers(), POINTS, labels)
    effect = answers().effect(POINTS)
    assert table["stratum"].tolist() == ["a", "b"]
    assert table["rows"].tolist() == [20, 20]
    np.testing.assert_allclose(table["mean"], [effect[labels == "a"].mean(), effect[labels == "b"].mean()])
    whole = mean_effect(answers(), POINTS)
    np.testing.assert_allclose(whole["mean"], [effect.mean()])
    pd.testing.assert_frame_equal(mean_effect(answers(), POINTS, pd.Series(labels, index=np.arange(40) + 7)), table)


def test_the_noise_of_one_row_is_the_intervals():
    release = function()
    table = mean_effect(release, POINTS, np.arange(40))
    np.testing.assert_allclose(table[["low", "high"]], release.noise_band(POINTS), rtol=1e-12)


def test_the_noise_of_a_mean_in_closed_form():
    # On a symmetric grid the Legendre features are uncorrelated, and the intercept's is their largest variance: then
    # the bound is exactly s ||mean psi|| = s / sqrt(p).
    signs = torch.tensor([[a, b] for a in (-1.0, 0.0, 1.0) for b in (-1.0, 0.0, 1.0)], dtype=torch.float64)
    x = (DOMAIN.covariate_low + DOMAIN.covariate_high) / 2 + signs * (DOMAIN.covariate_high - DOMAIN.covariate_low) / 2
    release = function(Legendre(1), scale=0.3)
    noise = mean_effect(release, x)["noise"].item()
    assert noise == pytest.approx(0.3 / np.sqrt(3), rel=1e-12)
    assert noise == pytest.approx(0.3 * release.features(x).mean(0).norm().item(), rel=1e-12)


@pytest.mark.parametrize("pairs", [4, 64])  # fewer features than rows, and more
def test_the_noise_of_a_mean_lies_between_the_exact_one_and_the_mean_scale(pairs):
    release = function(Fourier(pairs, bandwidth=0.5))
    noise = mean_effect(release, POINTS)["noise"].item()
    psi = release.features(POINTS)
    assert noise == pytest.approx(0.05 * torch.linalg.matrix_norm(psi, 2).item() / np.sqrt(40), rel=1e-10)
    assert 0.05 * psi.mean(0).norm() <= noise < 0.05  # features of norm one


def test_without_features_the_noise_of_a_mean_is_the_mean_scale():
    expected = noise_scales(answers(), POINTS).mean().item()
    assert mean_effect(answers(), POINTS)["noise"].item() == pytest.approx(expected, rel=1e-12)


def test_a_band_covers_the_median_of_a_mean_of_clipped_effects():
    """20,000 draws, false alarm < 1e-6. Three features that cancel: noise moves the mean by clipping alone."""
    features = Fourier(1)
    release = function(features, scale=1.0, theta=torch.tensor([6.0, 0.0], dtype=torch.float64))
    features.frequencies.copy_(torch.tensor([[torch.pi], [0.0]]))
    x = torch.tensor([[1 / 6, 0.0], [1 / 2, 0.0], [5 / 6, 0.0]], dtype=torch.float64)  # -120, 0 and 120 degrees
    assert features(x).mean(0).norm() < 1e-7
    noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = release.nuisances.effect(x)[:, None] + features(x) @ (release.theta + noise).T
    means, table = values.clamp(-4, 4).mean(0), mean_effect(release, x, level=0.9)
    half = 1.6448536269514722 * table["noise"].item()
    inside = ((means - means.median()).abs() <= half).double().mean().item()
    assert inside > 0.9 - 5 * np.sqrt(0.09 / 20_000)
    assert means.std() > 0.2  # while s ||mean psi|| is zero
    np.testing.assert_allclose(table["high"] - table["mean"], half)


def test_clipping_takes_effects_and_bands_alike():
    release, view = answers(), clipped(answers(), -0.2, 0.4)
    np.testing.assert_array_equal(view.effect(POINTS), release.effect(POINTS).clip(-0.2, 0.4))
    np.testing.assert_array_equal(view.noise_band(POINTS), release.noise_band(POINTS).clip(-0.2, 0.4))
    assert view.privacy is release.privacy
    features = function()
    np.testing.assert_array_equal(
        mean_effect(clipped(features, -1, 1), POINTS)["noise"], mean_effect(features, POINTS)["noise"]
    )


@pytest.mark.parametrize("increasing", [True, False])
def test_monotone_effects_are_the_isotonic_projection_row_by_row(increasing):
    view = monotone(answers(), "x0", increasing, points=11)
    grid = np.linspace(0, 1, 11)
    for row in POINTS[:5]:
        line = torch.stack([torch.from_numpy(grid), row[1].expand(11)], 1)
        fitted = IsotonicRegression(increasing=increasing).fit(grid, answers().effect(line))
        np.testing.assert_allclose(view.effect(line), fitted.predict(grid), atol=1e-12)
        between = line[3:5].mean(0, keepdim=True)
        np.testing.assert_allclose(view.effect(between), fitted.predict(grid)[3:5].mean(), atol=1e-12)
    np.testing.assert_allclose(view.effect(POINTS), np.concatenate([view.effect(row[None]) for row in POINTS]))


def test_what_is_monotone_already_stays():
    view = monotone(answers(), "x1")
    np.testing.assert_allclose(view.effect(POINTS), answers().effect(POINTS), atol=1e-12)


def test_many_rows_are_projected_apart():
    """More rows than a batch holds, with effects at the ends of the range and constant ones between them."""
    release = answers()
    release.formula = lambda x: torch.where(x[:, 1] > 0, torch.where(x[:, 0] > 0.5, -4.0, 4.0), -4.0).double()
    x = POINTS.repeat(60, 1)
    effect = monotone(release, "x0", points=100).effect(x)
    np.testing.assert_allclose(effect, np.where(x[:, 1] > 0, 0.0, -4.0), atol=1e-9)


def test_the_band_of_a_monotone_effect_is_as_wide_as_the_noisiest_on_its_line():
    view = monotone(answers(), "x0")
    low, high = view.noise_band(POINTS[:3]).T
    np.testing.assert_allclose((high - low) / 2, Z95 * 0.3, rtol=1e-9)  # the scale at x0 = 1
    np.testing.assert_allclose((high + low) / 2, view.effect(POINTS[:3]))


@pytest.mark.slow
def test_a_monotone_band_covers_the_median():
    """2,000 draws of correlated noise along a line, false alarm < 1e-6 for each of its points."""
    features = Fourier(8, bandwidth=0.2).setup(DOMAIN)
    grid = torch.stack([torch.linspace(0, 1, 21, dtype=torch.float64), torch.zeros(21, dtype=torch.float64)], 1)
    noise = torch.randn(2_000, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = 0.2 * noise @ features(grid).T
    fits = np.stack([IsotonicRegression().fit_transform(grid[:, 0], row) for row in values.numpy()])
    half = 1.6448536269514722 * 0.2
    inside = (np.abs(fits - np.median(fits, axis=0)) <= half).mean(0)
    assert inside.min() > 0.9 - 5 * np.sqrt(0.09 / 2_000)


def test_views_of_views():
    view = clipped(monotone(answers(), "x0"), 0.0, 0.5)
    assert view.effect(POINTS).min() >= 0
    assert mean_effect(view, POINTS)["noise"].item() == pytest.approx(0.3)
    assert rank(view, POINTS)["rank"].tolist() == list(range(1, 41))


def test_ranks_are_stable():
    release = answers()
    release.formula = lambda x: torch.round(2 * x[:, 0]) / 2
    table = rank(release, POINTS)
    effect = release.effect(POINTS)
    assert table.index.tolist() == sorted(range(40), key=lambda i: (-effect[i], i))
    assert table["rank"].tolist() == list(range(1, 41))
    np.testing.assert_array_equal(table["effect"], effect[table.index])


HEURISTIC = dataclasses.replace(CERTIFIED, level="heuristic", epsilon=None, delta=None)
CONDITIONAL = dataclasses.replace(CERTIFIED, level="conditional", epsilon=None, delta=None)


@pytest.mark.parametrize("privacy", [HEURISTIC, CONDITIONAL])
def test_only_certified_releases_have_bands(privacy):
    release = function(privacy=privacy)
    assert noise_scales(release, POINTS) is None
    assert mean_effect(release, POINTS)[["noise", "low", "high"]].isna().all(axis=None)
    for view in (clipped(release, -1, 1), monotone(release, "x0")):
        with pytest.raises(InputError, match="has no public noise scale"):
            view.noise_band(POINTS)


def test_secret_scales_have_no_bands():
    release = QueryRelease(QUERIES, torch.linspace(-1, 1, 8, dtype=torch.float64), SCHEMA, CERTIFIED)
    table = mean_effect(release, QUERIES)
    assert table["mean"].item() == pytest.approx(0.0)
    assert table["noise"].isna().all()
    assert mean_effect(function(scale=None), POINTS)["noise"].isna().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_effect(answers(), POINTS, ["a"]), "one label a row"),
        (lambda: mean_effect(answers(), POINTS, [None] + ["a"] * 39), "1 of 40 labels are missing"),
        (lambda: mean_effect(answers(), POINTS[:0]), "no rows"),
        (lambda: mean_effect(answers(), POINTS, level=1.0), "level = 1"),
        (lambda: mean_effect(answers(), POINTS + 5), "query"),
        (lambda: monotone(answers(), "age"), "choose one of x0, x1"),
        (lambda: monotone(answers(), "x0", points=1), "points = 1"),
        (lambda: clipped(answers(), 1, 0), "low, high = 1, 0"),
        (lambda: clipped(answers(), 0, float("nan")), "low, high"),
        (lambda: monotone(answers(), "x0").noise_band(POINTS, 0), "level = 0"),
    ],
)
def test_mistakes_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_category_is_no_covariate_to_be_monotone_in():
    schema = TableSchema.from_dict(
        {
            "treatment": "a",
            "outcome": {"name": "y", "low": -2, "high": 2, "better": "higher"},
            "covariates": {"age": {"low": 0, "high": 1}, "site": {"categories": ["n", "s"]}},
        }
    )
    release = dataclasses.replace(answers(), schema=schema)
    with pytest.raises(InputError, match=r"choose one of age$"):
        monotone(release, "site")


def test_a_query_release_answers_on_no_grid_but_its_own():
    domain = Domain([0.0], [1.0], -1.0, 1.0, better="higher")
    x = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    values = torch.tensor([0.0, 0.4, 0.2, 0.3, 0.6], dtype=torch.float64)
    release = QueryRelease(x, values, TableSchema.from_domain(domain), CERTIFIED, torch.full((5,), 0.1).double())
    np.testing.assert_allclose(monotone(release, "x0", points=5).effect(x), [0.0, 0.3, 0.3, 0.3, 0.6])
    with pytest.raises(InputError, match="not among the 5 released queries"):
        monotone(release, "x0").effect(x)


@pytest.fixture(scope="module")
def learner():
    study = Dataset1(n=700, queries=20, seed=3).load()
    quick = NuisanceConfig(width=8, batch_size=60, epochs=2)
    stage = LinearSecondStage(ridge=0.02)
    return study, lambda **rest: RLearner(
        study.domain, PrivacyBudget(2.0, 1e-5), nuisance=quick, second_stage=stage, **rest
    ).fit(study.records.x, study.records.a, study.records.y)


@pytest.mark.slow
def test_post_processing_of_a_learners_release_costs_nothing(learner):
    study, fitted = learner
    model = fitted()
    release = model.release_function()
    spent = model.ledger_.spent()
    strata = np.where(study.queries[:, 0] < 0.5, "young", "old")
    table = mean_effect(release, study.queries, strata)
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    assert table["low"].notna().all()
    rising = monotone(clipped(release, 0, 5), "x0")
    line = torch.stack([torch.linspace(0, 1, 50), torch.full((50,), 0.3)], 1).double()
    assert np.diff(rising.effect(line)).min() >= -1e-12
    assert rising.noise_band(line).shape == (50, 2)
    assert len(rank(rising, study.queries)) == 20
    assert model.ledger_.spent() == spent


@pytest.mark.slow
def test_a_learner_without_private_noise_has_no_band(learner):
    study, fitted = learner
    release = fitted(noise=NoiseSource.fixed(1)).release_function()
    assert mean_effect(release, study.queries)["noise"].isna().all()
    with pytest.raises(InputError, match="has no public noise scale"):
        clipped(release, 0, 1).noise_band(study.queries)
