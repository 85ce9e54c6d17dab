"""Average effects by the library, by two private peers, by DoubleML, and by the difference in means."""

from collections.abc import Iterator

from experiments.defaults.hospital_laws import HospitalCase
from experiments.frame.study import seed_of
from experiments.hospital.fold_ensemble import fold_ensemble
from experiments.hospital.measured import (
    BIAS,
    CERTIFIED,
    CONDITIONAL,
    COVERAGE,
    DELTA,
    ERROR,
    HEURISTIC,
    LEVEL,
    NOT_PRIVATE,
    WIDTH,
    Measured,
)
from experiments.hospital.private_ate import private_ate
from experiments.peers.averages import AVERAGES, Estimate
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.composed import ComposedRelease

LEARNERS = {
    "AverageEffect": AverageEffect,
    "CovariateBalancingEffect": CovariateBalancingEffect,
}
"""What spends a budget; the first is the default, ``effect=auto``."""
FOLDS, PRIVATE_ATE = "fold ensemble", "PrivATE"
FREE, DIFFERENCE, DOUBLEML = "AverageEffect, no budget", "difference in means", "DoubleMLIRM"


def private(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield what the library's private estimates are measured by.

    Args:
        case: Records and truth.
        epsilon: Of each estimator.
        seed: Public, of the noise.
    """
    for name, kind in LEARNERS.items():
        learner = kind(case.schema, PrivacyBudget(epsilon, DELTA), noise=NoiseSource.fixed(seed))
        try:
            learner.check(case.records.n)
        except InputError:  # a plan that would hardly adjust
            continue
        release = learner.fit(case.records.x, case.records.a, case.records.y).release()
        if isinstance(release, ComposedRelease):
            value, (low, high) = release.average_effect, release.average(LEVEL)
        else:
            value, (low, high) = release.estimate, release.interval(LEVEL)
        yield from _measured(name, CERTIFIED, Estimate(float(value), float(low), float(high)), case)


def peers(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield what the two private peers are measured by, cut at the largest effect that there can be, as ours are."""
    bound = case.schema.domain.outcome_range
    for name, level, run in ((FOLDS, CONDITIONAL, fold_ensemble), (PRIVATE_ATE, HEURISTIC, private_ate)):
        found = run(case, epsilon, DELTA, seed_of(name, seed))
        ends = (min(max(value, -bound), bound) for value in (found.value, found.low, found.high))
        yield from _measured(name, level, Estimate(*ends), case)


def nonprivate(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield what the default without a budget and the difference in means are measured by."""
    learner = AverageEffect(case.schema, None).fit(case.records.x, case.records.a, case.records.y)
    found = learner.nonprivate_lines()
    yield from _measured(FREE, NOT_PRIVATE, Estimate(found.estimate(), *found.interval(level=LEVEL)), case)
    yield from _measured(DIFFERENCE, NOT_PRIVATE, AVERAGES[DIFFERENCE].run(case, epsilon, seed), case)


def doubleml(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield what DoubleML's interactive model is measured by."""
    yield from _measured(DOUBLEML, NOT_PRIVATE, AVERAGES[DOUBLEML].run(case, epsilon, seed), case)


def _measured(name: str, level: str, found: Estimate, case: HospitalCase) -> Iterator[Measured]:
    deviation, apart = case.records.y.std().item(), found.value - case.average
    yield Measured(name, level, ERROR, abs(apart) / deviation)
    yield Measured(name, level, BIAS, apart / deviation)
    yield Measured(name, level, COVERAGE, float(found.low <= case.average <= found.high))
    yield Measured(name, level, WIDTH, (found.high - found.low) / deviation)
