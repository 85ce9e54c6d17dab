"""Sums of centred outcomes weighted by a known propensity, released with noise, and what follows from them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.records import Batch, Records
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balanced_difference import SCALES, SUMS, UPPER
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.planned_error import ErrorPrior
from torchdpcate.estimators.average.sum_and_squares import TermRange, sum_and_half_squares, sums_mechanism
from torchdpcate.laws import AddedNoise
from torchdpcate.plan import Query
from torchdpcate.privacy.budget import split_epsilon
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.release import Release
from torchdpcate.release.statement import RANDOMISED

SHARES = {"centre": 0.08, "difference": 0.73, "size": 0.05, "spread": 0.14}
"""Parts of the budget; where the size is public, contrast and spread are one event that takes all but the centre's.
About the shortest intervals on generated trials with 500 to 5,000 records, epsilon of 0.5 and 1, outcomes about the
middle and skewed ones, where all are apart."""
_ALONE = ("centre", "difference", "size")  # whose numbers are answers times what one record moves them by
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


def noise_scales(facts: DesignFacts, epsilons: Mapping[str, float], centre: Tensor) -> dict[str, Tensor]:
    """Return the scales of the noise in the sums but the spread, [runs] each, at centres [runs]."""
    laws, moved = laws_of(facts, epsilons), facts.sensitivities(centre)
    scales = {part: moved[part] * laws[part].scale for part in moved if part in laws}
    if SUMS in laws:
        scales["difference"] = facts.terms(centre).half * laws[SUMS].scale
    return scales


def laws_of(facts: DesignFacts, epsilons: Mapping[str, float]) -> dict[str, AddedNoise]:
    """Return the noise of each part, in units in which one record moves it by 1; of sums together, of places."""
    n = float(facts.n)
    laws = {part: AddedNoise(LaplaceMechanism(epsilon, 1.0), 1, n) for part, epsilon in epsilons.items()}
    if SUMS in epsilons:
        laws[SUMS] = AddedNoise(sums_mechanism(facts.n, epsilons[SUMS]), 2, n)
    else:
        least, most = facts.tilts
        laws["size"] = replace(laws["size"], bound=n * most / (most - least))
    return laws


def spread_unit(facts: DesignFacts) -> float:
    """Return what one record moves the spread by where it is charged alone, over its largest term."""
    return 1 + sum_grid(facts.n, 1.0)


def _rows(values: Tensor) -> Tensor:
    """Return values of records [b] or [runs, b] as [1 or runs, b]."""
    return values.reshape(-1, values.shape[-1])


def _tilt(batch: Batch, facts: DesignFacts) -> Tensor:
    return facts.estimand.tilt(facts.clamp(_rows(batch.psi[..., 0]))).clamp(*facts.tilts)


@dataclass(frozen=True, eq=False)
class CentredSums(EffectPlan):
    r"""The plan of sums of centred outcomes by a known propensity.

    .. math::
        C = \sum_i y_i, \quad D = \sum_i t_i w_i (y_i - c), \quad N = \sum_i h(e_i), \quad
        \tau = \mathrm{clip}(D / N, -1, 1), \quad Q = \sum_i (t_i w_i (y_i - c) - \tau h(e_i))^2

    t = 2z - 1. Each has Laplace noise of scale Delta/epsilon for its own epsilon; the centre c follows from C, and the
    sensitivities of D and Q from c and tau. Where N is public, D and the squares of its terms about the middle of their
    range are one event (``sums_mechanism``), in which the squares cost nothing.

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
        return DesignFacts(self.n, self.estimand, *known_propensity(self.schema).bounds)

    @cached_property
    def epsilons(self) -> dict[str, float]:
        """Epsilon of each part."""
        assert self.budget is not None
        return epsilons_of(self.budget.epsilon, self.facts)

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: the sum of outcomes, and given it the others."""
        return {} if self.budget is None else self.summed(laws_of(self.facts, self.epsilons))

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        constants: dict[str, Any] = {"propensity_range": [self.facts.low, self.facts.high]}
        if self.budget is None:
            return constants
        half = torch.full((1,), 0.5, dtype=torch.float64)
        scale = self.facts.sensitivities(half)["centre"].item() * self.scale("centre")
        return constants | {f"epsilon_{part}": own for part, own in self.epsilons.items()} | {"scale_centre": scale}

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return {}

    def sums(
        self, records: Records, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``; the records' one feature is the known propensity."""
        n, facts, ask = self.n, self.facts, partial(self.ask_each, session, max(runs, records.sets))

        def sum_of(terms: Callable[[Batch], Tensor], largest: float) -> Tensor:
            return records.total(lambda batch: exact_sum(terms(batch), n, largest)[:, None])

        half = torch.full((1,), 0.5, dtype=torch.float64)
        answers = {"centre": ask("centre", sum_of(lambda batch: _rows(batch.y), 1.0) / self._moved("centre", half))}
        centre = self._centre(answers)
        if facts.public_size:
            within = facts.terms(centre)
            exact = records.total(lambda batch: sum_and_half_squares(within.places(contrast(batch, facts, centre)), n))
            return {**answers, SUMS: ask(SUMS, exact)}
        exact = sum_of(lambda batch: contrast(batch, facts, centre), facts.largest)
        answers["difference"] = ask("difference", exact / self._moved("difference", centre))
        exact = sum_of(lambda batch: _tilt(batch, facts), facts.tilts[1])
        answers["size"] = ask("size", exact / self._moved("size", centre))
        tau = effect(self._numbers(answers), facts)[0]
        most = facts.reach(centre, tau).square()

        def squares(batch: Batch) -> Tensor:
            each = (contrast(batch, facts, centre) - tau[:, None] * _tilt(batch, facts)).square()
            return each / most[:, None]

        return {**answers, "spread": ask("spread", sum_of(squares, 1.0) / spread_unit(facts))}

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        facts, sums, centre = self.facts, self._numbers(answers), self._centre(answers)
        scales = noise_scales(facts, self.epsilons, centre)
        tau, size = effect(sums, facts)
        if SUMS in answers:
            scale = self.scale(SUMS)
            squares = facts.terms(centre).most_deviations(sums["difference"], sums["spread"], self.n, scale)
        else:
            most = facts.reach(centre, tau).square()
            upper = sums["spread"] + UPPER * spread_unit(facts) * self.scale("spread") * most
            squares = upper.clamp_min(0).minimum(self.n * most)
        noise_n = scales["size"] if "size" in scales else torch.zeros_like(tau)
        laplace = torch.stack([scales["difference"] / size, tau.abs() * noise_n / size], 1)
        return NoisyEstimate(tau, squares.sqrt() / size, laplace, None, size <= SCALES * noise_n, size, sums)

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        facts, numbers = self.facts, {k: torch.tensor([v], dtype=torch.float64) for k, v in release.numbers.items()}
        half = torch.full((1,), 0.5, dtype=torch.float64)
        answers = {"centre": self.placed("centre", numbers["centre"][:, None] / self._moved("centre", half))}
        centre = self._centre(answers)
        if facts.public_size:
            within = facts.terms(centre)
            places = within.of_places(numbers["difference"], numbers["spread"], self.n)
            shifted = self.n * abs(within.middle / within.half).item()
            return {**answers, SUMS: self.placed(SUMS, places, shifted)}
        for part in ("difference", "size"):
            answers[part] = self.placed(part, numbers[part][:, None] / self._moved(part, centre))
        most = facts.reach(centre, effect(numbers, facts)[0]).square()
        spread = (numbers["spread"] / most)[:, None] / spread_unit(facts)
        return {**answers, "spread": self.placed("spread", spread)}

    def without_noise(self, records: Records) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return without_noise(records, self.facts)

    def _moved(self, part: str, centre: Tensor) -> Tensor:
        """Return the unit of a part, [runs, 1]."""
        return self.facts.sensitivities(centre)[part][:, None]

    def _centre(self, answers: Mapping[str, Tensor]) -> Tensor:
        """Return c, [runs], by the released sum of outcomes."""
        half = torch.full((1,), 0.5, dtype=torch.float64)
        total = (answers["centre"] * self._moved("centre", half))[:, 0]
        return self.facts.centre(total, contrast_epsilon(self.epsilons))

    def _numbers(self, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums that there are, [runs] each, as releases hold them."""
        facts, centre = self.facts, self._centre(answers)
        sums = {part: answers[part][:, 0] * self._moved(part, centre)[:, 0] for part in answers if part in _ALONE}
        if SUMS in answers:
            both = facts.terms(centre).sums(answers[SUMS], self.n)
            return sums | dict(zip(("difference", "spread"), both, strict=True))
        if "spread" in answers:
            most = facts.reach(centre, effect(sums, facts)[0]).square()
            sums["spread"] = answers["spread"][:, 0] * spread_unit(facts) * most
        return sums


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
