"""Effects by the library's defaults, by a constant, without privacy, and by EconML."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from experiments.defaults.hospital_laws import HospitalCase
from experiments.frame.study import seed_of
from experiments.hospital.measured import (
    BIAS,
    CERTIFIED,
    COVERAGE,
    DELTA,
    ERROR,
    LEVEL,
    NOT_PRIVATE,
    PLANNED,
    STATED,
    Measured,
)
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.composed import ComposedRelease

R, ASKED, CONSTANT = "RLearner", "RLearner, intervals=true", "private constant"
ZERO, FREE = "zero", "RLearner, no budget"
LINEAR, FOREST = "LinearDML", "CausalForestDML"
LEARNERS = {
    R: AdaptiveSecondStage(),
    ASKED: AdaptiveSecondStage(intervals=True),
    CONSTANT: AdaptiveSecondStage(constant_only=True),
}
"""What spends a budget; the second is the first where the propensity is known, and is left out there."""


def private(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield what the library's private learners are measured by.

    Args:
        case: Records and truth.
        epsilon: Of each learner.
        seed: Public, of the noise.
    """
    known = case.schema.domain.known_propensity is not None
    for name, stage in LEARNERS.items():
        if known and name == ASKED:
            continue
        noise = NoiseSource.fixed(seed_of(name, seed))
        learner = RLearner(case.schema, PrivacyBudget(epsilon, DELTA), second_stage=stage, noise=noise)
        try:
            learner.check(case.records.n)
        except InputError:  # a plan whose gate refuses intervals
            continue
        yield from _released(name, learner.fit(case.records.x, case.records.a, case.records.y), case)


def nonprivate(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield errors of the effect zero, and of the library without a budget."""
    yield from _errors(ZERO, NOT_PRIVATE, torch.zeros_like(case.truth), case)
    learner = RLearner(case.schema, None).fit(case.records.x, case.records.a, case.records.y)
    yield from _errors(FREE, NOT_PRIVATE, torch.from_numpy(learner.nonprivate_effect(case.queries)), case)


def econml(case: HospitalCase, epsilon: float, seed: int) -> Iterator[Measured]:
    """Yield errors and coverage of EconML's learners, nuisances by gradient boosting, the rest by its defaults."""
    from econml.dml import CausalForestDML
    from econml.dml import LinearDML as EconLinearDML
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    trees, classes = HistGradientBoostingRegressor(random_state=seed), HistGradientBoostingClassifier(random_state=seed)
    common: dict[str, Any] = {"model_y": trees, "model_t": classes, "discrete_treatment": True, "random_state": seed}
    x, a, y = case.records.x.numpy(), case.records.a.numpy().astype(int), case.records.y.numpy()
    for name, learner in ((LINEAR, EconLinearDML(**common)), (FOREST, CausalForestDML(n_jobs=1, **common))):
        queries = case.queries.numpy()
        learner.fit(y, a, X=x)
        yield from _errors(name, NOT_PRIVATE, torch.from_numpy(learner.effect(queries)), case)
        low, high = map(torch.from_numpy, learner.effect_interval(queries, alpha=1 - LEVEL))
        yield Measured(name, NOT_PRIVATE, COVERAGE, _share(low, high, case.truth))


def _released(name: str, learner: RLearner, case: HospitalCase) -> Iterator[Measured]:
    release = learner.release_function()
    assert isinstance(release, ComposedRelease)
    effect = release.effect_tensor(case.queries)
    yield from _errors(name, CERTIFIED, effect, case)
    if name != CONSTANT:  # whose plan says nothing of how the effect varies
        realised = math.sqrt(case.error(effect)[0])
        yield Measured(name, CERTIFIED, PLANNED, learner.expected_noise(case.records.n).value / realised)
        yield Measured(name, CERTIFIED, STATED, learner.planned_error() / realised)
    if release.law is not None:
        low, high = torch.from_numpy(release.interval(case.queries, LEVEL)).T
        truth = case.truth.mean().expand_as(case.truth) if release.form == "constant" else case.truth
        yield Measured(name, CERTIFIED, COVERAGE, _share(low, high, truth))


def _errors(name: str, level: str, effect: Tensor, case: HospitalCase) -> Iterator[Measured]:
    square, mean = case.error(effect)
    yield Measured(name, level, ERROR, square / case.truth.var(correction=0).item())
    yield Measured(name, level, BIAS, mean / case.records.y.std().item())


def _share(low: Tensor, high: Tensor, truth: Tensor) -> float:
    """Return the share of the queries whose interval holds what it is about: the effect, or of one number its mean."""
    return ((low <= truth) & (truth <= high)).double().mean().item()
