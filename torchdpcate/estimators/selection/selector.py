"""Private choice of the best policy of a public library."""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Constants, LinearPolicies, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.causal.score import dr_scores
from torchdpcate.composition.records import rows_of
from torchdpcate.composition.rows import InMemory, Rows
from torchdpcate.composition.summaries import Weights
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.selection.composed import (
    REASONS,
    AutoScores,
    ChoicePlan,
    ComposedGains,
    ComposedScores,
    clip_line,
    facts_of,
    sampling_line,
)
from torchdpcate.estimators.selection.policy_plan import PolicyPlan
from torchdpcate.estimators.selection.scores import (
    FEWEST,
    gains_as_scores,
    rounded_range,
    score_step,
    utilities,
)
from torchdpcate.fit.arms.base import (
    GuaranteedNuisances,
    ScoreNuisances,
    ScoreSource,
    SelectionFacts,
    WithKnown,
    make_nuisances,
)
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_SCORES, TRAINING
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import ExponentialMechanism, PermuteAndFlip, SelectionMechanism
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.rule import SCORING, PolicyRelease

_ROW_BY_ROW_BY_CONSTRUCTION = (Constants, Thresholds, LinearPolicies)
_ROW_BY_ROW = Condition(
    "row by row",
    "policies that are Python code decide on each record by its own covariates alone; tried at public points",
)


@dataclass(eq=False, repr=False)
class PolicySelector(AnswersDecisions, PrivateEstimator):
    r"""Chooses a policy of a public library by doubly robust scores, privately.

    .. math::
        U(\pi) = \sum_{i \in \text{scoring}} \phi_i(\pi(x_i)), \quad
        \phi_i(a) = \mu_a(x_i) + \frac{1\{a_i = a\}}{e_a(x_i)} (y_i - \mu_a(x_i)),
        \quad P(\pi) \text{ by } \frac{\epsilon\, U(\pi)}{\Delta}

    (where lower outcomes are better, with :math:`-\phi`, which moves by as much: bounds of scores are about zero)

    with the range sensitivity :math:`\Delta \ge \sup (\max_\pi \Delta U - \min_\pi \Delta U)` over replaced records.
    Given the nuisances, a record moves one score; nuisances that were learnt from the records would move every score,
    which is why they need a guarantee.

    Guarantee:
        Certified, pure epsilon (with composed scores theirs); conditional where policies or nuisances are Python
        functions, which are tried at public points and not proved to look at one record at a time. Conditions: records
        are rows, adjacency is replace-one; n, bounds, policies and settings are public. Source: theory note
        ``policy_learning``, section 6; docs/guarantees/policy_selection.md.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget. None fits without privacy; such a selector releases nothing.
        policies: The library: a ``PolicyLibrary``, or what ``PolicyLibrary.of`` takes. Given before the records are
            read.
        nuisance: ``ScoreSource``; None takes the guarantee's default.
        nuisance_guarantee: ``auto`` (what public facts request, see ``AutoScores``), ``composed`` (one composition on
            all records), ``centred`` (a known propensity and a private median) or ``fixed`` (public numbers); None
            takes the nuisances' own, or ``auto``.
        actions: Labels of the actions; None takes the schema's, 0 and 1 unless it says otherwise.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        library_: The policies, on the domain's columns.
        guaranteed_: Nuisances with the public range sensitivity; None with composed scores. The nuisances are the
            curator's, unless they were paid for.
        composed_: What a composition found; the curator's. None with other scores.
        utilities_: U per policy, of outcomes less the middle of their bounds, or of gains by composed scores; with the
            other sign where lower outcomes are better. The curator's, never to be published.
        mass_: Sum of the weights of the records that score; the curator's. None where all count alike.
        baseline_: What to add to U over the records, with the outcome's own sign, for an estimated mean
            outcome. The curator's.
        range_sensitivity_: Delta, public.
        mechanism_: The mechanism with that range sensitivity and all of the budget that is left; None without privacy.
        plan_: The plan of the choice, whose ``public()`` is what statements have.
        actions_: Labels of the actions.
        settings_: Public settings of the fit, as in statements.
        ledger_: What has been spent; None without privacy.
        blocks_: Positions of the records, all in one block; with privacy in a secret order.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> from torchdpcate.candidates.kinds import Constants, Thresholds
        >>> X, A = torch.rand(4000, 1, dtype=torch.float64), torch.arange(4000) % 2
        >>> Y = (A * (2 * X[:, 0] - 1)).clamp(-1, 1)
        >>> policies = [Constants([0, 1]), Thresholds("x0", [0.25, 0.5, 0.75])]
        >>> domain = Domain([0.0], [1.0], -1, 1, overlap=0.25, better="higher")
        >>> budget = PrivacyBudget(4.0, 0.0)
        >>> release = PolicySelector(domain, budget, policies=policies).fit(X, A, Y).release()
        >>> release.name, release.decide([[0.2], [0.8]]).tolist(), release.privacy.level
        ('x0 > 0.5', [0, 1], 'certified')
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    policies: Any
    nuisance: Any = None
    nuisance_guarantee: str | None = None
    actions: tuple[int, ...] | None = None
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    def _prepare(self, records: CausalData | RecordStream) -> None:
        self.check(records.n)
        self.actions_ = self._actions()
        self.library_ = PolicyLibrary.of(self.policies).setup(self.schema_.domain, self.actions_)
        self.blocks_ = {SCORING: torch.arange(records.n)}

    @property
    def needs_all_records(self) -> str | None:
        """See ``PrivateEstimator``: what was made from records, which may be these, or a solver of another kind."""
        if PolicyLibrary.of(self.policies).fitted_on:
            return "policies were made from records, which may be these; use others"
        return self.nuisances().needs_all_records

    @property
    def needs_equal_records(self) -> str | None:
        """See ``PrivateEstimator``: what is learnt by sums, or of outcomes alone, has weights."""
        return self.nuisances().needs_all_records

    def _learn(self, records: CausalData | RecordStream) -> None:
        """Get the nuisances, paying for them where they cost something, and score every policy."""
        nuisances, rows = self.nuisances(), rows_of(records, self.schema_.domain, self.actions_)
        self._source = nuisances
        self.mass_ = None if self.schema_.domain.expected_weight is None else float(rows.total(Weights()))
        self.guaranteed_: GuaranteedNuisances | None = None
        self.composed_: ComposedGains | None = None
        if isinstance(nuisances, ComposedScores):
            self._compose(rows, nuisances)
            return
        assert isinstance(nuisances, ScoreNuisances)
        session = self._session.charging([SCORING], TRAINING)
        if isinstance(rows, InMemory):
            fitted = rows.records
        else:  # nothing but the outcomes is looked at
            y = rows.each(lambda batch: batch.y)
            fitted = CausalData(y[:, None][:, :0], y, y)
        facts = self._facts(records.n)
        self.guaranteed_ = found = nuisances.fit(fitted, facts, session=session)
        if facts.known is not None:
            self.guaranteed_ = replace(found, nuisances=WithKnown(found.nuisances, facts.known))
        self.utilities_ = rows.total(partial(self._batch_score, rows.n))
        self.baseline_ = self.schema_.domain.outcome_middle
        self._own = user_code("nuisances", nuisances)
        epsilon = None if self.budget is None else self._left().epsilon
        self._keep_plan(self._policy_plan(self.guaranteed_.public, epsilon))

    def _compose(self, rows: Rows, scores: ComposedScores) -> None:
        """Run the steps of one composition, the choice among them: all of them are fixed before any output."""
        self._own = scores.own
        session = self._session.charging([SCORING], COMPOSED_SCORES, bool(self._own))
        plan = self.plan(rows.n)
        found = self.composed_ = scores.gains(rows, plan, session, self.schema_.two_levels)
        step = sum_grid(max(rows.n, FEWEST), found.clip)
        self.baseline_, direction, library = found.baseline, self._direction, self.library_

        def of(batch: CausalData) -> Tensor:
            gains = direction * torch.round(times_weight(found.gains(batch), batch) / step) * step
            return utilities(gains_as_scores(gains), library, batch.x)

        self.utilities_ = rows.total(of)
        self._keep_plan(self._policy_plan(facts_of(found), None))
        if self.budget is None:
            return
        own = self._session.charging([SCORING], self.plan_.queries["choice"].charge, bool(self._own))
        self._chosen = self.plan_.ask("choice", own, self.utilities_)
        self._own_entries = session.entries | own.entries

    def release(self) -> PolicyRelease:
        """Choose a policy for all that is left of the budget, the same one each time; composed scores chose in ``fit``.

        Raises:
            InputError: Not fitted, or fitted without privacy.
            BudgetError: The records cannot pay.
        """
        self._ready()
        return self._once(self._release)  # type: ignore[no-any-return]

    def _release(self) -> PolicyRelease:
        guarantee = self._guarantee()
        if self.composed_ is not None:
            statement = self._statement_of(self.plan_, guarantee, self.plan_.public(), self._own_entries)
            return self.plan_.conclude({"choice": self._chosen}, statement)
        spent = self._left()
        plan = replace(self.plan_, epsilon=spent.epsilon, choice_level=guarantee.level)

        def run(budget: PrivacyBudget, session: FitSession) -> Tensor:
            return plan.ask("choice", session.of(SCORING), self.utilities_)

        chosen, own = self._session.spend(run, [SCORING], plan.queries["choice"].charge, spent)
        guarantee = replace(guarantee, budget=PrivacyBudget(spent.epsilon, 0.0))
        return plan.conclude({"choice": chosen}, self._statement_of(plan, guarantee, plan.public(), own))

    def _policy_plan(self, stated: Mapping[str, Any], epsilon: float | None) -> PolicyPlan:
        """Return the plan of the choice.

        Args:
            stated: Public constants of the scores.
            epsilon: Of the choice; None with composed scores, or without privacy.
        """
        domain, bound, n = self.schema_.domain, math.nan, self.sizes_[SCORING]
        if self.guaranteed_ is not None:
            bound = rounded_range(self.guaranteed_.range_sensitivity, n, domain, self._domain().overlap)
        return PolicyPlan(
            sum(self.sizes_.values()),
            self.schema_,
            self.budget,
            self.chance,
            type(self._source),
            stated,
            len(self.library_),
            self.library_,
            self.actions_,
            self._domain().overlap,
            epsilon,
            bound,
            learner=type(self).__name__,
        )

    def _keep_plan(self, plan: PolicyPlan) -> None:
        self.plan_ = plan
        self.range_sensitivity_ = plan.range_sensitivity
        self.settings_ = {**plan.settings(), "range_sensitivity": plan.range_sensitivity}
        self.mechanism_ = None if self.budget is None else plan.mechanism

    def _left(self) -> PrivacyBudget:
        """Return what can be spent on a choice."""
        return PrivacyBudget(self._session.left([SCORING]).epsilon, 0.0)

    def _guarantee(self) -> Guarantee:
        """Return level and conditions of the choice."""
        rests = () if self.guaranteed_ is None else self.guaranteed_.conditions
        conditions = (*rests, *self._own)
        if any(type(family) not in _ROW_BY_ROW_BY_CONSTRUCTION for family in self.library_.families):
            conditions += (_ROW_BY_ROW,)
        level = Level.CONDITIONAL if conditions else self._source.level
        source = "composed_rules_and_selection section 2" if self.composed_ is not None else "policy_learning section 6"
        return Guarantee(level, self.budget, conditions, source=source)

    def _batch_score(self, n: int, records: CausalData) -> Tensor:
        """Return U of every policy for a batch of n records, of scores that are rounded to the grid of their sums."""
        assert self.guaranteed_ is not None
        nuisances, domain = self.guaranteed_.nuisances, self.schema_.domain
        # less the middle of the bounds, which all policies share: the grid then owes nothing to the outcome's offset
        outcome, y = nuisances.outcome(records.x) - domain.outcome_middle, records.y - domain.outcome_middle
        if math.isfinite(clip := self.guaranteed_.clip):  # about the middle: rounded no more than what follows
            own = outcome.gather(1, records.a.long()[:, None])[:, 0]
            y = own + (y - own).clamp(-clip, clip)
        of = dr_scores(records.a.long(), y, nuisances.of(records), outcome)
        scores = self._direction * times_weight(of, records)
        step = score_step(n, domain, self._domain().overlap)
        return utilities(torch.round(scores / step) * step, self.library_, records.x)

    def _refuse_own(self, given: Callable[[], str] | None) -> None:
        made_of = self.library_.fitted_on
        if made_of and given is not None and given() in made_of:
            raise InputError(
                "policies: made from these very records, so not public; make them of other data, or before the "
                "records are read"
            )

    def check(self, n: int) -> None:
        """Refuse, before anything is fitted or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that do not fit each other, the domain, the policies or the budget.
        """
        facts, _ = self._facts(n), self._direction  # may refuse
        library = PolicyLibrary.of(self.policies).setup(facts.domain, facts.actions)
        if len(library) == 1:
            raise InputError(
                f"policies: there is one policy, {library.names[0]!r}: nothing is to be chosen and nothing spent; give "
                "two or more, or use it as it is"
            )
        self.nuisances().check(facts, self.budget)

    def nuisances(self) -> ScoreSource:
        """Return where the scores come from, by public facts.

        Raises:
            InputError: Learned nuisances without a guarantee.
        """
        source = make_nuisances(self.nuisance, self.nuisance_guarantee)
        return source.chosen(self._domain()) if isinstance(source, AutoScores) else source

    @property
    def chance(self) -> type[SelectionMechanism]:
        """Class of the choice: beside Gaussian steps the exponential mechanism costs least, else permute-and-flip."""
        composed = isinstance(self.nuisances(), ComposedScores)
        beside = composed and (self.budget is None or self.budget.delta > 0)
        return ExponentialMechanism if beside else PermuteAndFlip

    def plan(self, n: int) -> ChoicePlan:
        """Return the public plan of a choice by composed scores.

        Args:
            n: Number of records.

        Raises:
            InputError: Scores that are not composed, or delta = 0.
        """
        scores = self.nuisances()
        if not isinstance(scores, ComposedScores):
            raise InputError(f"nuisance_guarantee = {scores.guarantee}: has no plan of one composition")
        many, arms = len(PolicyLibrary.of(self.policies)), len(self._actions())
        return scores.plan(n, self.budget, many, self._domain(), arms)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the mean outcome that noise in the choice loses, in expectation.

        By the law of the choice where all other policies are equally far behind the best, at the worst distance.

        Args:
            n: Number of records.
        """
        budget, nuisances = self._planned(n), self.nuisances()
        facts = self._facts(n)
        many = len(PolicyLibrary.of(self.policies))
        chance = self.chance
        remarks: tuple[str, ...] = (self._regime(),)
        if isinstance(nuisances, ComposedScores):
            plan = self.plan(n)
            mechanism = chance(plan.range(chance), 2 * plan.planned_clip)
            remarks += (clip_line(plan), sampling_line(plan))
        else:
            mechanism = chance(nuisances.planned_epsilon(facts, budget), nuisances.planned_range(facts, budget))
        lost = mechanism.expected_loss(many) / facts.n
        own = self._own_learner() or user_code("nuisances", nuisances)
        return PlannedNoise(
            lost,
            f"the mean outcome that a private choice among {many} policies loses",
            facts.domain.outcome_range,
            n,
            budget,
            {"choice": lost},
            Level.CONDITIONAL if own else nuisances.level,
            assumes=("all other policies are equally far behind the best, at the worst distance",),
            left_out=("sampling, and errors of the nuisances",),
            remarks=remarks,
        )

    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain)

    def _arms(self) -> tuple[int, ...]:
        return self._actions()

    def _domain(self) -> Domain:
        return TableSchema.of(self.domain).domain

    @property
    def _direction(self) -> int:
        return self._domain().direction

    def _regime(self) -> str:
        """Return what the scores are, and why, in words."""
        source = self.nuisances()
        automatic = self.nuisance_guarantee in (None, AutoScores.guarantee) and self.nuisance in (None, AutoScores())
        return f"scores: {source.guarantee}, " + (REASONS[source.guarantee] if automatic else "as requested")

    def _facts(self, n: int) -> SelectionFacts:
        return SelectionFacts(self._domain(), self._actions(), self._domain().overlap, n)

    def _actions(self) -> tuple[int, ...]:
        actions = tuple(TableSchema.of(self.domain).actions if self.actions is None else self.actions)
        if len(actions) < 2 or list(actions) != sorted(set(actions)):
            raise InputError(f"actions = {list(actions)}: give two labels or more, each once, in increasing order")
        return actions
