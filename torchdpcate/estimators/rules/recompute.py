"""Facts of a released rule from which its mechanism works out objective noise, output noise and coefficients anew.

Two things are not stated and follow from the noise: the largest weight of a private propensity, or of a propensity
column that the rule does not see, which must lie in the range that the overlap bound leaves; and how round the corner
of a Huber hinge is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.perturbation import SOLVER_SHARE, jacobian, logistic_jacobian
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.estimators.recompute import scale_problems
from torchdpcate.estimators.rules.loss import LOSSES, stated_slopes
from torchdpcate.estimators.rules.matching import MATCHINGS
from torchdpcate.nuisance.weights.scheme import WEIGHTS
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noisy_numbers import far_problems
from torchdpcate.registry import Registry
from torchdpcate.release.rule import RuleRelease

RULE_LEARNERS = Registry("task", "torchdpcate.estimators.rules", more=("rule_method",))
"""Learners of rules by the names of their tasks, or of a task's methods."""

_NEEDS = ("learner", "weights", "outcome", "loss", "ridge")
_MAY = (
    *("radius", "split", "seed", "outcome_low", "outcome_high", "outcome_centre", "outcome_clip"),
    *("matching", "gap", "residual_model", "candidates", "selection_fraction"),
)
_CLOSE = 1e-6
_NOTHING = 1e-300  # a cost of determinants that changes no scale


@cache
def rule_states(*own: str) -> Stated:
    """Return what statements of rules may say.

    Args:
        own: Public constants of their mechanism.
    """
    parts = {name for group in (WEIGHTS, MATCHINGS) for part in group.values() for name in part.states}
    return Stated(Level.CERTIFIED, (RuleRelease.kind,), frozenset((*_NEEDS, *own)), frozenset((*_MAY, *parts)))


@dataclass(frozen=True, eq=False)
class RuleFacts:
    """What is public of a released rule.

    Attributes:
        release: The release; it claims something.
        event: What was charged for it.
        alone: Whether that is for the rule alone, and not for all that one of several candidates cost.
        slope: Largest slope of the loss.
        curvature: Largest curvature of the loss; None where a setting that is not stated decides about it.
        monotone: Whether the loss's slope never changes its sign.
    """

    release: RuleRelease
    event: Event
    alone: bool
    slope: float
    curvature: float | None
    monotone: bool

    @classmethod
    def of(cls, release: RuleRelease, slopes: tuple[float, float | None, bool]) -> "RuleFacts":
        """Return the facts of a release.

        Args:
            release: As read from its file.
            slopes: Of its loss, see ``stated_slopes``.
        """
        charges = release.privacy.charges
        own = [c for c in charges if c.is_release(release.privacy.mechanism, "")]
        paid = own or [c for c in charges if c.purpose is Purpose.CANDIDATE]
        if paid[-1].count != 1 or paid[-1].event is None:
            raise ValueError("a release is paid once")
        return cls(release, paid[-1].event, bool(own), *slopes)

    @property
    def public(self) -> dict[str, Any]:
        """Public constants."""
        return self.release.privacy.public

    def number(self, name: str) -> float:
        """Return a public constant."""
        return as_number(self.public[name])

    @property
    def budget(self) -> PrivacyBudget:
        """What the release might spend."""
        fields = self.event.to_dict()
        return PrivacyBudget(fields["epsilon"], fields.get("delta", 0.0))

    @property
    def logistic(self) -> bool:
        """Whether its loss is the library's logistic one."""
        name = self.public["loss"]
        return LOSSES.class_names().get(name, name) == "logistic"

    @property
    def constrained(self) -> bool:
        """Whether a set confines the coefficients."""
        return self.public.get("radius") is not None

    @property
    def weights(self) -> tuple[WeightBounds, float | None]:
        """Bounds of the weights; where the largest is not stated, those of weights up to one, and a bound of it."""
        public, overlap = self.public, self.release.domain.overlap
        learner = RULE_LEARNERS.class_names().get(public["learner"])
        if learner is None:  # a subclass of the user's, whose bounds are those of the weights
            return WEIGHTS[public["weights"]].stated_bounds(public, overlap)  # type: ignore[no-any-return]
        return RULE_LEARNERS[learner].stated_bounds(public, overlap)  # type: ignore[no-any-return]

    def compared(self, name: str, needed: float) -> Iterator[str]:
        """Return problems of a stated scale; a candidate's may be larger, for its first stage took its part."""
        yield from scale_problems(name, self.number(name), needed, _CLOSE, least=not self.alone)

    def largest(self, bounds: WeightBounds, most: float) -> Iterator[str]:
        """Return problems of a largest weight that follows from the noise: from that of no propensity to the overlap's.

        Args:
            bounds: With that weight.
            most: What the overlap allows.
        """
        if not (bounds.most >= 1 - _CLOSE and (not self.alone or bounds.most <= most * (1 + _CLOSE))):
            yield "its noise is not that of any weights which the overlap bound allows, at what was paid"

    def far(self, noise: float) -> Iterator[str]:
        """Return problems of coefficients beyond what records and noise can make: the ridge's gradient is theirs.

        Args:
            noise: Scale of what noise moves a coefficient by.
        """
        bounds, most = self.weights
        n, entry = self.release.privacy.n, self.release.features.largest_entry
        reach = n * self.slope * max(bounds.most, most or 0.0) * max(entry, 1.0) / self.number("ridge")
        yield from far_problems("theta", self.release.theta, reach, noise)

    def stated_curvature(self, bounds: WeightBounds) -> float:
        """Return the curvature at which the determinants cost what is stated, above zero."""
        spent = max(self.number("epsilon_jacobian"), _NOTHING)
        return (math.expm1(spent) / bounds.most if bounds.own else spent / bounds.second) * self.number("ridge")

    def determinants(self, bounds: WeightBounds, shapes: bool) -> Iterator[str]:
        """Return problems of what the determinants cost.

        Args:
            bounds: Of the weights.
            shapes: Whether a logistic loss has the cost of its own shape: with pure noise, see ``logistic_jacobian``.
        """
        spent, ridge = self.number("epsilon_jacobian"), self.number("ridge")
        if shapes and bounds.own and self.logistic:
            epsilon = self.budget.epsilon * (1 - SOLVER_SHARE)
            fits = epsilon > jacobian(bounds, Logistic.curvature, ridge) if ridge > 0 else False
            near = fits and math.isclose(
                spent, logistic_jacobian(epsilon, bounds.most, ridge), rel_tol=_CLOSE, abs_tol=_CLOSE * epsilon
            )
            sound = 0 <= spent < epsilon
        else:
            curvature, expected = self.stated_curvature(bounds), self.curvature
            near = expected is None or math.isclose(curvature, expected, rel_tol=_CLOSE)
            sound = spent > 0 and curvature > 0
        if not sound or (self.alone and not near):
            yield "what its determinants cost is not what its loss, weights and ridge ask for"


def library_parts(release: RuleRelease) -> Iterator[str]:
    """Return problems of parts that a certified rule brings and the library does not have."""
    parts: dict[str, Registry] = {"outcome": Registry("outcome"), "matching": MATCHINGS}
    for part, names in parts.items():
        stated = release.privacy.public.get(part)
        if stated is not None and stated not in names and release.privacy.level == Level.CERTIFIED:
            yield f"its {part} is called {stated}, which is none of the library's"
    learner = release.privacy.public.get("learner")
    if learner not in RULE_LEARNERS.class_names() and release.privacy.level == Level.CERTIFIED:
        yield f"its learner is called {learner}, which is none of the library's"


def slopes_of(release: RuleRelease) -> tuple[float, float | None, bool] | None:
    """Return ``stated_slopes`` of the stated loss; None for one of the user's."""
    public = release.privacy.public
    return stated_slopes(public.get("loss"), public.get("radius"), release.features.largest_entry)
