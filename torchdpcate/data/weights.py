"""Weights of records: a column with a public bound, by which each record counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchdpcate.data._arrays import plural
from torchdpcate.data.facts import check_entries, check_name, check_shown, to_number
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from torchdpcate.data.records import CausalData


@dataclass(frozen=True)
class RecordWeights:
    r"""Weights of records: those of a survey, or inverse probabilities; or their exposure, by which rates are divided.

    A record counts :math:`v = w / \text{high}` times, in [0, 1]. A sum over records of terms t in a set T is then one
    of terms in the star hull of T, and one record that is replaced moves it by at most

    .. math:: \mathrm{diam}\,\mathrm{conv}(T \cup \{0\}) = \max\{\mathrm{diam}\,T, \sup_{t \in T} \|t\|\}

    Attributes:
        name: Column that holds each record's weight.
        high: Public bound of a weight.
        mean: What plans expect of the mean of all weights: a public number, such as 1 of weights that a survey has
            scaled so.
        unit: Of time at risk, where it is that: the sum of outcomes is divided by that of ``name``. None of weights.

    Raises:
        InputError: A bound that is not positive, or a mean that is not positive, or above the bound.

    Example:
        >>> RecordWeights.of({"name": "w", "high": 5}).share
        0.2
    """

    name: str
    high: float
    mean: float
    unit: str | None = None

    def __post_init__(self) -> None:
        check_name("a column", self.name)
        if not self.high > 0:
            raise InputError(f"{self.role}.high is {self.high:g}; give a public bound above 0")
        if not 0 < self.mean <= self.high:
            raise InputError(
                f"{self.role}.mean is {self.mean:g}; give the public mean to expect of values from 0 to {self.high:g}"
            )

    @classmethod
    def of(cls, entry: "RecordWeights | Mapping[str, Any] | None") -> "RecordWeights | None":
        """Return the weights that an entry of a domain file says; None for none.

        Args:
            entry: ``name``, ``high``, and ``mean``: by default 1, or half of ``high`` where that is less.

        Raises:
            InputError: No such entry.
        """
        if entry is None or isinstance(entry, RecordWeights):
            return entry
        check_entries(entry, "weights", {"name", "high"}, {"mean", "unit"})
        high = to_number("weights.high", entry["high"])
        mean = to_number("weights.mean", entry["mean"]) if "mean" in entry else min(1.0, high / 2)
        unit = check_shown("unit", "exposure", entry["unit"], 30) if "unit" in entry else None
        return cls(str(entry["name"]), high, mean, unit)

    @property
    def role(self) -> str:
        """What a domain file calls it: weights or exposure."""
        return "weights" if self.unit is None else "exposure"

    @property
    def share(self) -> float:
        """The expected mean of v."""
        return self.mean / self.high

    @property
    def words(self) -> str:
        """What they do, in words."""
        if self.unit is not None:
            return (
                f"the outcome is a rate: its sum over that of {self.name}, within 0 and {self.high:g} and of a mean of "
                f"about {self.mean:g}; it rests on it that {self.name}, given the arm, tells nothing of the rate"
            )
        return (
            f"a record counts {self.name} / {self.high:g} times, {self.name} within 0 and {self.high:g} and of a mean "
            f"of about {self.mean:g}; effects are of those whom the weighted records stand for"
        )

    def entry(self) -> dict[str, Any]:
        """Return plain types, fit for JSON, from which ``of`` makes the same."""
        own = {} if self.unit is None else {"unit": self.unit}
        return {"name": self.name, "high": self.high, "mean": self.mean, **own}

    def within(self, weight: Tensor, clip: bool) -> Tensor:
        """Return v [n] of records with weights [n].

        Args:
            weight: w.
            clip: Whether weights outside their bounds are moved to them, or refused.

        Raises:
            InputError: Weights outside their bounds (how many).
        """
        outside = int(((weight < 0) | (weight > self.high)).sum())
        if outside and not clip:
            raise InputError(
                f"{self.role} {self.name!r} has {plural(outside, 'value')} outside [0, {self.high:g}]; correct them, "
                "clip with data.out_of_bounds=clip, or give a bound known from outside the records"
            )
        return weight.clamp(0, self.high) / self.high


DROP = "drop"
"""What ``missing`` of treatment and outcome may be: their records count nothing."""
ROLES = ("outcome", "treatment")
"""What may be missing so."""


def dropped_roles(missing: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return which of treatment and outcome may be missing.

    Args:
        missing: ``drop`` for either or both; None for neither.

    Raises:
        InputError: Another role, or another word.

    Example:
        >>> dropped_roles({"outcome": "drop"})
        ('outcome',)
    """
    given = missing or {}
    if not isinstance(given, Mapping) or set(given) - set(ROLES) or set(given.values()) - {DROP}:
        raise InputError(f"missing is {missing!r}; give outcome: drop, treatment: drop, or both")
    return tuple(role for role in ROLES if role in given)


def dropped_words(roles: tuple[str, ...], known_propensity: bool) -> str:
    """Return what becomes of records whose treatment or outcome is missing, and when that is right, in words.

    Args:
        roles: Of ``dropped_roles``.
        known_propensity: Whether the domain states the propensity.
    """
    which = " or ".join(reversed(roles))
    arm = (
        ", nor on the arm, for the propensity that the domain states is that of all records" if known_propensity else ""
    )
    return (
        f"records without {which} count nothing; effects are of those like the complete records, and rest on it that "
        f"what is missing depends, given covariates and treatment, on no outcome{arm}"
    )


def times_weight(each: Tensor, records: "CausalData") -> Tensor:
    """Return what each record adds to a sum, [n, ...], times its weight where records have some.

    Args:
        each: Terms of records.
        records: The records.
    """
    weight = records.weight
    return each if weight is None else each * weight.to(each.device).reshape(-1, *[1] * (each.ndim - 1))
