"""Verification of released effects: constants, noise bands and numbers, worked out anew from public facts.

Noise is recomputed by the mechanisms' own functions, from bounds, records, ridge, threshold and the charge. What rests
on facts that no statement tells stays as the file says: the plan of DP-SGD, scales that are secret, and the kernel of a
query release where only its nuisances know it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.score import DRScore, RegressionScore, RScore, ScoreBounds
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.dp_sgd_head import DPSGDHead
from torchdpcate.estimators.cate.mechanisms.gaussian_process import GaussianProcess
from torchdpcate.estimators.cate.mechanisms.influence import InfluencePerturbation
from torchdpcate.estimators.cate.mechanisms.objective import ObjectivePerturbation
from torchdpcate.estimators.cate.mechanisms.output import OutputPerturbation
from torchdpcate.estimators.cate.mechanisms.plug_in import PlugIn
from torchdpcate.estimators.cate.mechanisms.smooth_sensitivity import SmoothSensitivity
from torchdpcate.estimators.cate.mechanisms.statistics import (
    StatisticsRelease,
    SufficientStatistics,
    statistics_units,
)
from torchdpcate.estimators.cate.mechanisms.worst_pairs import given_stage
from torchdpcate.estimators.cate.online.path import JITTER
from torchdpcate.estimators.cate.online.service import EXCESS
from torchdpcate.estimators.recompute import (
    as_number,
    batch_problems,
    far_problems,
    grid_problems,
    paid_gaussian,
    same,
    scale_problems,
)
from torchdpcate.features.maps import FEATURE_MAPS, FeatureMap
from torchdpcate.features.unit_kernel import SMOOTHNESS
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import smooth_sensitivity_multiplier, smoothness
from torchdpcate.privacy.events import Event, GaussianEvent, event_from_dict
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.release import FunctionRelease, QueryRelease, Release
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.second_stage.linear import LinearProblem, sensitivity
from torchdpcate.verify.known import COMMON_CONDITIONS, EFFECTS

SCORES: dict[str, type[RegressionScore]] = {"RLearner": RScore, "DRLearner": DRScore}
"""Scores by the learner that a statement tells."""

_CLOSE = 1e-6  # how well scales agree, some of which are found by search
_UNKNOWN_SIZE = 1e-2  # the same, where the number of coefficients is not told: rounding takes so little
_SQUARED = "squared loss"
# Of a map that a query release tells, and does not hold: what fits into memory, and some seconds.
_MOST_FEATURES, _MOST_NUMBERS, _MOST_WORK = 10**5, 2 * 10**7, 10**9


@dataclass(frozen=True, eq=False)
class EffectFacts:
    """What is public of released effects.

    Attributes:
        release: The release; it claims something.
        event: What it was charged, the last of its mechanism on the records that fitted it.
        count: How often.
        n: Records that fitted it.
    """

    release: FunctionRelease | QueryRelease
    event: Event
    count: int
    n: int

    @property
    def privacy(self) -> PrivacyStatement:
        """The statement."""
        return self.release.privacy

    @cached_property
    def bounds(self) -> ScoreBounds:
        """Bounds of the score over the domain."""
        return SCORES[self.privacy.public["learner"]]().bounds(self.release.domain)

    @cached_property
    def features(self) -> FeatureMap | None:
        """The feature map; None for a kernel, and where the nuisances that it is made of are not in the file."""
        if isinstance(self.release, FunctionRelease):
            return self.release.features
        config = dict(self.head.get("features", {}))
        kind = FEATURE_MAPS.get(config.pop("name", ""))
        if kind is None:
            return None
        domain = self.release.domain if self._columns is None else self.release.domain.select(self._columns)
        if any(config.get(name, 0) > _MOST_FEATURES for name in ("degree", "pairs", "points")):
            raise ValueError("more features than anybody takes")
        features = kind(**config)
        if sum(map(math.prod, features.shapes(domain.dimension).values())) > _MOST_NUMBERS:
            raise ValueError("a map that takes more memory than verification has")
        try:
            features = features.setup(domain, self.release.nuisances)
        except InputError:  # made of nuisances that are not here
            return None
        if features.dimension * len(self.release.queries) > _MOST_WORK:
            raise ValueError("more features at more queries than verification works out")
        return features

    @property
    def size(self) -> int:
        """Number of coefficients; 1 where it is not known."""
        return 1 if self.features is None else self.features.dimension

    @property
    def threshold(self) -> float:
        """Huber threshold; infinity for the squared loss."""
        told = self.privacy.public["threshold"]
        return float("inf") if told == _SQUARED else as_number(told)

    def problem(self, threshold: float) -> LinearProblem:
        """Return a regression of as many records with the same public bounds, without any."""
        zero = torch.zeros(1, dtype=torch.float64)
        return LinearProblem(
            psi=zero[None].expand(self.n, self.size),
            s=zero.expand(self.n),
            w=zero.expand(self.n),
            ridge=as_number(self.privacy.public["ridge"]),
            weight_bound=self.bounds.weight * FeatureMap.bound,
            target_bound=self.bounds.target,
            threshold=threshold,
        )

    def norms(self) -> Tensor | None:
        """Return sqrt(K(x, x)) at the queries of a query release, [d]; None where that is not known."""
        assert isinstance(self.release, QueryRelease)
        if "kernel" in self.head:
            return torch.ones_like(self.release.answers)
        if self.features is None:
            return None
        x = self.release.queries
        return self.features.norm(x if self._columns is None else x[:, self._columns])

    def told(self, **needed: float) -> Iterator[str]:
        """Return problems of public constants against those worked out anew."""
        for name, value in needed.items():
            yield from scale_problems(name, as_number(self.privacy.public[name]), value, _CLOSE)

    def band(self, scale: float | None, jitter: float = 0.0) -> Iterator[str]:
        """Return problems of the public noise band.

        Args:
            scale: Of the noise per unit of sqrt(K(x, x)); None where none is public.
            jitter: Added to K(x, x).
        """
        if isinstance(self.release, FunctionRelease):
            stated = self.release.noise_scale
            if (stated is None) is not (scale is None):
                yield "a noise band is stated where there is none, or none where there is one"
            elif stated is not None and scale is not None:
                yield from scale_problems("its noise band", stated, scale, _CLOSE)
        else:
            yield from self._bands(scale, jitter)

    def _bands(self, scale: float | None, jitter: float) -> Iterator[str]:
        assert isinstance(self.release, QueryRelease)
        stated = self.release.noise_scales
        if (stated is None) is not (scale is None):
            yield "noise scales are stated where there are none, or none where there are some"
        if stated is None or scale is None:
            return
        norms, close = self.norms(), _CLOSE if self.features is not None or jitter else _UNKNOWN_SIZE
        if norms is None:
            if not bool(((stated > 0) & (stated <= scale * (1 + jitter) ** 0.5 * (1 + close))).all()):
                yield "the noise scales of its answers are beyond what its noise gives"
        elif not torch.allclose(stated, scale * (norms.square() + jitter).sqrt(), rtol=close, atol=0):
            yield "the noise scales of its answers are not those of its noise at its queries"

    @property
    def head(self) -> dict[str, Any]:
        """What a query release tells of its second stage."""
        return {} if isinstance(self.release, FunctionRelease) else self.release.head or {}

    @property
    def _columns(self) -> list[int] | None:
        columns = self.head.get("columns")
        return None if columns is None else [int(column) for column in columns]


def effect_problems(release: Release) -> Iterator[str]:
    """Return what is wrong with the numbers of released effects; nothing for other releases, or without a claim.

    Args:
        release: The release, as read from its file.
    """
    privacy = release.privacy
    if (
        not isinstance(release, FunctionRelease | QueryRelease)
        or not privacy.claims
        or privacy.mechanism not in EFFECTS
    ):
        return
    if privacy.public.get("learner") not in SCORES:
        yield f"its learner is called {privacy.public.get('learner')}, which is none of the library's"
        return
    try:
        facts = effect_facts(release)
        if isinstance(release, QueryRelease) and privacy.mechanism != PlugIn.name:
            yield from _head_problems(facts)
        yield from _CHECKS[privacy.mechanism](facts)
    except (InputError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        yield "its public constants, its charge and its numbers are not those of one release by its mechanism"


def effect_facts(release: FunctionRelease | QueryRelease) -> EffectFacts:
    """Return what is public of released effects; a mechanism that is free was charged nothing, for any records.

    Raises:
        LookupError: No charge is for the release.
        ValueError: The folds did not pay alike.
    """
    privacy = release.privacy
    label = f"release by {privacy.mechanism}"
    paid = {b["name"]: [c for c in b["charges"] if c["label"] == label] for b in privacy.blocks}
    last = [charges[-1] for charges in paid.values() if charges]
    if privacy.mechanism == PlugIn.name:
        return EffectFacts(release, GaussianEvent(1.0), 0, privacy.n)
    if any((charge["event"], charge["count"]) != (last[0]["event"], last[0]["count"]) for charge in last):
        raise ValueError("the folds did not pay alike")
    n = sum(block["n"] for block in privacy.blocks if paid[block["name"]])
    return EffectFacts(release, event_from_dict(last[0]["event"]), last[0]["count"], n)


def _once(facts: EffectFacts) -> Iterator[str]:
    if facts.count != 1:
        yield f"a release by {facts.privacy.mechanism} is paid once, but it was charged {facts.count} times"


def _objective(facts: EffectFacts) -> Iterator[str]:
    problem, mechanism = facts.problem(facts.threshold), ObjectivePerturbation()
    tilt = mechanism.tilt(problem, _budget(facts.event))
    band = mechanism.band(problem, tilt)
    yield from _once(facts)
    yield from facts.told(tilt_scale=tilt.scale, epsilon_jacobian=tilt.jacobian)
    yield from facts.band(band)
    if isinstance(facts.release, FunctionRelease):
        reach = problem.threshold * problem.weight_bound / problem.ridge
        yield from grid_problems("theta", facts.release.theta, tilt.solver.released_scale(tilt.size))
        yield from far_problems("theta", facts.release.theta, reach, band)


def _output(facts: EffectFacts) -> Iterator[str]:
    problem = facts.problem(facts.threshold)
    moved = sensitivity(problem)
    scale = paid_gaussian(facts.event, moved).released_scale(facts.size)
    yield from _once(facts)
    yield from facts.told(sensitivity=moved)
    close = _CLOSE if facts.features is not None else _UNKNOWN_SIZE
    yield from scale_problems("noise_scale", as_number(facts.privacy.public["noise_scale"]), scale, close)
    yield from facts.band(scale)
    if isinstance(facts.release, FunctionRelease):
        # the gradient of the ridge is at most that of the records, and the ridge at most their loss at zero
        huber, squared = problem.threshold * problem.weight_bound / problem.ridge, problem.target_bound
        yield from grid_problems("theta", facts.release.theta, scale)
        yield from far_problems("theta", facts.release.theta, min(huber, squared / problem.ridge**0.5), scale)


def _statistics(facts: EffectFacts) -> Iterator[str]:
    problem = facts.problem(facts.threshold)
    p, S = facts.size, min(problem.target_bound, problem.threshold)
    scale = paid_gaussian(facts.event, 1.0).released_scale(p * (p + 1) // 2 + p)
    matrix, vector = (scale * unit for unit in statistics_units(problem.weight_bound, S))
    yield from _once(facts)
    close = _CLOSE if facts.features is not None else _UNKNOWN_SIZE
    for name, needed in (("matrix_scale", matrix), ("vector_scale", vector)):
        yield from scale_problems(name, as_number(facts.privacy.public[name]), needed, close)
    yield from facts.band(None)
    release = facts.release
    if isinstance(release, StatisticsRelease):
        released = release.statistics
        above = released.matrix[tuple(torch.triu_indices(p, p, 1))]
        yield from grid_problems("statistics", released.matrix.diagonal(), matrix)
        yield from grid_problems("statistics", above, matrix / 2**0.5)
        yield from grid_problems("statistics", released.vector, vector)
        if released.n != facts.n or not same(release.ridge, as_number(facts.privacy.public["ridge"])):
            yield "records or ridge of its statistics are not those of the statement"
        elif not torch.allclose(release.theta, released.solve(release.ridge), rtol=_CLOSE, atol=_CLOSE * S):
            yield "its coefficients do not follow from its statistics"


def _gaussian_process(facts: EffectFacts) -> Iterator[str]:
    moved, online = sensitivity(facts.problem(facts.threshold)), facts.privacy.public.get("answers") == "online"
    scale = paid_gaussian(facts.event, moved).scale * ((1 + EXCESS) ** 0.5 if online else 1.0)
    yield from _once(facts)
    yield from facts.told(sensitivity=moved, noise_scale=scale, jitter=JITTER)
    yield from facts.band(scale, JITTER)


def _dp_sgd_head(facts: EffectFacts) -> Iterator[str]:
    public, event = facts.privacy.public, facts.event.to_dict()
    plan = {name: event.get(name) for name in ("noise_multiplier", "sampling_rate")} | {"steps": facts.count}
    if any(public[name] != value for name, value in plan.items()):
        yield "the plan of its DP-SGD is not what was charged"
    yield from batch_problems("its DP-SGD", as_number(event["sampling_rate"]), facts.n)
    if not (facts.threshold > 0 and as_number(public["max_grad_norm"]) > 0):
        yield "threshold or clip norm of its DP-SGD is no positive number"
    yield from facts.band(None)


def _plug_in(facts: EffectFacts) -> Iterator[str]:
    yield from facts.band(None)


def _smooth_sensitivity(facts: EffectFacts) -> Iterator[str]:
    budget = _budget(facts.event)
    smooth_sensitivity_multiplier(budget.epsilon, budget.delta)  # refuses an epsilon beyond the proof
    yield from _once(facts)
    yield from facts.told(smoothness=smoothness(budget.epsilon, budget.delta, len(_answers(facts))))
    yield from facts.band(None)


def _influence(facts: EffectFacts) -> Iterator[str]:
    budget, damping = _budget(facts.event), as_number(facts.privacy.public["damping"])
    stage = given_stage(facts.problem(float("inf")))
    guarantee = InfluencePerturbation(damping=damping).guarantee(stage, budget, len(_answers(facts)))
    yield from _once(facts)
    told = [condition for condition in facts.privacy.conditions if condition["name"] not in COMMON_CONDITIONS]
    if [condition.to_dict() for condition in guarantee.conditions] != told:
        yield "its conditions are not those of its records, ridge, queries and charge"
    if not guarantee.holds_claim:
        yield "a condition of its mechanism fails, yet epsilon is claimed"
    yield from facts.band(None)


def _head_problems(facts: EffectFacts) -> Iterator[str]:
    """Problems of what a query release tells of its second stage, without whose kernel there is no proof."""
    if facts.head.keys() not in ({"features", "columns"}, {"kernel", "columns"}):
        yield f"it tells no kernel, without which mechanism {facts.privacy.mechanism!r} may claim nothing"
    elif "kernel" in facts.head:
        kernel = facts.head["kernel"]
        known = kernel.keys() == {"name", "bandwidth"} and kernel["name"] in SMOOTHNESS
        if not known or as_number(kernel["bandwidth"]) <= 0:
            yield "its kernel is none of the library's"
    elif facts.head["features"]["name"] not in FEATURE_MAPS and facts.privacy.level == Level.CERTIFIED:
        yield "its feature map is none of the library's, which nobody has proved bounds of"


def _answers(facts: EffectFacts) -> Tensor:
    assert isinstance(facts.release, QueryRelease)
    return facts.release.answers


def _budget(event: Event) -> PrivacyBudget:
    """Return what an (epsilon, delta) charge was."""
    fields = event.to_dict()
    return PrivacyBudget(fields["epsilon"], fields["delta"])


_CHECKS: dict[str, Callable[[EffectFacts], Iterator[str]]] = {
    ObjectivePerturbation.name: _objective,
    OutputPerturbation.name: _output,
    SufficientStatistics.name: _statistics,
    GaussianProcess.name: _gaussian_process,
    DPSGDHead.name: _dp_sgd_head,
    PlugIn.name: _plug_in,
    SmoothSensitivity.name: _smooth_sensitivity,
    InfluencePerturbation.name: _influence,
}
