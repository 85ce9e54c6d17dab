"""The public plan of released effects by a second stage on blocks of its own, and what was charged before it.

Verification follows from it. What rests on facts that no statement has stays as the file says: the plan of the
nuisances' DP-SGD, scales that are secret, and the kernel of a query release where only its nuisances know it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.head import SQUARED, Head, is_learner, score_of
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS, Mechanism
from torchdpcate.fit.feature_maps import FEATURE_MAPS, FeatureMap
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.laws import CLOSE, Law
from torchdpcate.plan import Query, StatedPlan, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import DP_SGD, THRESHOLD, Charge, Purpose
from torchdpcate.privacy.events import DPSGDEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.blocks import Block
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement

NUISANCE, SECOND_STAGE = "nuisance", "second_stage"
"""Names of the blocks: records that train the nuisances, and records that fit the second stage."""

ANSWER = "theta"
"""The query of a second stage: its coefficients, or its values at the queries."""

FIRST_STAGE = (DP_SGD, THRESHOLD)
"""What is charged before a release: a choice of covariates, nuisances, a threshold, a choice of features."""

_MOST_FEATURES, _MOST_NUMBERS, _MOST_WORK = 10**4, 2 * 10**7, 10**9


@dataclass(frozen=True, eq=False)
class EffectPlan(StatedPlan[FunctionRelease | QueryRelease]):
    """What a release of a fitted second stage asks of its block; nuisances and choices were paid for before.

    Attributes:
        mechanism: The mechanism.
        law: How its numbers leave the records; None where it is free.
        head: What is public of the second stage.
        budget: What the release may spend of the block that pays.
        learner: Name of the learner's class.
        split: Share of the records that trains the nuisances; 1 where there is no second stage.
        seed: Public seed of the split.
        blocks: Records of each block, by name.
    """

    repeats = True

    mechanism: Mechanism
    law: Law | None
    head: Head
    budget: PrivacyBudget
    learner: str
    split: float
    seed: int
    blocks: Mapping[str, int]

    @property
    def n(self) -> int:  # type: ignore[override]
        """Number of records, of all blocks."""
        return sum(self.blocks.values())

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.blocks

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``StatedPlan``: one, or none where the mechanism is free."""
        if self.law is None:
            return {}
        charge = Charge(Purpose.RELEASE, self.mechanism.name)
        return {ANSWER: Query(charge, self.law, self.mechanism.level, (SECOND_STAGE,))}

    @property
    def free(self) -> bool:  # type: ignore[override]
        return self.mechanism.free

    @property
    def formula(self) -> str:
        return self.mechanism.formula

    def settings(self) -> dict[str, Any]:
        free = self.law is None
        return {
            "learner": self.learner,
            "split": self.split,
            "seed": self.seed,
            **({} if free else {"ridge": self.head.ridge}),
            **({} if free else {"epsilon": self.budget.epsilon, "delta": self.budget.delta}),
            **({} if free or self.head.size is None else {"coefficients": self.head.size}),
        }

    def public(self) -> dict[str, Any]:
        """See ``StatedPlan``; no number stands for the threshold of the squared loss in a file."""
        found = {**self.settings(), **self.mechanism.public(self.head, self.law)}
        return found | ({"threshold": SQUARED} if found.get("threshold") == math.inf else {})

    @classmethod
    def restated(cls, release: FunctionRelease | QueryRelease) -> Self:
        privacy, public = release.privacy, release.privacy.public
        kind, learner = MECHANISMS[privacy.mechanism], public["learner"]
        if not is_learner(learner):
            raise InputError(f"its learner is called {learner}, which is none of the library's")
        blocks, budget = privacy.blocks, PrivacyBudget(1.0, 0.0)
        paid = [b for b in blocks if kind.free or any(own.is_release(kind.name, "") for own in b.charges)][-1]
        head = _stated_head(release, paid.n)
        if not kind.free:
            budget = requested_budget(paid, public["epsilon"], public["delta"])
        law, sizes = kind.stated_law(public, head, budget), {block.name: block.n for block in blocks}
        mechanism = kind()
        return cls(mechanism, law, head, budget, learner, public["split"], public["seed"], sizes)

    def answers(self, release: FunctionRelease | QueryRelease) -> dict[str, Tensor]:
        """See ``StatedPlan``: the coefficients; answers at queries hold the nuisances' effect as well."""
        if isinstance(release, FunctionRelease) and not hasattr(release, "statistics"):
            return {ANSWER: release.theta}
        return {}

    def problems(self, release: FunctionRelease | QueryRelease) -> Iterator[str]:
        """See ``StatedPlan``; the noise band follows from the law."""
        yield from super().problems(release)
        if not any(condition["name"] == "nuisances" for condition in release.privacy.conditions):
            yield from _before_problems(release.privacy)
        yield from first_stage_problems(release)
        if isinstance(release, FunctionRelease):
            yield from _scale_problems(release.noise_scale, self.mechanism.band(self.law))
        else:
            yield from self._scales_problems(release)
            if not self.mechanism.free:
                yield from _head_problems(release)
        yield from self.mechanism.release_problems(self.head, self.law, release)

    def _charge_problems(self, block: Block) -> Iterator[str]:
        """See ``StatedPlan``: of the last release by the mechanism; what came before it was charged too."""
        own = [charge for charge in block.charges if charge.is_release(self.mechanism.name, "")]
        for name, query in self.queries.items():
            if block.name in query.blocks:
                yield from query.level_problems(name, own[-1:])
                yield from query.law.charge_problems(name, own[-1:])

    def _scales_problems(self, release: QueryRelease) -> Iterator[str]:
        stated, scale, jitter = release.noise_scales, self.mechanism.band(self.law), self.mechanism.jitter
        if (stated is None) is not (scale is None):
            yield "noise scales are stated where there are none, or none where there are some"
        if stated is None or scale is None:
            return
        norms = _norms(release)
        if norms is None:
            if not bool(((stated > 0) & (stated <= scale * (1 + jitter) ** 0.5 * (1 + CLOSE))).all()):
                yield "the noise scales of its answers are beyond what its noise gives"
        elif not torch.allclose(stated, scale * (norms.square() + jitter).sqrt(), rtol=CLOSE, atol=0):
            yield "the noise scales of its answers are not those of its noise at its queries"


def _before_problems(privacy: PrivacyStatement) -> Iterator[str]:
    """Return problems of what was charged before a release: the library's nuisances and choices, each once a block."""
    for block in privacy.blocks:
        before = Counter(charge.charge for charge in block.charges if charge.purpose is not Purpose.RELEASE)
        strange = [charge for charge, times in before.items() if charge not in FIRST_STAGE or times > 1]
        if strange:
            yield f"block {block.name!r} was charged for {strange[0].words!r}, which is not of its plan, or twice"


def _scale_problems(stated: float | None, scale: float | None) -> Iterator[str]:
    if (stated is None) is not (scale is None):
        yield "a noise band is stated where there is none, or none where there is one"
    elif stated is not None and scale is not None and not math.isclose(stated, scale, rel_tol=CLOSE):
        yield f"its noise band {stated:.6g} is not that of its noise, {scale:.6g}"


def _stated_head(release: FunctionRelease | QueryRelease, n: int) -> Head:
    """Return what a release says of its second stage, of n records."""
    public = release.privacy.public
    bounds, features = score_of(public["learner"]).bounds(release.domain), _features(release)
    size, threshold = public.get("coefficients"), public.get("threshold", SQUARED)
    if features is not None and size is not None and features.dimension != size:
        raise ValueError("coefficients that are not those of its features")
    return Head(
        n,
        math.inf if MECHANISMS[release.privacy.mechanism].free else as_number(public["ridge"]),
        bounds.weight * FeatureMap.bound,
        bounds.target,
        math.inf if threshold == SQUARED else as_number(threshold),
        release.domain,
        size if features is None else features.dimension,
        len(release.answers) if isinstance(release, QueryRelease) else None,
    )


def _features(release: FunctionRelease | QueryRelease) -> FeatureMap | None:
    """Return the feature map; None for a kernel, and where the nuisances that it is made of are not in the file."""
    if isinstance(release, FunctionRelease):
        return release.features
    config = dict(_head(release).get("features", {}))
    kind = FEATURE_MAPS.get(config.pop("name", ""))
    if kind is None:
        return None
    domain = release.domain
    if any(config.get(name, 0) > _MOST_FEATURES for name in ("degree", "pairs", "points")):
        raise ValueError("more features than are supported")
    features = kind(**config)
    if sum(map(math.prod, features.shapes(domain.dimension).values())) > _MOST_NUMBERS:
        raise ValueError("a map that takes more memory than verification has")
    try:
        features = features.setup(domain, release.nuisances)
    except InputError:  # made of nuisances that are not here
        return None
    if features.dimension * len(release.queries) > _MOST_WORK:
        raise ValueError("more features at more queries than verification works out")
    return features


def _norms(release: QueryRelease) -> Tensor | None:
    """Return sqrt(K(x, x)) at the queries, [d]; None where that is not known."""
    if "kernel" in _head(release):
        return torch.ones_like(release.answers)
    features = _features(release)
    return None if features is None else features.norm(release.queries)


def _head_problems(release: QueryRelease) -> Iterator[str]:
    """Return problems of what is said of the second stage, without whose kernel there is no proof."""
    head, mechanism = _head(release), release.privacy.mechanism
    if head.keys() not in ({"features"}, {"kernel"}):
        yield f"it states no kernel, without which mechanism {mechanism!r} may claim nothing"
    elif "kernel" in head:
        kernel = head["kernel"]
        known = kernel.keys() == {"name", "bandwidth"} and kernel["name"] == UnitKernel.name
        if not known or as_number(kernel["bandwidth"]) <= 0:
            yield "its kernel is none of the library's"
    elif head["features"]["name"] not in FEATURE_MAPS and release.privacy.level == Level.CERTIFIED:
        yield "its feature map is none of the library's, so its bounds are not proved"


def _head(release: FunctionRelease | QueryRelease) -> dict[str, Any]:
    return {} if isinstance(release, FunctionRelease) else release.head or {}


def first_stage_problems(release: FunctionRelease | QueryRelease) -> Iterator[str]:
    """Return what is wrong with what a release was charged before it, and with the sizes of its blocks.

    Args:
        release: The release, as read from its file; it claims something.
    """
    privacy, facts = release.privacy, release.facts()
    try:
        yield from _unpaid(release, facts)
        yield from _order(privacy)
        yield from _sizes(privacy)
        yield from _first_stage(release, facts)
    except (InputError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        yield "its split, its blocks and its charges are not those of one release"


def _unpaid(release: FunctionRelease | QueryRelease, facts: Mapping[str, Any]) -> Iterator[str]:
    """Problems of released nuisances that no charge covers."""
    charges = [charge.charge for charge in release.privacy.charges]
    held = any(name.startswith("nuisances.") for name in release.tensors())
    if held and not any(charge.purpose is Purpose.NUISANCES for charge in charges):
        yield "it holds nuisances, but no charge is for their training"


def _order(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of the order of charges: what is trained or found first is charged first, and releases last."""
    for block in privacy.blocks:
        ranks = [list(Purpose).index(charge.purpose) for charge in block.charges]
        if ranks != sorted(ranks):
            yield f"the charges of block {block.name!r} are not in the order in which they are made"


def _sizes(privacy: PrivacyStatement) -> Iterator[str]:
    """Problems of names and sizes of blocks against the split that the statement has."""
    sizes, split = {block.name: block.n for block in privacy.blocks}, privacy.public["split"]
    free = MECHANISMS[privacy.mechanism].free
    pair = (NUISANCE,) if free else (NUISANCE, SECOND_STAGE)
    if any(n < 1 for n in sizes.values()):
        yield "a block holds no record"
    if tuple(sizes) != pair or (free and split != 1):
        yield f"its blocks are not {' and '.join(pair)}, as its split and mechanism say"
        return
    share = as_number(split)
    if not free and (not 0 < share < 1 or sizes[NUISANCE] != round(share * privacy.n)):
        yield f"its blocks do not hold {share:g} and {1 - share:g} of n = {privacy.n} records, as its split says"


def _first_stage(release: FunctionRelease | QueryRelease, facts: Mapping[str, Any]) -> Iterator[str]:
    """Problems of the training of the nuisances."""
    block = {block.name: block for block in release.privacy.blocks}[NUISANCE]
    stated, trained = facts.get("nuisances"), block.of(Purpose.NUISANCES)
    charges = [charge.charge for charge in trained]
    if not trained:
        yield f"block {NUISANCE!r} trained nuisances, but no charge is for their training"
    elif stated and charges.count(DP_SGD) != 1:
        yield f"block {NUISANCE!r} trained networks, but was not charged for one run of DP-SGD"
    if any(run.charge == DP_SGD and not isinstance(run.event, DPSGDEvent) for run in trained):
        yield f"block {NUISANCE!r} trained networks, but was charged for something else than DP-SGD"
