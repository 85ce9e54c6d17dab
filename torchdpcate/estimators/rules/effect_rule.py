"""A treatment rule by the sign of a composed effect: the one of least planned regret at this n and budget."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.linear_fit import HuberFit
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import planned_line, planned_regret, why_no_lines
from torchdpcate.composition.pure_fits import LARGEST, EffectSums, private_sums
from torchdpcate.composition.regressions import effect_fit
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.settings import AdaptiveSecondStage, known_propensities
from torchdpcate.composition.steps import EpsilonShares, NoisySteps
from torchdpcate.composition.worst_case import huber_game, objective_game
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition import Composition
from torchdpcate.estimators.cate.composition_plan import stated_scale
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.planned_noise import PlannedNoise, least_records, shown, told
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_EFFECT
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, Target, k_norm_evidence, worst_case
from torchdpcate.release.composed import Choices, ComposedRelease, ComposedRule, rule_of

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class EffectRule(RLearner):
    r"""A rule d(x) = 1{g(x) > cost} by the sign of a composed effect g, which a plan for rules requests.

    Everything is one composition on all records, as of ``RLearner``; constants of the plan are those of rules
    (``RuleConstants``). The plan picks the rule of least regret: a constant one where nothing about covariates can be
    learnt, a linear one, and richer ones as n and the budget grow. Where n and the budget are small the plan may be a
    reduced one: no outcome regression, and a propensity of one number. A propensity that the domain knows costs
    nothing. Costs, thresholds and budgets of treatments are free choices afterwards, as is the effect
    (``release_function``).

    With delta > 0 it ends in lines: what people like the records gain by the rule over treating nobody, and over
    treating everybody, costs counted, each with its interval (``ComposedRule.lines``). The sums of all scores come
    first: they move the effect's level to the average by which the rule decides. The values are about the rule with the
    learner's own cost, threshold and share.

    Guarantee:
        Certified, by ``fit``, which spends all of the budget; releases are post-processing
        (docs/guarantees/composed_effect.md). Source: theory note
        ``composed_rules_and_selection``, section 1.

    Args:
        budget: Privacy budget; with delta = 0 all steps are pure events. None fits without privacy; such a learner
            releases nothing.
        cost: Of a treatment, in outcome units.
        threshold: Least gain beyond the cost.
        share: Largest share of the population that is to be treated; None for no limit.
        population: Public covariates that the share refers to.
        second_stage: Settings of the composition; None takes ``AdaptiveSecondStage`` with ``RuleConstants``.
        seed: Public seed of initial weights.

    Example:
        >>> from torchdpcate import OWL
        >>> study = OWL(n=2000).load()
        >>> rule = EffectRule(study.schema, PrivacyBudget(4.0, 1e-5))
        >>> release = rule.fit(study.records.x, study.records.a, study.records.y).release()
        >>> release.effect.form, release.privacy.level, sorted(set(release.decide(study.queries).tolist()))
        ('additive', 'certified', [0, 1])
    """

    def __init__(
        self,
        domain: Domain | TableSchema,
        budget: PrivacyBudget | None,
        *,
        cost: float = 0.0,
        threshold: float = 0.0,
        share: float | None = None,
        population: Any = None,
        second_stage: AdaptiveSecondStage | None = None,
        seed: int = 0,
        trainer: "Callable[..., Trainer] | None" = None,
        noise: NoiseSource | None = None,
        ledger_path: str | Path | None = None,
    ) -> None:
        super().__init__(
            domain,
            budget,
            second_stage=second_stage,
            seed=seed,
            trainer=trainer,
            noise=noise,
            ledger_path=ledger_path,
        )
        self.cost = cost
        self.threshold = threshold
        self.share = share
        self.population = population

    def _second_stage(self) -> AdaptiveSecondStage:
        chosen = self.second_stage
        if chosen is None:
            chosen = AdaptiveSecondStage(constants=RuleConstants(), intervals=False)
        if not isinstance(chosen, AdaptiveSecondStage):
            raise InputError("second_stage: a rule by an effect is one composition; give an AdaptiveSecondStage")
        return replace(chosen, rule=self._choices(TableSchema.of(self.domain)))

    def check(self, n: int, mechanism: "str | Mechanism | None" = None) -> None:
        """See ``CATELearner``: also a cost or share that the domain does not allow."""
        self._choices(TableSchema.of(self.domain).two_arms(type(self).__name__))
        super().check(n, mechanism)

    def _prepare(self, records: CausalData | RecordStream) -> None:
        self._choices(self.schema_)
        super()._prepare(records)

    def _choices(self, schema: TableSchema) -> Choices:
        return Choices.of(schema, self.cost, self.threshold, self.share, self.population)

    def release(self) -> ComposedRule:  # type: ignore[override]
        """Return the rule that the fit has paid for; another cost or budget of treatments is free by its ``effect``.

        Raises:
            InputError: Not fitted, fitted without privacy, or choices that ``ComposedRelease.rule`` refuses.
        """
        release: Any = self.release_function()
        return rule_of(release, self._choices(self.schema_))

    def decide(self, X: Any) -> np.ndarray:
        """Return whom the released rule treats, int64 [m] of 0 and 1.

        Args:
            X: Covariates, as for ``effect``.
        """
        return rule_of(self._requested("decide"), self._choices(self.schema_)).decide(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return ``decide(X)``, [m]: the name that scikit-learn has for it."""
        return self.decide(X)

    def _requested(self, what: str) -> ComposedRelease:
        """Return the effect that the rule is made of."""
        self._require_fitted(what)
        found: Any = self.release_function()
        return found  # type: ignore[no-any-return]

    def expected_noise(
        self,
        n: int,
        mechanism: "str | Mechanism | None" = None,
        queries: Tensor | None = None,
        residual_scale: float | None = None,
    ) -> PlannedNoise:
        """See ``PrivateEstimator``: the expected regret, what the rule loses of the mean outcome against the best one.

        Args:
            n: Number of records.
            mechanism: The composition's, or None.
            queries: Not looked at.
            residual_scale: What public knowledge says of the scale of y - m(x), in outcome units; None takes a
                fourteenth of the outcome's range.
        """
        budget, schema = self._planned(n), TableSchema.of(self.domain).two_arms(type(self).__name__)
        domain = schema.domain
        composition = self._planner()
        composition.check(n, mechanism)
        plan = composition.plan(n)
        unit = stated_scale(residual_scale, plan, schema) or plan.residual_scale * domain.outcome_range
        here = planned_regret(plan)

        def regret(records: int) -> float:
            return planned_regret(composition.plan(records)).rule

        least = least_records(regret, here.constant, n)
        beats = "no n is enough" if least is None else f"{least:,} records are enough"
        requested = {
            "constant": "a constant rule: nothing about covariates can be learnt at this n and budget",
            "linear": "a linear rule",
            "additive": "a rule with squares, products and waves",
        }
        return PlannedNoise(
            unit * here.rule,
            "the rule: what it loses of the mean outcome against the best one",
            domain.outcome_range,
            n,
            budget,
            {"rule": unit * here.rule},
            assumes=(
                f"residuals of the outcome are clipped at {shown(unit)}{told(schema)}, and effects vary about zero as "
                "the plan's prior expects",
            ),
            left_out=("sampling, and the noise in the outcome regression and the propensity",),
            remarks=(
                f"plan: {requested[plan.form]}, of {plan.retained} of {domain.dimension} covariates{_reduced(plan)}",
                f"the best constant rule, if it were known, would lose {shown(unit * here.constant)}; {beats} to lose "
                "less",
                _values(plan, domain, unit),
            ),
        )

    def relative_regret(self, n: int) -> float:
        """Return the regret to expect of n records over that of the best constant rule, were it known; public."""
        self._planned(n)
        regret = planned_regret(self._planner().plan(n))
        return regret.rule / regret.constant

    def _planner(self) -> Composition:
        planner = self._procedure()
        assert isinstance(planner, Composition)
        return planner

    def propensity_of(self, records: CausalData) -> Tensor | None:
        """Return P(A = 1) of records [n] where the domain knows it; else None."""
        return known_propensities(records, self.schema_.domain)


def _values(plan: ComposedPlan, domain: Domain, scale: float) -> str:
    """Return what intervals the rule's values will have, or why none, in words."""
    if plan.lines is None:
        return f"its values over treating nobody and everybody: {why_no_lines(plan).removeprefix('no interval: ')}"
    parts = planned_line(plan, domain.outcome_range, None if plan.binary else scale, 2)
    error = math.hypot(*parts.values()) / 2  # half of the people, each with that error
    return f"its values over treating nobody and everybody have intervals, with standard errors of about {shown(error)}"


def _reduced(plan: ComposedPlan) -> str:
    """Return what a reduced plan leaves out, in words."""
    if not plan.reduced:
        return ""
    if plan.by_sums:
        constants = "" if plan.quantiles else "; the outcome's centre and scale are public"
        if not plan.known_propensity and "propensity" not in plan.shares.shares:
            constants += ", and the propensity is taken as one half"
        return f", by one event of sums without an outcome regression{constants}"
    return ", without an outcome regression" + (
        ", and the propensity one number" if plan.one_propensity and not plan.known_propensity else ""
    )


_STEP = "effect"
_RULE = {"learner": "EffectRule"}  # what statements of its releases have
_FAR = 1e6  # of residuals, in clips: no step leads so far that one of them is not clipped
_COIN = 0.3  # P(A = 1): the treated arm's a - pi is the larger one, .7


def pair(dataset: int) -> HuberFit:
    """Return the effect's regression on three records of a trial: two in balance, and the one that differs.

    It is treated, hence as far from its propensity as any record, with a residual far above its prediction in one
    dataset, and far below in the other; its gradient is S in either direction.

    Example:
        >>> one = torch.zeros(1, dtype=torch.float64)
        >>> round((pair(1).gradient(one) - pair(0).gradient(one)).item(), 9)
        2.0
    """
    one = torch.ones(3, dtype=torch.float64)
    residual = _FAR * torch.tensor([1.0, -1.0, 1.0 - 2 * dataset], dtype=torch.float64)
    return effect_fit(one[:, None], residual, (1 - _COIN) * one, _COIN * one, 1.0)


@worst_case(
    "effect_rule",
    EffectRule,
    attacks=[Target(COMPOSED_EFFECT, _RULE, pure=False)],
    pair="a treated record of a trial of few treated, its residual far above its prediction, or far below it",
)
def _game(budget: PrivacyBudget) -> Game:
    return huber_game(budget, (pair(0), pair(1)))


SUMS = EffectSums(scale=1.0, covariates=1, looked_at=True)
"""The sums of one covariate."""


def sums_pair(dataset: int) -> InMemory:
    """Return the one record of a trial, of one covariate.

    It is treated, its covariate beyond the clip, its outcome far above the centre in one dataset, and far below in the
    other: both sums move by two.

    Example:
        >>> (sums_pair(1).total(SUMS) - sums_pair(0).total(SUMS)).tolist()
        [2.0, 2.0]
    """
    one = torch.ones(1, dtype=torch.float64)
    residual = (2 * dataset - 1) * _FAR * one
    return InMemory(CausalData(_FAR * one[:, None], (1 - _COIN) * one, residual, _COIN * one))


@worst_case(
    "effect_sums",
    EffectRule,
    attacks=[Target(COMPOSED_EFFECT, {"effect_by": None}, pure=True)],
    pair="a treated record of a trial whose covariate is beyond the clip, its outcome far above the centre "
    "or far below",
)
def _sums_game(budget: PrivacyBudget) -> Game:
    pure = PrivacyBudget(budget.epsilon, 0.0)
    shares = EpsilonShares(pure.epsilon, {_STEP: 1.0})

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        steps = NoisySteps(FitSession(noise), shares)
        return torch.stack([private_sums(sums_pair(dataset), SUMS, _STEP, steps) for _ in range(runs)])

    low, high = (sums_pair(dataset).total(SUMS) for dataset in (0, 1))
    above = k_norm_evidence(high - low, 2 / pure.epsilon, math.inf)

    def evidence(sums: Tensor) -> Tensor:
        return above(sums - low)

    return Game(draw, shares.event(_STEP), Guarantee(Level.CERTIFIED, pure), evidence, most_runs=20_000)


def pure_pair(dataset: int) -> HuberFit:
    """Return the effect's regression on the one record of that trial, at the largest curvature it may have.

    It is treated, its residual far above its prediction in one dataset, and far below in the other.

    Example:
        >>> fit = pure_pair(1)
        >>> round(float(fit.weights * fit.predictors.norm()), 9), round(float(fit.weights * fit.predictors**2), 9)
        (1.0, 1.5)
    """
    one = torch.ones(1, dtype=torch.float64)
    psi = LARGEST / (1 - _COIN) * one[:, None]
    return effect_fit(psi, (2 * dataset - 1) * LARGEST * one, (1 - _COIN) * one, _COIN * one, 1.0)


@worst_case(
    "pure_effect_rule",
    EffectRule,
    attacks=[Target(COMPOSED_EFFECT, _RULE, pure=True)],
    pair="a treated record of a trial of few treated at the largest curvature it may have, its residual far above its "
    "prediction, or far below it",
)
def _pure_game(budget: PrivacyBudget) -> Game:
    return objective_game((pure_pair(0), pure_pair(1)), budget.epsilon)
