"""The public plan of a rule by weighted empirical risk minimisation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.rules.outcome import OUTCOMES
from torchdpcate.estimators.rules.weighted_erm import RuleMechanism, is_known, stated_loss, stated_mechanism
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.fit.weights.scheme import WEIGHTS
from torchdpcate.laws import CLOSE, PerturbedObjective
from torchdpcate.plan import Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget, as_number, probability
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, of_library
from torchdpcate.registry import Registry
from torchdpcate.release.file import Release
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.statement import PrivacyStatement

RULE_LEARNERS = Registry("task", "torchdpcate.estimators.rules")
"""Learners of rules by the names of their tasks, or of a task's methods."""
_SHARES = ("weights_share", "outcome_share")  # of the budget, of what the rule's own records pay for before it


@dataclass(frozen=True, eq=False)
class RulePlan(Plan):
    r"""Everything public about a rule: what its weights and its outcome's constants cost before it, and its noise.

    Guarantee:
        That of its mechanism (docs/guarantees/objective_perturbation.md), with the bounds of its weights.

    Attributes:
        n: Number of records.
        schema: Columns that the rule sees, and public bounds.
        budget: Of each block of records.
        mechanism: How the coefficients leave the records.
        problem: What is public of the weighted ERM.
        features: The feature map, set up.
        spent: What the rule itself may cost.
        parts: Public settings and constants of learner, weights, outcome and loss, as in statements.
        weights: Noise of a private propensity; None where weights cost nothing.
        outcome: What learns the outcome's constants; None where they are public.
        conditions: What the guarantee rests on beside its proof.
    """

    kinds = (RuleRelease.kind,)
    repeats = True

    n: int
    schema: TableSchema
    budget: PrivacyBudget
    mechanism: RuleMechanism
    problem: PrivateFit
    features: FeatureMap
    spent: PrivacyBudget
    parts: Mapping[str, Any]
    weights: ObjectiveNoise | None
    outcome: Query | None
    conditions: tuple[Condition, ...] = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The mechanism's."""
        return self.mechanism.name

    @property
    def formula(self) -> str:
        """See ``Plan``."""
        return self.mechanism.formula

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """What one fit asks of the records: weights and outcome, if they cost something, and the rule."""
        found: dict[str, Query] = {}
        if self.weights is not None:
            charge = Charge(Purpose.WEIGHTS, self.parts["weights"])
            found["weights"] = Query(charge, PerturbedObjective(self.weights), prefix="propensity_")
        if self.outcome is not None:
            found["outcome"] = self.outcome
        guarantee, law = self.guarantee(), self.mechanism.law(self.problem, self.spent)
        level = guarantee.level if guarantee.holds_claim else Level.HEURISTIC
        found["rule"] = Query(Charge(Purpose.RELEASE, self.name), law, level, prefix=self.mechanism.prefix)
        return found

    @property
    def left(self) -> float:
        """Epsilon that weights and outcome leave to the rule."""
        return self.budget.epsilon * (1 - sum(self.parts.get(name, 0.0) for name in _SHARES))

    def guarantee(self) -> Guarantee:
        """See ``Plan``; conditional on what the user brought."""
        return self.mechanism.guarantee(self.spent, self.conditions)

    def settings(self) -> dict[str, Any]:
        """See ``Plan``."""
        loss, pure = self.problem.loss, isinstance(self.queries["rule"].law.event, PureEvent)
        all_pure = pure and all(isinstance(query.law.event, PureEvent) for query in self.queries.values())
        constants = {name: value for query in self.queries.values() for name, value in query.constants().items()}
        return {
            **self.parts,
            "loss_slope": loss.slope,
            **({"loss_curvature": loss.curvature, "loss_monotone": loss.monotone} if self.mechanism.curved else {}),
            "ridge": self.problem.ridge,
            "epsilon": self.budget.epsilon,
            **({} if all_pure else {"delta": self.budget.delta}),
            "rule_epsilon": self.spent.epsilon,
            **({} if pure else {"rule_delta": self.spent.delta}),
            **constants,
        }

    @classmethod
    def restated(cls, release: Release) -> Self:
        """See ``Plan``."""
        assert isinstance(release, RuleRelease)
        privacy, domain, features = release.privacy, release.domain, release.features
        public, n, block = privacy.public, privacy.n, max(privacy.blocks, key=lambda block: as_number(block.epsilon))
        budget = requested_budget(block, public["epsilon"], public.get("delta", 0.0))
        spent = requested_budget(block, public["rule_epsilon"], public.get("rule_delta", 0.0))
        mechanism = stated_mechanism(privacy.mechanism)
        assert mechanism is not None
        bounds, weights = _restated_weights(public, n, domain)
        parts = _parts(public) | weights
        loss = stated_loss(public, mechanism.curved)
        facts = loss, bounds, as_number(public["ridge"]), features.dimension, features.largest_entry
        fit = PrivateFit(*facts, n=n)
        first = share_of(budget, parts.get("weights_share", 1.0))
        noise = WEIGHTS[public["weights"]].restated_noise(public, domain, first)
        kind, outcome = OUTCOMES.get(public["outcome"]), None
        if kind is not None and ("outcome_share" in parts or kind.budget_fraction > 0):
            outcome = kind().query(domain, budget.epsilon * parts["outcome_share"])
        return cls(n, release.schema, budget, mechanism, fit, features, spent, parts, noise, outcome)

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``: the coefficients, and the outcome's constants where they were paid for."""
        assert isinstance(release, RuleRelease)
        found = {"rule": release.theta}
        if self.outcome is not None:
            constants = [as_number(self.parts[name]) for name in _of_outcome(self.parts)]
            found["outcome"] = torch.tensor(constants, dtype=torch.float64)
        return found

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> RuleRelease:
        """See ``Plan``."""
        return RuleRelease(answers["rule"], self.features.twin(), self.schema, privacy)

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; what a certified rule brings is the library's, and no block costs more than its budget."""
        yield from super().problems(release)
        if release.privacy.level == Level.CERTIFIED:
            yield from self._foreign()
        for block in release.privacy.blocks:
            if not as_number(block.epsilon) <= self.budget.epsilon * (1 + CLOSE):
                yield f"block {block.name!r} cost more than the budget that was requested"
        if not self.spent.epsilon <= self.left * (1 + CLOSE):
            yield "the rule cost more than its first stages left"

    def _foreign(self) -> Iterator[str]:
        """Parts that are not the library's, a sentence each."""
        named = {"mechanism": self.name, **self.parts}
        known = {
            "mechanism": of_library(self.mechanism),
            "loss": is_known(self.parts["loss"]),
            "outcome": self.parts["outcome"] in OUTCOMES,
            "learner": self.parts["learner"] in RULE_LEARNERS.class_names(),
        }
        for part in (part for part, own in known.items() if not own):
            yield f"its {part} is called {named[part]}, which is none of the library's"


def share_of(budget: PrivacyBudget, share: float) -> PrivacyBudget:
    """Return this share of a budget."""
    return PrivacyBudget(budget.epsilon * share, budget.delta * share)


def _restated_weights(public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
    """Return the bounds and the constants of stated weights, by the learner's class or, of a user's, what it states."""
    learner = RULE_LEARNERS.class_names().get(public["learner"], "owl")
    return RULE_LEARNERS[learner].restated_bounds(public, n, domain)  # type: ignore[no-any-return]


def _parts(public: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that follow from nothing, and those of the outcome."""
    found = {name: public[name] for name in ("learner", "weights", "outcome", "loss")}
    found |= {name: as_number(public[name]) for name in _of_outcome(public)}
    return found | {name: probability(name, public[name], above_zero=True) for name in _SHARES if name in public}


def _of_outcome(public: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the outcome's constants; a user's may have any of the library's."""
    kind = OUTCOMES.get(public["outcome"])
    known = dict.fromkeys(name for each in OUTCOMES.values() for name in each.states)
    return [name for name in known if name in public] if kind is None else kind.states
