"""The learners of Schroeder et al. (2025): nuisances by DP-SGD, second stages towards zero, their private answers."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from experiments.frame.study import seed_of
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.study import Study
from torchdpcate.errors import NumericalError
from torchdpcate.estimators.cate.learner import CATELearner, DRLearner, RLearner
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism, QueryMechanism
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation, SmoothSensitivity
from torchdpcate.estimators.cate.mechanisms.perturbation import OutputPerturbation
from torchdpcate.fit.feature_maps import Fourier
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.heads.kernel import KernelSecondStage
from torchdpcate.heads.recipes import LinearSecondStage, NeuralSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, LinearStage, SecondStageBlock
from torchdpcate.papers.oprescu import Dataset1, Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource

N = 3_000
DELTA = 1e-5
SOURCES = {"dataset_1": Dataset1, "dataset_2": Dataset2}
LEARNERS: dict[str, type[CATELearner]] = {"R": RLearner, "DR": DRLearner}
NUISANCE = NuisanceConfig(32, learning_rate=0.01, batch_size=128, epochs=20, max_grad_norm=1.0, optimizer="adam")
PAIRS = 25  # of a cosine and a sine: 50 basis functions
RIDGE = 1.0  # lambda of the function release
NETWORK_RIDGE = 0.01  # under which a network is nearly a constant

KERNEL, NETWORK, FUNCTION = "kernel ridge", "neural network", "function"
PAPER = (KERNEL, NETWORK, FUNCTION)
NETWORKS = {f"{NETWORK}, ridge 1e-4": 1e-4, f"{NETWORK}, ridge 1e-5": 1e-5}
"""Networks that learn, and their ridges."""
CORRECTED, SMOOTH = "function, corrected", "kernel ridge, smooth sensitivity"
DEFAULT, PRIVATE_CONSTANT, CONSTANT = "certified default", "private constant", "best constant"
NOT_PRIVATE, NONE_HOLDS, CERTIFIED = "not private", "none holds", Level.CERTIFIED.value


@dataclass(frozen=True)
class Answers:
    """Effects at the queries by one method.

    Attributes:
        method: Which.
        level: Of its guarantee: ``certified``, ``conditional``, ``heuristic``, ``none holds``, ``not private``.
        effects: At the queries, [m].
    """

    method: str
    level: str
    effects: Tensor


@cache
def load(source: str, seed: int) -> Study:
    """Return a data set: 2,700 records that train, 300 queries with their true effects."""
    return SOURCES[source](n=N, seed=seed).load()


@cache
def answers(source: str, learner: str, epsilon: float, seed: int) -> tuple[Answers, ...]:
    """Return what all methods answer at the queries of one data set.

    Args:
        source: A key of ``SOURCES``.
        learner: A key of ``LEARNERS``.
        epsilon: Budget of each; infinity for the learners without privacy.
        seed: Of data, initial weights, and noise.
    """
    study = load(source, seed)
    return tuple([*_paper(study, learner, epsilon, seed), *_library(study, learner, epsilon, seed)])


@cache
def network(source: str, learner: str, epsilon: float, seed: int, method: str) -> Answers | None:
    """Return what a network of a smaller ridge answers; None where it came to no strict minimum.

    Args:
        source: As of ``answers``, also what follows.
        learner: Learner.
        epsilon: Budget.
        seed: Seed.
        method: A key of ``NETWORKS``.
    """
    study, budget = load(source, seed), _budget(epsilon)
    assert study.queries is not None
    _, stage = _second_stages(study, learner, epsilon, seed)
    try:
        own = stage(NeuralSecondStage(ridge=NETWORKS[method]))
        if budget is None:
            return Answers(method, NOT_PRIVATE, own.correction(study.queries))
        prepared = InfluencePerturbation(seed=seed).prepare(own, study.queries, budget)
    except NumericalError:
        return None
    drawn = prepared.draw(_noise(method, learner, epsilon, seed), 1)[0]
    return Answers(method, level_of(prepared.guarantee), drawn)


def _second_stages(
    study: Study, learner: str, epsilon: float, seed: int
) -> tuple[SecondStageBlock, Callable[[SecondStage], FittedStage]]:
    """Return the regression on half of the records, by nuisances of the other half, and what fits a head to it."""
    budget = _budget(epsilon)
    noise = None if budget is None else _noise("nuisances", learner, epsilon, seed)
    fitted = LEARNERS[learner](
        study.domain, budget, nuisance=NUISANCE, second_stage=_ridge(1.0), seed=seed, noise=noise
    ).fit(study.records.x, study.records.a, study.records.y)
    assert isinstance(fitted.stage_, LinearStage)
    block = without_offset(fitted.stage_.block, fitted.nuisances_.effect)

    def stage(recipe: SecondStage) -> FittedStage:
        return recipe.fit(
            block, fitted.nuisances_, threshold=math.inf, budget=budget, trainer=default_trainer, seed=seed
        )

    return block, stage


def _budget(epsilon: float) -> PrivacyBudget | None:
    return PrivacyBudget(epsilon, DELTA) if epsilon < math.inf else None


def _paper(study: Study, learner: str, epsilon: float, seed: int) -> Iterator[Answers]:
    """Second stages on half of the records, by nuisances of the other half."""
    queries, budget = study.queries, _budget(epsilon)
    assert queries is not None
    block, stage = _second_stages(study, learner, epsilon, seed)
    kernel, network = stage(kernel_ridge(block)), stage(NeuralSecondStage(ridge=NETWORK_RIDGE))
    printed, corrected = stage(_ridge(RIDGE / kernel_height(block))), stage(_ridge(RIDGE))
    if budget is None:
        for method, own in zip((*PAPER, CORRECTED), (kernel, network, printed, corrected), strict=True):
            yield Answers(method, NOT_PRIVATE, own.correction(queries))
        return
    finite: list[tuple[str, QueryMechanism, FittedStage]] = [
        (KERNEL, InfluencePerturbation(seed=seed), kernel),
        (NETWORK, InfluencePerturbation(seed=seed), network),
        (SMOOTH, SmoothSensitivity(), kernel),
    ]
    for method, mechanism, own in finite:
        try:
            prepared = mechanism.prepare(own, queries, budget)
        except NumericalError:  # a network that is at no strict minimum has no influence function
            continue
        drawn = prepared.draw(_noise(method, learner, epsilon, seed), 1)[0]
        yield Answers(method, level_of(prepared.guarantee), drawn)
    yield Answers(FUNCTION, NONE_HOLDS, _printed_function(printed, queries, budget, _noise(learner, epsilon, seed)))
    output: FunctionMechanism = OutputPerturbation()
    prepared = output.prepare(corrected, budget)
    theta = prepared.draw(_noise(CORRECTED, learner, epsilon, seed), 1)[0]
    assert isinstance(corrected, LinearStage)
    yield Answers(CORRECTED, level_of(prepared.guarantee), corrected.features(queries) @ theta)


def _library(study: Study, learner: str, epsilon: float, seed: int) -> Iterator[Answers]:
    """The library's default on all records, the private constant, and the constant that only the truth knows.

    Beside both learners of the paper: a ``DRLearner`` has blocks of records alone.
    """
    queries, truth, records = study.queries, study.effect, study.records
    assert queries is not None
    assert truth is not None
    if epsilon == math.inf:
        plain = RLearner(study.domain, None, seed=seed).fit(records.x, records.a, records.y)
        yield Answers(DEFAULT, NOT_PRIVATE, torch.as_tensor(plain.nonprivate_effect(queries)))
        yield Answers(CONSTANT, NOT_PRIVATE, truth.mean().expand_as(truth))
        return
    for method, stage in ((DEFAULT, None), (PRIVATE_CONSTANT, AdaptiveSecondStage(constant_only=True))):
        noise = _noise(method, learner, epsilon, seed)
        own = RLearner(study.domain, PrivacyBudget(epsilon, DELTA), second_stage=stage, seed=seed, noise=noise)
        release = own.fit(records.x, records.a, records.y).release_function()
        # with noise from the system; the fixed seeds of a study make any statement heuristic
        yield Answers(method, CERTIFIED, torch.as_tensor(release.effect(queries)))


def without_offset(block: SecondStageBlock, effect: Callable[[Tensor], Tensor]) -> SecondStageBlock:
    """Return the block whose penalty draws g to zero, as the paper's, and not to the nuisances' own effect.

    The public bounds stay: both scores keep |s| within the same bound with that offset and without it.

    Args:
        block: With the offset.
        effect: The offset at covariates.
    """

    def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        s, w = block.regression(x, a, y)
        return s + w * effect(x), w

    with torch.no_grad():
        s = block.s + block.w * effect(block.x)
    return dataclasses.replace(block, s=s, regression=regression)


def kernel_ridge(block: SecondStageBlock) -> KernelSecondStage:
    """Return scikit-learn's defaults: alpha = 1, which is lambda = 1 / n, and gamma = 1 / q."""
    return KernelSecondStage(bandwidth=_bandwidth(block), ridge=1 / len(block.s), loss="squared")


def kernel_height(block: SecondStageBlock) -> float:
    """Return K(x, x) = (sqrt(2 pi) h)^-q of the printed kernel, h = sqrt(q / 2) as of gamma = 1 / q."""
    q = block.domain.dimension
    return (math.pi * q) ** (-q / 2)


def printed_scale(block: SecondStageBlock, budget: PrivacyBudget) -> float:
    """Return r of Theorem 3 as printed, sup rho 4 L sqrt(2 ln(2/delta)) / ((sqrt(2 pi) h)^q lambda n epsilon)."""
    lipschitz, n = block.domain.outcome_range, len(block.s)
    numerator = block.bounds.rho * 4 * lipschitz * math.sqrt(2 * math.log(2 / budget.delta))
    return numerator * kernel_height(block) / (RIDGE * n * budget.epsilon)


def level_of(guarantee: Guarantee) -> str:
    """Return what a guarantee really is; one with a condition that fails is none."""
    fails = guarantee.level is Level.CONDITIONAL and not guarantee.holds_claim
    return NONE_HOLDS if fails else guarantee.level.value


def _printed_function(stage: FittedStage, queries: Tensor, budget: PrivacyBudget, noise: NoiseSource) -> Tensor:
    """Return g + r U at the queries, U of the printed kernel's 50 features."""
    assert isinstance(stage, LinearStage)
    path = noise.gaussian(stage.features.dimension, 1.0).to(queries)
    height = kernel_height(stage.block)
    return stage.correction(queries) + printed_scale(stage.block, budget) * math.sqrt(height) * (
        stage.features(queries) @ path
    )


def _ridge(ridge: float) -> LinearSecondStage:
    """Gaussian kernel ridge by 50 basis functions, of the unit kernel."""
    return LinearSecondStage(features=Fourier(PAIRS), ridge=ridge, loss="squared")


def _bandwidth(block: SecondStageBlock) -> float:
    """Sqrt(q / 2) where covariates lie in [0, 1], in units of the library's [-1, 1]."""
    return math.sqrt(2 * block.domain.dimension)


def _noise(*words: object) -> NoiseSource:
    return NoiseSource.fixed(seed_of("dp_cate", *words))
