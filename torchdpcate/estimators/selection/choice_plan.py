"""The public plan of a choice among policies by composed scores: steps, clipping, and what the choice may cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import EXPECTED, SelectionConstants
from torchdpcate.composition.plan import ARMS, EFFECT, ComposedPlan
from torchdpcate.composition.steps import EpsilonShares, Shares, total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.events import BoundedRangeEvent, PureEvent
from torchdpcate.privacy.gaussian_dp import range_beside

CLIP = "clip"
"""The step that finds the clip of the scores."""

_STEPS, _QUANTILE = 0.3, 0.1  # of mu^2: scores, and their clip
_PURE_STEPS = 0.5  # of epsilon, where delta = 0: scores
_LEVELS = 6  # halvings between the first clip and the largest, in logarithms
_RANKS = 1.5  # standard errors of a rank


@dataclass(frozen=True)
class ChoicePlan:
    r"""Everything public about a choice by composed scores, made of n, the budget, the library's size and the domain.

    Gaussian events find the scores (.3 of mu^2) and their clip (.1), one exponential mechanism of bounded range eta has
    the rest, by the exact composition of both (``range_beside``). With delta = 0 pure events find the scores (half of
    epsilon), a choice has the other half as its eta, and no quantile is asked for. Scores are clipped at

    .. math::
        C_1 = \min\Big(\tfrac{A}{2} S \max\Big(1, \tfrac{1}{8}\sqrt{n \eta / \ln K}\Big),\ \tfrac{R}{\zeta}\Big), \quad
        C_2 = \max(C_1, q)

    for A actions, where q leaves :math:`2 \ln K / \eta` records and 1.5 standard errors of a rank above it: where
    effects are rare, a clip of the usual scores' size would delete those that matter.

    Attributes:
        n: Number of records.
        budget: (epsilon, delta); None without privacy.
        policies: K, at least two.
        domain: Public bounds.
        clip: C, public, in outcome units; None takes C_2.
        constants: Constants of the composition.
        arms: Number of actions.

    Raises:
        InputError: delta = 0 with more than two actions, or a clip that is not positive.

    Example:
        >>> domain = Domain([0.0] * 6, [1.0] * 6, 0.0, 10.0, overlap=0.1)
        >>> plan = ChoicePlan(4_000, PrivacyBudget(1.0, 1e-5), 160, domain)
        >>> round(plan.eta, 3), plan.beyond, round(plan.planned_clip, 3)
        (0.61, 60, 1.957)
    """

    n: int
    budget: PrivacyBudget | None
    policies: int
    domain: Domain
    clip: float | None = None
    constants: SelectionConstants = field(default_factory=SelectionConstants)
    arms: int = 2

    def __post_init__(self) -> None:
        if self.clip is not None:
            object.__setattr__(self, "clip", positive("clip", self.clip))
        self.composed  # noqa: B018 - refuses delta = 0

    @cached_property
    def composed(self) -> ComposedPlan:
        """The plan of the steps that make the scores."""
        settings = {"constants": self.constants, "part": _PURE_STEPS if self.pure else _STEPS}
        kind = EFFECT if self.arms == 2 else ARMS
        return plan_within(self.n, self.budget, self.domain, kind, **settings, arms=self.arms)

    @property
    def pure(self) -> bool:
        """Whether all events are pure: delta = 0."""
        return self.budget is not None and self.budget.delta == 0

    @property
    def clips_by_quantile(self) -> bool:
        """Whether a quantile of the scores is asked for: where no clip is given and enough records lie below it.

        With pure events never.
        """
        if self.clip is not None or self.budget is None or self.pure:
            return False
        return self._beyond(self._both) <= self.constants.farthest * self.n

    @cached_property
    def shares(self) -> Shares:
        """Share of mu^2 of the step that finds the clip."""
        if self.pure:
            return EpsilonShares(self.composed.shares.total)
        return Shares(total_mu(self.budget), {CLIP: _QUANTILE} if self.clips_by_quantile else {})

    @property
    def levels(self) -> int:
        """Halvings of the quantile."""
        return _LEVELS

    @cached_property
    def eta(self) -> float:
        """Bounded range of the choice; infinite without privacy."""
        return self.range()

    @property
    def beyond(self) -> int:
        """How many scores the quantile leaves above it."""
        return self._beyond(self.eta)

    @property
    def most(self) -> float:
        """R / zeta, the largest clip, in outcome units."""
        return self.domain.outcome_range / self.domain.least_propensity

    def first_clip(self, scale: float) -> float:
        """Return C_1, or the clip that is given, in outcome units.

        Args:
            scale: S, released; the range of a binary outcome, whose residuals are half of it.
        """
        if self.clip is not None:
            return min(self.clip, self.most)
        if self.budget is None:
            return self.most
        size, own = (scale / 2 if self.composed.binary else scale) * self.arms / 2, self.constants
        grown = math.sqrt(self.n * self.eta / math.log(self.policies)) / own.clip_growth
        return min(size * max(own.least_clip, grown), self.most)

    @property
    def planned_scale(self) -> float:
        """Residual scale to expect, in outcome units."""
        return (0.5 if self.composed.binary else EXPECTED.residual_scale) * self.domain.outcome_range

    @property
    def planned_clip(self) -> float:
        """C_1 to expect, in outcome units."""
        return self.first_clip(self.domain.outcome_range if self.composed.binary else self.planned_scale)

    def facts(self) -> dict[str, Any]:
        """Return what statements say of the plan beside n, domain and the library's size."""
        shown = ("rung", "kept", "steps", "huber_quantile", "requested_epsilon", "requested_delta", "constants")
        facts = self.composed.facts()
        return {**{name: facts[name] for name in shown}, "given_clip": self.clip, "bounded_range": self.eta}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], n: int, domain: Domain) -> "ChoicePlan":
        """Return the plan that a statement's facts describe.

        Args:
            facts: As ``facts`` returns them, with ``policies`` and ``actions``, among others.
            n: Number of records.
            domain: Public bounds.

        Raises:
            InputError: Facts that are none of a plan.
        """
        try:
            epsilon, delta = facts["requested_epsilon"], facts["requested_delta"]
            budget = None if epsilon is None else PrivacyBudget(epsilon, delta)
            constants = SelectionConstants.from_text(facts["constants"])
            policies, arms = int(facts["policies"]), len(facts["actions"])
            return cls(n, budget, policies, domain, facts["given_clip"], constants, arms)
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(f"facts of the plan are not what ChoicePlan.facts writes: {error}") from None

    def range(self, event: type[PureEvent] = BoundedRangeEvent) -> float:
        """Return what a choice may spend beside the steps, which is eta for one of bounded range.

        Args:
            event: What kind of choice it is.
        """
        if self.pure:
            assert self.budget is not None
            return self.budget.epsilon * (1 - _PURE_STEPS)
        return self._range(_STEPS + _QUANTILE * self.clips_by_quantile, event)

    @cached_property
    def _both(self) -> float:
        return self._range(_STEPS + _QUANTILE)

    def _range(self, share: float, event: type[PureEvent] = BoundedRangeEvent) -> float:
        if self.budget is None:
            return math.inf
        return range_beside(total_mu(self.budget) * math.sqrt(share), self.budget, event)

    def _beyond(self, eta: float) -> int:
        noise = math.sqrt(_LEVELS / _QUANTILE) / total_mu(self.budget)
        return math.ceil(2 * math.log(self.policies) / eta + _RANKS * noise)
