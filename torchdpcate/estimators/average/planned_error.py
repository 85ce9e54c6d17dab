"""The error that an average effect is planned to have, from public facts and a stated prior alone."""

import math
from dataclasses import dataclass, replace

from torchdpcate.data.domain import Domain

LARGE = 0.1
"""Planned error, as a share of the outcome's range, above which an estimate is of little use."""
BETTER = 0.7
"""Share of a large planned error below which another estimand's is worth naming."""
_DEVIATIONS = {"binary": 0.45, "count": 0.15}
_DEVIATION = 0.2  # of an outcome of any other kind


@dataclass(frozen=True)
class ErrorPrior:
    """What a plan takes for what only the records know; shares of the outcome's range.

    Attributes:
        mean: Mean outcome, from the lower bound.
        deviation: Standard deviation of outcomes about what an estimate adjusts for.
        effect: Size of the effect.
        confounding: Size of what confounds, which noise in the weights leaves at most.
        treated: Share of the treated, where the design does not state it.
        slope: How far each of the outcome model's slopes is off after a private fit, which multiplies an imbalance.
        spread: Mean of 1/(4 e (1 - e)) over people where the propensity is not known: 1 at e = 1/2 for everybody.
        reach: Least propensity that a private fit releases where the overlap bound lets it be smaller.
        product: What the errors of private nuisances add to a doubly robust score, times n epsilon over the number of
            coefficients; found by simulation (``experiments/average_effects/defaults.md``).
        furthest: Most that they add.

    Example:
        >>> ErrorPrior.of(Domain([0.0], [1.0], 0.0, 1.0)).deviation
        0.2
    """

    mean: float = 0.5
    deviation: float = _DEVIATION
    effect: float = 0.1
    confounding: float = 0.05
    treated: float = 0.5
    slope: float = 0.07
    spread: float = 1.2
    reach: float = 0.1
    product: float = 3.5
    furthest: float = 0.25

    @classmethod
    def of(cls, domain: Domain) -> "ErrorPrior":
        """Return the prior for a domain: the deviation by the outcome's kind, the treated by a known propensity."""
        prior = cls(deviation=_DEVIATIONS.get(domain.outcome_kind, _DEVIATION))
        known = domain.known_propensity
        return prior if known is None else replace(prior, treated=sum(known.bounds) / 2)


@dataclass(frozen=True)
class PlannedError:
    r"""Parts of the planned standard error of an estimate, in outcome units, and what it leaves out.

    .. math:: \text{total} = \min\{\sqrt{\text{noise}^2 + \text{nuisances}^2 + \text{sampling}^2},\; R\}

    Attributes:
        effect: Name of the estimator, as ``effect=`` has it.
        noise: Of the privacy noise in the sums that the estimate is made of.
        nuisances: Of the noise in private fits, as far as it moves the estimate.
        sampling: Of the records, by the prior.
        range: R, the outcome's range.
        bias: What is counted nowhere, in words; None where there is nothing but what ``assumptions`` names.

    Example:
        >>> PlannedError("known_propensity", 0.03, 0.0, 0.04).total
        0.05
    """

    effect: str
    noise: float
    nuisances: float
    sampling: float
    range: float = 1.0
    bias: str | None = None

    @property
    def total(self) -> float:
        """All parts together, at most the outcome's range."""
        return min(math.hypot(self.noise, self.nuisances, self.sampling), self.range)

    def words(self, unit: float) -> str:
        """Return the planned error in words, beside the outcome's range."""
        return (
            f"the planned standard error of effect={self.effect} is {self.total:.3g}, "
            f"{self.total / unit:.0%} of the outcome's range"
        )

    def in_units(self, unit: float) -> "PlannedError":
        """Return that of outcomes scaled to [0, 1] in the outcome's units."""
        return replace(
            self,
            noise=unit * self.noise,
            nuisances=unit * self.nuisances,
            sampling=unit * self.sampling,
            range=unit * self.range,
        )


def laplace(*scales: float) -> float:
    """Return the standard deviation of a sum of independent Laplace noises of these scales."""
    return math.sqrt(2) * math.hypot(*scales)
