"""What is judged: one fit and what may be requested of it, the private constant, and peers with and without privacy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.hospital.cases import DELTA, LEVEL, Case, Estimate, Row, Z
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive
from torchdpcate.data.subgroups import EVERYBODY, Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.averages import AVERAGE, RULE
from torchdpcate.release.composed import ComposedRelease


@dataclass(frozen=True)
class Method:
    """One way to some of the answers.

    Attributes:
        private: Whether it spends a budget; all that do are certified.
        run: From case, epsilon and a seed to rows.
        line: What it says nothing of where it refuses.
        library: Module that it needs beside this library's; empty if none.
    """

    private: bool
    run: Callable[[Case, float, int], Iterator[Row]]
    line: str = AVERAGE
    library: str = ""


def _fitted(case: Case, epsilon: float, seed: int, stage: AdaptiveSecondStage) -> ComposedRelease:
    learner = RLearner(case.schema, PrivacyBudget(epsilon, DELTA), second_stage=stage, noise=NoiseSource.fixed(seed))
    learner.check(len(case.records.a))
    release = learner.fit(case.records.x, case.records.codes, case.records.y).release_function()
    assert isinstance(release, ComposedRelease)
    return release


def _lines(case: Case, release: ComposedRelease) -> Iterator[Row]:
    if release.no_lines is None:
        yield from case.lines(release)
    else:
        yield {"line": AVERAGE, "refused": release.no_lines[:REASON]}


def one_fit(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield the default run's lines, and the errors of its effect; of stated clusters the task's own average."""
    release = _fitted(case, epsilon, seed, AdaptiveSecondStage())
    if case.schema.cluster is None:
        yield from _lines(case, release)
    else:
        noise = NoiseSource.fixed(seed + 1)
        learner = SubgroupEffects(case.schema, PrivacyBudget(epsilon, DELTA), subgroups=EVERYBODY, noise=noise)
        own = learner.fit(case.records.x, case.records.codes, case.records.y).release()
        yield case.average(Estimate(*own.lines(LEVEL)[["estimate", "low", "high"]].to_numpy()[0]))
    if case.records.arms == 2:
        yield case.persons(np.asarray(release.effect(case.people.x)))


def requested(lines: tuple[str, ...], case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield lines that are requested of one fit, those of two public cells among them."""
    name = case.schema.domain.names[0]
    cells = Subgroups.of([{name: [case.records.cut]}], case.schema)
    stage = AdaptiveSecondStage(intervals=False, lines=lines, cells=cells)
    release = _fitted(case, epsilon, seed, stage)
    if release.no_lines is not None:
        raise InputError(release.no_lines)
    yield from (row for row in case.lines(release) if row["line"] != AVERAGE)


def persons(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield what intervals of persons hold."""
    release = _fitted(case, epsilon, seed, AdaptiveSecondStage(intervals=True))
    effect = np.asarray(release.effect(case.people.x))
    if release.law is None:
        yield case.persons(effect) | {"refused": "no law"}
    else:
        yield case.persons(effect, *release.interval(case.people.x, LEVEL).T)


def constant(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield the average of a composition whose effect is one number, and that number's errors."""
    release = _fitted(case, epsilon, seed, AdaptiveSecondStage(constant_only=True))
    yield from _lines(case, release)
    yield case.persons(np.asarray(release.effect(case.people.x)))


def effect(stage: AdaptiveSecondStage, case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield the errors of the released effect alone."""
    yield case.persons(np.asarray(_fitted(case, epsilon, seed, stage).effect(case.people.x)))


def effect_without_privacy(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield the errors of the effect of the same composition without privacy."""
    learner = RLearner(case.schema, None).fit(case.records.x, case.records.codes, case.records.y)
    yield case.persons(learner.nonprivate_effect(case.people.x))


def balancing(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield the average by covariate balancing, after Ohnishi & Awan (2024)."""
    learner = CovariateBalancingEffect(case.schema, PrivacyBudget(epsilon, DELTA), noise=NoiseSource.fixed(seed))
    release = learner.fit(case.records.x, case.records.codes, case.records.y).release()
    yield case.average(Estimate(release.estimate[0], *release.interval(LEVEL)[0]))


def doubleml(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
    """Yield the average by DoubleML's interactive model, nuisances by gradient boosting, the rest by its defaults."""
    from doubleml import DoubleMLData, DoubleMLIRM
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    np.random.seed(seed)  # noqa: NPY002 - DoubleML draws its folds from the global generator
    data = DoubleMLData.from_arrays(case.records.x, case.records.y, case.records.a)
    trees, classes = HistGradientBoostingRegressor(random_state=seed), HistGradientBoostingClassifier(random_state=seed)
    model = DoubleMLIRM(data, trees, classes).fit()
    yield case.average(Estimate(model.coef[0], *model.confint(level=LEVEL).to_numpy()[0]))


def _econml(name: str) -> Callable[[Case, float, int], Iterator[Row]]:
    """Return a learner of EconML, nuisances by gradient boosting, the rest by its defaults."""

    def rows(case: Case, epsilon: float, seed: int) -> Iterator[Row]:
        from econml import dml
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        trees, classes = (
            tree(random_state=seed) for tree in (HistGradientBoostingRegressor, HistGradientBoostingClassifier)
        )
        given: dict[str, Any] = {"model_y": trees, "model_t": classes, "discrete_treatment": True, "random_state": seed}
        x, people = case.records.x, case.people.x
        if name == FOREST:
            learner = dml.CausalForestDML(n_jobs=1, **given).fit(case.records.y, case.records.a.astype(int), X=x)
            value, half = float(learner.ate_[0]), Z * float(learner.ate_stderr_[0])
            yield case.average(Estimate(value, value - half, value + half))
        else:
            learner = dml.LinearDML(**given).fit(case.records.y, case.records.a.astype(int), X=x)
            yield case.average(Estimate(learner.ate(x), *learner.ate_interval(x, alpha=1 - LEVEL)))
            for k, (own, of) in enumerate(zip(case.cells(case.records), case.cells(case.people), strict=True)):
                ends = learner.ate_interval(x[own > 0], alpha=1 - LEVEL)
                yield case.line(f"cell {k + 1}", learner.ate(x[own > 0]), *ends, own, of)
        yield case.persons(learner.effect(people), *learner.effect_interval(people, alpha=1 - LEVEL))

    return rows


ONE_FIT, REQUESTED, PERSONS, CONSTANT = "one fit", "one fit, requested", "one fit, persons", "private constant"
REASON = 120
"""Letters of a refusal that a row keeps."""


def ours(lines: tuple[str, ...] = (RULE,)) -> dict[str, Method]:
    """Return what one fit answers, and the private constant, by name.

    Args:
        lines: What is requested beside public cells.
    """
    return {
        ONE_FIT: Method(True, one_fit),
        REQUESTED: Method(True, partial(requested, lines), "cell 1"),
        PERSONS: Method(True, persons, "persons"),
        CONSTANT: Method(True, constant),
    }


EFFECT, NUMBER, FREE, FEATURES = "effect", "one number", "effect without privacy", "effect by features"
EFFECTS = {
    EFFECT: Method(True, partial(effect, AdaptiveSecondStage()), "persons"),
    NUMBER: Method(True, partial(effect, AdaptiveSecondStage(constant_only=True)), "persons"),
    FREE: Method(False, effect_without_privacy, "persons"),
    FEATURES: Method(True, partial(effect, AdaptiveSecondStage(nuisance=Additive(NoisyNewton()))), "persons"),
}
"""Effects of persons alone: of the default run, as one number, without privacy, and without networks."""
DOUBLEML, LINEAR, FOREST = "DoubleMLIRM", "LinearDML", "CausalForestDML"
PEERS = {
    "covariate balancing": Method(True, balancing),
    DOUBLEML: Method(False, doubleml, library="doubleml"),
    LINEAR: Method(False, _econml(LINEAR), library="econml"),
    FOREST: Method(False, _econml(FOREST), library="econml"),
}


def found(method: Method, case: Case, epsilon: float, seed: int) -> list[Row]:
    """Return a method's rows, one that says why where it refuses."""
    if case.records.arms > 2 and method.run is not one_fit:
        return [{"line": method.line, "refused": "more than two arms"}]
    try:
        return list(method.run(case, epsilon, seed))
    except InputError as problem:
        return [{"line": method.line, "refused": str(problem)[:REASON]}]
