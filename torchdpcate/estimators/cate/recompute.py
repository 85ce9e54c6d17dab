"""Facts of released effects from which their mechanisms work out constants, noise bands and numbers anew.

What rests on facts that no statement has stays as the file says: the plan of DP-SGD, scales that are secret, and the
kernel of a query release where only its nuisances know it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.score import RegressionScore, ScoreBounds
from torchdpcate.errors import InputError
from torchdpcate.estimators.recompute import scale_problems
from torchdpcate.features.maps import FEATURE_MAPS, FeatureMap
from torchdpcate.features.unit_kernel import SMOOTHNESS
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.events import Event, GaussianEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.registry import Registry
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.second_stage.linear import LinearProblem, sensitivity

LEARNERS = Registry("learner")
"""Learners of effects by the names that users give."""

SQUARED = "squared loss"
"""What a statement has for the threshold of the squared loss."""

CLOSE = 1e-6
"""How well scales must agree, some of which are found by search."""
UNKNOWN_SIZE = 1e-2
"""The same, where the number of coefficients is not known: rounding takes so little."""

# Of a map that a query release names, and does not hold: what fits into memory, and some seconds.
_MOST_FEATURES, _MOST_NUMBERS, _MOST_WORK = 10**4, 2 * 10**7, 10**9


def score_of(learner: str) -> RegressionScore:
    """Return the score of the learner that statements call so.

    Raises:
        LookupError: There is none.
    """
    score: RegressionScore = LEARNERS[LEARNERS.class_names()[learner]].regression_score
    return score


def is_learner(name: object) -> bool:
    """Whether statements may call a learner so."""
    return name in LEARNERS.class_names()


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
        return score_of(self.privacy.public["learner"]).bounds(self.release.domain)

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
            raise ValueError("more features than are supported")
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
    def close(self) -> float:
        """How well scales must agree that depend on the number of coefficients."""
        return CLOSE if self.features is not None else UNKNOWN_SIZE

    @property
    def budget(self) -> PrivacyBudget:
        """What an (epsilon, delta) charge was."""
        fields = self.event.to_dict()
        return PrivacyBudget(fields["epsilon"], fields["delta"])

    @property
    def answers(self) -> int:
        """Number of answers of a query release."""
        assert isinstance(self.release, QueryRelease)
        return len(self.release.answers)

    @property
    def threshold(self) -> float:
        """Huber threshold; infinity for the squared loss."""
        stated = self.privacy.public["threshold"]
        return float("inf") if stated == SQUARED else as_number(stated)

    @property
    def sensitivity(self) -> float:
        """How far one record moves the fit."""
        return sensitivity(self.problem(self.threshold))

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

    def once(self) -> Iterator[str]:
        """Return problems of a release that is charged once."""
        if self.count != 1:
            yield f"a release by {self.privacy.mechanism} is charged once, but it was charged {self.count} times"

    def stated(self, close: float = CLOSE, **needed: float) -> Iterator[str]:
        """Return problems of public constants against those worked out anew.

        Args:
            close: How well they must agree, relatively.
            needed: The constants by their names.
        """
        for name, value in needed.items():
            yield from scale_problems(name, as_number(self.privacy.public[name]), value, close)

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
                yield from scale_problems("its noise band", stated, scale, CLOSE)
        else:
            yield from self._bands(scale, jitter)

    def _bands(self, scale: float | None, jitter: float) -> Iterator[str]:
        assert isinstance(self.release, QueryRelease)
        stated = self.release.noise_scales
        if (stated is None) is not (scale is None):
            yield "noise scales are stated where there are none, or none where there are some"
        if stated is None or scale is None:
            return
        norms, close = self.norms(), CLOSE if self.features is not None or jitter else UNKNOWN_SIZE
        if norms is None:
            if not bool(((stated > 0) & (stated <= scale * (1 + jitter) ** 0.5 * (1 + close))).all()):
                yield "the noise scales of its answers are beyond what its noise gives"
        elif not torch.allclose(stated, scale * (norms.square() + jitter).sqrt(), rtol=close, atol=0):
            yield "the noise scales of its answers are not those of its noise at its queries"

    def head_problems(self) -> Iterator[str]:
        """Return problems of what a query release says of its second stage, without whose kernel there is no proof."""
        if self.head.keys() not in ({"features", "columns"}, {"kernel", "columns"}):
            yield f"it states no kernel, without which mechanism {self.privacy.mechanism!r} may claim nothing"
        elif "kernel" in self.head:
            kernel = self.head["kernel"]
            known = kernel.keys() == {"name", "bandwidth"} and kernel["name"] in SMOOTHNESS
            if not known or as_number(kernel["bandwidth"]) <= 0:
                yield "its kernel is none of the library's"
        elif self.head["features"]["name"] not in FEATURE_MAPS and self.privacy.level == Level.CERTIFIED:
            yield "its feature map is none of the library's, so its bounds are not proved"

    @property
    def head(self) -> dict[str, Any]:
        """What a query release says of its second stage."""
        return {} if isinstance(self.release, FunctionRelease) else self.release.head or {}

    @property
    def _columns(self) -> list[int] | None:
        columns = self.head.get("columns")
        return None if columns is None else [int(column) for column in columns]


def effect_facts(release: FunctionRelease | QueryRelease, free: bool) -> EffectFacts:
    """Return what is public of released effects.

    Args:
        release: The release; it claims something.
        free: Whether its mechanism is: charged nothing, for any records.

    Raises:
        LookupError: No charge is for the release.
        ValueError: The folds did not pay alike.
    """
    privacy = release.privacy
    paid = {b.name: [c for c in b.charges if c.is_release(privacy.mechanism, "")] for b in privacy.blocks}
    last = [charges[-1] for charges in paid.values() if charges]
    if free:
        return EffectFacts(release, GaussianEvent(1.0), 0, privacy.n)
    event, count = last[0].event, last[0].count
    if event is None or count is None or any((charge.event, charge.count) != (event, count) for charge in last):
        raise ValueError("the folds did not pay alike")
    n = sum(block.n for block in privacy.blocks if paid[block.name])
    return EffectFacts(release, event, count, n)
