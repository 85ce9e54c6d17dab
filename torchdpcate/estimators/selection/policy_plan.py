"""The plan of one private choice among public policies: what its scores cost, and the choice by a bounded range."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchdpcate.candidates.library import FunctionPolicies, PolicyLibrary
from torchdpcate.composition.steps import ORDER
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.selection.composed import AutoScores, ChoicePlan, ComposedScores
from torchdpcate.estimators.selection.scores import clipped_range, rounded_range
from torchdpcate.fit.arms.base import GUARANTEES, ScoreSource, SelectionFacts
from torchdpcate.laws import CLOSE, Charged, Choice, Steps
from torchdpcate.plan import Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget, as_number, integer
from torchdpcate.privacy.charge import COMPOSED_SCORES, Charge, Purpose
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.selection import SELECTIONS, SelectionMechanism
from torchdpcate.release.rule import SCORING, PolicyRelease
from torchdpcate.release.statement import PrivacyStatement


@dataclass(frozen=True, eq=False)
class PolicyPlan(Plan[PolicyRelease], names=SELECTIONS):
    r"""Everything public about a choice among policies once its scores are known, by public facts and released numbers.

    Attributes:
        n: Number of records.
        schema: Columns and public bounds.
        budget: Of all that is spent; None without privacy.
        chance: Class of the choice.
        source: Class of the scores.
        stated: Public constants of the scores, released numbers among them.
        policies: How many there are.
        library: The policies; of a plan made anew from a file the one that was chosen.
        actions: Labels of the actions.
        overlap: Least propensity.
        epsilon: Of the choice, where its scores leave it open; None without privacy.
        bound: The range sensitivity of scores that are not composed, rounding included.
        choice_level: Of the charge for the choice.
        learner: Name of the learner's class.
    """

    kinds: ClassVar[tuple[str, ...]] = (PolicyRelease.kind,)

    n: int
    schema: TableSchema
    budget: PrivacyBudget | None
    chance: type[SelectionMechanism]
    source: type[ScoreSource]
    stated: Mapping[str, Any]
    policies: int
    library: PolicyLibrary
    actions: tuple[int, ...]
    overlap: float
    epsilon: float | None
    bound: float
    choice_level: Level = Level.CERTIFIED
    learner: str = "PolicySelector"

    @property
    def name(self) -> str:  # type: ignore[override]
        """See ``Plan``: that of the choice."""
        return self.chance.name

    @property
    def formula(self) -> str:
        return self.chance.formula

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: what finds the scores, and the choice."""
        choice = Charge(Purpose.RELEASE, self.name)
        if self.composed is not None:
            plan, shares = self.composed, (self.composed.composed.shares, self.composed.shares)
            due = {step: own.due(step) for own in shares for step in own.shares}
            steps = Steps(due, plan.composed.shares.cost, ORDER)
            law = self._choice(plan.range(self.chance), composed=True)
            return {
                "steps": Query(COMPOSED_SCORES, steps, blocks=(SCORING,)),
                "choice": Query(choice, law, self.choice_level, (SCORING,)),
            }
        assert self.epsilon is not None
        found = {
            charge.part or charge.purpose.value: Query(charge, Charged(event), blocks=(SCORING,))
            for charge, event in self.source.costs(self.stated, self._facts).items()
        }
        found["choice"] = Query(choice, self._choice(self.epsilon), self.choice_level, (SCORING,))
        return found

    @property
    def mechanism(self) -> SelectionMechanism:
        """The choice."""
        law = self.queries["choice"].law
        assert isinstance(law, Choice)
        return law.mechanism

    def _choice(self, epsilon: float, composed: bool = False) -> Choice:
        return Choice(self.chance(epsilon, self.range_sensitivity), self.policies, composed)

    @cached_property
    def composed(self) -> ChoicePlan | None:
        """The plan of composed scores; None of others."""
        if not issubclass(self.source, ComposedScores):
            return None
        facts = {**self.stated, "policies": self.policies, "actions": self.actions}
        return ChoicePlan.from_facts(facts, self.n, self.schema.domain)

    @property
    def range_sensitivity(self) -> float:
        """By how much one record moves the utilities of two policies apart, rounding included."""
        if self.composed is not None:
            return clipped_range(self.n, self.stated["clip"])
        return self.bound

    @cached_property
    def _facts(self) -> SelectionFacts:
        return SelectionFacts(self.schema.domain, self.actions, self.overlap, self.n)

    @property
    def sizes(self) -> Mapping[str, int]:
        return {SCORING: self.n}

    def settings(self) -> dict[str, Any]:
        own = self.stated
        if self.composed is not None:
            own = {**self.composed.facts(), **{name: self.stated[name] for name in ("residual_scale", "clip")}}
        return {
            "learner": self.learner,
            "nuisance_guarantee": self.source.guarantee,
            "policies": self.policies,
            "actions": list(self.actions),
            "overlap": self.overlap,
            **({} if self.epsilon is None else {"choice_epsilon": self.epsilon}),
            **own,
        }

    @classmethod
    def restated(cls, release: PolicyRelease) -> Self:
        privacy, public, domain = release.privacy, release.privacy.public, release.domain
        source = GUARANTEES[public["nuisance_guarantee"]]
        if source is AutoScores or public["overlap"] not in (domain.least_propensity, domain.overlap):
            raise InputError("its nuisance guarantee or its overlap is none")
        epsilon = None if issubclass(source, ComposedScores) else public["choice_epsilon"]
        requested = public.get("requested_epsilon", epsilon), public.get("requested_delta", 0.0)
        told = cls(
            privacy.n,
            release.schema,
            requested_budget(max(privacy.blocks, key=lambda block: as_number(block.epsilon)), *requested),
            SELECTIONS[privacy.mechanism],
            source,
            public,
            integer("policies", public["policies"], least=1),
            PolicyLibrary([release.policy]),
            release.actions,
            public["overlap"],
            epsilon,
            public["range_sensitivity"],
            learner=str(public["learner"]),
        )
        return told if told.composed is not None else told._followed()

    def _followed(self) -> Self:
        """Return the plan with what follows from its constants in their place, the range sensitivity included."""
        stated, scores = self.source.followed(self.stated, self._facts)
        if scores is None:
            return replace(self, stated=stated)
        bound = rounded_range(scores, self.n, self.schema.domain, self.overlap)
        return replace(self, stated=stated, bound=bound)

    def answers(self, release: PolicyRelease) -> dict[str, Tensor]:
        """See ``Plan``; of the library a file has the chosen policy alone."""
        return {"choice": torch.zeros(1, dtype=torch.float64)}

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> PolicyRelease:
        chosen = self.library.one(int(answers["choice"]))
        return PolicyRelease(chosen, self.actions, self.schema, privacy)

    def problems(self, release: PolicyRelease) -> Iterator[str]:
        """See ``Plan``; also the clip of composed scores, and functions."""
        yield from super().problems(release)
        privacy = release.privacy
        if self.composed is not None:
            yield from self._clip_problems(self.composed)
        functions = isinstance(release.policy, FunctionPolicies) or self.source.level != Level.CERTIFIED
        if functions and privacy.level == Level.CERTIFIED:
            yield "it rests on Python functions, which nobody can prove to look at one record at a time"

    def _clip_problems(self, plan: ChoicePlan) -> Iterator[str]:
        """Problems of S and of the clip, where no step requested them of the records."""
        scale, clip, outcome = self.stated["residual_scale"], self.stated["clip"], self.schema.domain.outcome_range
        if plan.composed.binary and not math.isclose(scale, outcome, rel_tol=CLOSE):
            yield f"its scale {scale:.6g} is not the range of a binary outcome"
        if not plan.clips_by_quantile and not math.isclose(clip, plan.first_clip(scale), rel_tol=CLOSE):
            yield f"its scores are clipped at {clip:.6g}, where its plan does so at {plan.first_clip(scale):.6g}"
