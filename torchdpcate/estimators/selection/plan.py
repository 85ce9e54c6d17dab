r"""How far a privately selected policy will fall short of its library's best: from public facts, before it is fitted.

V is a policy's mean outcome, pi the best of M policies, pi^ the one chosen by n scores, whose nuisances come from
elsewhere: a training block of m records, other data, or nothing. But for probability beta

.. math::
    V(\pi) - V(\hat\pi) \le S \sqrt{\frac{2}{n} \log\frac{2 (M - 1)}{\beta}} + \frac{K}{e_{min}} r_\mu r_e
    + \frac{\Delta_{BR}}{n \epsilon} \log\frac{2 M}{\beta} .

*Concentration*, given the nuisances: a record's scores of two actions differ by at most S. So the mean of
phi(pi) - phi(pi'), n numbers in [-S, S], misses its expectation by t on one side with probability at most
exp(-n t^2 / (2 S^2)) (Hoeffding 1963). M - 1 rivals share beta / 2.

*Remainder*: the expected score of pi is V(pi) + E sum_a 1{pi(X) = a} (e_a - e0_a) (mu_a - mu0_a) / e_a, e0 and mu0 the
truth. In the difference of two policies each of the K arms counts where one of them chooses it and the other does not.
With e_a >= e_min and Cauchy-Schwarz it adds at most r_mu r_e / e_min, r the L2 errors of that arm's models.

*Privacy*: a choice by exponential or Gumbel noise of scale Delta_BR / epsilon is t or more behind the largest sum with
probability at most M exp(-t epsilon / Delta_BR), here beta / 2. Report-noisy-max, which is not needed, may take longer.

This is the paper's Theorem 2 with the bounded range in place of its sensitivity. A library is compared with its own
best policy, so approximation loses nothing. S, e_min and Delta_BR are certified, for stable fits about 1 / K and the
middle: what a private target makes of them is known once it is released. The L2 errors are not known: give them, or
take expectations (``PLANNED``). Source: theory note ``policy_learning``, section 6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.fit.arms.stability import IndirectBound, indirect_bound
from torchdpcate.privacy.budget import integer, number, positive, probability


@dataclass(frozen=True)
class PlannedNuisances:
    """What a plan takes nuisances to be.

    Attributes:
        own: S, by how much one record's scores of two actions differ at most; certified.
        range_sensitivity: Delta_BR of the utilities; certified.
        least: Least propensity that scores are divided by; certified.
        outcome_error: L2 error of an arm's outcome model, in outcome units; expected.
        propensity_error: L2 error of a propensity; expected.
    """

    own: float
    range_sensitivity: float
    least: float
    outcome_error: float
    propensity_error: float


@dataclass(frozen=True)
class NuisanceFacts:
    """Public facts that an expectation starts from.

    Attributes:
        epsilon: Budget of a block.
        overlap: zeta.
        features: p, coefficients of a linear nuisance model.
        actions: K.
        outcome_range: R.
        radius: R_x, bound of the features' norm.
    """

    epsilon: float
    overlap: float
    features: int
    actions: int
    outcome_range: float
    radius: float

    def indirect(self, m: int, ridge: float) -> IndirectBound:
        """Return what a replaced training record does to ridge and logistic fits."""
        return indirect_bound(
            m,
            radius=self.radius,
            ridge=ridge,
            propensity_ridge=ridge,
            overlap=self.overlap,
            actions=self.actions,
            outcome_range=self.outcome_range,
        )

    @property
    def unknown(self) -> tuple[float, float]:
        """Errors of constants: standard deviations of numbers that are uniform over their public ranges."""
        return self.outcome_range / math.sqrt(12), (1 - self.actions * self.overlap) / math.sqrt(12)

    def of_ridge(self, m: int, ridge: float) -> tuple[float, float]:
        r"""Errors of ridge and logistic fits to m records: what shrinking leaves of `unknown`, and variance.

        .. math:: r^2 = (s r_0)^2 + (1 - s)^2 v, \qquad s = \frac{\lambda}{\lambda + h R_x^2 / p}

        for features of equal variance in all directions, with curvature h = 1/K and v = p K R^2 / (4 m) for outcomes
        (noise as large as their range allows), h = (1 - 1/K) / K and v = h p / m for propensities.
        """
        K, p = self.actions, self.features
        weight = (1 - 1 / K) / K
        variances = p * K * self.outcome_range**2 / (4 * m), weight * p / m
        errors = []
        for r0, h, variance in zip(self.unknown, (1 / K, weight), variances, strict=True):
            s = ridge / (ridge + h * self.radius**2 / p)
            errors.append(math.sqrt((s * r0) ** 2 + (1 - s) ** 2 * variance))
        return errors[0], errors[1]


def fixed(facts: NuisanceFacts, n: int, m: int, ridge: float) -> PlannedNuisances:
    """Equal propensities and the middle of the outcome's range."""
    own = facts.outcome_range * facts.actions / 2
    return PlannedNuisances(own, 2 * own, 1 / facts.actions, *facts.unknown)


def frozen(facts: NuisanceFacts, n: int, m: int, ridge: float) -> PlannedNuisances:
    """Fits to as many other records as there are here."""
    own = facts.outcome_range / facts.overlap
    return PlannedNuisances(own, 2 * own, facts.overlap, *facts.of_ridge(n, ridge))


def stability(facts: NuisanceFacts, n: int, m: int, ridge: float) -> PlannedNuisances:
    """Fits to the training block, exact; what a training record does is in the range sensitivity."""
    bound = facts.indirect(m, ridge)
    return PlannedNuisances(bound.own, bound.range_sensitivity(n), bound.overlap, *facts.of_ridge(m, ridge))


def private_nuisances(facts: NuisanceFacts, n: int, m: int, ridge: float) -> PlannedNuisances:
    r"""The same fits with noise: half of epsilon each, on coefficients that one record moves by beta / R_x.

    A vector with density exp(-||z|| / b) is p b long and moves a prediction by sqrt(p) b R_x, hence sqrt(p) beta / (eps
    / 2) in each error.
    """
    bound, own = facts.indirect(m, ridge), facts.outcome_range / facts.overlap
    noise = math.sqrt(facts.features) * 2 / facts.epsilon
    outcome, propensity = facts.of_ridge(m, ridge)
    return PlannedNuisances(
        own,
        2 * own,
        facts.overlap,
        math.hypot(outcome, noise * bound.beta_mu),
        math.hypot(propensity, noise * bound.beta_e),
    )


PLANNED: dict[str, Callable[[NuisanceFacts, int, int, float], PlannedNuisances]] = {
    "stability": stability,
    "private_nuisances": private_nuisances,
    "frozen": frozen,
    "fixed": fixed,
}
"""Expectations by guarantee, from facts, scoring records n, training records m and ridge."""


TRAINED = ("stability", "private_nuisances")
"""Guarantees whose nuisances learn from a block of the records."""

_SHARES = tuple(k / 20 for k in range(1, 20))
_RIDGES = tuple(10 ** (k / 6) for k in range(-24, 13))  # 1e-4 to 100


@dataclass(frozen=True)
class RegretBound:
    """Bound of the regret per record, in outcome units, but for probability ``failure``.

    Attributes:
        nuisance_guarantee: What bounds the nuisances' range sensitivity.
        scoring: Records n that score.
        training: Records m that train nuisances.
        policies: M.
        failure: beta.
        facts: Public facts; no regret exceeds their outcome range.
        ridge: lambda of the nuisances; None where none is trained.
        planned: Nuisances, with the L2 errors that are given or expected.
        expected: Whether these two are expectations.
    """

    nuisance_guarantee: str
    scoring: int
    training: int
    policies: int
    failure: float
    facts: NuisanceFacts
    ridge: float | None
    planned: PlannedNuisances
    expected: bool

    @property
    def range_sensitivity(self) -> float:
        """Delta_BR."""
        return self.planned.range_sensitivity

    @property
    def concentration(self) -> float:
        """Term of finitely many scoring records."""
        if self.policies == 1:
            return 0.0
        return self.planned.own * math.sqrt(2 * math.log(2 * (self.policies - 1) / self.failure) / self.scoring)

    @property
    def remainder(self) -> float:
        """Term of wrong nuisances."""
        planned, facts = self.planned, self.facts
        spoiled = facts.actions / planned.least * planned.outcome_error * planned.propensity_error
        return min(spoiled, facts.outcome_range) if self.policies > 1 else 0.0

    @property
    def privacy(self) -> float:
        """Term of the private choice."""
        if self.policies == 1:
            return 0.0
        noise = self.range_sensitivity / (self.scoring * self.facts.epsilon)
        return noise * math.log(2 * self.policies / self.failure)

    @property
    def terms(self) -> dict[str, float]:
        """The three terms by name."""
        return {name: getattr(self, name) for name in ("concentration", "remainder", "privacy")}

    @property
    def total(self) -> float:
        """Sum of the terms, at most the outcome's range."""
        return min(self.size, self.facts.outcome_range)

    @property
    def size(self) -> float:
        """Sum of the terms, which orders bounds beyond the outcome's range too."""
        return sum(self.terms.values())

    @property
    def dominates(self) -> str:
        """Name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)

    @property
    def split(self) -> float | None:
        """Share of the records that train; None where none does."""
        return self.training / (self.training + self.scoring) if self.training else None

    @property
    def advice(self) -> str:
        """What would lessen the largest term, in one line."""
        if self.policies == 1:
            return "one policy: nothing is chosen, so nothing is lost"
        if self.dominates == "concentration":
            fewer = ", a smaller share for training" if self.training else ""
            return f"concentration dominates: more records{fewer}, or a higher overlap; fewer policies help little"
        if self.dominates == "remainder":
            known = "known propensities make it vanish"
            more = "more records for training, or a smaller ridge" if self.training else "better nuisances"
            return f"remainder dominates: {more}; {known}"
        spilled = self.range_sensitivity / (2 * self.planned.own)
        if spilled > 1 + 1e-9:
            return (
                f"privacy dominates: training records make the range {spilled:.3g} "
                "times what scoring records need; a larger ridge, more records for training, or private nuisances "
                "remove it"
            )
        return "privacy dominates: more records, a larger epsilon, or a higher overlap; fewer policies help little"

    def __str__(self) -> str:
        trained = f"m = {self.training}, ridge {self.ridge:.3g}, " if self.ridge is not None else ""
        said = "expected" if self.expected else "given"
        terms = " + ".join(f"{name} {value:.3g}" for name, value in self.terms.items())
        return "\n".join(
            [
                f"{self.nuisance_guarantee}: n = {self.scoring}, {trained}M = {self.policies}, "
                f"epsilon = {self.facts.epsilon:g}, range {self.range_sensitivity:.4g}",
                f"regret per record at most {self.total:.3g} = {terms}, but for probability {self.failure:g}"
                + (" (the outcome's range: it promises nothing)" if self.size >= self.facts.outcome_range else ""),
                f"L2 errors of outcome models and propensities, {said}: {self.planned.outcome_error:.3g}, "
                f"{self.planned.propensity_error:.3g}",
                f"- {self.advice}",
            ]
        )


@dataclass(frozen=True)
class SelectionPlan:
    """Bounds of every guarantee, each with its best split and ridge of a public grid.

    Attributes:
        bounds: By guarantee.
    """

    bounds: dict[str, RegretBound]

    @property
    def best(self) -> RegretBound:
        """The smallest of all."""
        return min(self.bounds.values(), key=lambda bound: bound.size)

    def __str__(self) -> str:
        rows = ["guarantee           regret  concentration  remainder   privacy  split    ridge     range"]
        for name, b in sorted(self.bounds.items(), key=lambda item: item[1].size):
            split = "-" if b.split is None else f"{b.split:.2f}"
            ridge = "-" if b.ridge is None else f"{b.ridge:.3g}"
            rows.append(
                f"{name:<17}{b.total:>9.3g}{b.concentration:>15.3g}{b.remainder:>11.3g}{b.privacy:>10.3g}"
                f"{split:>7}{ridge:>9}{b.range_sensitivity:>10.3g}"
            )
        first = self.best
        facts = f"{first.policies} policies, epsilon = {first.facts.epsilon:g}: regret per record but for probability "
        return "\n".join([facts + f"{first.failure:g}", *rows, f"- {first.nuisance_guarantee}: {first.advice}"])


def regret_bound(
    scoring: int,
    training: int,
    policies: int,
    epsilon: float,
    *,
    overlap: float,
    features: int,
    ridge: float | None = None,
    nuisance_guarantee: str = "stability",
    outcome_range: float = 1.0,
    actions: int = 2,
    radius: float = 1.0,
    failure: float = 0.05,
    errors: tuple[float, float] | None = None,
) -> RegretBound:
    """Work out what regret to expect, and which term of it is the largest.

    Args:
        scoring: Records n that score policies.
        training: Records m that train nuisances; 0 where the guarantee trains none.
        policies: M.
        epsilon: Budget of a block, hence of the choice.
        overlap: zeta, least propensity.
        features: p, coefficients of a linear nuisance model.
        ridge: lambda of the nuisances' mean losses; None takes the best of a grid.
        nuisance_guarantee: ``stability``, ``private_nuisances``, ``frozen`` or ``fixed``.
        outcome_range: R, width of the outcome's bounds.
        actions: K.
        radius: R_x, bound of the features' norm; 1 for normalised ones.
        failure: beta.
        errors: L2 errors of an arm's outcome model (in outcome units) and of a propensity; None takes expectations.

    Raises:
        InputError: A number out of its range, or an unknown guarantee.

    Example:
        >>> facts = dict(overlap=0.1, features=21, nuisance_guarantee="fixed", errors=(0.3, 0.0))
        >>> bound = regret_bound(5000, 0, 160, 1.0, **facts)
        >>> {name: round(value, 4) for name, value in bound.terms.items()}, bound.dominates
        ({'concentration': 0.0592, 'remainder': 0.0, 'privacy': 0.0035}, 'concentration')
    """
    if nuisance_guarantee not in PLANNED:
        raise InputError(f"nuisance_guarantee = {nuisance_guarantee}: choose from {', '.join(PLANNED)}")
    trains = nuisance_guarantee in TRAINED
    n, m = integer("scoring", scoring, least=1), integer("training", training, least=int(trains))
    facts = NuisanceFacts(
        positive("epsilon", epsilon),
        positive("overlap", overlap),
        integer("features", features, least=1),
        integer("actions", actions, least=2),
        positive("outcome_range", outcome_range),
        positive("radius", radius),
    )
    if facts.overlap > 1 / facts.actions:
        raise InputError(f"overlap = {overlap:g}: {actions} propensities add up to one; give at most {1 / actions:.4g}")
    M, beta = integer("policies", policies, least=1), probability("failure", failure, above_zero=True)
    found = []
    for value in _RIDGES if ridge is None else (positive("ridge", ridge),):
        planned = PLANNED[nuisance_guarantee](facts, n, m if trains else 0, value)
        if errors is not None:
            own = _errors(errors)
            planned = replace(planned, outcome_error=own[0], propensity_error=own[1])
        sizes = n, m if trains else 0, M, beta
        found.append(RegretBound(nuisance_guarantee, *sizes, facts, value if trains else None, planned, errors is None))
    return min(found, key=lambda bound: bound.size)


def plan(
    total_records: int,
    policies: int,
    epsilon: float,
    *,
    errors: Mapping[str, tuple[float, float]] | None = None,
    **facts: Any,
) -> SelectionPlan:
    """Find, for every guarantee, the split and the ridge of a grid with the smallest bound of the regret.

    Args:
        total_records: Records in all.
        policies: M.
        epsilon: Budget of a block.
        errors: L2 errors by guarantee, see `regret_bound`; ``{"fixed": (0.3, 0.0)}`` says that propensities are
            known. Expected for the others.
        facts: Further arguments of `regret_bound`.

    Raises:
        InputError: See `regret_bound`; fewer than two records.

    Example:
        >>> suggested = plan(20_000, 160, 1.0, overlap=0.1, features=5)
        >>> sorted(suggested.bounds)
        ['fixed', 'frozen', 'private_nuisances', 'stability']
        >>> 0 < suggested.bounds["stability"].split < 1
        True
    """
    total, errors = integer("total_records", total_records, least=2), errors or {}
    unknown = set(errors) - set(PLANNED)
    if unknown:
        raise InputError(f"errors: {', '.join(sorted(unknown))}: no guarantee; choose from {', '.join(PLANNED)}")
    sizes = sorted({min(max(round(share * total), 1), total - 1) for share in _SHARES})
    bounds = {}
    for name in PLANNED:
        given = {**facts, "nuisance_guarantee": name, "errors": errors.get(name)}
        tried = [regret_bound(total - m, m, policies, epsilon, **given) for m in (sizes if name in TRAINED else [0])]
        bounds[name] = min(tried, key=lambda bound: bound.size)
    return SelectionPlan(bounds)


def _errors(errors: tuple[float, float]) -> tuple[float, float]:
    if len(errors) != 2 or min(number("errors", value) for value in errors) < 0:
        raise InputError(f"errors = {errors}: give two numbers of at least 0, of outcome models and of propensities")
    return float(errors[0]), float(errors[1])
