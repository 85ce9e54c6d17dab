r"""A propensity that the design of a study makes known: a public fact, which no budget is spent on."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.data.facts import check_name
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from torchdpcate.data.records import CausalData

Propensity = float | str | Mapping[str, Mapping[Any, float]] | Sequence[float]
"""How users write one: a number, a column of the table, a number for each level of a covariate, or one an arm."""

_NUMBER = re.compile(r" *[0-9]*[.,]?[0-9]+ *(?:%|[/:] *[0-9]+)? *")  # as people write one, beside yaml's numbers
_SUM = 1e-6  # by which numbers of arms may miss one, as decimals do


class KnownPropensity(ABC):
    r"""A known P(A = 1 | record), in :math:`[\zeta, 1 - \zeta]` with the overlap bound :math:`\zeta`.

    Attributes:
        bounds: Least and largest value that any record may have: public, and what sensitivities rest on.
        column: The table's column that holds each record's propensity, beside the covariates; None where there is none.
    """

    bounds: tuple[float, float]
    column: str | None = None

    @property
    def middle(self) -> float:
        """Middle of the bounds."""
        return sum(self.bounds) / 2

    @property
    def of_arms(self) -> Tensor:
        """Bounds of the probability of each arm, [2, 2], float64."""
        low, high = self.bounds
        return torch.tensor([[1 - high, 1 - low], [low, high]], dtype=torch.float64)

    @abstractmethod
    def at(self, x: Tensor) -> Tensor:
        """Return the propensity at encoded covariates x [n, q], float64 [n].

        Raises:
            InputError: It is no function of the covariates.
        """

    def of(self, records: CausalData) -> Tensor:
        """Return the propensity of records [n], float64: what they carry, else ``at`` their covariates.

        Raises:
            InputError: It is a column that the records came without.
        """
        return self.at(records.x) if records.propensity is None else records.propensity

    def arms_of(self, records: CausalData) -> Tensor:
        """Return the probability of each arm for records, [n, 2], float64."""
        second = self.of(records)
        return torch.stack([1 - second, second], 1)

    def select(self, columns: Sequence[int]) -> KnownPropensity:
        """Return the propensity of a domain of some of the covariates, by position: here, one that depends on none."""
        return self

    @abstractmethod
    def entry(self) -> Any:
        """Return plain types, fit for JSON, from which ``known_propensity`` makes the same."""

    @property
    def stated(self) -> float | str | list[float]:
        """What privacy statements say of it: a number, one a level, or the name of a column."""
        return self.entry()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Stated(KnownPropensity):
    """One that is made of public numbers.

    Attributes:
        values: The numbers.
    """

    values: tuple[float, ...]

    @property
    def bounds(self) -> tuple[float, float]:  # type: ignore[override]
        """Least and largest value."""
        return min(self.values), max(self.values)


@dataclass(frozen=True)
class ConstantPropensity(_Stated):
    """The same P(A = 1), the only one of ``values``, for every record: a trial's coin.

    Example:
        >>> ConstantPropensity((0.5,)).at(torch.zeros(2, 3)).tolist()
        [0.5, 0.5]
    """

    def at(self, x: Tensor) -> Tensor:
        return x.new_full((x.shape[0],), self.values[0], dtype=torch.float64)

    def entry(self) -> float:
        """Return the value."""
        return self.values[0]


@dataclass(frozen=True)
class StratumPropensity(_Stated):
    """One for each level of a covariate: a trial that was stratified by it.

    Attributes:
        values: P(A = 1) of each level.
        covariate: Name of the covariate.
        levels: Its levels: the two bounds of a column with two levels, else the labels of its indicators.
        positions: Encoded columns: of one column with two levels, or of an indicator for each level.

    Example:
        >>> rule = StratumPropensity((0.3, 0.6), "sex", (0.0, 1.0), (1,))
        >>> rule.at(torch.tensor([[7.0, 0.0], [7.0, 1.0]])).tolist()
        [0.3, 0.6]
    """

    covariate: str
    levels: tuple[Any, ...]
    positions: tuple[int, ...]

    def at(self, x: Tensor) -> Tensor:
        """See ``KnownPropensity.at``; a point between two levels has the value of the nearer one."""
        if len(self.positions) == 1:
            low, high = self.levels
            level = (x[:, self.positions[0]] > low + (high - low) / 2).long()
        else:
            level = x[:, list(self.positions)].argmax(1)
        return torch.tensor(self.values, dtype=torch.float64, device=x.device)[level]

    def select(self, columns: Sequence[int]) -> KnownPropensity:
        """See ``KnownPropensity.select``; without the covariate, only records that carry their propensity have one."""
        chosen = list(columns)
        if not set(self.positions) <= set(chosen):
            return RecordedPropensity(self.bounds, self.covariate)
        return replace(self, positions=tuple(map(chosen.index, self.positions)))

    @property
    def stated(self) -> list[float]:
        """The value of each level."""
        return list(self.values)

    def entry(self) -> dict[str, dict[str, float]]:
        """Return the value of each level, by its name."""
        return {self.covariate: {str(level): value for level, value in zip(self.levels, self.values, strict=True)}}


@dataclass(frozen=True)
class RecordedPropensity(KnownPropensity):
    """A column of the table, which is no covariate: each record's own, which a neighbour may change within the bounds.

    Attributes:
        bounds: Least and largest value, public.
        column: Its name.
    """

    bounds: tuple[float, float]
    column: str

    def at(self, x: Tensor) -> Tensor:
        """Refuse: covariates do not tell it."""
        raise InputError(
            f"propensity is the column {self.column!r}, known of records and not of covariates alone; give X as a "
            "frame with that column, or its values as propensity= beside X"
        )

    def entry(self) -> str:
        """Return the column's name."""
        return self.column


@dataclass(frozen=True)
class ArmPropensity(_Stated):
    """The probability of each of K arms, K > 2, adding up to one, the same for every record.

    Example:
        >>> ArmPropensity((0.2, 0.3, 0.5)).of_arms.tolist()
        [[0.2, 0.2], [0.3, 0.3], [0.5, 0.5]]
    """

    @property
    def of_arms(self) -> Tensor:
        """The values, twice each, [K, 2]."""
        return torch.tensor(self.values, dtype=torch.float64)[:, None].repeat(1, 2)

    def at(self, x: Tensor) -> Tensor:
        """Refuse: there is more than one."""
        raise InputError(f"propensity has {len(self.values)} numbers, one an arm; this needs one of two arms")

    def arms_of(self, records: CausalData) -> Tensor:
        return torch.tensor(self.values, dtype=torch.float64, device=records.x.device).expand(len(records), -1)

    def entry(self) -> list[float]:
        """Return the values."""
        return list(self.values)


def known_propensity(
    given: Propensity | None, names: Sequence[str], levels: Mapping[str, tuple[float, float]], overlap: float
) -> KnownPropensity | None:
    """Return what a user gives as a known propensity; None for none.

    Args:
        given: A number, the name of a column that is no covariate, ``{covariate: {level: number}}``, or a list of a
            number for each arm, adding up to one.
        names: Names of the encoded columns.
        levels: The two levels of each encoded column that has no others.
        overlap: Overlap bound: no propensity lies below it, nor above one minus it.

    Raises:
        InputError: A number outside the overlap, a column that is a covariate, or a level without a number.

    Example:
        >>> known_propensity({"sex": {0: 0.3, 1: 0.6}}, ["age", "sex"], {"sex": (0.0, 1.0)}, 0.05).bounds
        (0.3, 0.6)
    """
    if given is None:
        return None
    if isinstance(given, str):
        return RecordedPropensity((overlap, 1 - overlap), _column(given, names))
    if isinstance(given, list | tuple):
        return _of_arms(given, overlap)
    if not isinstance(given, Mapping):
        return ConstantPropensity((_within("propensity", given, overlap),))
    if len(given) != 1:
        raise InputError(f"propensity names {len(given)} covariates; give {{covariate: {{level: number}}}} of one")
    covariate, entries = next(iter(given.items()))
    covariate = str(covariate)
    if covariate in names:
        if covariate not in levels:
            raise InputError(
                f"propensity by {covariate!r}: it is not declared to have levels; give it categories, or two_levels"
            )
        own: tuple[Any, ...] = levels[covariate]
        positions: tuple[int, ...] = (list(names).index(covariate),)
    else:
        indicators = [name for name in names if name.startswith(f"{covariate}=") and name in levels]
        if not indicators:
            raise InputError(f"propensity by {covariate!r}: there is no covariate of that name with levels")
        own = tuple(name.removeprefix(f"{covariate}=") for name in indicators)
        place = {name: position for position, name in enumerate(names)}
        positions = tuple(place[name] for name in indicators)
    values = level_values(f"propensity by {covariate!r}", entries, own)
    within = tuple(_within(f"propensity of {covariate} = {level}", values[level], overlap) for level in own)
    return StratumPropensity(within, covariate, own, positions)


def level_values(what: str, entries: Any, levels: Sequence[Any], gives: str = "number") -> dict[Any, Any]:
    """Return what is given for each level of a column; levels may be written as words, as JSON does.

    Args:
        what: Names the entries in messages.
        entries: Something for each level.
        levels: Of the column.
        gives: What they give, for messages.

    Raises:
        InputError: A level without it, or one that is unknown.
    """
    if not isinstance(entries, Mapping):
        raise InputError(f"{what} is {entries!r}; give a {gives} for each of its levels")
    found: dict[Any, Any] = {}
    words = {str(level): level for level in reversed(levels)}
    numbers: dict[float | None, Any] = {float(level): level for level in reversed(levels) if not isinstance(level, str)}
    for key, value in entries.items():
        level = None if isinstance(key, bool) else words.get(str(key), numbers.get(_number(key)))
        if level is None or level in found:
            problem = "twice" if level in found else "not among its levels"
            raise InputError(f"{what}: {key!r} is {problem}; they are {list(levels)}, each once")
        found[level] = value
    missing = [level for level in levels if level not in found]
    if missing:
        raise InputError(f"{what} has no {gives} for the level {missing[0]!r}; give one for each")
    return found


def _number(key: Any) -> float | None:
    """Return the number that a key means, None where it is none."""
    try:
        return float(key)
    except (OverflowError, TypeError, ValueError):
        return None


def _column(name: str, names: Sequence[str]) -> str:
    if not name or name == "???":
        raise InputError(f"propensity is {name!r}; give a number, a column or one per level, or leave the entry out")
    if _NUMBER.fullmatch(name) and not name.isdigit():
        raise InputError(
            f"propensity is {name!r}; write a number with a decimal point, such as 0.5 for 50 % or 1/2, or the name "
            "of a column"
        )
    check_name("the propensity's column", name)
    if name in names:
        raise InputError(
            f"propensity column {name!r} is also a covariate; leave it out of the covariates, for it is no trait of a "
            "record but of the design"
        )
    return name


def _of_arms(given: Sequence[Any], overlap: float) -> KnownPropensity:
    if len(given) < 2:
        raise InputError(f"propensity is {list(given)}; give a number, or one for each of the arms")
    values = [_within("a propensity of an arm", value, overlap) for value in given]
    if abs(sum(values) - 1) > _SUM:
        raise InputError(f"propensity is {values}, which add up to {sum(values):g}; those of all arms add up to 1")
    values = [value / sum(values) for value in values]
    return ConstantPropensity((values[1],)) if len(values) == 2 else ArmPropensity(tuple(values))


def _within(what: str, value: Any, overlap: float) -> float:
    """Return a propensity as a float within the overlap."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} is {value!r}; give a number between 0 and 1")
    number = float(value)
    if not 0 < number < 1:
        raise InputError(f"{what} is {number:g}; it must lie between 0 and 1, both excluded: both arms are needed")
    if not overlap <= number <= 1 - overlap:
        raise InputError(
            f"{what} is {number:g}, outside [{overlap:g}, {1 - overlap:g}] of the overlap bound; lower overlap, or "
            "correct it"
        )
    return number
