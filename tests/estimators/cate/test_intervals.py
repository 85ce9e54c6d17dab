"""Intervals of a composed effect: when there are any, what they hold, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.verify.forgery import card_html
from torchdpcate import Domain, PrivacyBudget, RLearner, load_release
from torchdpcate.composition import effect_law
from torchdpcate.composition.effect_law import Covariates
from torchdpcate.composition.interval_events import interval_plan, law_of
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import CompositionPlan
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.unit import PrivacyUnit
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw

BUDGET = PrivacyBudget(4.0, 1e-5)
POINTS = torch.tensor([[0.0, 0.0], [1.0, -1.0], [-1.0, 0.5]], dtype=torch.float64)


def problems_of(release: ComposedRelease) -> list[str]:
    return list(CompositionPlan.restated(release).problems(release))


def domain(propensity: object = 0.5) -> Domain:
    return Domain([-3.0] * 2, [3.0] * 2, -8.0, 10.0, overlap=0.1, propensity=propensity)  # type: ignore[arg-type]


def drawn(n: int, seed: int = 0, pi: float = 0.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64).clamp(-3, 3)
    a = (torch.rand(n, generator=generator) < pi).double()
    y = x[:, 1] + a * (1 + x[:, 0]) + torch.randn(n, generator=generator, dtype=torch.float64)
    return x, a, y.clamp(-8, 10)


def released(n: int = 3000, seed: int = 0, budget: PrivacyBudget | None = BUDGET) -> ComposedRelease:
    learner = RLearner(domain(), budget, second_stage=AdaptiveSecondStage(), noise=NoiseSource.fixed(seed))
    release = learner.fit(*drawn(n, seed)).release_function()
    assert isinstance(release, ComposedRelease)
    return release


@pytest.fixture(scope="module")
def release() -> ComposedRelease:
    learner = RLearner(domain(), BUDGET, second_stage=AdaptiveSecondStage())
    found = learner.fit(*drawn(3000)).release_function()
    assert isinstance(found, ComposedRelease)
    return found


def test_contrasts_are_antisymmetric_and_need_no_centre(release: ComposedRelease) -> None:
    forth, back = release.effect_contrast(POINTS, POINTS.flip(0)), release.effect_contrast(POINTS.flip(0), POINTS)
    np.testing.assert_allclose(forth, -back[:, ::-1])
    np.testing.assert_allclose(release.effect_contrast(POINTS, POINTS[:1])[0], 0, atol=1e-12)
    with pytest.raises(InputError, match="X2: has 2 rows for 3 of X"):
        release.effect_contrast(POINTS, POINTS[:2])


def test_verification_makes_the_law_anew_from_its_numbers(release: ComposedRelease) -> None:
    assert list(problems_of(release)) == []
    assert release.law is not None
    moved = replace(release, law=replace(release.law, average=release.law.average + 0.1))
    assert any("law.average does not follow" in p for p in problems_of(moved))
    narrower = replace(release, law=replace(release.law, covariance=release.law.covariance / 2))
    assert any("covariance" in problem for problem in problems_of(narrower))
    bare = replace(release, law=replace(release.law, missed=0.0))
    assert any("law.missed" in problem for problem in problems_of(bare))
    without = replace(release, law=None, numbers=None)
    assert any("its plan does not request it" in problem for problem in problems_of(without))


@pytest.fixture(scope="module")
def estimated() -> ComposedRelease:
    stage = AdaptiveSecondStage(intervals=True)
    found = RLearner(domain(None), BUDGET, second_stage=stage).fit(*drawn(3000)).release_function()
    assert isinstance(found, ComposedRelease)
    return found


def test_an_estimated_propensity_has_intervals_that_say_what_they_rest_on(
    estimated: ComposedRelease, release: ComposedRelease, tmp_path
) -> None:
    assert estimated.law is not None
    assert estimated.without is None
    assert "by the released propensity" in estimated.target
    assert "log-odds of treatment" in estimated.summary()["intervals_hold_if"]
    assert "randomised" in release.assumptions
    loaded = load_release(estimated.save(tmp_path / "r.safetensors"))
    assert isinstance(loaded, ComposedRelease)
    np.testing.assert_allclose(loaded.interval(POINTS), estimated.interval(POINTS), rtol=1e-12)
    np.testing.assert_allclose(loaded.average(bias=0.1), estimated.average(bias=0.1), rtol=1e-12)
    assert "log-odds of treatment" in card_html(loaded)


def test_a_stated_bias_widens_the_intervals_of_an_estimated_propensity_alone(
    estimated: ComposedRelease, release: ComposedRelease
) -> None:
    (low, high), (lower, higher) = estimated.average(), estimated.average(bias=0.2)
    assert (lower, higher) == (pytest.approx(low - 0.2), pytest.approx(high + 0.2))
    assert (estimated.interval(POINTS, bias=0.2)[:, 0] < estimated.interval(POINTS)[:, 0] - 0.19).all()
    apart = np.ptp(estimated.effect_contrast(POINTS, POINTS[:1], bias=0.2), axis=1)
    assert (apart[1:] > np.ptp(estimated.effect_contrast(POINTS, POINTS[:1]), axis=1)[1:]).all()
    with pytest.raises(InputError, match=r"bias = 0\.2: the propensity is known"):
        release.interval(POINTS, bias=0.2)


def test_verification_makes_the_law_of_an_estimated_propensity_anew(estimated: ComposedRelease) -> None:
    assert list(problems_of(estimated)) == []
    law, numbers = estimated.law, estimated.numbers
    assert law is not None
    assert numbers is not None
    assert law.nuisances is not None
    assert numbers.nuisances is not None
    other = replace(numbers.nuisances, propensity=numbers.nuisances.propensity + 0.3)
    for forged, words in (
        (replace(estimated, law=replace(law, nuisances=law.nuisances / 2)), "law.nuisances"),
        (
            replace(estimated, law=replace(law, nuisances=None, pull=None)),
            "law.nuisances",
        ),
        (replace(estimated, numbers=replace(numbers, nuisances=other)), "does not follow"),
        (replace(estimated, numbers=replace(numbers, nuisances=None)), "of an estimated propensity though"),
        (replace(estimated, law=None), "law.covariance is not what its plan makes"),
        (replace(estimated, without="because"), "without = because is stated"),
    ):
        assert any(words in problem for problem in problems_of(forged))


def test_intervals_are_withheld_where_the_released_noise_is_beyond_the_gate(monkeypatch) -> None:
    monkeypatch.setattr(effect_law, "GATE", 0.01)
    stage = AdaptiveSecondStage(intervals=True)
    release = RLearner(domain(None), BUDGET, second_stage=stage).fit(*drawn(3000)).release_function()
    assert isinstance(release, ComposedRelease)
    assert release.law is None
    assert list(problems_of(release)) == []
    with pytest.raises(InputError, match=r"is above 0\.06 by its released covariance"):
        release.interval(POINTS)
    assert "by its released covariance" in release.summary()["no_intervals_of_persons"]


def test_a_released_effect_is_in_its_interval(release: ComposedRelease, tmp_path) -> None:
    """An effect shrunk may lie beyond an end: that end is moved to it, the other stays; so of files."""
    assert release.law is not None
    little = torch.cat([release.theta[:1], 0.3 * release.estimates[1:]])
    law = replace(release.law, average=float(release.law.centre @ little))  # else the level would be moved to it
    shrunken = replace(release, theta=little, law=law)
    loaded = load_release(shrunken.save(tmp_path / "shrunken.safetensors"))
    assert isinstance(loaded, ComposedRelease)
    x = torch.tensor([[3.0, 0.0], [-3.0, 0.0]], dtype=torch.float64)  # of effects 4 and -2
    own, effect = shrunken.law_of_persons.interval(release.features(x), 0.9).numpy(), shrunken.effect(x)
    assert effect[0] < own[0, 0]
    assert own[1, 1] < effect[1]
    for found in (shrunken, loaded):
        np.testing.assert_array_equal(found.interval(x, 0.9), [[effect[0], own[0, 1]], [own[1, 0], effect[1]]])
        least = effect[0] - effect[1]
        assert found.effect_contrast(x[:1], x[1:], 0.9)[0, 0] == least < found.effect_contrast(x[:1], x[1:], 0.9)[0, 1]
        assert found.effect_contrast(x[1:], x[0:1], 0.9)[0, 1] == -least
        np.testing.assert_allclose(found.mean_interval(x, 0.9, rows=1), found.interval(x, 0.9), rtol=1e-12)
    points = 6 * torch.rand(200, 2, dtype=torch.float64) - 3
    for level in (0.01, 0.5):  # narrow ones, beyond which points lie
        found, effect = release.interval(points, level), release.effect(points)
        assert ((found[:, 0] <= effect) & (effect <= found[:, 1])).all()
        means = release.mean_interval(points, level, rows=4)
        assert (
            (means[:, 0] <= effect.reshape(-1, 4).mean(1) + 1e-12)
            & (means[:, 1] >= effect.reshape(-1, 4).mean(1) - 1e-12)
        ).all()


def test_records_k_times_over_have_the_law_of_the_records_once() -> None:
    """Without noise the bound on the sampling of dependent records is exact for equal ones."""
    stage, k, records = AdaptiveSecondStage(), 3, drawn(2000)

    def law(learner: RLearner, data: tuple[torch.Tensor, ...]) -> EffectLaw:
        found = learner.fit(*data).composed_.law
        assert found is not None
        return found

    once = law(RLearner(domain(), None, second_stage=stage), records)
    person = RLearner(domain(), None, second_stage=stage).protect(PrivacyUnit.person("id", k))
    again = law(person, tuple(part.repeat_interleave(k, 0) for part in records))
    for name, tensor in once.tensors().items():
        torch.testing.assert_close(again.tensors()[name], tensor, rtol=2e-3, atol=2e-3 * float(tensor.abs().max()))


def test_several_records_a_person_are_counted_and_verified() -> None:
    unit = PrivacyUnit.person("id", 2)
    learner = RLearner(domain(), unit.record_budget(BUDGET), second_stage=AdaptiveSecondStage()).protect(unit)
    release = learner.fit(*drawn(3000)).release_function()
    assert isinstance(release, ComposedRelease)
    assert release.law is not None
    assert release.numbers is not None
    assert list(problems_of(release)) == []
    width, covariates = release.domain.outcome_range, Covariates(release.standardisation, (False, False))
    facts = interval_plan(release.basis, release.scale, (0.5, 0.5), width, learner.plan_)
    alone = law_of(release.numbers, facts, width, learner.plan_, covariates)
    assert alone is not None
    assert (release.law.covariance.diagonal() > 1.001 * alone.covariance.diagonal())[:2].all()
    assert release.law.average_variance > 1.001 * alone.average_variance
    forged = replace(release, law=alone)
    assert any("does not follow" in problem for problem in problems_of(forged))


def test_releases_without_the_numbers_have_no_interval_and_say_why(tmp_path) -> None:
    learner = RLearner(domain(None), BUDGET, second_stage=AdaptiveSecondStage())
    release = learner.fit(*drawn(800)).release_function()
    assert isinstance(release, ComposedRelease)
    assert release.law is None
    loaded = load_release(release.save(tmp_path / "r.safetensors"))
    assert isinstance(loaded, ComposedRelease)
    for ask in (lambda: release.interval(POINTS), lambda: loaded.effect_contrast(POINTS, POINTS)):
        with pytest.raises(InputError, match="has none that would hold: its propensity is estimated"):
            ask()
    assert release.averages is not None  # the average has a line all the same
    assert release.average().tolist() == list(release.averages.interval())
    (problem,) = problems_of(replace(release, without=None))
    assert problem.startswith("facts without = None is stated, but its plan makes it its propensity is estimated")


def test_one_number_is_the_average_and_a_person_s_may_differ() -> None:
    stage = AdaptiveSecondStage(constant_only=True)
    release = RLearner(domain(), BUDGET, second_stage=stage).fit(*drawn(2000)).release_function()
    assert isinstance(release, ComposedRelease)
    assert release.form == "constant"
    np.testing.assert_allclose(release.mean_interval(POINTS)[0], release.average())
    assert (np.diff(release.interval(POINTS)) > 2 * np.diff(release.average())).all()
    np.testing.assert_allclose(release.effect(POINTS), release.average_effect)
    apart = release.effect_contrast(POINTS, POINTS.flip(0))
    np.testing.assert_allclose(apart.sum(1), 0, atol=1e-12)
    assert (apart[[0, 2], 1] > 0.5).all()  # other persons may have another effect
    np.testing.assert_allclose(release.effect_contrast(POINTS, POINTS), 0, atol=1e-12)


@pytest.mark.slow
def test_intervals_cover_the_projection_and_the_average() -> None:
    """The effect 1 + x0 is its own projection; 60 fits, all three kinds of intervals, false alarm below 1e-6."""
    runs, truth = 60, (1 + POINTS[:, 0]).numpy()
    fits = [released(2000, seed) for seed in range(runs)]

    def misses(found: np.ndarray, target: np.ndarray) -> int:
        return int(((found[..., 0] > target) | (found[..., 1] < target)).sum(0).max())

    # binomial(60, .05) exceeds 16 with probability 2e-8
    assert misses(np.stack([r.interval(POINTS) for r in fits]), truth) <= 16
    assert misses(np.stack([r.effect_contrast(POINTS, POINTS[:1]) for r in fits])[:, 1:], (truth - truth[0])[1:]) <= 16
    assert misses(np.stack([r.average() for r in fits])[:, None], np.array([1.0])) <= 16


@pytest.mark.slow
def test_intervals_with_an_estimated_propensity_cover_where_its_model_is_right() -> None:
    """Log-odds and outcome follow the features; 50 fits, false alarm below 1e-6."""
    runs, misses, truth = 50, np.zeros(4), np.append((1 + POINTS[:, 0]).numpy(), 0)
    stage = AdaptiveSecondStage(intervals=True)
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(3000, 2, generator=generator, dtype=torch.float64).clamp(-3, 3)
        pi = torch.sigmoid(0.6 * x[:, 0] - 0.4 * x[:, 1]).clamp(0.1, 0.9)
        a = (torch.rand(3000, generator=generator) < pi).double()
        noise = torch.randn(3000, generator=generator, dtype=torch.float64)
        y = (x[:, 1] + (a - pi) * (1 + x[:, 0]) + noise).clamp(-8, 10)
        learner = RLearner(domain(None), BUDGET, second_stage=stage, noise=NoiseSource.fixed(seed))
        release = learner.fit(x, a, y).release_function()
        assert isinstance(release, ComposedRelease)
        found = np.concatenate([release.interval(POINTS), release.effect_contrast(POINTS[:1], POINTS[1:2])])
        aim = truth.copy()
        aim[3] = truth[0] - truth[1]
        misses += (found[:, 0] > aim) | (found[:, 1] < aim)
    # binomial(50, .05) exceeds 14 with probability 2e-8
    assert misses.max() <= 14
