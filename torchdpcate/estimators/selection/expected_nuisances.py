"""Expectations of how wrong nuisances will be, for planning alone: nothing that is released depends on them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torchdpcate.nuisance.arms.stability import IndirectBound, indirect_bound


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
