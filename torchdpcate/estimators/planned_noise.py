"""The noise to expect in a release, in the outcome's units."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchdpcate._templates import html_table_of
from torchdpcate.data.schema import TableSchema
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level

ASKED = "the plan requests: "
"""How a plan says what it requests."""
OF_EFFECT = "the effect for an average person"
"""What the planned noise of an effect is the noise of."""
TYPICAL_RESIDUAL = 0.25
"""Residual of the outcome that plans expect, in outcome ranges: its 0.9 quantile if outcomes were normal with six
standard deviations between their bounds is 0.27. No guarantee rests on it."""
_MOST_RECORDS, _MOST_EPSILON = 10**9, 1e6
_CLOSE = 1.01  # least n and epsilon are known to one per cent


@dataclass(frozen=True, repr=False)
class PlannedNoise:
    """What public facts say of the noise in a release, before any record is read; nothing is spent.

    Attributes:
        value: Size of the noise in one answer, in outcome units: a standard deviation, or what ``of`` says; NaN where
            public facts do not decide it, and infinite where nothing could be released.
        of: What it is the noise of, in words.
        outcome_range: Largest effect that the outcome's public bounds allow: their width, of rates that per exposure.
        n: Number of records.
        budget: Privacy budget of the release.
        parts: What ``value`` is made of, in outcome units, by name.
        level: Level of the release's guarantee.
        assumes: What the number rests on, in words; no guarantee does.
        left_out: What errs beside the noise that is counted, in words.
        remarks: What else follows from public facts, in words.
        alone: Whether it is noise alone, beside which errors may be larger: no error to expect follows from it.
        inconclusive: Why nothing will be concluded from the release, in one line; None where something may be.
        relative: Error to expect over that of one number for all; None of what is no function of covariates.

    Example:
        >>> noise = PlannedNoise(0.3, "the average effect", 4.0, 1000, PrivacyBudget(1.0, 0.0))
        >>> noise.feasible, noise.line
        (True, 'expected noise 0.3 (outcome units) of a range of 4 at n = 1,000, epsilon = 1, delta = 0')
    """

    value: float
    of: str
    outcome_range: float
    n: int
    budget: PrivacyBudget
    parts: Mapping[str, float] = field(default_factory=dict)
    level: Level = Level.CERTIFIED
    assumes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    alone: bool = False
    inconclusive: str | None = None
    relative: float | None = None

    @classmethod
    def of_parts(
        cls, parts: Mapping[str, float], of: str, outcome_range: float, n: int, budget: PrivacyBudget, **words: Any
    ) -> "PlannedNoise":
        """Return the noise of independent parts: the root of the sum of their squares.

        Args:
            parts: Standard deviations in outcome units, by name.
            of: See the class, also for what follows.
            outcome_range: Width of the outcome's bounds.
            n: Number of records.
            budget: Privacy budget.
            words: Further fields.

        Example:
            >>> PlannedNoise.of_parts({"a": 3.0, "b": 4.0}, "an effect", 9.0, 10, PrivacyBudget(1.0, 0.0)).value
            5.0
        """
        return cls(math.hypot(*parts.values()), of, outcome_range, n, budget, dict(parts), **words)

    @property
    def known(self) -> bool:
        """Whether public facts decide it."""
        return not math.isnan(self.value)

    @property
    def feasible(self) -> bool | None:
        """Whether it is within the outcome's range; None where it is not known."""
        return self.value <= self.outcome_range if self.known else None

    @property
    def line(self) -> str:
        """One line: noise, range, n and budget."""
        return f"{self.size}, epsilon = {self.budget.epsilon:.4g}, delta = {self.budget.delta:.3g}"

    @property
    def size(self) -> str:
        """Noise, range and n, in words."""
        noise = f"expected noise {shown(self.value)} (outcome units)" if self.known else "expected noise not known"
        return f"{noise} of a range of {shown(self.outcome_range, 4)} at n = {self.n:,}"

    def __repr__(self) -> str:
        """Return ``line``."""
        return f"<PlannedNoise: {self.line}>"

    def _repr_html_(self) -> str:
        rows = [
            ("of", self.of),
            ("expected noise", shown(self.value)),
            ("outcome's range", shown(self.outcome_range, 4)),
            ("records", f"{self.n:,}"),
            ("budget", f"epsilon = {self.budget.epsilon:.4g}, delta = {self.budget.delta:.3g}, {self.level.value}"),
            *((name, shown(part)) for name, part in self.parts.items()),
            ("assumes", "; ".join(self.assumes)),
            ("left out", "; ".join(self.left_out)),
            ("remarks", "; ".join(self.remarks)),
        ]
        return html_table_of("PlannedNoise", [(name, value) for name, value in rows if value])

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, fit for JSON: what is not known, or infinite, is None."""
        return {
            "expected_noise": _finite(self.value),
            "of": self.of,
            "outcome_range": self.outcome_range,
            "feasible": self.feasible,
            "n": self.n,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "parts": {name: _finite(part) for name, part in self.parts.items()},
            "level": self.level.value,
            "assumes": list(self.assumes),
            "left_out": list(self.left_out),
            "remarks": list(self.remarks),
        }


def shown(value: float, digits: int = 3) -> str:
    """Return a number of outcome units as it is shown.

    Example:
        >>> shown(0.012345), shown(12_345.6), shown(float("inf")), shown(float("nan"))
        ('0.0123', '12,300', 'too large for any answer', 'not known')
    """
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "too large for any answer"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < 1e9 else f"{rounded:.{digits}g}"


_DEVIATIONS = {"binary": 0.45, "count": 0.15}
_BY_HORIZON, _DEVIATION = 0.3, 1 / 12  # of times up to a horizon, in it; of any other kind in the outcome's range


def stated_deviation(schema: TableSchema) -> float | None:
    """Return the outcome's deviation by public facts: as stated, or of scores that are equally likely; None else.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> stated_deviation(TableSchema.from_domain(Domain([0], [1], 0, 60, outcome_sd=6)))
        6.0
    """
    return float(np.std([*schema.scores.values()])) if _scored(schema) else schema.domain.outcome_sd


def planned_deviation(schema: TableSchema) -> float:
    """Return the deviation that plans take for outcomes: ``stated_deviation``, else a share of their range by kind."""
    domain, stated = schema.domain, stated_deviation(schema)
    usual = _DEVIATION if domain.censoring is None else _BY_HORIZON
    return _DEVIATIONS.get(domain.outcome_kind, usual) * domain.outcome_range if stated is None else stated


def _scored(schema: TableSchema) -> bool:
    return schema.domain.outcome_sd is None and bool(schema.scores)


def told(schema: TableSchema) -> str:
    """Return whence a plan's deviation of outcomes is, in words; empty where it is a share of their range."""
    return (
        " (assumed: all scores are equally likely)"
        if _scored(schema)
        else " (outcome.sd, as stated)" * (schema.domain.outcome_sd is not None)
    )


def least_records(noise: Callable[[int], float], wanted: float, start: int) -> int | None:
    """Return the least number of records with noise of at most ``wanted``, to one per cent; None beyond 10^9.

    Args:
        noise: Of n records, not increasing in n; infinite or NaN where nothing could be released.
        wanted: In the same units.
        start: Where the search begins.

    Example:
        >>> least_records(lambda n: 40 / n, 0.1, start=1000)
        401
    """
    found = _least(lambda n: noise(math.ceil(n)), wanted, float(start), 2.0, float(_MOST_RECORDS))
    return None if found is None else math.ceil(found)


def least_epsilon(noise: Callable[[float], float], wanted: float, start: float) -> float | None:
    """Return the least epsilon with noise of at most ``wanted``, to one per cent; None beyond 10^6.

    Args:
        noise: At an epsilon, not increasing in it; infinite or NaN where nothing could be released.
        wanted: In the same units.
        start: Where the search begins.

    Example:
        >>> round(least_epsilon(lambda epsilon: 3 / epsilon, 0.1, start=1.0), 2)
        30.15
    """
    return _least(noise, wanted, start, 1e-6, _MOST_EPSILON)


def _least(noise: Callable[[float], float], wanted: float, start: float, lowest: float, most: float) -> float | None:
    """Return the least argument by bisection in logarithms, between two of which one is four times the other."""
    high = start
    while not noise(high) <= wanted:
        if high >= most:
            return None
        high = min(4 * high, most)
    low = high
    while noise(low) <= wanted:
        if low <= lowest:
            return low
        low, high = max(low / 4, lowest), low
    while high > low * _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if noise(middle) <= wanted else (middle, high)
    return high


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_OF_RANGE, _OF_SD = (0.02, 0.1), (0.1, 0.4)
"""Shares up to which a target serves for all effects, and for large ones: two of these noises are a fifth of a standard
deviation, a small effect, and eight tenths, a large one."""


_OF_ONE_NUMBER = (0.7, 0.9)  # errors of a function over those of one number for all, as ``verdict`` has limits
SERVES = "no: one average effect serves as well"
"""The verdict on a function whose error is not expected to be less than that of one number for all."""


def worth_asking(noise: float, schema: TableSchema, relative: float | None = None) -> str:
    """Return whether an effect with this noise is worth asking for: ``yes``, ``for large effects`` or ``no``.

    By the outcome's standard deviation where it is stated, .1 and .4 of it; else by its range, 2 and 10 per cent. A
    function of covariates is by its error over that of one number for all, .7 and .9, where it is no worse than that.

    Args:
        noise: Standard deviation in units of an effect.
        schema: Columns and public bounds, whose ``effect_scale`` is what it is a share of.
        relative: See ``PlannedNoise``.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> plain, stated = (TableSchema.from_domain(Domain([0], [1], 0, 100, outcome_sd=sd)) for sd in (None, 6))
        >>> worth_asking(5.0, plain), worth_asking(5.0, stated), worth_asking(5.0, plain, relative=0.95)
        ('for large effects', 'no', 'no: one average effect serves as well')
    """
    whole, of = schema.effect_scale
    alone = verdict(noise / whole, _OF_RANGE if of == "range" else _OF_SD)
    if relative is None or alone == "no":
        return alone
    found = verdict(relative, _OF_ONE_NUMBER)
    return SERVES if found == "no" else found


def verdict(share: float, limits: tuple[float, float]) -> str:
    """Return whether a share of noise serves for all effects, or for large ones, by the limits of both."""
    return "yes" if share <= limits[0] else "for large effects" if share <= limits[1] else "no"
