"""What public settings alone say of a private choice among policies: its scores, its plan, and what is refused."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import LongTensor

from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.selection.blocks import training_and_scoring
from torchdpcate.estimators.selection.choice_plan import ChoicePlan
from torchdpcate.estimators.selection.composed import (
    REASONS,
    AutoScores,
    ComposedScores,
    clip_line,
    sampling_line,
)
from torchdpcate.estimators.selection.plan import SelectionPlan, plan
from torchdpcate.nuisance.arms.base import ScoreSource, SelectionFacts
from torchdpcate.nuisance.arms.by_name import make_nuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import BoundedRangeEvent, PureEvent
from torchdpcate.privacy.guarantee import Level, own_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection_mechanisms import (
    SELECTIONS,
    ExponentialMechanism,
    SelectionMechanism,
)
from torchdpcate.release.rule import NUISANCE, SCORING


@dataclass(eq=False, repr=False)
class SelectionSettings(AnswersDecisions, PrivateEstimator):
    """Settings of a ``PolicySelector``, and what follows from them and from n without any record."""

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    policies: Any
    nuisance: Any = None
    nuisance_guarantee: str | None = None
    mechanism: str | None = None
    actions: tuple[int, ...] | None = None
    overlap: float | None = None
    split: float = 0.5
    seed: int = 0
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    def check(self, n: int) -> None:
        """Refuse, before anything is fitted or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that do not fit each other, the domain, the policies or the budget.
        """
        facts = self._facts(n)
        library = PolicyLibrary.of(self.policies).setup(facts.domain, facts.actions)
        if len(library) == 1:
            raise InputError(
                f"policies: there is one policy, {library.names[0]!r}: nothing is to be chosen and nothing spent; give "
                "two or more, or use it as it is"
            )
        if self.split != SelectionSettings.split and not self.nuisances().trains:
            raise InputError(
                f"split = {self.split:g}: {self.nuisances().guarantee} scores train nothing on a share of the records; "
                "leave selection.split out, or choose nuisance_guarantee=stability"
            )
        self.chance(1.0, 1.0)
        self.nuisances().check(facts, self.budget)

    def nuisances(self) -> ScoreSource:
        """Return where the scores come from, by public facts.

        Raises:
            InputError: Learned nuisances without a guarantee.
        """
        source = make_nuisances(self.nuisance, self.nuisance_guarantee)
        return source.chosen(self._domain(), self._actions(), self.budget) if isinstance(source, AutoScores) else source

    @property
    def chance(self) -> type[SelectionMechanism]:
        """Class of the choice: the one that is asked for, or the one that the scores decide on."""
        composed = isinstance(self.nuisances(), ComposedScores)
        beside = composed and (self.budget is None or self.budget.delta > 0)
        return SELECTIONS.find(self.mechanism or ("exponential" if beside else "permute_and_flip"))

    def choice_plan(self, n: int) -> ChoicePlan:
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

    def plan(self, n: int, errors: Mapping[str, tuple[float, float]] | None = None) -> SelectionPlan:
        """Return the regret to expect of n records by public facts, and a split and a ridge that lessen it; free.

        Args:
            n: Number of records.
            errors: What is known of the nuisances, see ``plan``; ``{"fixed": (0.3, 0.0)}`` says that propensities are
                those of a trial. Expected for the others.

        Raises:
            InputError: No budget, or settings out of their ranges.
        """
        if self.budget is None:
            raise InputError("budget = None: without privacy there is nothing to plan")
        facts = self._facts(n)
        return plan(
            n,
            len(PolicyLibrary.of(self.policies)),
            self.budget.epsilon,
            overlap=facts.overlap,
            features=1 + facts.domain.dimension,
            outcome_range=facts.domain.outcome_range,
            actions=facts.arms,
            errors=errors,
        )

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the mean outcome that noise in the choice loses, in expectation.

        By the law of the choice where all other policies are equally far behind the best, at the worst distance.

        Args:
            n: Number of records.
        """
        budget, nuisances = self._planned(n), self.nuisances()
        facts = self._planned_facts(n)
        many = len(PolicyLibrary.of(self.policies))
        chance = self.chance
        remarks: tuple[str, ...] = (self._regime(),)
        if isinstance(nuisances, ComposedScores):
            plan = self.choice_plan(n)
            mechanism = chance(self._beside(plan), 2 * plan.planned_clip)
            remarks += (clip_line(plan), sampling_line(plan))
        else:
            mechanism = chance(nuisances.planned_epsilon(facts, budget), nuisances.planned_range(facts, budget))
        lost = mechanism.expected_loss(many) / facts.scoring
        own = self._own_learner() or own_code("nuisances", nuisances) or own_code("mechanism", chance(1.0, 1.0))
        return PlannedNoise(
            lost,
            f"the mean outcome that a private choice among {many} policies loses",
            facts.domain.outcome_range,
            n,
            budget,
            {"choice": lost},
            Level.CONDITIONAL if own else nuisances.level,
            assumes=("all other policies are equally far behind the best, at the worst distance",),
            left_out=("sampling, and errors of the nuisances: plan() bounds the regret with both",),
            remarks=remarks,
        )

    def _schema(self) -> TableSchema:
        return TableSchema.of(self.domain)

    def _arms(self) -> tuple[int, ...]:
        return self._actions()

    def _domain(self) -> Domain:
        return TableSchema.of(self.domain).domain

    def _beside(self, plan: ChoicePlan) -> float:
        """Return what the choice may spend beside the plan's steps: eta, or less if its range is not bounded."""
        event = BoundedRangeEvent if issubclass(self.chance, ExponentialMechanism) else PureEvent
        return plan.range(event)

    def _regime(self) -> str:
        """Return what the scores are, and why, in words."""
        source = self.nuisances()
        asked = self.nuisance_guarantee not in (None, AutoScores.guarantee) or self.nuisance not in (None, AutoScores())
        return f"scores: {source.guarantee}, " + ("as asked for" if asked else REASONS[source.guarantee])

    def _planned_facts(self, n: int) -> SelectionFacts:
        """Return the facts of n records, without their positions."""
        domain, train = TableSchema.of(self.domain).domain, round(self.split * n) if self.nuisances().trains else 0
        return SelectionFacts(domain, self._actions(), self._overlap(), train, n - train, self.seed)

    def _facts(self, n: int) -> SelectionFacts:
        domain = TableSchema.of(self.domain).domain
        sizes = {name: len(index) for name, index in self._blocks(n).items()}
        return SelectionFacts(
            domain, self._actions(), self._overlap(), sizes.get(NUISANCE, 0), sizes[SCORING], self.seed
        )

    def _overlap(self) -> float:
        return TableSchema.of(self.domain).domain.overlap if self.overlap is None else self.overlap

    def _blocks(self, n: int) -> dict[str, LongTensor]:
        if not self.nuisances().trains:
            return {SCORING: torch.arange(n)}  # type: ignore[dict-item]
        first, second = training_and_scoring(n, self.split, self.seed)
        return {NUISANCE: first, SCORING: second}

    def _actions(self) -> tuple[int, ...]:
        actions = tuple(TableSchema.of(self.domain).actions if self.actions is None else self.actions)
        if len(actions) < 2 or list(actions) != sorted(set(actions)):
            raise InputError(f"actions = {list(actions)}: give two labels or more, each once, in increasing order")
        return actions
