"""The error that an average effect is planned to have, from public facts and a stated prior alone."""

import math
from dataclasses import dataclass, replace

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.ratio_of_sums import Total
from torchdpcate.estimators.average.weighted import EffectEstimator, EffectFacts, ReleasedRanges, Weighted
from torchdpcate.estimators.planned_noise import TYPICAL_RESIDUAL

LARGE = 0.1
"""Planned error, as a share of the outcome's range, above which an estimate is of little use."""
BETTER = 0.7
"""Share of a large planned error below which another estimand's is worth naming."""
HALF = 0.5
"""Share of the treated that plans expect where no propensity is known."""
TYPICAL_EFFECT = 0.25
"""Effect that plans expect, in outcome ranges, where noise in a denominator shows as far as there is one."""
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


def planned_size(facts: EffectFacts, treated: float) -> float:
    """Return the planned denominator N, everybody's propensity being the share of the treated."""
    e = torch.tensor([treated, treated], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return facts.n * (torch.stack([e[0], 1 - e[1]]) * facts.estimand.size(facts.estimand.at(e, z), z)).sum().item()


def planned_sampling(facts: EffectFacts, prior: ErrorPrior) -> float:
    """Return the planned standard error by sampling, for outcomes in [0, 1]."""
    e = torch.tensor([prior.treated, prior.treated], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    squares = (torch.stack([e[0], 1 - e[1]]) * facts.estimand.at(e, z).square()).sum().item()
    return prior.deviation * math.sqrt(prior.spread * facts.n * squares) / planned_size(facts, prior.treated)


def with_typical_ranges(facts: EffectFacts, reach: float) -> EffectFacts:
    """Return the facts with the ranges of weights that typical coefficients leave; those of a release are narrower.

    Args:
        facts: Public facts, before there are coefficients.
        reach: Least propensity that coefficients are expected to have over the domain.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> facts = with_typical_ranges(EffectFacts(100, ATE(0.01), 0.3, 0.7), reach=0.25)
        >>> [round(end, 9) for end in facts.ranges.stated["treated_weights"]]
        [1.333333333, 4.0]
    """
    reach = max(reach, facts.estimand.overlap)
    ends = torch.tensor([reach, 1 - reach], dtype=torch.float64)
    treated, control = (facts.estimand.at(ends, torch.full_like(ends, z)).sort().values for z in (1.0, 0.0))
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (facts.low, facts.high))
    ranges = ReleasedRanges((treated[:1], treated[1:]), (control[:1], control[1:]), (low, high))
    return replace(facts, ranges=ranges)


def typical_records(facts: EffectFacts, treated: float = HALF) -> Total:
    """Return what sums over n typical records: half of them treated, outcomes a quarter of their range off the middle.

    Args:
        facts: Public facts.
        treated: Share of the treated, and everybody's propensity.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> total = typical_records(EffectFacts(100, ATE(0.1)))
        >>> total(lambda batch: batch.w.sum(-1, keepdim=True)).item()
        200.0
    """
    sides = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    e = torch.full_like(sides, min(max(treated, facts.estimand.overlap), 1 - facts.estimand.overlap))

    def arm(z: float) -> Weighted:
        every, y = torch.full_like(sides, z), HALF + TYPICAL_RESIDUAL * sides + TYPICAL_EFFECT * (z - HALF)
        return Weighted(every[None], y[None], facts.estimand.at(e, every)[None], torch.full_like(every, HALF)[None])

    arms = [(arm(1.0), treated), (arm(0.0), 1 - treated)]
    half = facts.n / len(sides)
    return lambda exact: torch.stack([exact(batch) * (share * half) for batch, share in arms]).sum(0)


def planned_noise(estimator: EffectEstimator, treated: float) -> float:
    """Return the standard deviation that noise in the sums gives an estimate of outcomes in [0, 1].

    Args:
        estimator: Of sums over weighted records.
        treated: Share of the treated.
    """
    facts = estimator.facts
    found = estimator.planned(typical_records(facts, treated))
    # a denominator that noise dominates still is at least what public weights make it, where there is such a bound
    bounded = estimator.centred and facts.estimand.size_range[0] > 0
    return math.inf if bool(found.noise_dominated[0]) and not bounded else found.noise[0].item()
