"""How public plans of each kind are found, made of n, the budget and facts of the domain."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from torchdpcate.composition.censoring import FollowUpCells
from torchdpcate.composition.constants import (
    EXPECTED,
    PlanConstants,
    PureShares,
    RuleConstants,
    of_kind,
)
from torchdpcate.composition.gaussian_builder import Builder
from torchdpcate.composition.plan import (
    ARMS,
    CONSTANT,
    EFFECT,
    PURE,
    RULE,
    ComposedPlan,
    PlanFacts,
)
from torchdpcate.composition.priors import (
    Request,
    Sign,
    pure_filling,
)
from torchdpcate.composition.pure_fits import NOISE_SHARE, OBJECTIVE, PUBLIC_SUMS, SUMS
from torchdpcate.composition.steps import (
    QUANTILES,
    SCREENING,
    EpsilonShares,
    Shares,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget


@dataclass(frozen=True)
class _ArmsBuilder(Builder):
    r"""Finds the plan of one composition for K arms: that of an effect but for treatment and effect.

    The arms are the vertices :math:`v_1, .., v_K` of a simplex with edges of length one (``simplex``), so that K - 1
    functions b of the covariates say how the arms differ, :math:`\mu_a - \mu_b = (v_a - v_b)^\top b(x)`, and none of
    the arms is another's reference. For two arms they are -1/2 and 1/2, and b is the effect. Each arm's propensity is a
    logistic regression against all others, at an equal share of what the propensity has.

    Raises:
        InputError: As ``Builder``; fewer than three arms, or intervals.
    """

    kind: ClassVar[str] = ARMS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arms < 3 or self.intervals:
            raise InputError(f"arms = {self.arms}, intervals = {self.intervals}: give three arms or more, no intervals")

    @cached_property
    def shares(self) -> Shares:
        shares = dict(super().shares.shares)
        if "propensity" in shares:
            shares |= dict.fromkeys(self._each, shares.pop("propensity") / self.arms)
        return Shares(self.mu, shares)

    def own_numbers(self) -> dict[str, Any]:
        return super().own_numbers() | {"propensity_steps": self._each}

    @property
    def _each(self) -> tuple[str, ...]:
        return tuple(f"propensity {arm}" for arm in range(1, self.arms + 1))

    @property
    def effect_weight(self) -> float:
        """Of each of the K - 1 functions, where all arms are alike: planned as that of two is."""
        return 2 * EXPECTED.effect_curvature / math.sqrt(2 * self.arms * (self.arms - 1))


@dataclass(frozen=True)
class _PureBuilder(Builder):
    r"""Finds a plan of pure events: quantiles, sums with K-norm noise and perturbed objectives.

    Steps cost :math:`\epsilon = \sum_k \epsilon_k`, so steps without use are left out: an outcome regression of a
    constant alone, which the released centre is already, and where no regression has a feature, covariates. A rule
    (constants of ``RuleConstants``) at small n epsilon has no outcome regression. Its effect is then one perturbed
    objective, or one event of sums (``private_sums``) with private or with public constants, whichever has the least
    planned regret.

    Args:
        requested: Steps that are requested.
        way: How a rule's effect is found: ``OBJECTIVE``, ``SUMS``, or ``PUBLIC_SUMS`` for sums whose constants are all
            public.
    """

    kind: ClassVar[str] = PURE

    requested: tuple[str, ...] = ()
    way: str = OBJECTIVE  # type: ignore[misc]

    def __post_init__(self) -> None:
        PlanFacts.__post_init__(self)
        if self.intervals:
            raise InputError(
                "intervals = true: they rest on Gaussian noise; give privacy.delta above 0, for instance 1e-6, or "
                "leave intervals=auto"
            )

    def best(self) -> ComposedPlan:
        """See ``Builder``: by the way of least planned regret."""
        rule, by_objective = self._rule, self._of_steps(OBJECTIVE)
        may = rule is not None and not self.binary and not self.constant_only and not self.shrinks
        if rule is None or not may or self.mass * self.epsilon >= rule.sums_below:
            return by_objective
        if self._many and by_objective.form != CONSTANT:
            return by_objective  # which leaves covariates out
        plans = [by_objective, *map(self._of_steps, (SUMS, PUBLIC_SUMS))]
        return max(plans, key=lambda plan: plan.sign.worth(plan.planned_correlation(), plan.form == CONSTANT))

    def _of_steps(self, way: str) -> ComposedPlan:
        """Return the plan of the steps that serve something at their shares."""
        here = replace(self, way=way)
        if way == PUBLIC_SUMS:
            return replace(here, requested=here._later).build()
        screening = (SCREENING,) if not here._by_sums and here._screened < self.covariates else ()
        steps = (*here.quantiles[:2], *screening, "moments", *here._later)
        nuisances = [step for step in steps if step in ("outcome", "propensity")]
        while True:
            plan = replace(here, requested=steps).build()
            rich = {step: len(getattr(plan, step)().basis.features) > 0 for step in (*nuisances, "effect")}
            idle = set() if any(rich.values()) else {SCREENING, "moments"}
            idle |= set() if rich.get("outcome") or self.binary else {"outcome", "residual scale"}
            idle |= set() if rich["effect"] else {"effect curvatures"}
            if idle.isdisjoint(steps):
                return plan
            steps = tuple(step for step in steps if step not in idle)

    @property
    def _later(self) -> tuple[str, ...]:
        """The steps that follow the covariates' moments."""
        public_sums = self.way == PUBLIC_SUMS and self.mass * self.epsilon < _pure()["half_below"]
        propensity = () if self.known_propensity or public_sums else ("propensity",)
        if self.reduced:
            return (*propensity, "effect")
        return ("outcome", *propensity, *self.quantiles[2:], "effect curvatures", "effect")

    @property
    def epsilon(self) -> float:
        """What the steps divide."""
        assert self.budget is not None
        return self.budget.epsilon * self.part

    @cached_property
    def mu(self) -> float:
        """That of Gaussian steps with about as much noise."""
        return float(self.epsilon / _pure()["equivalent"])

    @property
    def _by_sums(self) -> bool:
        return self.way != OBJECTIVE

    @property
    def reduced(self) -> bool:
        """Whether a rule has no outcome regression: at small n it would cost the sign more than it gains."""
        rule = isinstance(self.constants, RuleConstants)
        return self._by_sums or (rule and not self.binary and self.size < _pure()["reduced_below"])

    def own_numbers(self) -> dict[str, Any]:
        """See ``Builder``: no objective can be perturbed of losses whose curvature has no bound."""
        return super().own_numbers() | {"log_link": False, "burn_in": 0, "noise_inflation": _pure()["noise_inflation"]}

    @property
    def one_propensity(self) -> bool:
        return self._by_sums

    @property
    def steps(self) -> int:
        """One event a regression."""
        return 1

    @property
    def shrinking_variance(self) -> float:
        return float(_pure()["head"] * self.head_variance)

    @property
    def quantiles(self) -> tuple[str, ...]:
        """None where the outcome's constants are public."""
        return () if self.way == PUBLIC_SUMS else super().quantiles

    @cached_property
    def retained(self) -> int:
        """All, where none is looked at."""
        return self._screened if self._looks and not self._by_sums else self.covariates

    @cached_property
    def _screened(self) -> int:
        return replace(self, constant_only=False, requested=(), way=OBJECTIVE).best_retained()

    @property
    def _looks(self) -> bool:
        return "moments" in self.requested

    @cached_property
    def shares(self) -> EpsilonShares:
        """Share of each step, of epsilon."""
        of = self._parts
        fixed = dict.fromkeys(QUANTILES, self._quantile_share)
        fixed |= {SCREENING: of.screening, "moments": of.moments, "effect curvatures": of.curvatures}
        parts = {"outcome": of.outcome, "propensity": of.propensity, "effect": 1 - of.outcome - of.propensity}
        left = 1 - math.fsum(fixed[step] for step in self.requested if step in fixed)
        total = math.fsum(parts[step] for step in self.requested if step in parts)
        return EpsilonShares(
            self.epsilon,
            {step: fixed[step] if step in fixed else left * parts[step] / total for step in self.requested},
        )

    @property
    def _parts(self) -> PureShares:
        rule = isinstance(self.constants, RuleConstants)
        name = "sums" if self._by_sums else EFFECT if not rule else "reduced_rule" if self.reduced else RULE
        return PureShares(**of_kind(PURE)["shares"][name])

    @property
    def _quantile_share(self) -> float:
        # a quantile chosen by its rank is off by about twice the scale of its noise, 2 / epsilon
        wanted = 2 * math.sqrt(2) / (self.constants.rank_error * self.mass * self.epsilon)
        return min(max(wanted, self._parts.quantiles[0]), self._parts.quantiles[1])

    def _effect_budget(self, k: int) -> float:
        of, later = self._parts, self._later
        quantiles = (2 + ("residual scale" in later)) * (not self.binary) * (self.way != PUBLIC_SUMS)
        moments = of.moments * (self.way != PUBLIC_SUMS)
        left = 1 - quantiles * self._quantile_share - moments - of.screening * (k < self.covariates)
        left -= of.curvatures * ("effect curvatures" in later)
        unused = of.outcome * ("outcome" not in later) + of.propensity * ("propensity" not in later)
        return self.epsilon * left * (1 - of.outcome - of.propensity) / (1 - unused)

    @property
    def _effect(self) -> Request:
        if not self._by_sums:
            return super()._effect
        unit = 2 / (self._effect_budget(self.covariates) * self.mass * self.inside * self.effect_weight)
        return self._ask(self._rules.linear_variance / self.covariates, unit)

    @property
    def _unshrunk_variance(self) -> float:
        return self._rules.linear_variance

    @cached_property
    def sign(self) -> Sign:
        """See ``Builder``: over effects of the sizes that rules expect, whatever the way."""
        sizes = self._rule.effect_sizes if self._rule and self._rule.sums_below else (1.0,)
        return replace(self._tuned_sign, sizes=self._rules.effect_sizes if self._by_sums else sizes)

    @property
    def _tuned_sign(self) -> Sign:
        """That by which an objective's constants were tuned: of one size, and a choice that finds all."""
        rules = self._rules
        limit = {OBJECTIVE: 1.0, SUMS: rules.sums_correlation, PUBLIC_SUMS: rules.public_sums_correlation}[self.way]
        variance = self.shrinking_variance if self.shrinks else self._unshrunk_variance
        return Sign(rules, self.shrinks, variance, 1.0, _pure()["sign_noise"], limit, (1.0,))

    def _correlation(self, request: Request, k: int) -> float:
        return self._tuned_sign.correlation(request.regression([False] * k), k, self.covariates)

    def _unit_noise(self, mu: float, weight: float, inside: float | None = None, slope: float = 1.0) -> float:
        """Return the variance of a function of weight one by one coefficient of a perturbed objective of epsilon."""
        return 2 * (2 * slope / (NOISE_SHARE * mu * self.mass * (inside or self.inside) * weight)) ** 2

    @property
    def _filling(self) -> Any:
        return pure_filling


def composed_plan(
    n: int, budget: PrivacyBudget | None, covariates: int, kind: str = EFFECT, **facts: Any
) -> ComposedPlan:
    """Return the public plan of one composition on all records.

    Args:
        n: Number of records.
        budget: (epsilon, delta); with delta = 0 the plan of an effect has pure events.
        covariates: Number of encoded covariates.
        kind: Of plan.
        facts: Others of ``PlanFacts``.

    Raises:
        InputError: Facts that this kind of plan does not have.

    Example:
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1)
        >>> plan.retained, plan.form, plan.steps, round(plan.huber_quantile, 3)
        (6, 'additive', 60, 0.74)
        >>> [composed_plan(n, PrivacyBudget(1.0, 0.0), 6).form for n in (300, 300_000)]
        ['constant', 'additive']
        >>> plan = composed_plan(16_000, PrivacyBudget(1.0, 1e-5), 6, ARMS, overlap=0.1, arms=3)
        >>> sorted(step for step in plan.shares.shares if step.startswith("propensity"))
        ['propensity 1', 'propensity 2', 'propensity 3', 'propensity curvatures']
    """
    builder = _PureBuilder if kind == EFFECT and budget is not None and budget.delta == 0 else _BUILDERS[kind]
    return builder(n, budget, covariates, **facts).best()


_BUILDERS: dict[str, type[Builder]] = {builder.kind: builder for builder in (Builder, _ArmsBuilder)}


def plan_within(
    n: int, budget: PrivacyBudget | None, domain: Domain, kind: str = EFFECT, **settings: Any
) -> ComposedPlan:
    """Return the plan for n records of a domain.

    Args:
        n: Number of records.
        budget: As of ``composed_plan``.
        domain: Public bounds.
        kind: As of ``composed_plan``.
        settings: Facts that are not the domain's.
    """
    known, numbers = domain.known_propensity is not None, domain.two_levels.count(False)
    binary, count = (domain.outcome_kind == outcome for outcome in ("binary", "count"))
    treated, design = domain.treated, domain.known_propensity
    if design is not None and design.bounds[0] == design.bounds[1]:
        treated = design.middle
    facts = {"overlap": domain.overlap, "known_propensity": known, "binary": binary, "count": count}
    settings |= {"numbers": numbers, "treated": treated, "weight": domain.expected_weight}
    if domain.censoring is not None:
        settings["follow_up"] = FollowUpCells(domain.censoring, settings.get("arms", 2)).size
    return composed_plan(n, budget, domain.dimension, kind, **facts, **settings)


def plan_of_facts(
    facts: Mapping[str, Any],
    n: int,
    domain: Domain,
    kind: str = EFFECT,
    arms: int = 2,
    cells: Subgroups | None = None,
) -> ComposedPlan:
    """Return the plan that a statement's facts describe.

    Args:
        facts: As ``ComposedPlan.facts`` returns them, among others.
        n: Number of records.
        domain: Public bounds.
        kind: Of plan; that of an effect is of arms where there are more than two.
        arms: Number of arms.
        cells: Public partitions whose cells have lines.

    Raises:
        InputError: No plan has such facts.
    """
    kind = ARMS if kind == EFFECT and arms > 2 else kind
    constants = RuleConstants if facts.get("target") == RULE else PlanConstants
    return plan_within(
        n,
        PrivacyBudget(facts["requested_epsilon"], facts["requested_delta"]),
        domain,
        kind,
        constant_only=bool(facts["constant_only"]),
        intervals=bool(facts["intervals"]),
        constants=constants.from_text(facts["constants"]),
        arms=arms,
        hidden=bool(facts.get("hidden_units", False)),
        sites=facts.get("sites", 1),
        lines=tuple(facts["lines"]) if "lines" in facts else None,
        cells=cells,
        cost=facts.get("cost", 0.0),
        cutoff=facts.get("cutoff", 0.0),
    )


def rebuilt(plan: ComposedPlan, **changes: Any) -> ComposedPlan:
    """Return the plan of the same facts but for some."""
    facts = {f.name: getattr(plan, f.name) for f in fields(PlanFacts)} | changes
    return composed_plan(kind=EFFECT if plan.kind == PURE else plan.kind, **facts)


def _pure() -> dict[str, float]:
    found: dict[str, float] = of_kind(PURE)["pure"]
    return found
