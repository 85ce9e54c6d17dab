"""The public plan of a rule by weighted empirical risk minimisation, alone or chosen among candidates."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.perturbation import ObjectiveNoise
from torchdpcate.estimators.rules.loss import LossBounds, is_known
from torchdpcate.estimators.rules.matching import MATCHINGS
from torchdpcate.estimators.rules.mechanisms import STATED_MECHANISMS, RuleMechanism
from torchdpcate.estimators.rules.outcome import OUTCOMES
from torchdpcate.estimators.rules.weighted_erm import PublicERM
from torchdpcate.features.maps import FeatureMap
from torchdpcate.laws import CLOSE, PerturbedObjective, Whole
from torchdpcate.nuisance.weights.scheme import WEIGHTS
from torchdpcate.plan import RECORDS, Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget, as_number, integer, positive, probability
from torchdpcate.privacy.charge import CHOICE, Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, of_library
from torchdpcate.registry import Registry
from torchdpcate.release.release import Release
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.statement import PrivacyStatement

RULE_LEARNERS = Registry("task", "torchdpcate.estimators.rules", more=("rule_method",))
"""Learners of rules by the names of their tasks, or of a task's methods."""
WEIGHTS_BLOCK = "weights"
"""The block that fits weights, where they have one of their own."""
SELECTION = "selection"
"""The block on which candidates are compared."""

_SHARES = ("weights_share", "outcome_share")  # of the budget, of what the rule's own records pay for before it


@dataclass(frozen=True, eq=False)
class RulePlan(Plan):
    r"""Everything public about a rule: what its weights and its outcome's constants cost before it, and its noise.

    Guarantee:
        That of its mechanism (docs/guarantees/objective_gamma.md and others there), with the bounds of its weights.

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
    problem: PublicERM
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
    def stages(self) -> Mapping[str, Query]:
        """What one fit asks of the records: weights and outcome, if they cost something, and the rule."""
        found: dict[str, Query] = {}
        if self.weights is not None:
            fit = PerturbedObjective(self.weights, as_number(self.parts["propensity_ridge"]), math.inf)
            charge, first = Charge(Purpose.WEIGHTS, self.parts["weights"]), next(iter(self.sizes))
            found["weights"] = Query(charge, fit, blocks=(first,), prefix="propensity_")
        if self.outcome is not None:
            found["outcome"] = self.outcome
        guarantee, law = self.guarantee(), self.mechanism.law(self.problem, self.spent)
        level = guarantee.level if guarantee.holds_claim else Level.HEURISTIC
        found["rule"] = Query(Charge(Purpose.RELEASE, self.name), law, level, prefix=self.mechanism.prefix)
        return found

    @property
    def queries(self) -> Mapping[str, Query]:  # type: ignore[override]
        """See ``Plan``."""
        return self.stages

    @property
    def sizes(self) -> Mapping[str, int]:
        """See ``Plan``: with a split the weights have records of their own."""
        return block_sizes(self.n, self.parts.get("split"))

    @property
    def left(self) -> float:
        """Epsilon that weights and outcome leave to the rule."""
        return self.budget.epsilon * (1 - sum(self.parts.get(name, 0.0) for name in _SHARES))

    def guarantee(self) -> Guarantee:
        """See ``Plan``; conditional on what the user brought."""
        return self.mechanism.guarantee(self.spent, self.conditions)

    def settings(self) -> dict[str, Any]:
        """See ``Plan``."""
        pure = isinstance(self.stages["rule"].law.event, PureEvent)
        all_pure = pure and all(isinstance(query.law.event, PureEvent) for query in self.queries.values())
        constants = {name: value for query in self.stages.values() for name, value in query.constants().items()}
        return {
            **self.parts,
            **self.problem.loss.public(self.mechanism.curved),
            "ridge": self.problem.ridge,
            "epsilon": self.budget.epsilon,
            **({} if all_pure else {"delta": self.budget.delta}),
            "rule_epsilon": self.spent.epsilon,
            **({} if pure else {"rule_delta": self.spent.delta}),
            **constants,
        }

    @classmethod
    def restated(cls, release: Release) -> "RulePlan":  # type: ignore[override]
        """See ``Plan``; of a rule that was chosen among candidates a ``TunedRulePlan``."""
        assert isinstance(release, RuleRelease)
        public = release.privacy.public
        return TunedRulePlan._restated(release) if "candidates" in public else RulePlan._of(release, {})

    @classmethod
    def _of(cls, release: RuleRelease, more: Mapping[str, Any], part: int | None = None) -> Self:
        """Return the plan that a release's public facts describe.

        Args:
            release: As read from its file.
            more: Further fields.
            part: Records that the rule was fitted to; None takes all.
        """
        privacy, domain, features = release.privacy, release.domain, release.features
        public, block = privacy.public, max(privacy.blocks, key=lambda block: as_number(block.epsilon))
        budget = requested_budget(block, public["epsilon"], public.get("delta", 0.0))
        spent = requested_budget(block, public["rule_epsilon"], public.get("rule_delta", 0.0))
        mechanism = STATED_MECHANISMS[privacy.mechanism]
        bounds, weights = _restated_weights(public, part or privacy.n, domain)
        parts = _parts(public) | weights
        loss, ridge = LossBounds.restated(public, features.largest_entry, mechanism.curved), as_number(public["ridge"])
        shape = features.dimension, loss, bounds, ridge, features.largest_entry, "radius" in parts
        noise = WEIGHTS[public["weights"]].restated_noise(public, domain, first_budget(budget, parts))
        kind, outcome = OUTCOMES.get(public["outcome"]), None
        if kind is not None and "outcome_share" in parts:
            outcome = kind().query(domain, budget.epsilon * parts["outcome_share"])
        return cls(
            privacy.n,
            release.schema,
            budget,
            mechanism,
            PublicERM(privacy.n, *shape),
            features,
            spent,
            parts,
            noise,
            outcome,
            **more,
        )

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
                yield f"block {block.name!r} cost more than the budget that was asked for"
        if not self.spent.epsilon <= self.left * (1 + CLOSE):
            yield "the rule cost more than its first stages left"

    def _foreign(self) -> Iterator[str]:
        """Parts that are not the library's, a sentence each."""
        known = {
            "loss": is_known(self.parts["loss"]),
            "outcome": self.parts["outcome"] in OUTCOMES,
            "matching": self.parts.get("matching", "all") in MATCHINGS,
            "residual_model": self.parts.get("residual_model", "none") == "none",
            "learner": self.parts["learner"] in RULE_LEARNERS.class_names(),
        }
        for part, own in known.items():
            if not own:
                yield f"its {part} is called {self.parts[part]}, which is none of the library's"
        if not of_library(self.mechanism):
            yield f"its mechanism is called {self.name}, which is none of the library's"


@dataclass(frozen=True, eq=False)
class TunedRulePlan(RulePlan):
    """The plan of a rule that was chosen among candidates, each trained on records of its own with the full budget.

    Attributes:
        candidates: Settings of each, in words.
        chosen: Which one it is, counted from 1.
        selection_fraction: Fraction of the records on which they were compared.
    """

    candidates: tuple[str, ...] = ()
    chosen: int = 1
    selection_fraction: float = 0.5

    @classmethod
    def among(cls, rule: RulePlan, n: int, tried: tuple[str, ...], chosen: int, fraction: float) -> "TunedRulePlan":
        """Return the plan of a rule that was chosen.

        Args:
            rule: Its plan by itself.
            n: Number of all records.
            tried: See the class, also for the next two.
            chosen: Which one.
            fraction: Of the records on which they were compared.
        """
        of_rule = {field.name: getattr(rule, field.name) for field in fields(RulePlan)}
        return cls(**of_rule | {"n": n}, candidates=tried, chosen=chosen, selection_fraction=fraction)

    @classmethod
    def _restated(cls, release: RuleRelease) -> "TunedRulePlan":
        public, n = release.privacy.public, release.privacy.n
        tried, fraction = tuple(map(str, public["candidates"])), as_number(public["selection_fraction"])
        chosen, sizes = integer("chosen", public["chosen"], least=1), tuned_sizes(n, len(tried), fraction)
        part = list(sizes.values())[:-1][chosen - 1]
        return cls._of(release, {"candidates": tried, "chosen": chosen, "selection_fraction": fraction}, part)

    @property
    def sizes(self) -> Mapping[str, int]:
        """See ``Plan``: those of the candidates, and of the choice."""
        return tuned_sizes(self.n, len(self.candidates), self.selection_fraction)

    @cached_property
    def queries(self) -> Mapping[str, Query]:  # type: ignore[override]
        """See ``Plan``: each candidate and the choice cost all of the budget of their records."""
        *names, choice = self.sizes
        return candidate_queries(names, self.budget) | {choice: choice_query(self.budget)}

    def settings(self) -> dict[str, Any]:
        """See ``Plan``."""
        tuning = {
            "candidates": list(self.candidates),
            "chosen": self.chosen,
            "selection_fraction": self.selection_fraction,
        }
        return super().settings() | tuning

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; the rule cost all that its first stages left."""
        yield from super().problems(release)
        answers = self.answers(release)
        for name, query in self.stages.items():
            if name in answers:
                yield from query.law.answer_problems(name, answers[name])
        if not math.isclose(self.spent.epsilon, self.left, rel_tol=CLOSE):
            yield "the rule did not cost what its first stages left"
        words = self.candidates[self.chosen - 1].partition(", features ")[0]
        if words != in_words(self.problem.ridge):
            yield "its ridge is not that of the candidate that was chosen"


def block_sizes(n: int, split: float | None) -> dict[str, int]:
    """Return the records of each block.

    Args:
        n: Number of records.
        split: Fraction of them that fit the weights and nothing else; None where all are the rule's.
    """
    if split is None:
        return {RECORDS: n}
    first = round(split * n)
    return {WEIGHTS_BLOCK: first, RECORDS: n - first}


def tuned_sizes(n: int, count: int, fraction: float) -> dict[str, int]:
    """Return the records of each candidate, as equal as can be, and of the choice.

    Args:
        n: Number of records.
        count: How many candidates there are.
        fraction: Of the records, for the choice.
    """
    selection = round(fraction * n)
    each, more = divmod(n - selection, count)
    return {f"{Purpose.CANDIDATE} {k + 1}": each + (k < more) for k in range(count)} | {SELECTION: selection}


def in_words(ridge: float, features: FeatureMap | None = None) -> str:
    """Return the settings of a candidate in words.

    Args:
        ridge: Its ridge.
        features: Its features; None where those are the learner's.
    """
    if features is None:
        return f"ridge {ridge:g}"
    config = ", ".join(f"{name} {value}" for name, value in features.config().items())
    return f"ridge {ridge:g}, features {features.title} {config}".rstrip()


def first_budget(budget: PrivacyBudget, parts: Mapping[str, Any]) -> PrivacyBudget:
    """Return what fitting the weights may spend: a share, or all of the budget of records of their own."""
    share = parts.get("weights_share", 1.0)
    return PrivacyBudget(budget.epsilon * share, budget.delta * share)


def candidate_queries(names: Iterable[str], budget: PrivacyBudget, level: Level = Level.CERTIFIED) -> dict[str, Query]:
    """Return what candidates cost, by the names of their blocks: all of the budget."""
    charges = {name: Charge(Purpose.CANDIDATE, part=str(k)) for k, name in enumerate(names, start=1)}
    return {name: Query(charge, Whole(budget), level, (name,)) for name, charge in charges.items()}


def choice_query(budget: PrivacyBudget, level: Level = Level.CERTIFIED) -> Query:
    """Return what the choice among candidates costs: all of the budget of its own records."""
    return Query(CHOICE, Whole(budget), level, (SELECTION,))


def _restated_weights(public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
    """Return the bounds and the constants of stated weights, by the learner's class or, of a user's, what it states."""
    learner = RULE_LEARNERS.class_names().get(public["learner"], "pairwise" if "gap" in public else "owl")
    return RULE_LEARNERS[learner].restated_bounds(public, n, domain)  # type: ignore[no-any-return]


def _parts(public: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that follow from nothing, and those of the outcome."""
    found = {name: public[name] for name in ("learner", "weights", "outcome", "loss")}
    found |= {name: as_number(public[name]) for name in _of_outcome(public)}
    if "radius" in public:
        found["radius"] = positive("radius", as_number(public["radius"]))
    if "split" in public:
        found |= {"split": probability("split", as_number(public["split"]), above_zero=True), "seed": public["seed"]}
    return found | {name: probability(name, public[name], above_zero=True) for name in _SHARES if name in public}


def _of_outcome(public: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the outcome's constants; a user's may have any of the library's."""
    kind = OUTCOMES.get(public["outcome"])
    known = dict.fromkeys(name for each in OUTCOMES.values() for name in each.states)
    return [name for name in known if name in public] if kind is None else kind.states
