"""Average effects by one composition: sensitivity, the textbook's score, interval, plan, forgeries, attack."""

import math
from functools import cache

import pytest
import torch

from experiments.defaults.hospital_laws import FAMILIES, hospital_case
from torchdpcate import Domain, NoiseSource, PrivacyBudget
from torchdpcate.composition.average import average_nuisances
from torchdpcate.composition.builder import average_plan
from torchdpcate.composition.records import rows_of
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.composed import ClippedScores, ComposedAverageEffect
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.file import load_release

BUDGET = PrivacyBudget(1.0, 1e-5)
FACTS = {"low": [-3.0] * 3, "high": [3.0] * 3}


def domain(kind: str = "continuous", **facts: object) -> Domain:
    low, high = (0.0, 1.0) if kind == "binary" else (-30.0, 30.0)
    return Domain(FACTS["low"], FACTS["high"], low, high, overlap=0.1, outcome_kind=kind, **facts)


@cache
def records(n: int, kind: str = "continuous", coin: bool = False, seed: int = 0) -> CausalData:
    """Confounded records with an effect of 1 on everybody, or of .2 on a binary outcome."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64).clamp(-3, 3)
    pi = torch.full((n,), 0.5).double() if coin else torch.sigmoid(0.8 * x[:, 0]).clamp(0.1, 0.9)
    a = (torch.rand(n, generator=g, dtype=torch.float64) < pi).double()
    if kind == "binary":
        chance = (0.4 + 0.1 * x[:, 0].clamp(-2, 2) + 0.2 * a).clamp(0, 1)
        return CausalData(x, a, (torch.rand(n, generator=g, dtype=torch.float64) < chance).double())
    y = x[:, 0] - 0.5 * x[:, 1] + a + torch.randn(n, generator=g, dtype=torch.float64)
    return CausalData(x, a, y)


def fitted(n: int = 4000, kind: str = "continuous", known: bool = False, seed: int = 0) -> ComposedAverageEffect:
    facts = {"propensity": 0.5} if known else {}
    learner = ComposedAverageEffect(domain(kind, **facts), BUDGET, noise=NoiseSource.fixed(seed))
    of = records(n, kind, known, seed)
    return learner.fit(of.x, of.a, of.y)


def test_without_noise_and_clip_it_is_the_textbook_estimate_and_its_deviation():
    scores = torch.randn(1, 500, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 20 + 0.1
    found = ClippedScores(500, 1.0, 0.08, 1.0).without_noise(lambda exact: exact(scores))
    assert found.estimate.item() == pytest.approx(scores.mean().item(), abs=1e-9)
    about = (scores - 0.08).square().mean().sqrt().item()
    assert found.gaussian.item() == pytest.approx(about / math.sqrt(500), abs=1e-9)
    wider = ClippedScores(500, 1.0, 0.08, 1.0, 0.03).without_noise(lambda exact: exact(scores))
    assert wider.gaussian.item() == pytest.approx(math.hypot(found.gaussian.item(), 0.03))


def test_scores_are_those_of_a_known_propensity_and_the_mean_is_unbiased_by_wrong_outcomes():
    """Without privacy, in a trial: the mean score is near the effect, whatever the regressions say."""
    of, facts = records(20_000, "continuous", True), domain(propensity=0.5)
    plan = average_plan(20_000, None, facts)
    found = average_nuisances(rows_of(of, facts), facts, plan, FitSession(NoiseSource.fixed(0)), (False,) * 3)
    scores = found.scored.records.y
    deviation = scores.std().item() / math.sqrt(20_000)
    assert deviation == pytest.approx(2 / math.sqrt(20_000), rel=0.05)  # noise of one, over 1/2 either arm
    assert scores.mean().item() == pytest.approx(1.0, abs=6 * deviation)
    assert found.errors is None


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 2.0, 8.0, 50.0])
def test_steps_and_sums_spend_all_of_the_budget_and_no_more(epsilon):
    plan = average_plan(4000, PrivacyBudget(epsilon, 1e-5), domain())
    events = [(plan.shares.event(step), 1) for step in plan.shares.shares]
    spent = compose([*events, (PureEvent(plan.score_epsilon), 1)], 1e-5)
    assert 0.99999 * epsilon < spent <= epsilon


@pytest.mark.parametrize(("kind", "known", "effect"), [
    ("continuous", False, 1.0), ("continuous", True, 1.0), ("binary", False, 0.2),
])  # fmt: skip
def test_a_release_is_near_the_effect_verifies_and_spends_its_budget(kind, known, effect, tmp_path):
    learner = fitted(4000, kind, known)
    release = learner.release()
    low, high = release.interval(0.999999)
    assert low < effect < high
    assert high - low < (60 if kind == "continuous" else 1) / 2
    spent = learner.ledger_
    assert sum(entry.charge.purpose is Purpose.RELEASE for entry in spent.entries) == 1
    assert learner.release() is release
    path = release.save(tmp_path / "release.safetensors")
    # noise of a fixed seed is private to nobody, and such a release claims nothing
    assert load_release(path).estimate == release.estimate


def test_wide_public_bounds_hardly_widen_it():
    of, widths = records(4000), []
    for wide in (1.0, 10.0):
        facts = Domain(FACTS["low"], FACTS["high"], -10.0 * wide, 10.0 * wide, overlap=0.1)
        learner = ComposedAverageEffect(facts, PrivacyBudget(4.0, 1e-5), noise=NoiseSource.fixed(1))
        low, high = learner.fit(of.x, of.a, of.y).release().interval(0.95)
        widths.append(high - low)
    assert widths[1] < 1.3 * widths[0]


def test_unasked_features_count_with_their_prior():
    """At little n epsilon the plan requests no feature, and the interval says that something may confound."""
    of, facts = records(300), domain()
    few = ComposedAverageEffect(facts, PrivacyBudget(0.3, 1e-5), noise=NoiseSource.fixed(0)).fit(of.x, of.a, of.y)
    assert not few.plan(300).steps.plan.propensity().basis.features
    assert few.nuisances_.error(0.2) > 0.05 * of.y.std().item()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_budget_comes_as_near_as_least_squares(family):
    """On a hospital's laws: within two standard errors of least squares without privacy, or nearer."""
    for seed in range(2):
        case = hospital_case(family, seed, 4_000)
        u, a, y = case.schema.domain.scale(case.records.x).double(), case.records.a.double(), case.records.y.double()
        design = torch.cat([torch.ones(len(u), 1).double(), a[:, None], u], 1)
        beta = torch.linalg.lstsq(design, y[:, None], driver="gelsd").solution[:, 0]
        pulls = torch.linalg.pinv(design.T @ design) @ (design * (y - design @ beta)[:, None]).T
        deviation = float(pulls[1].norm())
        large = ComposedAverageEffect(case.schema, PrivacyBudget(1_000.0, 1e-5), noise=NoiseSource.fixed(seed))
        error = abs(large.fit(case.records.x, a, y).release().estimate - case.average)
        assert error < abs(float(beta[1]) - case.average) + 2 * deviation, (family, seed)
