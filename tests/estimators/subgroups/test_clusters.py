"""Intervals of trials that assign whole clusters: they count these, or are refused."""

import numpy as np
import pytest
import torch

from tests.registered import AverageEffect, RLearner, SubgroupEffects
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

SIZE, RHO, SCHOOLS = 20, 0.2, 60
FACTS = {
    "treatment": "treated",
    "outcome": {"name": "score", "low": -5, "high": 5},
    "covariates": {"age": {"low": 0, "high": 1}},
    "propensity": 0.5,
}
PLAIN = TableSchema.from_dict(FACTS)
NAMED = TableSchema.from_dict(FACTS | {"assignment": {"clusters": "school"}})
STATED = TableSchema.from_dict(
    FACTS | {"assignment": {"clusters": {"name": "school", "size": SIZE, "correlation": RHO}}}
)
COHORT = TableSchema.from_dict({key: fact for key, fact in STATED.to_dict().items() if key != "propensity"})
BUDGET = PrivacyBudget(2.0, 1e-5)


def trial(seed=0):
    """Schools of 20, half of them treated, whose outcomes are correlated by .2 and differ by 1 on average."""
    generator = torch.Generator().manual_seed(seed)
    n = SIZE * SCHOOLS
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    treated = torch.randperm(SCHOOLS, generator=generator) < SCHOOLS // 2
    own = torch.randn(SCHOOLS, generator=generator, dtype=torch.float64) * RHO**0.5
    noise = torch.randn(n, generator=generator, dtype=torch.float64) * (1 - RHO) ** 0.5
    a = treated.double().repeat_interleave(SIZE)
    return x, a, (a - 0.5 + own.repeat_interleave(SIZE) + noise).clamp(-5, 5)


def test_the_design_effect_multiplies_the_sampling_variance_alone():
    many = PrivacyBudget(1e6, 0.0)
    plain, stated = (
        SubgroupEffects(schema, many, subgroups="everybody").fit(*trial()).release() for schema in (PLAIN, STATED)
    )
    wider = stated.effects.gaussian / plain.effects.gaussian
    assert wider.item() == pytest.approx((1 + (SIZE - 1) * RHO) ** 0.5, rel=1e-3)
    assert stated.effects.noise.item() == pytest.approx(plain.effects.noise.item(), rel=1e-3)


def test_a_release_says_what_it_rests_on_and_verifies(tmp_path):
    release = SubgroupEffects(STATED, BUDGET, subgroups=[{"age": [0.5]}]).fit(*trial()).release()
    path = release.save(tmp_path / "release.safetensors")
    assert dict(verify_release(path))["level"].startswith("certified")
    assert (
        "at most 20 records each, whose outcomes, times their weights, are correlated by at most 0.2"
        in release.assumptions
    )
    assert (load_release(path).interval() == release.interval()).all()


@pytest.mark.slow
def test_intervals_hold_in_a_cluster_trial_where_others_do_not():
    """Of 300 fewer than 263 come once in a million, if .95 hold."""
    held = {PLAIN: [], STATED: []}
    for schema, found in held.items():
        for seed in range(300):
            learner = SubgroupEffects(schema, BUDGET, subgroups="everybody").fit(*trial(seed))
            low, high = learner.release().interval(0.95)[0]
            found.append(low <= 1 <= high)
    assert sum(held[STATED]) >= 263
    assert np.mean(held[PLAIN]) < 0.75


def test_what_cannot_count_clusters_has_no_intervals_or_is_refused():
    x, a, y = trial()
    release = RLearner(STATED, BUDGET).fit(x, a, y).release_function()
    assert release.effect(x[:3]).shape == (3,)
    with pytest.raises(InputError, match="has none that would hold: records come in clusters"):
        release.interval(x[:3])
    assert release.averages is None
    assert release.no_lines.startswith("records come in clusters")
    with pytest.raises(InputError, match="has none that would hold: records come in clusters"):
        release.average()
    assert "records come in clusters" in " ".join(RLearner(STATED, BUDGET).expected_noise(len(y)).remarks)
    with pytest.raises(InputError, match="lines = 'groups': records come in clusters"):
        RLearner(STATED, BUDGET, second_stage=AdaptiveSecondStage(lines="groups")).check(len(y))
    for learner in (AverageEffect(NAMED, BUDGET), SubgroupEffects(COHORT, BUDGET, subgroups="everybody")):
        with pytest.raises(InputError, match=r"records come in clusters|count clusters of a trial"):
            learner.check(len(y))
