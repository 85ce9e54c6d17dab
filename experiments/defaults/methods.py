"""The rows of the study: the library at its default settings, and what stands beside it."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from experiments.defaults.sources import Case
from torchdpcate.composition.planned import planned_noise
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5
MOST = 8.0  # largest budget of the study
DEFAULT, CONSTANT, NONPRIVATE, PLUG_IN, BLOCKS, ZERO = (
    "default",
    "constant",
    "non-private",
    "plug-in",
    "two blocks",
    "zero",
)


@dataclass(frozen=True, eq=False)
class Found:
    """Effects at the queries [m], and public facts of how they were had: numbers and words."""

    effect: Tensor
    facts: dict[str, Any] = field(default_factory=dict)


def zero(case: Case, epsilon: float, name: str) -> dict[str, Found]:
    """The release that costs nothing."""
    return {ZERO: Found(torch.zeros(len(case.queries), dtype=torch.float64))}


def default(case: Case, epsilon: float, name: str) -> dict[str, Found]:
    """The release of ``RLearner(schema, budget)``."""
    return {DEFAULT: _released(case, name, budget=PrivacyBudget(epsilon, DELTA))}


def constant(case: Case, epsilon: float, name: str) -> dict[str, Found]:
    """The same plan with a constant head, and the whole budget."""
    stage = AdaptiveSecondStage(constant_only=True)
    return {CONSTANT: _released(case, name, budget=PrivacyBudget(epsilon, DELTA), second_stage=stage)}


def nonprivate(case: Case, epsilon: float, name: str) -> dict[str, Found]:
    """The same features without privacy: of the covariates that the default keeps at the largest budget."""
    records, domain, columns = case.records, case.schema.domain, list(range(case.schema.domain.dimension))
    plan = AdaptiveSecondStage().plan(records.n, PrivacyBudget(MOST, DELTA), domain)
    if plan.screens:
        first = RLearner(case.schema, PrivacyBudget(MOST, DELTA), noise=_noise(name))
        columns = list(first.fit(records.x, records.a, records.y).composed_.columns or columns)
    learner = RLearner(domain.select(columns), None).fit(records.x[:, columns], records.a, records.y)
    effect = torch.from_numpy(learner.nonprivate_effect(case.queries[:, columns]))
    return {NONPRIVATE: Found(effect, _facts(case, learner, planned=False))}


def two_blocks(case: Case, epsilon: float, name: str) -> dict[str, Found]:
    """Two blocks of records with a linear second stage, and the difference of its private outcome models."""
    budget = PrivacyBudget(epsilon, DELTA)
    learner = RLearner(case.schema, budget, second_stage=LinearSecondStage(), noise=_noise(name))
    learner.fit(case.records.x, case.records.a, case.records.y)
    plug_in = torch.from_numpy(learner.plug_in_effect(case.queries))
    return {BLOCKS: Found(learner.release_function().effect_tensor(case.queries)), PLUG_IN: Found(plug_in)}


def _released(case: Case, name: str, **settings: Any) -> Found:
    learner = RLearner(case.schema, noise=_noise(name), **settings)
    learner.fit(case.records.x, case.records.a, case.records.y)
    return Found(learner.release_function().effect_tensor(case.queries), _facts(case, learner))


def _facts(case: Case, learner: RLearner, planned: bool = True) -> dict[str, Any]:
    """The residual's scale, the planned noise at it, and what was requested: covariates and kinds of features."""
    scale, basis = learner.composed_.effect.scale, learner.composed_.effect.regression.basis
    noise = planned_noise(learner.plan_, scale) if planned else 0.0
    return {"scale": scale, "planned": noise, "form": f"{learner.plan_.retained}: {''.join(basis.parts) or 'constant'}"}


def _noise(name: str) -> NoiseSource:
    """Noise of a fixed seed, one a fit: runs can be repeated, and nothing made here is private."""
    return NoiseSource.fixed(zlib.crc32(name.encode()))


Method = Callable[[Case, float, str], dict[str, Found]]
PRIVATE: dict[str, Method] = {DEFAULT: default, CONSTANT: constant, BLOCKS: two_blocks}
FREE: dict[str, Method] = {ZERO: zero, NONPRIVATE: nonprivate}
