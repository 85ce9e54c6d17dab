"""How a plan of Gaussian events divides mu^2 among its steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchdpcate.composition.constants import PlanConstants, RuleConstants

QUANTILES = ("centre", "outcome scale", "residual scale")
"""Steps that find a private quantile."""
MATRIX, COUNTS, CORRECTION, AVERAGE = (f"interval {name}" for name in ("matrix", "counts", "correction", "average"))
"""Steps that intervals take."""
SCREENING, PROGNOSTIC, MODIFIERS = "screening", "prognostic covariates", "effect modifiers"
PAIRS = "effect pairs"
"""The step that chooses products of a covariate with a step of another."""
CHOICES = (SCREENING, PROGNOSTIC, MODIFIERS)
"""Steps that choose covariates."""
WINDOWS = "windows"
"""The step that finds windows about most values of each covariate."""
HALVINGS = 8
"""Noisy counts by which each of their quantiles is found."""
ORDER = (
    *("centre", "outcome scale", SCREENING, WINDOWS, "moments", PROGNOSTIC, "outcome curvatures", "outcome"),
    *("propensity curvatures", "propensity", MODIFIERS, PAIRS, "effect curvatures", "effect"),
    *(MATRIX, COUNTS, CORRECTION, AVERAGE),
)
"""Steps in the order in which they are paid; a residual scale may follow any of the outcome's."""


def rank_noise(numbers: int, mu: float, n: int) -> float:
    r"""Return the standard deviation of the noise of a quantile's rank, over n.

    .. math:: \sqrt{2 q \cdot 8} / (n \mu)

    One record moves the counts of two quantiles of each of q covariates by one, :math:`\sqrt{2q}` in all.

    Args:
        numbers: q, of covariates that have windows.
        mu: Of the step.
        n: Of records.

    Example:
        >>> round(rank_noise(22, 0.0657, 4_000), 3)
        0.071
    """
    return math.sqrt(2 * numbers * HALVINGS) / (mu * n)


@dataclass(frozen=True)
class Division:
    """Shares of mu^2 by constants and public facts.

    Attributes:
        constants: Of the plan.
        size: N mu.
        quantiles: Steps that find a private quantile.
        known_propensity: Whether no step estimates the propensity.
        intervals: Whether there are the steps that intervals take.
        windows: How many covariates are scaled by private windows; None where that of all is by their public ranges.
        pairs: Whether products of two covariates are chosen for the effect.

    Example:
        >>> shares = Division(PlanConstants(), 4_000.0, QUANTILES, True, False).shares(())
        >>> list(shares)[-2:], round(sum(shares.values()), 9)
        (['outcome', 'effect'], 1.0)
    """

    constants: PlanConstants
    size: float
    quantiles: tuple[str, ...]
    known_propensity: bool
    intervals: bool
    windows: int | None = None
    pairs: bool = False

    def shares(self, choices: Sequence[str]) -> dict[str, float]:
        """Return each step's share.

        Args:
            choices: Steps that choose covariates, by even shares; none where all are kept.
        """
        constants, left = self.constants, self._left(bool(choices))
        shares = {
            **dict.fromkeys(self.quantiles, self._quantile),
            **{choice: constants.screening_share / len(choices) for choice in choices},
            **({WINDOWS: self._windows} if self.windows else {}),
            "moments": constants.moment_share,
            **({PAIRS: constants.pair_share} if self.pairs else {}),
        }
        regressions = ("outcome", "effect") if self.known_propensity else ("outcome", "propensity", "effect")
        for name in regressions:
            shares[f"{name} curvatures"] = constants.curvature_share / len(regressions)
        if self.intervals:
            shares |= dict(zip((MATRIX, COUNTS, CORRECTION, AVERAGE), constants.interval_shares, strict=True))
        effect = self.effect(bool(choices))
        propensity = 0.0 if self.known_propensity else constants.propensity_share
        shares["outcome"] = (left - effect) * (1 - propensity)
        if propensity:
            shares["propensity"] = (left - effect) * propensity
        return shares | {"effect": effect}

    def effect(self, screens: bool) -> float:
        """Return the effect's share.

        Args:
            screens: Whether covariates are left out by a private choice.
        """
        constants, wide = self.constants, screens and self.windows is not None
        nuisances = constants.wide_nuisance_share if wide else constants.nuisance_share
        outcome = nuisances * (1 - constants.propensity_share)
        return self._left(screens) * (1 - outcome if self.known_propensity else 1 - nuisances)

    def _left(self, screens: bool) -> float:
        """Return the share that is left for regressions."""
        constants = self.constants
        spent = len(self.quantiles) * self._quantile + constants.moment_share + constants.curvature_share
        spent += self._windows if self.windows else 0
        spent += constants.pair_share * self.pairs
        spent += sum(constants.interval_shares) * self.intervals
        return 1 - spent - constants.screening_share * screens

    @property
    def _quantile(self) -> float:
        """Share of a private quantile."""
        least, most = self.constants.quantile_shares
        return min(max(self._by_counts(self.constants.quantile_levels), least), most)

    @property
    def _windows(self) -> float:
        """Share of the windows."""
        assert self.windows is not None
        most = self.constants.window_share
        return min(
            max(self._by_counts(2 * self.windows * HALVINGS), min(self.constants.quantile_shares[0], most)), most
        )

    def _by_counts(self, counts: int) -> float:
        """Return the share at which the noise of so many counts is the wanted error of a quantile's rank."""
        return counts / (self.constants.rank_error * self.size) ** 2


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
