"""Average effects where the design makes the propensity known: weighted sums of centred outcomes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.composition.records import weight_within
from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.effect_plan import AverageEffectPlan, ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.ratio_of_sums import (
    SCALES,
    SUMS,
    NoisyEstimate,
    RatioOfSums,
    Sums,
    TermRange,
    Total,
    sum_and_squares,
    sums_law,
    upper_bound,
)
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.stacked_records import Batch, Records, make_batch, records_of
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import split_epsilon
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.release.statement import RANDOMISED

SHARES = {"centre": 0.08, "difference": 0.73, "size": 0.05, "spread": 0.14}
"""Parts of the budget; where the size is public, contrast and spread are one event that takes all but the centre's.
About the shortest intervals on generated trials with 500 to 5,000 records, epsilon of 0.5 and 1, outcomes about the
middle and skewed ones, where all are apart."""
_LEAST = 1e-6  # of a private denominator, over the largest
_CENTRE = SHARES["centre"] / (1 - SHARES["size"])


@dataclass(frozen=True)
class DesignFacts:
    """What is public of a sum over records whose propensity the design makes known.

    Attributes:
        n: Number of records.
        estimand: Whose weights and tilt they get; its clip plays no part.
        low: Least propensity of any record.
        high: Largest.
        weight: Mean weight of the records that is expected, v in [0, 1] each; None where all count alike.

    Raises:
        ValueError: Not 0 < low <= high < 1.
    """

    n: int
    estimand: Estimand
    low: float
    high: float
    weight: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1:
            raise ValueError(f"propensities in [{self.low}, {self.high}]")

    @property
    def most(self) -> tuple[float, float]:
        """W_1 and W_0, the largest weights of treated and controls; both are monotone in e."""
        e = torch.tensor([self.low, self.high], dtype=torch.float64)
        return tuple(self.estimand.at(e, torch.full_like(e, z)).amax().item() for z in (1.0, 0.0))  # type: ignore[return-value]

    @property
    def tilts(self) -> tuple[float, float]:
        """Least and largest h(e) = e^(alpha+1) (1-e)^(beta+1), which has one peak."""
        rise, fall = (power + 1 for power in self.estimand.powers)
        peak = rise / (rise + fall) if rise + fall > 0 else self.low
        at = torch.tensor([self.low, self.high, min(max(peak, self.low), self.high)], dtype=torch.float64)
        h = self.estimand.tilt(at)
        return (h.amin().item(), h.amax().item()) if self.low < self.high else (h[0].item(), h[0].item())

    @property
    def sizes(self) -> tuple[float, float]:
        """Least and largest v h(e), what a record adds to the denominator."""
        return self.tilts if self.weight is None else (0.0, self.tilts[1])

    @property
    def public_size(self) -> bool:
        """Whether every record has the same tilt and weight, so that the denominator is public."""
        return self.sizes[0] == self.sizes[1]

    @property
    def mass(self) -> float:
        """Expected sum of the weights."""
        return self.n if self.weight is None else self.n * self.weight

    def clamp(self, e: Tensor) -> Tensor:
        """Return propensities within their public bounds."""
        return e.clamp(self.low, self.high)

    def terms(self, centre: Tensor) -> TermRange:
        """Return the range of a record's term t w (y - c) of the contrast, for centres [runs]; zero is in it."""
        treated, control = self.most
        up = torch.maximum(treated * (1 - centre), control * centre)
        down = torch.maximum(treated * centre, control * (1 - centre))
        return TermRange(-down, up)

    @property
    def largest(self) -> float:
        """Bound of a term of the contrast, whatever the centre."""
        return max(self.most)

    def residual_bound(self, centre: Tensor, effect: Tensor) -> Tensor:
        """Return a bound of |t w (y - c) - tau h|, [runs]."""
        return self.largest * torch.maximum(centre, 1 - centre) + effect.abs() * self.tilts[1]

    def planned_sampling(self, prior: ErrorPrior) -> float:
        r"""Return the planned standard error by sampling, for outcomes in [0, 1].

        .. math:: \frac{h^2}{e (1 - e)} s^2 + h^2 \Big(\frac{(1-e)^3 + e^3}{e (1 - e)} - 1\Big) \tau^2

        is what a record adds to the variance of D, in the mean over both ends of the propensity: s by how outcomes
        differ, tau by an effect that a common centre leaves in both arms; nothing at e = 1/2.
        """
        e = torch.tensor([self.low, self.high], dtype=torch.float64)
        square, left = self.estimand.tilt(e).square() / (e * (1 - e)), (1 - e) ** 3 + e**3 - e * (1 - e)
        variance = self.mass * (square * (prior.deviation**2 + left * prior.effect**2)).mean().item()
        return 2 * math.sqrt(variance) / (self.mass * sum(self.tilts))

    def centre(self, total: Tensor, epsilon: float, size: Tensor | None = None) -> Tensor:
        r"""Return c, [runs], by the released sum of outcomes: their mean, moved to the middle where noise requests it.

        A centre nearer to 1/2 makes the contrast less sensitive, one nearer to the mean makes it vary less. With
        :math:`A = 2 (W_1 + W_0)^2 / \epsilon^2`, what noise adds for c beside the middle is
        :math:`A \max\{c, 1-c\}^2`, and what sampling adds is :math:`n k (\bar y - c)^2`, k the least mean square of a
        weight; c is where their sum is least.

        Args:
            total: Released sum of outcomes, [runs].
            epsilon: Of the contrast.
            size: Released denominator, [runs], where records have weights, of whose sum it tells.
        """
        mass: Tensor | float = self.n
        if size is not None:
            mass = (2 * size / sum(self.tilts)).clamp(_LEAST * self.n, self.n)
        mean = (total / mass).clamp(0, 1)
        noise = 2 * sum(self.most) ** 2 / epsilon**2
        at = torch.tensor([self.low, self.high], dtype=torch.float64)
        square = (self.estimand.tilt(at).square() / (at * (1 - at))).amin().item()
        stay = mass * square / (mass * square + noise)
        below, above = (stay * mean + 1 - stay).clamp_max(0.5), (stay * mean).clamp_min(0.5)
        return torch.where(mean < 0.5, below, above)


def epsilons_of(epsilon: float, facts: DesignFacts) -> dict[str, float]:
    """Return the epsilon of each part.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> found = epsilons_of(1.0, DesignFacts(1000, ATE(0.1), 0.5, 0.5))
        >>> {part: round(value, 4) for part, value in found.items()}
        {'centre': 0.0842, 'sums': 0.9158}
    """
    if facts.public_size:
        return split_epsilon(epsilon, {"centre": _CENTRE, SUMS: 1 - _CENTRE})
    first = {} if facts.weight is None else {"size": SHARES["size"]}  # without which there is no mean outcome
    return split_epsilon(epsilon, first | SHARES)


@dataclass(frozen=True, eq=False)
class CentredSums(RatioOfSums):
    r"""Sums of centred outcomes by a known propensity.

    .. math::
        C = \sum_i y_i, \quad D = \sum_i t_i w_i (y_i - c), \quad N = \sum_i h(e_i), \quad
        \tau = \mathrm{clip}(D / N, -1, 1), \quad Q = \sum_i (t_i w_i (y_i - c) - \tau h(e_i))^2

    .. math::
        \Delta_C = 1, \quad
        \Delta_D = \max\{W_1 (1 - c), W_0 c\} + \max\{W_1 c, W_0 (1 - c)\}, \quad \Delta_N = h_{max} - h_{min}

    t = 2z - 1. Each has Laplace noise of scale Delta/epsilon for its own epsilon; the centre c follows from C, and the
    sensitivities of D and Q from c and tau. Where N is public, D and the squares of its terms about the middle of their
    range are one event (``sums_mechanism``), in which the squares cost nothing.

    Where records have weights v in [0, 1], all terms are multiplied by them (squares by v^2). The ranges of y and of
    the contrast's terms hold zero, and those of the squares begin there, so that only the denominator is more
    sensitive, Delta_N = h_max; it is private then, and requested first, for c takes the mean outcome by it.

    Attributes:
        facts: What is public before anything is released.
        epsilon: Of all of it.
    """

    facts: DesignFacts
    epsilon: float

    @cached_property
    def epsilons(self) -> dict[str, float]:
        """Epsilon of each part."""
        return epsilons_of(self.epsilon, self.facts)

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        laws = {part: AddedNoise(LaplaceMechanism(epsilon, 1.0), 1) for part, epsilon in self.epsilons.items()}
        return laws | ({SUMS: sums_law(self.facts.n, self.epsilons[SUMS])} if SUMS in laws else {})

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        facts, n = self.facts, self.facts.n
        zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        if query == "centre":
            return Sums.within("centre", _outcomes, n, (zero, one), 1.0)
        if query == "size":
            ends = facts.sizes
            return Sums.within("size", partial(_tilts, facts), n, (ends[0] * one, ends[1] * one), ends[1])
        centre = self.centre(numbers)
        term, within = partial(contrast, facts, centre), facts.terms(centre)
        if query == SUMS:
            return sum_and_squares(n, term, within, ("difference", "spread"))
        if query == "difference":
            return Sums.within("difference", term, n, within, facts.largest)
        tau = effect(numbers, facts)[0]
        most = facts.residual_bound(centre, tau).square()
        return Sums.within("spread", partial(_squares, facts, centre, tau, most), n, (zero, one), 1.0, unit=most)

    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        facts, centre, scales = self.facts, self.centre(numbers), self.scales(numbers)
        tau, size = effect(numbers, facts)
        if facts.public_size:
            of_places = self.scale(SUMS)
            squares = facts.terms(centre).most_deviations(numbers["difference"], numbers["spread"], facts.n, of_places)
        else:
            most = facts.n * facts.residual_bound(centre, tau).square()
            squares = upper_bound(numbers["spread"], scales["spread"], most)
        noise_n = scales.get("size", torch.zeros_like(tau))
        noise, dominated = (scales["difference"], tau.abs() * noise_n), size <= SCALES * noise_n
        return NoisyEstimate.of_ratio(tau, size, squares.sqrt() / size, noise, numbers, dominated)

    def centre(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """Return c, [runs], by the released sum of outcomes."""
        epsilon = self.epsilons[SUMS] if SUMS in self.epsilons else self.epsilons["difference"]
        size = None if self.facts.weight is None else numbers["size"]
        return self.facts.centre(numbers["centre"], epsilon if self.private else math.inf, size)


def effect(numbers: Mapping[str, Tensor], facts: DesignFacts) -> tuple[Tensor, Tensor]:
    """Return the estimate and its denominator, both [runs], the latter within what n records can have."""
    least, most = (facts.n * size for size in facts.sizes)
    difference = numbers["difference"]
    size = (
        numbers["size"].clamp(max(least, _LEAST * most), most)
        if "size" in numbers
        else torch.full_like(difference, least)
    )
    return (difference / size).clamp(-1, 1), size


def contrast(facts: DesignFacts, centre: Tensor, batch: Batch) -> Tensor:
    """Return t w (y - c) of the records of a batch, [runs, b], for centres [runs]."""
    z, y, e = _rows(batch.z), _rows(batch.y), facts.clamp(_rows(batch.psi[..., 0]))
    treated, control = facts.most
    w = facts.estimand.at(e, z).clamp_min(0)
    w = torch.where(z > 0.5, w.clamp_max(treated), w.clamp_max(control))  # an estimand of the user's may be any
    return _weighted((2 * z - 1) * w * (y - centre[:, None]), batch)


def _outcomes(batch: Batch) -> Tensor:
    return _weighted(_rows(batch.y), batch)


def _weighted(each: Tensor, batch: Batch) -> Tensor:
    """Return terms of records [runs, b] times their weights, the second feature of records that have some."""
    return each * _rows(batch.psi[..., 1]) if batch.psi.shape[-1] > 1 else each


def _tilts(facts: DesignFacts, batch: Batch) -> Tensor:
    tilts = facts.estimand.tilt(facts.clamp(_rows(batch.psi[..., 0]))).clamp(*facts.tilts)
    return _weighted(tilts, batch)


def _squares(facts: DesignFacts, centre: Tensor, tau: Tensor, most: Tensor, batch: Batch) -> Tensor:
    return (contrast(facts, centre, batch) - tau[:, None] * _tilts(facts, batch)).square() / most[:, None]


def _rows(values: Tensor) -> Tensor:
    """Return values of records [b] or [runs, b] as [1 or runs, b]."""
    return values.reshape(-1, values.shape[-1])


@dataclass(frozen=True, eq=False)
class DesignPlan(AverageEffectPlan):
    """The plan of ``CentredSums`` by the propensity that the domain states.

    Raises:
        InputError: The domain states no propensity.
    """

    name: ClassVar[str] = "known_propensity"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Laplace noise on the sum of outcomes, on the sum of centred outcomes weighted by the known propensity, scale "
        "Delta/epsilon with Delta = max(W_1(1-c), W_0 c) + max(W_1 c, W_0(1-c)), on its size and its squares; "
        "covariate_balancing section 3.4"
    )
    assumption: ClassVar[str] = RANDOMISED

    @cached_property
    def facts(self) -> DesignFacts:
        """What is public before anything is released."""
        bounds = known_propensity(self.schema).bounds
        return DesignFacts(self.n, self.estimand, *bounds, self.schema.domain.expected_weight)

    def readout(self, learnt: Mapping[str, Any]) -> CentredSums:
        return CentredSums(self.facts, self.epsilon)

    def total(self, records: Records, learnt: Mapping[str, Any]) -> Total:
        """See ``AverageEffectPlan``; the records' first feature is the known propensity."""
        return records.total

    def own_settings(self) -> dict[str, Any]:
        sums, ends = self.readout({}), {"propensity_range": [self.facts.low, self.facts.high]}
        if self.budget is None:
            return ends
        scale = sums.sums("centre", {}).scales(sums.scale("centre"))["centre"].item()
        return {**super().own_settings(), **ends, "scale_centre": scale}

    def planned(self, prior: ErrorPrior) -> PlannedError:
        facts, noise = self.facts, 0.0
        size = facts.mass * sum(facts.tilts) / 2
        if self.budget is not None:
            typical = {"centre": facts.mass * prior.mean, "difference": prior.effect * size, "size": size}
            numbers = {name: torch.tensor([value], dtype=torch.float64) for name, value in typical.items()}
            scales = self.readout({}).scales(numbers)
            of_size = scales["size"].item() if "size" in scales else 0.0
            noise = laplace(scales["difference"].item() / size, prior.effect * of_size / size)
        return PlannedError("known_propensity", noise, 0.0, facts.planned_sampling(prior))


def known_propensity(schema: TableSchema) -> KnownPropensity:
    """Return the propensity that a domain states.

    Raises:
        InputError: It states none.
    """
    known = schema.domain.known_propensity
    if known is None:
        raise InputError(
            "propensity: the domain states none; give propensity (a number, a column, or one for each level of a "
            "covariate) where the design of the study makes it known, or take effect=covariate_balancing"
        )
    return known


class _Known(FeatureMap):
    """The known propensity as the first feature, so that records of any kind carry it, and their weight as the second.

    Args:
        known: The propensity.
        weighted: Whether records have weights.
    """

    def __init__(self, known: KnownPropensity, weighted: bool) -> None:
        super().__init__()
        self.known, self.weighted = known, weighted

    @property
    def dimension(self) -> int:
        """One, or two with weights."""
        return 1 + self.weighted

    def config(self) -> dict[str, Any]:
        """Return no settings: it is in no release."""
        return {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the propensity at x, [n, 1]."""
        return self.known.at(x)[:, None]


@dataclass(eq=False, repr=False)
class KnownPropensityEffect(AverageEffectLearner):
    r"""Average effect in a trial: outcomes centred at a private mean, weighted by the propensity of its design.

    .. math:: \tau = \frac{\sum_i t_i w_i (y_i - c)}{\sum_i h(e_i)}, \quad t = 2 z - 1, \quad
        w = h(e) \Big(\frac{z}{e} + \frac{1 - z}{1 - e}\Big)

    with the tilt h of the estimand. The mean of the numerator is that of :math:`h(e) \tau(x)` for every c, since
    :math:`E[t w \mid x] = 0`: the centre takes away variance alone. No budget is spent on the propensity, and the
    denominator is public for the ATE, and for all estimands where everybody has the same propensity. In a fair
    trial with outcomes about the middle the noise is .54 of that of the difference in means.

    Guarantee:
        Certified, pure: the epsilon of the sum of outcomes, and given it that of contrast and squares as one event;
        where the denominator is private, those of four sums one after the other, each with Laplace noise for its
        sensitivity given those before. The interval counts sampling and all noise; it rests on the propensity that the
        domain states. Source: Horvitz & Thompson (1952);
        docs/guarantees/average_effects.md.

    Raises:
        InputError: The domain states no propensity.

    Example:
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> domain = Domain([0, 0], [1, 1], 0.0, 1.0, propensity=0.5)
        >>> release = KnownPropensityEffect(domain, PrivacyBudget(4.0, 0.0)).fit(X, A, Y).release()
        >>> bool(abs(release.estimate[0] - 0.4) < 0.05), release.privacy.mechanism
        (True, 'known_propensity')
    """

    mechanism: ClassVar[type[AverageEffectPlan]] = DesignPlan

    needs_equal_records = None
    """See ``PrivateEstimator``."""

    def features(self) -> FeatureMap:
        """Return the known propensity as the first feature, and weights as the second where records have some."""
        return _Known(self._known(), TableSchema.of(self.domain).domain.expected_weight is not None)

    def _of(self, records: CausalData | RecordStream) -> Records:
        """See ``AverageEffectLearner``: with the records' own propensity, and weight, as their features."""
        return records_of(records, self.features(), self.schema_.domain, partial(_batch, self._known()))

    def _known(self) -> KnownPropensity:
        return known_propensity(TableSchema.of(self.domain))


def _batch(known: KnownPropensity, records: CausalData, _: FeatureMap, domain: Domain) -> Batch:
    own = known.of(records).nan_to_num(0.5).clamp(*known.bounds)
    own_weight = weight_within(records, domain)
    weight = [] if own_weight is None else [own_weight]
    return make_batch(records, lambda x: torch.stack([own, *weight], 1), domain)
