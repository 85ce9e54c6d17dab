"""What is run on the records of a design: ours by the defaults, and DP-EBM in the learners of Niu et al. (2022)."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from experiments.frame.study import CERTIFIED, FREE, OTHER, PRINTED, Found, Place, seed_of
from experiments.niu import dp_ebm
from experiments.niu.laws import Sample, sample
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5
METRIC = "test_mse"
OURS, UNSPENT, PUBLIC, RECORDS = "ours", "without privacy", "public bounds", "bounds of the records"
DEFAULT, CONSTANT, BEST, NO_BUDGET = "default effect", "private constant", "best constant", "default effect, no privacy"
LEARNERS = {"SLearner": dp_ebm.single, "DRLearner": dp_ebm.doubly_robust, "RLearner": dp_ebm.residual}
LEVELS = {"SLearner": "conditional", "DRLearner": "conditional", "RLearner": "none holds"}
"""Of DP-EBM with public bounds: the R-learner's noise has the scale of the records' largest weight."""


@dataclass(frozen=True)
class Row:
    """What a method found: the mean squared error on one data set."""

    role: str
    variant: str
    method: str
    level: str
    error: float


def run(group: str, design: str, n: int, epsilon: str, first: int, runs: int) -> Iterator[Found]:
    """Yield the errors of a group of methods on the data sets of seeds first, first + 1, ...

    Args:
        group: One of ``GROUPS``.
        design: A to E.
        n: Records.
        epsilon: As words; ``inf`` without privacy.
        first: First seed.
        runs: How many.
    """
    pooled: dict[tuple[str, str, str, str], list[float]] = {}
    for seed in range(first, first + runs):
        own = seed_of("niu", design, n, epsilon, seed)
        for row in GROUPS[group](sample(design, n, seed), float(epsilon), own):
            pooled.setdefault((row.role, row.variant, row.method, row.level), []).append(row.error)
    for (role, variant, method, level), errors in pooled.items():
        for table in (private(design), without(design)) if role == FREE else (private(design),):
            place = Place(table, design, str(n), epsilon, variant, METRIC)
            yield Found(place, role, method, level, errors)


def private(design: str) -> str:
    """Table of a design's private learners."""
    return f"design {design}"


def without(design: str) -> str:
    """Table of its learners without privacy, which are the paper's with Lasso: none that we run."""
    return f"design {design}, Lasso without privacy"


def _ours(sample: Sample, epsilon: float, seed: int) -> Iterator[Row]:
    case = sample.bounded
    for role, title, constant in ((CERTIFIED, DEFAULT, False), (OTHER, CONSTANT, True)):
        stage, noise = (
            AdaptiveSecondStage(constant_only=constant),
            NoiseSource.fixed(seed_of(f"RLearner {constant} {epsilon} {seed}")),
        )
        learner = RLearner(case.schema, PrivacyBudget(epsilon, DELTA), second_stage=stage, noise=noise)
        release = learner.fit(case.records.x, case.records.a, case.records.y).release_function()
        error = case.error(release.effect_tensor(case.queries))[0]
        yield Row(role, title if constant else "", title, "certified", error)


def _unspent(sample: Sample, epsilon: float, seed: int) -> Iterator[Row]:
    case = sample.bounded
    learner = RLearner(case.schema, None).fit(case.records.x, case.records.a, case.records.y)
    error = case.error(torch.from_numpy(learner.nonprivate_effect(case.queries)))[0]
    yield Row(FREE, "", NO_BUDGET, "not private", error)
    yield Row(OTHER, BEST, BEST, "not private", case.truth.var(correction=0).item())


def _dp_ebm(public: bool, sample: Sample, epsilon: float, seed: int) -> Iterator[Row]:
    case = sample.bounded if public else sample.drawn
    for learner, fit in LEARNERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fixed seeds and of what the records' own bounds leak
            error = case.error(fit(case, dp_ebm.Budget(epsilon, DELTA, seed, public)))[0]
        if public:
            yield Row(PRINTED, learner, f"{learner} of DP-EBM", LEVELS[learner], error)
        else:
            yield Row(OTHER, f"{learner}, {RECORDS}", f"{learner} of DP-EBM, {RECORDS}", "none holds", error)


GROUPS = {OURS: _ours, UNSPENT: _unspent, PUBLIC: partial(_dp_ebm, True), RECORDS: partial(_dp_ebm, False)}
