"""How a plan of Gaussian events divides mu^2 among its steps."""

import math
from dataclasses import dataclass

from torchdpcate.composition.constants import PlanConstants, RuleConstants

QUANTILES = ("centre", "outcome scale", "residual scale")
"""Steps that find a private quantile."""
MATRIX, COUNTS, CORRECTION, AVERAGE = (f"interval {name}" for name in ("matrix", "counts", "correction", "average"))
"""Steps that intervals take."""
ORDER = (
    *("centre", "outcome scale", "screening", "moments", "outcome curvatures", "outcome"),
    *("propensity curvatures", "propensity", "effect curvatures", "effect", MATRIX, COUNTS, CORRECTION, AVERAGE),
)
"""Steps in the order in which they are paid; a residual scale may follow any of the outcome's."""


@dataclass(frozen=True)
class Division:
    """Shares of mu^2 by constants and public facts.

    Attributes:
        constants: Of the plan.
        size: N mu.
        quantiles: Steps that find a private quantile.
        known_propensity: Whether no step estimates the propensity.
        intervals: Whether there are the steps that intervals take.

    Example:
        >>> shares = Division(PlanConstants(), 4_000.0, QUANTILES, True, False).shares(screens=False)
        >>> list(shares)[-2:], round(sum(shares.values()), 9)
        (['outcome', 'effect'], 1.0)
    """

    constants: PlanConstants
    size: float
    quantiles: tuple[str, ...]
    known_propensity: bool
    intervals: bool

    def shares(self, screens: bool) -> dict[str, float]:
        """Return each step's share.

        Args:
            screens: Whether covariates are left out by a private choice.
        """
        constants, left = self.constants, self._left(screens)
        shares = {
            **dict.fromkeys(self.quantiles, self._quantile),
            **({"screening": constants.screening_share} if screens else {}),
            "moments": constants.moment_share,
        }
        regressions = ("outcome", "effect") if self.known_propensity else ("outcome", "propensity", "effect")
        for name in regressions:
            shares[f"{name} curvatures"] = constants.curvature_share / len(regressions)
        if self.intervals:
            shares |= dict(zip((MATRIX, COUNTS, CORRECTION, AVERAGE), constants.interval_shares, strict=True))
        effect = self.effect(screens)
        propensity = 0.0 if self.known_propensity else constants.propensity_share
        shares["outcome"] = (left - effect) * (1 - propensity)
        if propensity:
            shares["propensity"] = (left - effect) * propensity
        return shares | {"effect": effect}

    def effect(self, screens: bool) -> float:
        """Return the effect's share; see ``shares``."""
        constants = self.constants
        outcome = constants.nuisance_share * (1 - constants.propensity_share)
        return self._left(screens) * (1 - outcome if self.known_propensity else 1 - constants.nuisance_share)

    def _left(self, screens: bool) -> float:
        """Return the share that is left for regressions."""
        constants = self.constants
        spent = len(self.quantiles) * self._quantile + constants.moment_share + constants.curvature_share
        spent += sum(constants.interval_shares) * self.intervals
        return 1 - spent - constants.screening_share * screens

    @property
    def _quantile(self) -> float:
        """Share of a private quantile."""
        constants = self.constants
        wanted = constants.quantile_levels / (constants.rank_error * self.size) ** 2
        return min(max(wanted, constants.quantile_shares[0]), constants.quantile_shares[1])


def lean_shares(constants: RuleConstants, known_propensity: bool) -> dict[str, float]:
    """Return each step's share in a lean plan, which has no outcome regression and asks for no curvatures.

    Args:
        constants: Of the plan.
        known_propensity: Whether no step estimates the propensity, one number.

    Example:
        >>> shares = lean_shares(RuleConstants(), known_propensity=True)
        >>> list(shares), round(shares["effect"], 9)
        (['centre', 'outcome scale', 'moments', 'effect'], 0.7)
    """
    shares = dict.fromkeys(QUANTILES[:2], constants.lean_quantile_share) | {"moments": constants.lean_moment_share}
    if not known_propensity:
        shares["propensity"] = constants.lean_propensity_share
    return shares | {"effect": 1 - math.fsum(shares.values())}
