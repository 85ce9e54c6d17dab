"""Subgroups of records: the cells of public partitions of the covariates' domain."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from torchdpcate.data._arrays import listed
from torchdpcate.data._cells import MISSING_LEVEL, to_date
from torchdpcate.data._yaml import parse_yaml, read_yaml
from torchdpcate.data.covariates import Categorical, Covariate, Numeric, written_level
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

MOST_CELLS = 1000
"""Cells of all partitions together: each has its line in a table and in a figure."""
EVERYBODY = "everybody"
"""The one cell of all records, and how a user writes the partition that has it."""

_EXAMPLE = "as subgroups=[{sex: true}, {age: [40, 60]}]"
_FORM = "write each partition as {covariate: true} or {covariate: [cuts]}"


@dataclass(frozen=True)
class Division:
    """One covariate of a partition: one cell for each level, or intervals between public cuts.

    Missing values of a number that has an indicator are a cell of their own, the last one.

    Attributes:
        covariate: The covariate's name in the table.
        columns: Its encoded columns.
        cuts: Ends of the intervals [cut, next cut); empty where each level is a cell.
        labels: Name of each cell.
        points: An encoded point of each cell, [cells, columns].
        number: The covariate, where there are cuts.
    """

    covariate: str
    columns: tuple[int, ...]
    cuts: tuple[float, ...]
    labels: tuple[str, ...]
    points: tuple[tuple[float, ...], ...]
    number: Numeric | None = None

    @classmethod
    def of(cls, schema: TableSchema, name: Any, given: Any) -> "Division":
        """Return the division of a covariate that a user writes as ``true``, or as a list of cuts.

        Args:
            schema: Columns and public bounds.
            name: The covariate.
            given: True for a cell a level, or public cuts in increasing order, strictly within the bounds.

        Raises:
            InputError: No such covariate, cuts that are none, or cells that public bounds leave empty.
        """
        if name not in schema.columns:
            raise InputError(f"subgroups: {name!r} is no covariate; choose among {listed(schema.columns)}")
        place = schema.columns.index(name)
        covariate = schema.covariates[place]
        columns = tuple(schema.places[name])
        levels = covariate.levels
        if given is True:
            if not levels:
                raise InputError(
                    f"subgroups: {name!r} is a number without levels; give public cuts, as {{{name}: [1, 2]}}"
                )
            labels = tuple(f"{name} = {written_level(level)}" for level in levels)
            return cls(str(name), columns, (), labels, _encoded(covariate, levels))
        if isinstance(covariate, Categorical):
            raise InputError(f"subgroups: {name!r} has categories; write {{{name}: true}} for a cell of each")
        assert isinstance(covariate, Numeric)
        return cls._by_cuts(covariate, columns, _cuts(covariate, given))

    @classmethod
    def _by_cuts(cls, number: Numeric, columns: tuple[int, ...], cuts: tuple[float, ...]) -> "Division":
        labels, starts = _intervals(number, cuts), (number.low, *cuts)
        if not number.missing:
            return cls(number.name, columns, cuts, labels, tuple((start,) for start in starts), number)
        points = (*((start, 0.0) for start in starts), (number.middle, 1.0))
        return cls(number.name, columns, cuts, (*labels, f"{number.name} {MISSING_LEVEL}"), points, number)

    def joined(self, other: "Division") -> "Division":
        """Return the division of the same covariate by the cuts of both.

        Raises:
            InputError: One is by levels, the other by cuts.
        """
        if self.number is not None and other.number is not None:
            return Division._by_cuts(self.number, self.columns, tuple(sorted({*self.cuts, *other.cuts})))
        if self.number is other.number:
            return self
        raise InputError(f"subgroups: {self.covariate!r} is divided by levels and by cuts; choose one of them")

    @property
    def given(self) -> bool | list[float] | list[str]:
        """What a user writes for it."""
        if self.number is None:
            return True
        return list(self.cuts) if self.number.start is None else [self.number.written(cut) for cut in self.cuts]

    def positions(self, x: Tensor) -> Tensor:
        """Return the cell of each row of encoded covariates x [n, q], int64 [n]."""
        own = x[:, list(self.columns)]
        if self.cuts:
            found = torch.bucketize(own[:, 0].contiguous(), torch.tensor(self.cuts, dtype=x.dtype), right=True)
            return found if len(self.columns) == 1 else torch.where(own[:, 1] > 0.5, len(self.cuts) + 1, found)
        if len(self.columns) > 1:
            return own.argmax(1)
        low, high = self.points[0][0], self.points[1][0]
        return (own[:, 0] > low + (high - low) / 2).long()


@dataclass(frozen=True)
class Partition:
    """Disjoint cells that cover the domain: each record is in one of them, by its covariates alone.

    Attributes:
        divisions: Its covariates; their cells are crossed.
    """

    divisions: tuple[Division, ...]

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(len(division.labels) for division in self.divisions)

    @property
    def name(self) -> str:
        """Names of the covariates."""
        return " and ".join(division.covariate for division in self.divisions) or EVERYBODY

    @property
    def labels(self) -> list[str]:
        """Name of each cell, in the order of ``positions``."""
        if not self.divisions:
            return [EVERYBODY]
        return [", ".join(parts) for parts in itertools.product(*(division.labels for division in self.divisions))]

    def positions(self, x: Tensor) -> Tensor:
        """Return the cell of each row of encoded covariates x [n, q], int64 [n]."""
        found = torch.zeros(len(x), dtype=torch.int64)
        for division in self.divisions:
            found = found * len(division.labels) + division.positions(x)
        return found

    def points(self, dimension: int) -> Tensor:
        """Return an encoded point of each cell, float64 [cells, q]; covariates without a division are 0."""
        x = torch.zeros(self.size, dimension, dtype=torch.float64)
        rows = itertools.product(*(division.points for division in self.divisions))
        columns = [column for division in self.divisions for column in division.columns]
        x[:, columns] = torch.tensor([[*itertools.chain(*row)] for row in rows], dtype=torch.float64)
        return x


@dataclass(frozen=True)
class Subgroups:
    """The cells of one or several public partitions.

    Attributes:
        partitions: The partitions; each record is in one cell of each.
        dimension: Number q of encoded covariates.

    Example:
        >>> schema = TableSchema.from_dict({
        ...     "treatment": "a", "outcome": {"name": "y", "low": 0, "high": 1},
        ...     "covariates": {"sex": {"categories": ["f", "m"]}, "age": {"low": 18, "high": 90}},
        ... })
        >>> cells = Subgroups.of([{"sex": True}, {"age": [40, 60]}], schema)
        >>> cells.labels
        ['sex = f', 'sex = m', 'age < 40', '40 <= age < 60', 'age >= 60']
        >>> cells.positions(torch.tensor([[1.0, 60.0]])).tolist()
        [[1, 4]]
    """

    partitions: tuple[Partition, ...]
    dimension: int

    @classmethod
    def of(cls, given: Any, schema: TableSchema) -> "Subgroups":
        """Return the cells that a user writes.

        Args:
            given: A list of partitions, or a yaml file that holds one, by itself or as its entry ``subgroups``. A
                partition maps covariates to ``true`` (a cell for each level) or to a list of public cuts; the cells of
                several covariates are crossed. The word ``everybody`` is the partition of one cell of all records.
            schema: Columns and public bounds.

        Raises:
            InputError: Nothing to divide by, no such file, no such covariate, cells that public bounds leave empty, the
                same partition twice, or more than ``MOST_CELLS`` cells.
        """
        if isinstance(given, Subgroups):
            given = given.config()
        if isinstance(given, str) and given == EVERYBODY:
            given = [EVERYBODY]
        if isinstance(given, str | Path):
            given = _read(given, schema)
        if isinstance(given, Mapping):
            given = [given]
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise InputError(f"subgroups: give a list of partitions, {_EXAMPLE}, not a {type(given).__name__}")
        partitions = tuple(_partition(entry, schema) for entry in given)
        if len(set(partitions)) < len(partitions):
            twice = next(one for one in partitions if partitions.count(one) > 1)
            raise InputError(f"subgroups: the partition by {twice.name} is there twice; give it once")
        cells = sum(partition.size for partition in partitions)
        if cells > MOST_CELLS:
            raise InputError(f"subgroups: {cells:,} cells; give at most {MOST_CELLS:,}")
        return cls(partitions, schema.domain.dimension)

    @cached_property
    def labels(self) -> list[str]:
        """Name of each cell, those of one partition after those of the one before."""
        return [label for partition in self.partitions for label in partition.labels]

    @cached_property
    def names(self) -> list[str]:
        """The labels, each once: with the partition's name before it where another partition has it too."""
        pairs = zip(self.of_partition, self.labels, strict=True)
        return [f"{partition}: {label}" if self.labels.count(label) > 1 else label for partition, label in pairs]

    @cached_property
    def of_partition(self) -> list[str]:
        """Name of the partition of each cell; those of one name are numbered."""
        names = [partition.name for partition in self.partitions]
        before = [names[:place].count(name) for place, name in enumerate(names)]
        numbered = [f"{name} ({count + 1})" if count else name for name, count in zip(names, before, strict=True)]
        return [name for name, one in zip(numbered, self.partitions, strict=True) for _ in range(one.size)]

    @property
    def size(self) -> int:
        """Number of cells."""
        return sum(partition.size for partition in self.partitions)

    def positions(self, x: Tensor) -> Tensor:
        """Return the cells of each row of encoded covariates x [n, q], one of each partition, int64 [n, partitions]."""
        first = itertools.accumulate((partition.size for partition in self.partitions[:-1]), initial=0)
        return torch.stack([start + one.positions(x) for start, one in zip(first, self.partitions, strict=True)], 1)

    def check_alike(self, x: Tensor, domain: Domain) -> None:
        """Refuse means [pairs, q] of pairs between two levels by which cells are divided.

        Raises:
            InputError: There are some; says of which covariates.
        """
        levels = torch.tensor(domain.two_levels)
        between = ((x != domain.covariate_low) & (x != domain.covariate_high) & levels).any(0)
        for part in (part for one in self.partitions for part in one.divisions if between[list(part.columns)].any()):
            raise InputError(f"subgroups: pairs differ in {part.covariate}, which has no mean; leave it out")

    def has_levels_of(self, covariate: str) -> bool:
        """Return whether every partition has a cell of its own for each level of a covariate."""
        return all(
            any(part.covariate == covariate and not part.cuts for part in partition.divisions)
            for partition in self.partitions
        )

    def crossed(self) -> Partition:
        """Return the one partition of whose cells all others are unions: every covariate, at every cut."""
        found: dict[str, Division] = {}
        for division in (division for partition in self.partitions for division in partition.divisions):
            other = found.get(division.covariate)
            found[division.covariate] = division if other is None else other.joined(division)
        return Partition(tuple(found.values()))

    def members(self, strata: "Subgroups") -> Tensor:
        """Return which cells of other partitions, their union, each cell is, 0 or 1 as float64 [cells, strata].

        Args:
            strata: The same partitions, or one whose cells are parts of theirs.
        """
        if strata.partitions == self.partitions:
            return torch.eye(self.size, dtype=torch.float64)
        (finest,) = strata.partitions
        at = self.positions(finest.points(self.dimension))
        return torch.zeros(self.size, finest.size, dtype=torch.float64).scatter_(0, at.T, 1.0)

    @property
    def of_everybody(self) -> bool:
        """Whether its one cell has all records."""
        return self.partitions == (Partition(()),)

    def config(self) -> list[dict[str, Any] | str]:
        """Return the partitions as a user writes them, in plain types."""
        written = [{part.covariate: part.given for part in partition.divisions} for partition in self.partitions]
        return [entry or EVERYBODY for entry in written]


def _partition(entry: Any, schema: TableSchema) -> Partition:
    if isinstance(entry, str) and entry == EVERYBODY:
        return Partition(())
    if not isinstance(entry, Mapping) or not entry:
        raise InputError(f"subgroups: {_FORM}, not a {type(entry).__name__}")
    return Partition(tuple(Division.of(schema, name, given) for name, given in entry.items()))


def _read(given: str | Path, schema: TableSchema) -> Any:
    """Return the partitions of a yaml file, or of a yaml text in brackets; of a file that may hold records, nothing."""
    what, text = f"subgroups = {str(given)!r}", str(given)
    written = isinstance(given, str) and text.startswith(("[", "{"))
    if not written and not os.path.isfile(given):
        raise InputError(f"{what}: no such file; give a yaml file, or a list of partitions, {_EXAMPLE}")
    try:
        found = parse_yaml(text) if written else read_yaml(Path(given))
    except InputError as error:
        raise InputError(f"{what}: cannot be read: {error}") from None
    found = found["subgroups"] if isinstance(found, dict) and found.keys() == {"subgroups"} else found
    for place, entry in enumerate(found if isinstance(found, list) else [found], 1):
        if isinstance(entry, str) and entry == EVERYBODY:
            continue
        if not isinstance(entry, Mapping) or not set(schema.columns).issuperset(entry):
            raise InputError(f"{what}: entry {place}: {_FORM}, of the covariates {listed(schema.columns)}")
    return found


def _encoded(covariate: Covariate, levels: Sequence[Any]) -> tuple[tuple[float, ...], ...]:
    """Return the encoded columns of each level."""
    if len(covariate.columns) == 1:
        (column,) = covariate.columns
        return (column.low,), (column.high,)
    return cast(tuple[tuple[float, ...], ...], tuple(map(tuple, torch.eye(len(levels)).tolist())))


def _cuts(covariate: Numeric, given: Any) -> tuple[float, ...]:
    """Return public cuts strictly within a covariate's bounds, in increasing order."""
    name, low, high = covariate.name, covariate.low, covariate.high
    if isinstance(given, bool) or not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InputError(
            f"subgroups: {name!r} is divided by {given!r}; give a list of public cuts, as {{{name}: [1, 2]}}"
        )
    what, start = f"a cut of {name!r} in subgroups", covariate.start
    cuts = tuple(to_number(what, cut) if start is None else float((to_date(what, cut) - start).days) for cut in given)
    if any(isinstance(cut, bool) for cut in given) or list(cuts) != sorted(set(cuts)):
        raise InputError(f"subgroups: cuts of {name!r} are {list(given)}; give numbers in increasing order, each once")
    outside = [cut for cut in cuts if not low < cut < high]
    if outside:
        raise InputError(
            f"subgroups: the cut {covariate.written(outside[0])} of {name!r} leaves a cell empty; its bounds are "
            f"[{covariate.written(low)}, {covariate.written(high)}]; give cuts between them"
        )
    return cuts


def _intervals(number: Numeric, cuts: Sequence[float]) -> tuple[str, ...]:
    name, write = number.name, written_level if number.start is None else number.written
    between = [f"{write(low)} <= {name} < {write(high)}" for low, high in itertools.pairwise(cuts)]
    return f"{name} < {write(cuts[0])}", *between, f"{name} >= {write(cuts[-1])}"
