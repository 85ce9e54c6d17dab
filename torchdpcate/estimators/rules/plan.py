"""The public plan of a rule by weighted empirical risk minimisation, and what its noise will be."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import scipy
import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome
from torchdpcate.estimators.rules.weighted_erm import LOSS, RuleMechanism, stated_mechanism
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit
from torchdpcate.fit.weights import WEIGHTS
from torchdpcate.laws import CLOSE, PerturbedObjective
from torchdpcate.plan import Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget, as_number, probability
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, of_library
from torchdpcate.privacy.mechanisms import Spread
from torchdpcate.registry import Registry
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.statement import PrivacyStatement

RULE_LEARNERS = Registry("task", "torchdpcate.estimators.rules")
"""Learners of rules by the names of their tasks, or of a task's methods."""
_SHARES = ("weights_share", "outcome_share")  # of the budget, of what the rule's own records pay for before it


@dataclass(frozen=True, eq=False)
class RulePlan(Plan[RuleRelease]):
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
    def restated(cls, release: RuleRelease) -> Self:
        privacy, domain, features = release.privacy, release.domain, release.features
        public, n, block = privacy.public, privacy.n, max(privacy.blocks, key=lambda block: as_number(block.epsilon))
        budget = requested_budget(block, public["epsilon"], public.get("delta", 0.0))
        spent = requested_budget(block, public["rule_epsilon"], public.get("rule_delta", 0.0))
        mechanism = stated_mechanism(privacy.mechanism)
        assert mechanism is not None
        # by the learner's class or, of a user's, what it states
        learner = RULE_LEARNERS.class_names().get(public["learner"], "owl")
        bounds, weights = RULE_LEARNERS[learner].restated_bounds(public, n, domain)
        parts = _parts(public) | weights
        facts = LossBounds.of(LOSS), bounds, as_number(public["ridge"]), features.dimension, features.largest_entry
        fit = PrivateFit(*facts, n=n)
        first = share_of(budget, parts.get("weights_share", 1.0))
        noise = WEIGHTS[public["weights"]].restated_noise(public, domain, first)
        kind, outcome = OUTCOMES.get(public["outcome"]), None
        if kind is not None and ("outcome_share" in parts or kind.budget_fraction > 0):
            outcome = kind().query(domain, budget.epsilon * parts["outcome_share"])
        return cls(n, release.schema, budget, mechanism, fit, features, spent, parts, noise, outcome)

    def answers(self, release: RuleRelease) -> dict[str, Tensor]:
        """See ``Plan``: the coefficients, and the outcome's constants where they were paid for."""
        found = {"rule": release.theta}
        if self.outcome is not None:
            constants = [as_number(self.parts[name]) for name in _of_outcome(self.parts)]
            found["outcome"] = torch.tensor(constants, dtype=torch.float64)
        return found

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> RuleRelease:
        return RuleRelease(answers["rule"], self.features.twin(), self.schema, privacy)

    def problems(self, release: RuleRelease) -> Iterator[str]:
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
            "loss": self.parts["loss"] == "huber_hinge",
            "outcome": self.parts["outcome"] in OUTCOMES,
            "learner": self.parts["learner"] in RULE_LEARNERS.class_names(),
        }
        for part in (part for part, own in known.items() if not own):
            yield f"its {part} is called {named[part]}, which is none of the library's"


def share_of(budget: PrivacyBudget, share: float) -> PrivacyBudget:
    """Return this share of a budget."""
    return PrivacyBudget(budget.epsilon * share, budget.delta * share)


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


_GOOD = 0.9  # accuracy for which the number of records is worked out
_NODES = 200  # of the quadrature, in length and in angle


@dataclass(frozen=True, eq=False)
class NoiseReport:
    """What public facts say of a rule's noise; nothing is drawn, nothing is spent.

    Lengths are in units of one record's largest pull. The accuracy is that of the noise-dominated regime
    (`expected_accuracy`): with many records or a large epsilon objective perturbation does better than it says, for the
    curvature of the data then holds the rule in place.

    Attributes:
        plan: The rule's plan; before a fit ``RuleLearner.plan`` makes one.
        typical_weight: Public estimate of the mean weight; inverse propensities halved have mean one.
    """

    plan: RulePlan
    typical_weight: float = 1.0

    @property
    def n(self) -> int:
        """Records that fit the rule."""
        assert self.plan.problem.n is not None
        return self.plan.problem.n

    @property
    def size(self) -> int:
        """Coefficients of the rule."""
        return self.plan.problem.size

    @property
    def rule_share(self) -> float:
        """Share of epsilon that is left for the rule after its first stage."""
        return self.plan.spent.epsilon / self.plan.budget.epsilon

    @property
    def noise(self) -> float:
        """Root mean square length of the noise; infinite where its law does not say."""
        return math.inf if self._spread is None else self._spread.length

    @property
    def typical_pull(self) -> float:
        """Length of the summed pull of as many records of the typical weight that go the same way."""
        fit = self.plan.problem
        return self.n * min(self.typical_weight, fit.bounds.most) * fit.loss.slope

    @property
    def signal(self) -> float:
        """Length of the summed pull of records that the best rule separates, their features of uniform direction."""
        return self.typical_pull * separable_pull(self.size)

    @cached_property
    def accuracy(self) -> float:
        """Decisions expected to agree with those of the rule without noise, see `expected_accuracy`."""
        return 0.5 if self._spread is None else expected_accuracy(self._spread, self.signal)

    @cached_property
    def records_needed(self) -> int:
        """Records for an accuracy of 0.9, all else equal."""
        return self.n if self._spread is None else math.ceil(self.n * signal_for(_GOOD, self._spread) / self.signal)

    def score_noise(self, outcome: Outcome, domain: Domain, n: int, level: Level) -> PlannedNoise:
        r"""Return the noise of the score by which the rule decides, as an effect.

        .. math:: \frac{2 u \sqrt p}{n\, \bar\omega\, \zeta}\, \sqrt{E \|b\|^2}

        b is the noise on the summed pull of the records (in the scale of objective perturbation), zeta the loss's
        slope, omega the mean weight, and u the outcome units of a magnitude of one: a record that the treatment helps
        by tau has the mean pull omega zeta tau / (2 u) along its features, of which a direction holds the share 1/p.

        Args:
            outcome: The outcome's map.
            domain: Public bounds.
            n: Number of records.
            level: Of the release.
        """
        value = 2 * outcome.unit(domain) * math.sqrt(self.size) * self.noise / self.typical_pull
        lost = (1 - self.accuracy) * domain.outcome_range
        return PlannedNoise(
            value,
            "the score by which the rule decides, as an effect",
            domain.outcome_range,
            n,
            self.plan.budget,
            {"rule": value},
            level,
            assumes=(
                *outcome.assumes,
                "features spread over all directions; the noise is not shortened by the curvature of the records",
            ),
            left_out=("the noise in private weights and outcome constants",) if self.rule_share < 1 else (),
            remarks=(
                f"about {self.accuracy:.0%} of the decisions agree with those of the rule without noise if the "
                f"records speak as clearly as hoped; the others lose at most {lost:.3g} of the mean outcome",
            ),
        )

    @cached_property
    def _spread(self) -> Spread | None:
        """How far the noise reaches on the summed pull of the records, which the ridge turns into coefficients."""
        spread, ridge = self.plan.queries["rule"].law.spread, self.plan.problem.ridge
        return None if spread is None else Spread(ridge * spread.scale, spread.size, spread.order)


def expected_accuracy(noise: Spread, signal: float) -> float:
    r"""Share of decisions that noise leaves as they are, where it dominates the data's curvature.

    .. math:: 1 - \frac1\pi\, E \angle(S, S + b), \qquad \|S\| = \text{signal}

    Far from the margin the minimiser is (S - b) / ridge, S the summed pull of all records, so that decisions agree as
    far as S - b points where S does; for features of uniform direction the share is the above. Noise of length
    R and uniform direction (exact but for ``box``, whose length is replaced by one of the same root mean square)
    is integrated over quantiles of R and of the angle.

    Args:
        noise: How far b reaches.
        signal: Length of S, in the same units.

    Returns:
        From 0.5 (chance) to 1.

    Example:
        >>> [round(expected_accuracy(Spread(1.0, 5, 2), s), 3) for s in (0.0, 5.0, 50.0)]
        [0.5, 0.765, 0.972]
    """
    length, cosine, sine = _nodes(noise)
    along, across = signal + length * cosine, length * sine
    return 1 - float(np.arctan2(across, along).mean()) / math.pi


def signal_for(accuracy: float, noise: Spread) -> float:
    """Return the length of the summed pull at which `expected_accuracy` is this; from 0.5 to 1, both excluded."""

    def short(log_signal: float) -> float:
        return expected_accuracy(noise, noise.length * math.exp(log_signal)) - accuracy

    return noise.length * math.exp(scipy.optimize.brentq(short, -20.0, 20.0, xtol=1e-6))


def separable_pull(size: int) -> float:
    """Return E|psi_1| of a uniform direction: the mean pull of records whose best arm one direction decides."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)


@lru_cache(maxsize=64)
def _nodes(noise: Spread) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths [k, 1] of noise; cosines and sines of its angle with a fixed direction."""
    levels = (np.arange(_NODES) + 0.5) / _NODES
    half = (noise.size - 1) / 2
    cosine = 2 * scipy.special.betaincinv(half, half, levels) - 1 if noise.size > 1 else np.array([-1.0, 1.0])
    return noise.lengths(levels)[:, None], cosine, np.sqrt(1 - cosine**2)
