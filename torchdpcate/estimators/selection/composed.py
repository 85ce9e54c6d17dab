"""Scores of policies by one composition on all records, the public plan of the choice included."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import EXPECTED, SelectionConstants
from torchdpcate.composition.linear_fit import NoisyNewton, Solver
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.records import ComposedFit, fit_composition
from torchdpcate.composition.rows import InMemory, Rows
from torchdpcate.composition.settings import AdaptiveSecondStage, Additive, ComposedNuisance
from torchdpcate.composition.steps import EpsilonShares, NoisySteps, Shares, total_mu
from torchdpcate.composition.summaries import quantile_of
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import InputError
from torchdpcate.estimators.planned_noise import shown
from torchdpcate.estimators.selection.scores import scores_of
from torchdpcate.fit.arms.base import ScoreSource, SelectionFacts
from torchdpcate.privacy.accounting import range_beside
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.events import BoundedRangeEvent, PureEvent
from torchdpcate.privacy.guarantee import Condition, user_code
from torchdpcate.privacy.selection import ExponentialMechanism, SelectionMechanism
from torchdpcate.privacy.session import FitSession

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
    epsilon), a choice has the other half as its eta, and no quantile is requested. Scores are clipped at

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
        return plan_within(self.n, self.budget, self.domain, **settings, arms=self.arms)

    @property
    def pure(self) -> bool:
        """Whether all events are pure: delta = 0."""
        return self.budget is not None and self.budget.delta == 0

    @property
    def clips_by_quantile(self) -> bool:
        """Whether a quantile of the scores is requested: where no clip is given and enough records lie below it.

        With pure events never.
        """
        if self.clip is not None or self.budget is None or self.pure:
            return False
        return self._beyond(self._both) <= self.constants.farthest * self.composed.mass

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
        grown = math.sqrt(self.composed.mass * self.eta / math.log(self.policies)) / own.clip_growth
        return min(size * max(own.least_clip, grown), self.most)

    @property
    def planned_scale(self) -> float:
        """Residual scale to expect, in outcome units."""
        if not self.composed.binary and self.domain.outcome_sd is not None:
            return self.domain.outcome_sd
        return (0.5 if self.composed.binary else EXPECTED.residual_scale) * self.domain.outcome_range

    @property
    def planned_clip(self) -> float:
        """C_1 to expect, in outcome units."""
        return self.first_clip(self.domain.outcome_range if self.composed.binary else self.planned_scale)

    def facts(self) -> dict[str, Any]:
        """Return what statements say of the plan beside n, domain and the library's size."""
        shown = ("form", "retained", "steps", "huber_quantile", "requested_epsilon", "requested_delta", "constants")
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

    def range(self, chance: type[SelectionMechanism] = ExponentialMechanism) -> float:
        """Return what a choice may spend beside the steps, which is eta for one of bounded range.

        Args:
            chance: Class of the choice.
        """
        if self.pure:
            assert self.budget is not None
            return self.budget.epsilon * (1 - _PURE_STEPS)
        event = BoundedRangeEvent if issubclass(chance, ExponentialMechanism) else PureEvent
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


_DELETES = 0.1  # of the planned residual scale: a clip below it leaves signs alone

REASONS = {
    "centred": "for the domain knows the propensity: of the outcome a private centre is all that is learnt",
    "fixed": "for the domain knows the propensity, and the outcome has two values: nothing is learnt",
    "composed": "for no propensity is known: nuisances and effect are private steps on all records",
}
"""Why ``AutoScores`` takes what it takes, in words."""


@dataclass(frozen=True, eq=False)
class ComposedGains:
    """What a composition found: released numbers, and gains of the records that are the curator's.

    Attributes:
        plan: The public plan.
        scale: S, released.
        clip: C, of released and public numbers.
        rows: The records, the curator's.
        fit: The composition.
    """

    plan: ChoicePlan
    scale: float
    clip: float
    rows: Rows
    fit: ComposedFit

    def gains(self, batch: CausalData) -> Tensor:
        """Return by what each record says that each action but the first is better, [b, K - 1]; the curator's.

        A record's gains, and zero for the first, lie at most C apart.
        """
        return scores_of(self.fit, batch, self.plan.domain).gains(self.clip)

    @cached_property
    def baseline(self) -> float:
        """Mean outcome under the first action, by the same scores; the curator's."""
        domain = self.plan.domain

        def first(batch: CausalData) -> Tensor:
            return times_weight(scores_of(self.fit, batch, domain).first, batch).sum()

        return float(self.rows.total(first)) / (self.rows.n * (self.fit.weight or 1))


@dataclass(frozen=True)
class ComposedScores(ScoreSource):
    r"""Scores from private nuisances and a private effect, all of them steps of one plan on all records.

    .. math::
        D_i = \mathrm{clip}\Big(\tau(x_i) + \frac{a_i - \pi_i}{\pi_i (1 - \pi_i)}
        (y_i - m_i - (a_i - \pi_i)\, \tau(x_i)),\ \pm C\Big), \qquad U_k = \sum_i p_k(x_i)\, D_i

    with m, pi (where it is not known) and tau as ``fit_composition`` releases them, and :math:`p_k` whether policy k
    chooses the second action. Given the released numbers, one record moves its own D alone, and the utilities of two
    policies apart by at most 2 C. Of more than two actions each has a score, and those of a record lie at most C apart
    (``gains.clipped``): the range is the same.

    Guarantee:
        Certified (epsilon, delta): Gaussian events fixed beforehand and one choice of bounded range eta; with delta = 0
        and two actions pure epsilon: pure events and a pure choice (docs/guarantees/policy_selection.md).

    Args:
        clip: C, public, in outcome units; None takes that of ``ChoicePlan``.
        constants: Constants of the plan.
        solver: How regressions are solved.
        nuisance: How outcome regression and propensity are learnt; None takes their features, by ``solver``.

    Raises:
        InputError: A clip that is not positive.

    Example:
        >>> ComposedScores().guarantee
        'composed'
    """

    guarantee: ClassVar[str] = "composed"

    clip: float | None = None
    constants: SelectionConstants = field(default_factory=SelectionConstants)
    solver: Solver = field(default_factory=NoisyNewton)
    nuisance: ComposedNuisance | None = None

    def __post_init__(self) -> None:
        if self.clip is not None:
            positive("clip", self.clip)

    def plan(self, n: int, budget: PrivacyBudget | None, policies: int, domain: Domain, arms: int = 2) -> ChoicePlan:
        """Return the public plan.

        Args:
            n: Number of records.
            budget: Of all that the choice spends; None without privacy.
            policies: Number of policies.
            domain: Public bounds.
            arms: Number of actions.

        Raises:
            InputError: delta = 0 with more than two actions.
        """
        return ChoicePlan(n, budget, policies, domain, self.clip, self.constants, arms)

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreSource.check``; also refuses delta = 0 with more than two actions."""
        super().check(facts, budget)
        if budget is not None and budget.delta == 0 and facts.arms > 2:
            raise InputError(
                f"delta = 0: nuisance_guarantee = composed has pure events for two actions, not for {facts.arms}; "
                "give privacy.delta above 0, for instance 1e-6, or write propensity: into the domain if it is known"
            )

    @property
    def own(self) -> tuple[Condition, ...]:
        """Conditions of what is no class of the library's."""
        parts = (self.solver, *(() if self.nuisance is None else self.nuisance.parts))
        return tuple(condition for part in parts for condition in user_code("nuisances", part))

    @property
    def needs_all_records(self) -> str | None:
        """See ``ScoreSource``: a solver or nuisances of another kind."""
        settings = AdaptiveSecondStage(solver=self.solver, nuisance=self.nuisance or Additive(NoisyNewton()))
        return settings.needs_all_records

    def gains(self, rows: Rows, plan: ChoicePlan, session: FitSession, two_levels: Sequence[bool]) -> ComposedGains:
        """Run the plan's steps on all records, but for the choice itself.

        Args:
            rows: See ``rows_of``; actions as positions.
            plan: The public plan.
            session: Scope of the block of records; pays, and draws noise.
            two_levels: Whether each covariate has two levels, public.

        Raises:
            BudgetError: The block cannot pay.
        """
        domain, nuisance = plan.domain, self.nuisance
        if nuisance is not None and (not isinstance(rows, InMemory) or plan.composed.weight is not None):
            nuisance = nuisance.by_sums
        fit = fit_composition(rows, domain, plan.composed, session, two_levels, self.solver, nuisance)
        clip = plan.first_clip(fit.effect.scale)
        if plan.clips_by_quantile:
            least, steps = clip, NoisySteps(session, plan.shares, rows.batch, fit.weight)
            below = 1 - plan.beyond / (plan.n * (fit.weight or 1))

            def place(batch: CausalData) -> Tensor:
                return scores_of(fit, batch, domain).sizes.clamp(least, plan.most).log()

            ends = math.log(clip), math.log(plan.most)
            clip = math.exp(quantile_of(rows, place, max(below, 0.5), *ends, plan.levels, CLIP, steps))
        return ComposedGains(plan, fit.effect.scale, clip, rows, fit)


@dataclass(frozen=True)
class AutoScores(ScoreSource):
    """What public facts request: a known propensity, else one composition.

    - ``centred`` where the domain knows the propensity: about a private centre of the outcome; residuals are clipped at
      half of the outcome's range, unless records are few, so that those of a rare region count;
    - ``fixed`` there where the outcome is binary, whose middle is a centre;
    - ``composed`` otherwise, which needs delta > 0 for more than two actions.

    Example:
        >>> AutoScores().chosen(Domain([0.0], [1.0], 0.0, 1.0)).guarantee
        'composed'
    """

    guarantee: ClassVar[str] = "auto"

    def chosen(self, domain: Domain) -> ScoreSource:
        """Return what is used.

        Args:
            domain: Public bounds.
        """
        from torchdpcate.fit.arms.fixed import FixedNuisances
        from torchdpcate.fit.arms.private import CentredNuisances

        if domain.known_propensity is None:
            return ComposedScores()
        return FixedNuisances() if domain.outcome_kind == "binary" else CentredNuisances()


def clip_line(plan: ChoicePlan) -> str:
    """Return how scores are clipped, in words, with a warning where next to nothing of them would be left."""
    size, usual = plan.planned_clip, plan.planned_scale
    how = "as given" if plan.clip is not None else "a private quantile may widen it" * plan.clips_by_quantile
    line = f"scores are clipped at about {shown(size)} (outcome units)" + f": {how}" * bool(how)
    if size < usual * _DELETES:
        line += f"; residuals of about {shown(usual)} are expected, so that it would delete all scores: leave clip out"
    return line


def sampling_line(plan: ChoicePlan) -> str:
    r"""Return what sampling may lose beside the private choice, in words.

    Gains among K actions have a standard deviation of about K residual scales, so that the best of M estimates is
    behind the best policy by about :math:`K S \sqrt{\ln M / (2 n)}` where all others are equally far behind, at the
    worst distance.
    """
    lost = plan.arms * plan.planned_scale * math.sqrt(math.log(plan.policies) / (2 * plan.composed.mass))
    return (
        f"sampling of {plan.n:,} records loses up to about {shown(lost)} (outcome units) more, with or without privacy"
    )


def facts_of(found: ComposedGains) -> dict[str, Any]:
    """Return what statements say of the plan and of its released numbers."""
    return {**found.plan.facts(), "residual_scale": found.scale, "clip": found.clip}
