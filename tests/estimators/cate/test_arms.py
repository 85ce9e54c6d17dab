"""Effects of more than two arms by covariates: each against the reference."""

import numpy as np
import pytest
import torch

from tests.verify.words import check_words
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.pages.reader import reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import load_release

FACTS = {
    "treatment": {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"},
    "outcome": {"name": "y", "low": -1, "high": 3},
    "covariates": {"age": {"low": 0, "high": 1}, "sex": {"categories": ["f", "m"]}},
    "overlap": 0.1,
}
COHORT = TableSchema.from_dict(FACTS)
MANY = PrivacyBudget(20.0, 1e-5)
N = 3_000


def confounded(seed=0, n=N):
    """Records whose arms, 1 (placebo), 2 (low) and 3 (high), depend on age, as outcomes do."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 1].round()
    shares = torch.stack([torch.full((n,), 0.5).double(), 0.1 + 0.3 * x[:, 0], 0.4 - 0.3 * x[:, 0]], 1)
    a = 1 + torch.multinomial(shares, 1, generator=generator)[:, 0].double()
    noise = 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, a, (x[:, 0] + 0.3 * (a == 2) + x[:, 1] * (a == 3) + noise).clamp(-1, 3)


def released(schema=COHORT, budget=MANY, **settings) -> ComposedRelease:
    x, a, y = confounded()
    return RLearner(schema, budget, second_stage=AdaptiveSecondStage(**settings)).fit(x, a, y).release_function()


@pytest.fixture(scope="module")
def release():
    return released()


def test_effects_are_those_of_each_arm_against_the_reference(release):
    effects = release.effect([[0.2, 0.0], [0.8, 1.0]])
    assert release.arms == ("low", "high")
    assert effects == pytest.approx(np.array([[0.3, 0.0], [0.3, 1.0]]), abs=0.15)
    assert release.average_effects == pytest.approx(np.array([0.3, 0.5]), abs=0.08)
    x, _, _ = confounded()
    assert release.ate(x) == pytest.approx(np.array([0.3, 0.5]), abs=0.1)
    with pytest.raises(InputError, match="average_effect: 3 arms have several"):
        _ = release.average_effect


def test_a_loaded_release_reads_as_it_did_and_shows_each_arm(release, tmp_path):
    loaded = load_release(release.save(tmp_path / "release.safetensors"))
    x, _, _ = confounded()
    assert (loaded.effect(x[:9]) == release.effect(x[:9])).all()
    assert loaded.summary()["average_effect_high"] == pytest.approx(0.5, abs=0.08)
    titles = [axes.get_title() for axes in release.plot(["age", "sex"]).axes]
    assert titles == ["low instead of placebo", "high instead of placebo"] * 2
    assert check_words(loaded).head[1].startswith("Among everybody, high instead of placebo raises y by 0.")
    assert '"arms": ["low instead of placebo", "high instead of placebo"]' in reader_page(loaded)


def test_the_line_of_each_arm_holds_its_average(release, tmp_path):
    lines = load_release(release.save(tmp_path / "release.safetensors")).averages
    assert release.average_effects.tolist() == [lines.estimate(name) for name in lines.names]
    for name, truth in zip(lines.names, (0.3, 0.5), strict=True):
        low, high = lines.interval(name, 1 - 1e-7)
        assert low < truth < high
        assert high - low < 0.6


def test_what_compares_two_arms_is_refused(release):
    with pytest.raises(InputError, match="intervals of effects by covariates compare two arms"):
        release.interval(confounded()[0][:2])
    with pytest.raises(InputError, match="and a rule by an effect compares two"):
        release.rule()


@pytest.mark.slow
def test_mean_effects_of_a_cohort_are_right_where_plain_differences_are_not():
    errors, plain = [], []
    for seed in range(20):
        x, a, y = confounded(seed, 4_000)
        release = RLearner(COHORT, PrivacyBudget(1.0, 1e-5)).fit(x, a, y).release_function()
        errors.append(release.average_effects - [0.3, 0.5])
        plain.append([float(y[a == arm].mean() - y[a == 1].mean()) for arm in (2, 3)])
    assert np.sqrt(np.mean(np.square(errors), 0)) == pytest.approx(np.array([0.014, 0.02]), abs=0.012)
    assert np.mean(plain, 0) - [0.3, 0.5] == pytest.approx(np.array([0.099, -0.099]), abs=0.02)
