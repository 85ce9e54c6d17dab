"""What all learners of average effects share: reading batch by batch."""

from collections.abc import Iterator

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, EFFECT, NAIVE_BIAS, arrays, data_sets
from torchdpcate import Domain, NoiseSource, PrivacyBudget, TableSchema
from torchdpcate.causal.estimand import ESTIMANDS, Estimand
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.outcome_table import DifferenceInMeansEffect, plain_difference
from torchdpcate.estimators.average.peers import HorvitzThompsonEffect, SubsampleAggregateEffect
from torchdpcate.papers.confounded import Confounded
from torchdpcate.release.estimate import half_width
from torchdpcate.verify.file import verify_release

N = 1_003


class Batches(RecordStream):
    """Records of the confounded design, 100 at a time; counts how often they are read."""

    def __init__(self, domain: Domain | TableSchema = DOMAIN) -> None:
        self.schema, self.n, self.readings = TableSchema.of(domain), N, 0
        self.records = CausalData(*arrays(N, 6))
        self.later: CausalData | None = None  # what is read from the second reading on

    def __iter__(self) -> Iterator[CausalData]:
        records = self.records if self.readings == 0 or self.later is None else self.later
        self.readings += 1
        for start in range(0, N, 100):
            yield records.subset(slice(start, start + 100))


def learners(**settings: object) -> list[AverageEffectLearner]:
    common = {"noise": NoiseSource.fixed(3), **settings}
    return [
        CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0), overlap=0.1, shares={"balance": 0.1}, **common),
        CovariateBalancingEffect(DOMAIN, PrivacyBudget(2.0, 0.0), overlap=0.1, readout="outcome_table", **common),
        DifferenceInMeansEffect(DOMAIN, PrivacyBudget(2.0, 0.0), **common),
        HorvitzThompsonEffect(DOMAIN, PrivacyBudget(2.0, 0.0), overlap=0.1, **common),
    ]


def test_a_stream_of_other_bounds_is_refused():
    with pytest.raises(InputError, match="stream"):
        learners()[0].fit_stream(Batches(Domain([-2.0] * 4, [2.0] * 4, 0.0, 1.0)))


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("x", 1e4, "covariate"),
        ("x", float("nan"), "missing"),
        ("a", 7.0, "treatment"),
        ("y", 2.0, "outcome"),
        ("y", float("nan"), "missing"),
    ],
)
def test_one_record_outside_its_bounds_is_refused_before_anything_is_spent(part, value, named):
    stream, learner = Batches(), learners()[0]
    getattr(stream.records, part)[500] = value
    with pytest.raises(InputError, match=named):
        learner.fit_stream(stream)
    assert not hasattr(learner, "ledger_")


def test_a_stream_that_miscounts_or_lacks_an_arm_is_refused():
    stream = Batches()
    stream.n = 10 * N
    with pytest.raises(InputError, match="1003 records"):
        learners()[0].fit_stream(stream)
    stream = Batches()
    stream.records.a[:] = 1.0
    with pytest.raises(InputError, match="no record"):
        learners()[0].fit_stream(stream)


def test_a_stream_of_three_arms_is_refused():
    facts = {"low": -1, "high": 1}
    covariates = {name: facts for name in DOMAIN.names}
    treatment = {"name": "a", "categories": [0, 1, 2]}
    stream = Batches()
    stream.schema = TableSchema.of(
        {"treatment": treatment, "outcome": {"name": "y", "low": 0, "high": 1}, "covariates": covariates}
    )
    with pytest.raises(InputError, match="3 arms"):
        learners()[0].fit_stream(stream)


def test_what_is_read_otherwise_later_moves_no_sum_beyond_its_sensitivity():
    """Records are moved into the domain at each reading: a stream that changes cannot make a term too large."""
    stream, learner = Batches(), learners()[2]
    x, a, y = (part.clone() for part in (stream.records.x, stream.records.a, stream.records.y))
    y[0], a[0] = 1e9, 1e9
    stream.later = CausalData(x, a, y)
    numbers = learner.fit_stream(stream).release().numbers
    assert max(map(abs, numbers.values())) < 3 * N


def test_the_callers_arrays_may_change_after_a_fit():
    x, a, y = arrays(N, 6)
    learner = learners()[2].fit(x, a, y)
    a.add_(5)
    assert learner.release().estimate == learners()[2].fit(*arrays(N, 6)).release().estimate


UNITS = [CovariateBalancingEffect, DifferenceInMeansEffect, HorvitzThompsonEffect, SubsampleAggregateEffect]


@pytest.mark.parametrize("kind", [*UNITS, DoublyRobustEffect])
def test_an_estimate_and_its_law_are_in_units_of_the_outcome(kind):
    x, a, y = arrays(3_000, 0)
    wide = Domain([-1.0] * 4, [1.0] * 4, -5.0, 15.0)
    unit, scaled = (
        kind(domain, PrivacyBudget(2.0, 1e-5), overlap=0.1, noise=NoiseSource.fixed(5)).fit(x, a, outcome).release()
        for domain, outcome in ((DOMAIN, y), (wide, 20 * y - 5))
    )
    exact = kind is not DoublyRobustEffect  # whose threshold of residuals is of a grid
    assert scaled.estimate == pytest.approx(20 * unit.estimate, rel=1e-6 if exact else 0.05)
    if unit.main.law is not None:
        assert scaled.main.law.gaussian == pytest.approx(20 * unit.main.law.gaussian, rel=1e-6 if exact else 0.05)


@pytest.mark.parametrize("kind", [HorvitzThompsonEffect, SubsampleAggregateEffect, DoublyRobustEffect])
def test_without_privacy_the_estimate_is_near_the_effect_and_not_released(kind):
    fitted = kind(DOMAIN, None, overlap=0.1).fit(*arrays(20_000, 0))
    assert fitted.nonprivate_estimate().value == pytest.approx(EFFECT, abs=0.05)
    with pytest.raises(InputError, match="without privacy"):
        fitted.release()


REFUSED = [
    (CovariateBalancingEffect, {"overlap": 0.0}, "overlap"),
    (CovariateBalancingEffect, {"overlap": 0.6}, "overlap"),
    (CovariateBalancingEffect, {"estimand": "LATE"}, "estimand"),
    (DoublyRobustEffect, {"budget": PrivacyBudget(1.0, 0.0)}, "delta = 0"),
    (DoublyRobustEffect, {"split": 1.0}, "split"),
    (DoublyRobustEffect, {"seed": -1}, "seed"),
    (HorvitzThompsonEffect, {"estimand": "ATT"}, "estimates ATE"),
    (HorvitzThompsonEffect, {"ridge": 0.0}, "ridge"),
    (HorvitzThompsonEffect, {"ridge": float("nan")}, "ridge"),
    (SubsampleAggregateEffect, {"groups": 1}, "groups"),
    (SubsampleAggregateEffect, {"groups": 201}, "groups"),
    (SubsampleAggregateEffect, {"ridge": 0.0}, "ridge"),
    (SubsampleAggregateEffect, {"seed": -1}, "seed"),
    (KnownPropensityEffect, {}, "the domain states none"),
]


@pytest.mark.parametrize(("kind", "settings", "words"), REFUSED)
def test_settings_that_cannot_be_are_refused_by_name(kind, settings, words):
    with pytest.raises(InputError, match=words):
        kind(DOMAIN, **{"budget": PrivacyBudget(1.0, 1e-5), **settings}).fit(*arrays(200, 1))


def test_an_estimate_without_a_law_has_no_interval():
    release = HorvitzThompsonEffect(DOMAIN, PrivacyBudget(2.0, 0.0), overlap=0.1).fit(*arrays(500, 0)).release()
    with pytest.raises(InputError, match="interval"):
        release.interval()


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        (DifferenceInMeansEffect(DOMAIN, PrivacyBudget(1.0, 0.0)), "treatment was randomised"),
        (HorvitzThompsonEffect(DOMAIN, PrivacyBudget(1.0, 0.0)), "the log-odds of treatment are linear in the cov"),
        (SubsampleAggregateEffect(DOMAIN, PrivacyBudget(1.0, 0.0)), "the log-odds of treatment are linear in the cov"),
        (DoublyRobustEffect(DOMAIN, PrivacyBudget(1.0, 1e-5)), "the released propensity or the released outcome mod"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.mechanism.name,
)
def test_every_release_says_which_models_must_follow_the_truth(learner, words):
    release = learner.fit(*arrays(2_000, 0)).release()
    assert release.privacy.public["assumptions"].startswith(words)
    assert release.summary()["assumptions"] == release.assumptions == release.privacy.public["assumptions"]


DOMAIN, BUDGET = Domain([-1.0] * 4, [1.0] * 4, 0.0, 1.0), PrivacyBudget(400.0, 1e-5)


class HalfOverlap(Estimand):
    """h = sqrt(e (1 - e)), half way between ATE and ATO."""

    name = "HALF"
    powers = (-0.5, -0.5)


@pytest.fixture(autouse=True)
def _added(monkeypatch):
    monkeypatch.setitem(ESTIMANDS, HalfOverlap.name, HalfOverlap)


@pytest.mark.parametrize(
    "make",
    [
        lambda **known: CovariateBalancingEffect(DOMAIN, BUDGET, **known),
        lambda **known: CovariateBalancingEffect(DOMAIN, BUDGET, readout="outcome_table", **known),
        lambda **known: SubsampleAggregateEffect(DOMAIN, BUDGET, groups=20, **known),
        lambda **known: DifferenceInMeansEffect(DOMAIN, BUDGET, **known),
    ],
    ids=["balanced_difference", "outcome_table", "subsample_aggregate", "difference_in_means"],
)
def test_it_is_estimated_released_and_verified(make, tmp_path):
    records = Confounded().draw(20_000, torch.Generator().manual_seed(0))
    release = make(estimand="HALF", overlap=0.05).fit(records.x, records.a, records.y).release()
    assert (release.estimand, release.privacy.level) == ("HALF", "conditional")  # whose bounds are not proved
    tolerance = 0.12 if release.privacy.mechanism == "difference_in_means" else 0.03
    assert abs(release.estimate - Confounded().average_effect("HALF")) < tolerance
    assert verify_release(release.save(tmp_path / "release.safetensors"))


def test_what_cannot_estimate_it_says_what_it_can():
    records = Confounded().draw(500, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"HorvitzThompsonEffect estimates ATE$"):
        HorvitzThompsonEffect(DOMAIN, BUDGET, estimand="HALF").fit(records.x, records.a, records.y)
    with pytest.raises(InputError, match=r"DoublyRobustEffect estimates ATE, ATC, ATT, ATO$"):
        DoublyRobustEffect(DOMAIN, BUDGET, estimand="HALF").fit(records.x, records.a, records.y)
    with pytest.raises(InputError, match="loss = balancing: none is known for estimand = HALF"):
        CovariateBalancingEffect(DOMAIN, BUDGET, estimand="HALF", loss="balancing").fit(records.x, records.a, records.y)


def test_without_noise_it_is_the_difference_in_means():
    x, a, y = arrays(2_000, 1)
    learner = DifferenceInMeansEffect(DOMAIN, None).fit(x, a, y)
    plain = (y[a == 1].mean() - y[a == 0].mean()).item()
    assert learner.nonprivate_estimate().value == pytest.approx(plain, rel=1e-12)
    law = learner.nonprivate_estimate().law
    variance = sum(y[a == k].var(correction=0) / (a == k).sum() for k in (0.0, 1.0))
    assert law.gaussian == pytest.approx(variance.sqrt().item(), rel=1e-9)


@pytest.mark.slow
def test_its_interval_covers_what_it_estimates_and_its_bias_is_the_designs():
    """400 data sets at epsilon = 0.5. A coverage of .95 gives 358 or fewer of 400 less often than once in 10^6 runs."""
    records = data_sets(400, 2_000, 2)
    found = DifferenceInMeansEffect(DOMAIN, PrivacyBudget(0.5, 0.0)).plan(2_000).run(records, NoiseSource.system())
    inside = (found.estimate - EFFECT - NAIVE_BIAS).abs() <= half_width(
        0.95, found.gaussian, found.laplace, found.polytope
    )
    assert inside.sum().item() > 358
    exact = plain_difference(records).estimate
    assert abs(exact.mean().item() - EFFECT - NAIVE_BIAS) < 0.007  # six standard errors
    assert (found.estimate - exact).square().mean().sqrt().item() < 0.03
