"""The plan of one private choice among public policies: what its scores cost, and the choice by a bounded range."""

import math
from collections.abc import Iterator, Mapping, Sequence
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
from torchdpcate.privacy.charge import COMPOSED_SCORES, DP_SGD, TRAINING, Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.selection_mechanisms import SELECTIONS, SelectionMechanism
from torchdpcate.release.blocks import Block
from torchdpcate.release.file import Release
from torchdpcate.release.rule import NUISANCE, SCORING, PolicyRelease
from torchdpcate.release.statement import PrivacyStatement

_SPENT = 0.99  # of a block's budget, which networks cost at least: their noise is found by a search


class _Training(Query):
    """What nuisances cost, whatever charges the code that trains them makes."""

    def covers(self, charge: Charge) -> bool:
        """See ``Query``."""
        return charge.purpose is Purpose.NUISANCES


@dataclass(frozen=True, eq=False)
class PolicyPlan(Plan, names=SELECTIONS):
    r"""Everything public about a choice among policies once its scores are known, by public facts and released numbers.

    Attributes:
        n: Number of records.
        schema: Columns and public bounds.
        budget: Of each block; None without privacy.
        chance: Class of the choice.
        source: Class of the scores.
        stated: Public constants of the scores, released numbers among them.
        policies: How many there are.
        library: The policies; of a plan made anew from a file the one that was chosen.
        actions: Labels of the actions.
        overlap: Least propensity.
        split: Share of the records that train nuisances, and the public seed of the split; None where none do.
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
    split: tuple[float, int] | None
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
        """See ``Plan``."""
        return self.chance.formula

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: what finds the scores, and the choice, which a block that moves all scores pays too."""
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
        payer = (NUISANCE if self.source.trains else SCORING,)
        found = {
            charge.part or charge.purpose.value: Query(charge, Charged(event), blocks=payer)
            for charge, event in self.source.costs(self.stated, self._facts).items()
        }
        if self._trains_privately:
            parts = self.source.parts(self.stated, self._facts)
            found["nuisances"] = _Training(TRAINING, Charged(parts=parts), blocks=payer)
        found["choice"] = Query(choice, self._choice(self.epsilon), self.choice_level, (SCORING,))
        if self.source.moves_all_scores:  # by noise of the same scale, for the range of its own records
            own = Charged(PureEvent(self.moved_share * self.epsilon))
            found["choice of training records"] = Query(choice, own, self.choice_level, (NUISANCE,))
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

    @property
    def moved_share(self) -> float:
        """What the training block pays for the choice over what the scoring block pays."""
        return float(self.stated.get("choice_share", 1.0))

    @property
    def _trains_privately(self) -> bool:
        """Whether a block of its own has paid for nuisances, so that its records move no scores."""
        return self.source.trains and not self.source.moves_all_scores

    @cached_property
    def _facts(self) -> SelectionFacts:
        train = self.sizes.get(NUISANCE, 0)
        return SelectionFacts(self.schema.domain, self.actions, self.overlap, train, self.n - train)

    @property
    def sizes(self) -> Mapping[str, int]:
        """See ``Plan``."""
        if self.split is None:
            return {SCORING: self.n}
        train = round(self.split[0] * self.n)
        return {NUISANCE: train, SCORING: self.n - train}

    def settings(self) -> dict[str, Any]:
        """See ``Plan``."""
        own = self.stated
        if self.composed is not None:
            own = {**self.composed.facts(), **{name: self.stated[name] for name in ("residual_scale", "clip")}}
        return {
            "learner": self.learner,
            "nuisance_guarantee": self.source.guarantee,
            "policies": self.policies,
            "actions": list(self.actions),
            "overlap": self.overlap,
            **({} if self.split is None else dict(zip(("split", "seed"), self.split, strict=True))),
            **({} if self.epsilon is None else {"choice_epsilon": self.epsilon}),
            **own,
        }

    @classmethod
    def restated(cls, release: Release) -> Self:
        """See ``Plan``."""
        assert isinstance(release, PolicyRelease)
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
            (public["split"], public["seed"]) if source.trains else None,
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
        share = self.moved_share if self.source.moves_all_scores else None
        bound = rounded_range(scores, self._facts.scoring, self.schema.domain, self.overlap, share)
        return replace(self, stated=stated, bound=bound)

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``; of the library a file has the chosen policy alone."""
        return {"choice": torch.zeros(1, dtype=torch.float64)}

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> PolicyRelease:
        """See ``Plan``."""
        chosen = self.library.one(int(answers["choice"]))
        return PolicyRelease(chosen, self.actions, self.schema, privacy)

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; also the clip of composed scores, what private nuisances cost, and functions."""
        yield from super().problems(release)
        assert isinstance(release, PolicyRelease)
        privacy = release.privacy
        if self.composed is not None:
            yield from self._clip_problems(self.composed)
        if self._trains_privately:
            yield from self._trained_problems(privacy.blocks, Level(privacy.level))
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

    def _trained_problems(self, blocks: Sequence[Block], level: Level) -> Iterator[str]:
        """Problems of what private nuisances cost: the library's spend all of their block's budget."""
        assert isinstance(self.budget, PrivacyBudget)
        if level != Level.CERTIFIED:
            return
        parts = self.source.parts(self.stated, self._facts)
        if parts is None:
            yield "its nuisances are none of the library's, but it is certified"
            return
        (block,) = (block for block in blocks if block.name == NUISANCE)
        requested, least = self.budget, _SPENT if DP_SGD in parts else 1 - CLOSE
        cost = as_number(block.epsilon)
        if not least * requested.epsilon <= cost <= requested.epsilon * (1 + CLOSE) or block.delta != requested.delta:
            yield f"block {NUISANCE!r} cost epsilon = {cost:.6g}, but nuisances spend all of a block's budget"
