"""Records as a composition sees them: totals of statistics over their batches, of which there is one in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from torchdpcate._process import BATCH, threads_for
from torchdpcate.composition.linear_fit import Fits, Gradient, LinearFit
from torchdpcate.composition.steps import added
from torchdpcate.data.records import CausalData
from torchdpcate.data.streams import RECORDS, CachedStream, PartedStream, RecordStream
from torchdpcate.errors import InputError
from torchdpcate.fit.minimise import PartedBatches, ReadBatches

Change = Callable[[CausalData], CausalData]
"""From a batch to what is worked out of its records, one by one: data, and a pure function, as a ``Statistic`` is."""


class Rows(ABC):
    """Records, or what was worked out of them, of which a composition requests totals.

    Attributes:
        n: Number of records.
        batch: How many are summed at once, public; None where nothing is known of it.
    """

    n: int
    batch: int | None

    def total(self, terms: Callable[[CausalData], Tensor]) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over a batch."""
        return added(terms(batch) for batch in self.batches())

    @abstractmethod
    def then(self, change: Change) -> "Rows":
        """Return what is worked out of these records."""

    @abstractmethod
    def batches(self) -> Iterator[CausalData]:
        """Yield these records, some at a time.

        Raises:
            InputError: The number of records has changed.
        """

    def read(self, numbers: Callable[[CausalData], tuple[Tensor, ...]]) -> ReadBatches | PartedBatches:
        """Return what reads numbers of all batches, as ``minimise_batches`` takes it."""
        return lambda: map(numbers, self.batches())

    def each(self, number: Callable[[CausalData], Tensor]) -> Tensor:
        """Return a number of each record, [n]; of the curator's fits without privacy alone."""
        return torch.cat([number(batch) for batch in self.batches()])

    @abstractmethod
    def stored(self, name: str) -> "AbstractContextManager[Rows]":
        """Give these records for many totals.

        Args:
            name: Of a file beside a copy on disk.
        """

    def fit(self, fits: Fits, size: int) -> Any:
        """Return a regression of all records as solvers have it, by its sums over records: see ``StreamedFit``.

        Args:
            fits: The regression.
            size: Number of its features.
        """
        return StreamedFit(self, fits, (self.n, size))

    def threads(self) -> AbstractContextManager[None]:
        """Limit the threads of what is done with a batch: it takes less time than to divide it."""
        return threads_for(0)

    @property
    def x(self) -> Tensor:
        """Covariates, [n, k]; without rows where they are not in memory."""
        return torch.empty(0)


_MOST_AT_ONCE = 2**17
"""Records in memory at most whose features are worked out once for all steps: some kB each."""


@dataclass(frozen=True, eq=False)
class InMemory(Rows):
    """Records in memory: one batch, or many small ones where features of all of them at once would fill it.

    Attributes:
        records: The records.
    """

    records: CausalData
    batch = BATCH

    @property
    def n(self) -> int:  # type: ignore[override]
        return self.records.n

    @property
    def x(self) -> Tensor:
        return self.records.x

    def batches(self) -> Iterator[CausalData]:
        n = self.records.n
        if n <= _MOST_AT_ONCE:
            yield self.records
            return
        for first in range(0, n, BATCH):
            yield _with(self.records, {name: v[first : first + BATCH] for name, v in _columns(self.records).items()})

    def then(self, change: Change) -> "InMemory":
        return replace(self, records=_joined([change(batch) for batch in self.batches()]))

    def stored(self, name: str) -> "AbstractContextManager[InMemory]":
        return nullcontext(self)

    def threads(self) -> AbstractContextManager[None]:
        return nullcontext()

    def fit(self, fits: Fits, size: int) -> "LinearFit | StreamedFit":
        """See ``Rows``: of few records the regression itself, which solvers may look into."""
        n = self.records.n
        return fits.of(self.records) if n <= _MOST_AT_ONCE else StreamedFit(self, fits, (n, size))


def _joined(parts: list[CausalData]) -> CausalData:
    """Return parts of records of any class as one."""
    if len(parts) == 1:
        return parts[0]
    columns = [_columns(part) for part in parts]
    return _with(parts[0], {name: torch.cat([own[name] for own in columns]) for name in columns[0]})


def _with(records: CausalData, columns: dict[str, Any]) -> CausalData:
    return replace(records, **columns)


def _columns(records: CausalData) -> dict[str, Tensor]:
    named = ((f.name, getattr(records, f.name)) for f in fields(records) if f.init)
    return {name: value for name, value in named if isinstance(value, Tensor)}


@dataclass(frozen=True, eq=False)
class StreamedRows(Rows):
    """Records that are read batch by batch: each total is one pass, in constant memory.

    Nothing is retained of a record between passes. The records stay in the order of the stream, which must not depend
    on
    them: neighbours differ in one record at the same place.

    Attributes:
        stream: The records, the same ones at each reading.
        n: Their number, by the plan.
        changes: What to work out of a batch, one after the other, in each pass anew.
    """

    stream: RecordStream
    n: int
    changes: tuple[Change, ...] = ()

    @property
    def batch(self) -> int | None:  # type: ignore[override]
        """See ``Rows``: a copy has batches of one public size."""
        return self.stream.batch_rows if isinstance(self.stream, CachedStream) else None

    def batches(self) -> Iterator[CausalData]:
        """See ``Rows``: what is worked out of each batch."""
        n = 0
        for batch in self.stream:
            n += batch.n
            yield self._changed(batch)
        if n != self.n:
            raise InputError(f"stream: {n} records, where the plan has n = {self.n}; give one that stays as it is")

    def then(self, change: Change) -> "StreamedRows":
        """See ``Rows``: in each pass anew."""
        return StreamedRows(self.stream, self.n, (*self.changes, change))

    @contextmanager
    def stored(self, name: str) -> "Iterator[StreamedRows]":
        """See ``Rows``: of a copy on disk once, into another beside it; of other streams in each pass anew."""
        if not isinstance(self.stream, CachedStream):
            yield self
            return
        with self.stream.mapped(self._changed, name) as copy:
            yield StreamedRows(copy, self.n)

    def _changed(self, batch: CausalData) -> CausalData:
        for change in self.changes:
            batch = change(batch)
        return batch


@dataclass(frozen=True, eq=False)
class PartedRows(Rows):
    """Records in parts, each of which is summed where it is; the sums are added in the order of the parts.

    A part has a batch of records at least, but for the only one. With m batches in the largest of P parts a number goes
    through at most ``batch`` + m + P - 3 additions, and all n records through ``batch`` + ceil(n / batch) by
    ``most_additions``, which is no less: the other P - 1 parts have a batch each.

    Attributes:
        stream: The records.
        n: Their number, by the plan.
        of: Name of what the parts hold.
        changes: What to work out of a batch, one after the other, in each pass anew.
    """

    stream: PartedStream
    n: int
    of: str = RECORDS
    changes: tuple[Change, ...] = ()

    @property
    def batch(self) -> int | None:  # type: ignore[override]
        return self.stream.batch_rows

    def total(self, terms: Callable[[CausalData], Tensor]) -> Tensor:
        return added(self.stream.ask(partial(_of_part, self.changes, "total", terms), self.of))

    def batches(self) -> Iterator[CausalData]:
        """Refuse; errors are those of ``PartedStream``."""
        return iter(self.stream)

    def each(self, number: Callable[[CausalData], Tensor]) -> Tensor:
        """Refuse: a number of each record would leave its part.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "stream: a number of each record would leave its part; use data.engine=null, or for policies "
            "leave propensity: out of the domain"
        )

    def then(self, change: Change) -> "PartedRows":
        """See ``Rows``: in each pass anew."""
        return replace(self, changes=(*self.changes, change))

    @contextmanager
    def stored(self, name: str) -> "Iterator[PartedRows]":
        """See ``Rows``: each part stores its own."""
        with self.stream.holding(name, partial(_of_part, self.changes, "stored", name), self.of):
            yield replace(self, of=name, changes=())

    def read(self, numbers: Callable[[CausalData], tuple[Tensor, ...]]) -> PartedBatches:
        return PartedBatches(self.stream, partial(_of_part, self.changes, "read", numbers), self.of)


def _of_part(changes: Sequence[Change], method: str, given: Any, held: RecordStream | StreamedRows) -> Any:
    """Return what a method of ``StreamedRows`` says of what is worked out of what a part holds."""
    rows = StreamedRows(held, held.n) if isinstance(held, RecordStream) else held
    return getattr(reduce(StreamedRows.then, changes, rows), method)(given)


@dataclass(frozen=True, eq=False)
class StreamedFit:
    """A regression of records that are read batch by batch: what ``LinearFit`` has of all records, by passes.

    Attributes:
        rows: The records.
        fits: The regression of a batch.
        shape: Number of records n, and of features.
    """

    rows: Rows
    fits: Fits
    shape: tuple[int, int]

    @property
    def slope(self) -> float:
        """Bound of a record's gradient."""
        return self.fits.slope

    @property
    def kind(self) -> type[LinearFit]:
        """Class of a batch's regression."""
        return self.fits.kind

    @property
    def mass(self) -> float:
        """Sum of the weights."""
        return float(self.rows.total(partial(_mass, self.fits)))

    def read(self, numbers: Callable[[LinearFit], tuple[Tensor, ...]]) -> ReadBatches | PartedBatches:
        """Return what reads numbers of the regressions of all batches; see ``LinearFit``."""
        return self.rows.read(partial(_numbers, self.fits, numbers))

    def at_once(self) -> LinearFit:
        """Return the regression of all records in one batch, for solvers that need more than sums: see ``BY_SUMS``."""
        psi, parts, done = torch.empty(self.shape, dtype=torch.float64), [], 0
        for part in map(self.fits.of, self.rows.batches()):
            n = len(part.weights)
            psi[done : done + n] = part.predictors  # which are in memory once
            parts.append(replace(part, predictors=psi[done : done + n]))
            done += n
        weights, targets = (torch.cat([getattr(part, name) for part in parts]) for name in ("weights", "targets"))
        return replace(parts[0], predictors=psi, weights=weights, targets=targets)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the sum's gradient, [p], at theta [p]."""
        return self.rows.total(Gradient(self.fits, theta))

    def total(self, theta: Tensor) -> float:
        """Return the sum at theta [p]; see ``LinearFit``, as of the next."""
        return float(self.rows.total(partial(_value, self.fits, theta)))

    def hessian(self, theta: Tensor, least: float = 0.0) -> Tensor:
        """Return the sum's Hessian, [p, p]."""
        return self.rows.total(partial(_hessian, self.fits, theta, least))


def _mass(fits: Fits, batch: CausalData) -> Tensor:
    return torch.tensor(fits.of(batch).mass, dtype=torch.float64)


def _value(fits: Fits, theta: Tensor, batch: CausalData) -> Tensor:
    return torch.tensor(fits.of(batch).total(theta), dtype=torch.float64)


def _hessian(fits: Fits, theta: Tensor, least: float, batch: CausalData) -> Tensor:
    return fits.of(batch).hessian(theta, least)


def _numbers(fits: Fits, numbers: Callable[[LinearFit], tuple[Tensor, ...]], batch: CausalData) -> tuple[Tensor, ...]:
    return numbers(fits.of(batch))
