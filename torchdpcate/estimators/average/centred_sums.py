"""Sums of centred outcomes weighted by a known propensity, released with noise, and what follows from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.erm.records import Batch, Records
from torchdpcate.estimators.average.balanced_difference import SCALES, SUMS, UPPER
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior
from torchdpcate.estimators.average.stated import (
    AverageMechanism,
    ContradictionError,
    Recomputed,
    StatedEffect,
    exactly,
    states,
)
from torchdpcate.estimators.average.sum_and_squares import TermRange, sum_and_half_squares, sums_mechanism
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.privacy.budget import as_number, split_epsilon
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.holds_if import RANDOMISED

SHARES = {"centre": 0.08, "difference": 0.73, "size": 0.05, "spread": 0.14}
"""Parts of the budget; where the size is public, contrast and spread are one event that takes all but the centre's.
About the shortest intervals on generated trials with 500 to 5,000 records, epsilon of 0.5 and 1, outcomes about the
middle and skewed ones, where all are apart."""
_CENTRE = SHARES["centre"] / (1 - SHARES["size"])


@dataclass(frozen=True)
class DesignFacts:
    """What is public of a sum over records whose propensity the design makes known.

    Attributes:
        n: Number of records.
        estimand: Whose weights and tilt they get; its clip plays no part.
        low: Least propensity of any record.
        high: Largest.

    Raises:
        ValueError: Not 0 < low <= high < 1.
    """

    n: int
    estimand: Estimand
    low: float
    high: float

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
    def public_size(self) -> bool:
        """Whether every record has the same tilt, so that the denominator is public."""
        return self.tilts[0] == self.tilts[1]

    def clamp(self, e: Tensor) -> Tensor:
        """Return propensities within their public bounds."""
        return e.clamp(self.low, self.high)

    def sensitivities(self, centre: Tensor) -> dict[str, Tensor]:
        r"""Return what one record moves each sum by, its step of the exact grid included, [runs] each.

        .. math::
            \Delta_C = 1, \quad
            \Delta_D = \max\{W_1 (1 - c), W_0 c\} + \max\{W_1 c, W_0 (1 - c)\}, \quad \Delta_N = h_{max} - h_{min}

        Args:
            centre: c in [0, 1], [runs].

        Example:
            >>> from torchdpcate.causal.estimand import ATE
            >>> facts = DesignFacts(1000, ATE(0.1), 0.5, 0.5)
            >>> moved = facts.sensitivities(torch.tensor([0.5, 0.25], dtype=torch.float64))
            >>> {part: [round(value, 6) for value in of.tolist()] for part, of in moved.items()}
            {'centre': [1.0, 1.0], 'difference': [2.0, 3.0], 'size': [0.0, 0.0]}
        """
        one, width = torch.ones_like(centre), self.tilts[1] - self.tilts[0]
        return {
            "centre": one * (1 + sum_grid(self.n, 1.0)),
            "difference": 2 * self.terms(centre).half + sum_grid(self.n, self.largest),
            "size": one * (0.0 if self.public_size else width + sum_grid(self.n, self.tilts[1])),
        }

    def terms(self, centre: Tensor) -> TermRange:
        """Return the range of a record's term t w (y - c) of the contrast, for centres [runs]."""
        treated, control = self.most
        up = torch.maximum(treated * (1 - centre), control * centre)
        down = torch.maximum(treated * centre, control * (1 - centre))
        return TermRange(-down, up)

    @property
    def largest(self) -> float:
        """Bound of a term of the contrast, whatever the centre."""
        return max(self.most)

    def reach(self, centre: Tensor, effect: Tensor) -> Tensor:
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
        variance = self.n * (square * (prior.deviation**2 + left * prior.effect**2)).mean().item()
        return 2 * math.sqrt(variance) / (self.n * sum(self.tilts))

    def centre(self, total: Tensor, epsilon: float) -> Tensor:
        r"""Return c, [runs], by the released sum of outcomes: their mean, moved to the middle where noise asks for it.

        A centre nearer to 1/2 makes the contrast less sensitive, one nearer to the mean makes it vary less. With
        :math:`A = 2 (W_1 + W_0)^2 / \epsilon^2`, what noise adds for c beside the middle is
        :math:`A \max\{c, 1-c\}^2`, and what sampling adds is :math:`n k (\bar y - c)^2`, k the least mean square of a
        weight; c is where their sum is least.

        Args:
            total: Released sum of outcomes, [runs].
            epsilon: Of the contrast.
        """
        mean = (total / self.n).clamp(0, 1)
        noise = 2 * sum(self.most) ** 2 / epsilon**2
        at = torch.tensor([self.low, self.high], dtype=torch.float64)
        square = (self.estimand.tilt(at).square() / (at * (1 - at))).amin().item()
        stay = self.n * square / (self.n * square + noise)
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
    return split_epsilon(epsilon, {"centre": _CENTRE, SUMS: 1 - _CENTRE} if facts.public_size else SHARES)


def unit_scale(epsilon: float) -> float:
    """Return the scale of the noise in a sum of sensitivity 1 at this epsilon."""
    return LaplaceMechanism(epsilon, 1.0).released_scale(1)


def release_centred(
    records: Records, facts: DesignFacts, epsilons: Mapping[str, float], session: FitSession, runs: int = 1
) -> NoisyEstimate:
    r"""Pay for the sums one after the other, and conclude.

    .. math::
        C = \sum_i y_i, \quad D = \sum_i t_i w_i (y_i - c), \quad N = \sum_i h(e_i), \quad
        \tau = \mathrm{clip}(D / N, -1, 1), \quad Q = \sum_i (t_i w_i (y_i - c) - \tau h(e_i))^2

    t = 2z - 1. Each has Laplace noise of scale Delta/epsilon for its own epsilon; the centre c follows from C, and the
    sensitivities of D and Q from c and tau. Where N is public, D and the squares of its terms about the middle of their
    range are one event (``sums_mechanism``), in which the squares cost nothing.

    Args:
        records: One data set, or several side by side; its one feature is the known propensity.
        facts: Public facts.
        epsilons: Of each part.
        session: Pays, and draws the noise.
        runs: How many runs on one data set.
    """
    runs, noise = max(runs, records.sets), session.noise

    def add_noise(part: str, exact: Tensor, unit: Tensor) -> Tensor:
        """Return a sum [runs] with noise; the unit is its sensitivity."""
        mechanism = LaplaceMechanism(epsilons[part], 1.0)
        session.pay(mechanism.event, part=part)
        value = (exact.expand(runs) / unit)[:, None]
        return noise.released(mechanism.add_noise(value, noise)[:, 0] * unit)

    ones = torch.ones(runs, dtype=torch.float64)
    n, moved = facts.n, facts.sensitivities(0.5 * ones)
    total = records.total(lambda batch: exact_sum(_rows(batch.y), n, 1.0)[:, None])[:, 0]
    sums = {"centre": add_noise("centre", total, moved["centre"])}
    centre = facts.centre(sums["centre"], contrast_epsilon(epsilons))
    if facts.public_size:
        sums |= _release_together(records, facts, centre, epsilons[SUMS], session)
        return conclude(sums, facts, epsilons)
    moved = facts.sensitivities(centre)
    exact = records.total(lambda batch: exact_sum(contrast(batch, facts, centre), n, facts.largest)[:, None])[:, 0]
    sums["difference"] = add_noise("difference", exact, moved["difference"])
    exact = records.total(lambda batch: exact_sum(_tilt(batch, facts), n, facts.tilts[1])[:, None])[:, 0]
    sums["size"] = add_noise("size", exact, moved["size"])
    tau = effect(sums, facts)[0]
    most = facts.reach(centre, tau).square()

    def squares(batch: Batch) -> Tensor:
        each = (contrast(batch, facts, centre) - tau[:, None] * _tilt(batch, facts)).square()
        return exact_sum(each / most[:, None], n, 1.0)[:, None]

    spread = records.total(squares)[:, 0]
    sums["spread"] = add_noise("spread", spread, ones * (1 + sum_grid(n, 1.0))) * most
    return conclude(sums, facts, epsilons)


def _release_together(
    records: Records, facts: DesignFacts, centre: Tensor, epsilon: float, session: FitSession
) -> dict[str, Tensor]:
    """Pay for the contrast and the squares of its terms about the middle, and return both, [runs] each."""
    n, noise, within = facts.n, session.noise, facts.terms(centre)
    mechanism = sums_mechanism(n, epsilon)
    session.pay(mechanism.event, part=SUMS)
    exact = records.total(lambda batch: sum_and_half_squares(within.places(contrast(batch, facts, centre)), n))
    noisy = noise.released(mechanism.add_noise(exact, noise))
    return dict(zip(("difference", "spread"), within.sums(noisy, n), strict=True))


def contrast_epsilon(epsilons: Mapping[str, float]) -> float:
    """Return the epsilon of the contrast, alone or with its squares."""
    return epsilons[SUMS] if SUMS in epsilons else epsilons["difference"]


def without_noise(records: Records, facts: DesignFacts) -> NoisyEstimate:
    """Return the estimate from the sums as they are, centred at the mean. The curator's, never to be published."""
    n = facts.n
    total = records.total(lambda batch: exact_sum(_rows(batch.y), n, 1.0)[:, None])[:, 0]
    centre = (total / n).clamp(0, 1)
    sums = {
        "centre": total,
        "difference": records.total(lambda batch: contrast(batch, facts, centre).sum(-1, keepdim=True))[:, 0],
        "size": records.total(lambda batch: _tilt(batch, facts).sum(-1, keepdim=True))[:, 0],
    }
    tau, size = effect(sums, facts)
    square = records.total(
        lambda batch: (contrast(batch, facts, centre) - tau[:, None] * _tilt(batch, facts)).square().sum(-1)[:, None]
    )[:, 0]
    none = torch.zeros(len(tau), 0, dtype=torch.float64)
    never = torch.zeros_like(tau, dtype=torch.bool)
    return NoisyEstimate(tau, square.sqrt() / size, none, None, never, size, sums)


def contrast(batch: Batch, facts: DesignFacts, centre: Tensor) -> Tensor:
    """Return t w (y - c) of the records of a batch, [runs, b], for centres [runs]."""
    z, y, e = _rows(batch.z), _rows(batch.y), facts.clamp(_rows(batch.psi[..., 0]))
    treated, control = facts.most
    w = facts.estimand.at(e, z).clamp_min(0)
    w = torch.where(z > 0.5, w.clamp_max(treated), w.clamp_max(control))  # an estimand of the user's may be any
    return (2 * z - 1) * w * (y - centre[:, None])


def effect(sums: Mapping[str, Tensor], facts: DesignFacts) -> tuple[Tensor, Tensor]:
    """Return the estimate and its denominator, both [runs], the latter within what n records can have."""
    least, most = (facts.n * tilt for tilt in facts.tilts)
    size = sums["size"].clamp(least, most) if "size" in sums else torch.full_like(sums["difference"], least)
    return (sums["difference"] / size).clamp(-1, 1), size


def conclude(sums: Mapping[str, Tensor], facts: DesignFacts, epsilons: Mapping[str, float]) -> NoisyEstimate:
    """Return the estimate and the law of its error by released sums alone; see ``release_centred``."""
    centre = facts.centre(sums["centre"], contrast_epsilon(epsilons))
    scales = noise_scales(facts, epsilons, centre)
    tau, size = effect(sums, facts)
    if SUMS in epsilons:
        scale = sums_mechanism(facts.n, epsilons[SUMS]).released_scale(2)
        squares = facts.terms(centre).most_deviations(sums["difference"], sums["spread"], facts.n, scale)
    else:
        most = facts.reach(centre, tau).square()
        squares = (sums["spread"] + UPPER * spread_scale(facts, epsilons) * most).clamp_min(0).minimum(facts.n * most)
    noise_n = scales["size"] if "size" in scales else torch.zeros_like(tau)
    laplace = torch.stack([scales["difference"] / size, tau.abs() * noise_n / size], 1)
    dominated = size <= SCALES * noise_n
    return NoisyEstimate(tau, squares.sqrt() / size, laplace, None, dominated, size, dict(sums))


def noise_scales(facts: DesignFacts, epsilons: Mapping[str, float], centre: Tensor) -> dict[str, Tensor]:
    """Return the scales of the noise in the sums but the spread, [runs] each, at centres [runs]."""
    moved = facts.sensitivities(centre)
    scales = {part: moved[part] * unit_scale(epsilons[part]) for part in moved if part in epsilons}
    if SUMS in epsilons:
        scales["difference"] = facts.terms(centre).half * sums_mechanism(facts.n, epsilons[SUMS]).released_scale(2)
    return scales


def spread_scale(facts: DesignFacts, epsilons: Mapping[str, float]) -> float:
    """Return the scale of the noise in the spread where it is charged alone, in units of its largest term."""
    return (1 + sum_grid(facts.n, 1.0)) * unit_scale(epsilons["spread"])


def _rows(values: Tensor) -> Tensor:
    """Return values of records [b] or [runs, b] as [1 or runs, b]."""
    return values.reshape(-1, values.shape[-1])


def _tilt(batch: Batch, facts: DesignFacts) -> Tensor:
    return facts.estimand.tilt(facts.clamp(_rows(batch.psi[..., 0]))).clamp(*facts.tilts)


class CentredSums(AverageMechanism):
    """Sums of centred outcomes by a known propensity."""

    name: ClassVar[str] = "known_propensity"
    formula: ClassVar[str] = (
        "Laplace noise on the sum of outcomes, on the sum of centred outcomes weighted by the known propensity, scale "
        "Delta/epsilon with Delta = max(W_1(1-c), W_0 c) + max(W_1 c, W_0(1-c)), on its size and its squares; "
        "covariate_balancing section 3.4"
    )
    numbers: ClassVar[Mapping[str, str]] = {part: part for part in SHARES}
    states: ClassVar[Stated] = states(
        "propensity_range", *(f"epsilon_{part}" for part in (*SHARES, SUMS)), "scale_centre"
    )
    rests_on: ClassVar[str] = RANDOMISED

    @classmethod
    def numbers_in(cls, stated: StatedEffect) -> Mapping[str, str | None]:
        """See ``AverageMechanism``: no size where it is public, and then sums that are one event."""
        together = {"centre": "centre", "difference": SUMS, "spread": SUMS}
        return together if cls.facts_of(stated).public_size else cls.numbers

    @classmethod
    def facts_of(cls, stated: StatedEffect) -> DesignFacts:
        """Return the public facts of a release.

        Raises:
            ContradictionError: Its range of propensities is none.
        """
        try:
            low, high = map(as_number, stated.public["propensity_range"])
            return DesignFacts(stated.n, stated.estimand, low, high)
        except (TypeError, ValueError):
            raise ContradictionError("its propensity_range is none") from None

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``."""
        facts, sums = cls.facts_of(stated), stated.sums()
        known = stated.release.domain.known_propensity
        if known is None or tuple(known.bounds) != (facts.low, facts.high):
            raise ContradictionError("its propensity_range is not that of its domain")
        epsilons = {part: stated.epsilon(part) for part in cls.numbers_in(stated).values() if part is not None}
        found = conclude(sums, facts, epsilons)
        centre = facts.centre(sums["centre"], contrast_epsilon(epsilons))
        scales = {part: scale.item() for part, scale in noise_scales(facts, epsilons, centre).items()}
        if SUMS in epsilons:
            half = facts.terms(centre).half.item()
            spread = facts.n * half**2, 2 * half * scales["difference"]
        else:
            most = facts.reach(centre, found.estimate).square().item()
            spread = facts.n * most, spread_scale(facts, epsilons) * most
        reaches = {
            "centre": (facts.n, scales["centre"]),
            "difference": (facts.n * facts.largest, scales["difference"]),
            "spread": spread,
            **({"size": (facts.n * facts.tilts[1], scales["size"])} if "size" in scales else {}),
        }
        return Recomputed(found, exactly(public_constants(facts, epsilons)), reaches)


def public_constants(facts: DesignFacts, epsilons: Mapping[str, float]) -> dict[str, Any]:
    """Return the noise scales that are public before anything is released."""
    half = torch.full((1,), 0.5, dtype=torch.float64)
    return {"scale_centre": noise_scales(facts, epsilons, half)["centre"].item()}
