"""Records as average effects see them: features, treatment and scaled outcome, in memory or batch by batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, arm_sizes, check_arms
from torchdpcate.data.streams import PartedStream, RecordStream
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.losses import Loss
from torchdpcate.fit.minimise import Batches, PartedBatches, ReadBatches, minimise_batches, summed
from torchdpcate.privacy.budget import integer


class Batch(NamedTuple):
    """Some records, of one data set or side by side of several: a leading dimension, runs, is there or not.

    Attributes:
        x: Covariates in their own units, [..., b, q].
        psi: Features, [..., b, p].
        z: Treatment in {0, 1}, [..., b].
        y: Outcome scaled to [0, 1], [..., b].
    """

    x: Tensor
    psi: Tensor
    z: Tensor
    y: Tensor


Target = Callable[[Batch], Tensor]
"""What a loss aims at, [..., b]."""
Terms = Callable[[Batch], Tensor]
"""Sums over a batch's records, [runs, k]."""


def arm(batch: Batch) -> Tensor:
    """Return +1 for the treated and -1 for controls, [..., b]: the propensity's target."""
    return 2 * batch.z - 1


def outcome(batch: Batch) -> Tensor:
    """Return the scaled outcome, [..., b]: the outcome model's target."""
    return batch.y


Make = Callable[[CausalData, FeatureMap, Domain], Batch]
"""Makes a batch, as ``make_batch`` does."""


class Records(ABC):
    """Records of one data set, or of several side by side, accessed through sums over them.

    Attributes:
        n: Records of a data set.
        size: p, number of features.
        sets: How many data sets there are side by side.
    """

    n: int
    size: int
    sets: int = 1

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield all records, in the same order each time."""

    def minimise(self, loss: Loss, target: Target, gamma: float, linear_terms: Tensor, tolerance: float) -> Tensor:
        """Return minimisers [runs, p] of sum l(psi'theta, t) + (gamma/2) ||theta||^2 + b'theta, a pass a Newton step.

        Args:
            loss: l.
            target: t.
            gamma: Ridge of the sum.
            linear_terms: b, [runs, p].
            tolerance: Largest gradient norm at the end.

        Raises:
            InputError: Not as many linear terms as data sets.
        """
        if self.sets not in (1, len(linear_terms)):
            raise InputError(f"linear_terms: {len(linear_terms)} rows for {self.sets} data sets; give one for each")
        return minimise_batches(self.pairs(target), loss, gamma, linear_terms, tolerance)

    def total(self, terms: Terms) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over a batch, [runs, k]."""
        return torch.stack([terms(batch) for batch in self.batches()]).sum(0)

    def slopes(self, loss: Loss, target: Target, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return value [runs], gradient [runs, p] and Hessian [runs, p, p] of sum l(psi'theta, t) at theta."""
        return summed(self.pairs(target), loss, theta)

    def pairs(self, target: Target) -> Batches:
        """Return features and targets of all records, as sums over them take them."""
        return self._read(target)

    def _read(self, target: Target) -> ReadBatches:
        return lambda: ((batch.psi, target(batch)) for batch in self.batches())


@dataclass(frozen=True, eq=False)
class StackedRecords(Records):
    """Records in memory: one batch, of one data set [n, ...] or of many side by side [runs, n, ...].

    Attributes:
        batch: All of them.
    """

    batch: Batch

    @property
    def n(self) -> int:  # type: ignore[override]
        """Records of a data set."""
        return self.batch.z.shape[-1]

    @property
    def size(self) -> int:  # type: ignore[override]
        """Number of features."""
        return self.batch.psi.shape[-1]

    @property
    def sets(self) -> int:  # type: ignore[override]
        """How many data sets there are side by side."""
        return self.batch.z.shape[0] if self.batch.z.ndim == 2 else 1

    def batches(self) -> Iterator[Batch]:
        yield self.batch


@dataclass(frozen=True, eq=False)
class StreamedRecords(Records):
    """Records that are read anew for each sum, in constant memory.

    Attributes:
        stream: Where they come from.
        features: Feature map, set up.
        domain: Public bounds.
        make: Makes a batch; None takes ``make_batch``.
    """

    stream: RecordStream
    features: FeatureMap
    domain: Domain
    make: Make | None = None

    @property
    def n(self) -> int:  # type: ignore[override]
        """Number of records."""
        return integer("stream.n", self.stream.n, least=1)

    @property
    def size(self) -> int:  # type: ignore[override]
        """Number of features."""
        return self.features.dimension

    def batches(self) -> Iterator[Batch]:
        """See ``Records``.

        Raises:
            InputError: Not as many records as the stream said.
        """
        n, make = 0, self.make or make_batch
        for records in self.stream:
            n += records.n
            yield make(_within(records, self.domain), self.features, self.domain)
        if n != self.n:
            raise InputError(f"stream: {n} records, where it said n = {self.n}; give a stream that stays as it is")

    def check(self) -> None:
        """Read everything once, and refuse what sums over these records must not rest on.

        Raises:
            InputError: Values outside the domain or missing, treatments other than 0 and 1, an arm without records, or
                another number of records than the stream says.
        """
        sizes = self.sizes()
        check_arms(sizes)
        if int(sizes.sum()) != self.n:
            raise InputError(f"stream: {int(sizes.sum())} records, where it says n = {self.n}; correct n")

    def sizes(self) -> Tensor:
        """Return the records of each arm, [2]; errors are those of ``check`` about single records."""
        sizes = torch.zeros(2, dtype=torch.long)
        for records in self.stream:
            self.domain.check_covariates(records.x)
            self.domain.check_outcome(records.y)
            sizes += arm_sizes(records.a)
        return sizes


@dataclass(frozen=True, eq=False)
class PartedRecords(StreamedRecords):
    """Records in parts, each of which is summed where it is."""

    stream: PartedStream

    def batches(self) -> Iterator[Batch]:
        """See ``Records``: none leaves its part.

        Raises:
            InputError: Always.
        """
        raise InputError("stream: batches would leave their parts; use data.engine=null")

    def total(self, terms: Terms) -> Tensor:
        return torch.stack(self._ask(partial(_total, terms))).sum(0)

    def pairs(self, target: Target) -> PartedBatches:
        return PartedBatches(self.stream, partial(_pairs, self._settings, target))

    def sizes(self) -> Tensor:
        return torch.stack(self._ask(StreamedRecords.sizes)).sum(0)

    @property
    def _settings(self) -> tuple[Any, ...]:
        return self.features, self.domain, self.make

    def _ask(self, function: Callable[[StreamedRecords], Tensor]) -> list[Tensor]:
        return self.stream.ask(partial(_of_part, self._settings, function))


def _of_part(settings: tuple[Any, ...], function: Callable[[StreamedRecords], Tensor], part: RecordStream) -> Tensor:
    return function(StreamedRecords(part, *settings))


def _total(terms: Terms, records: Records) -> Tensor:
    return records.total(terms)


def _pairs(settings: tuple[Any, ...], target: Target, part: RecordStream) -> ReadBatches:
    return StreamedRecords(part, *settings)._read(target)


def _within(records: CausalData, domain: Domain) -> CausalData:
    """Move records into the domain: what was checked once may be read otherwise later, and sums must not follow it."""
    x, y = domain.clip_covariates(torch.nan_to_num(records.x)), torch.nan_to_num(records.y)
    return CausalData(x, (records.a > 0.5).double(), y, records.propensity, weight=records.weight)


def make_batch(records: CausalData, features: Callable[[Tensor], Tensor], domain: Domain) -> Batch:
    """Return records within the domain with their features, and their outcomes scaled to [0, 1]."""
    y = ((records.y - domain.outcome_low) / domain.outcome_range).clamp(0, 1)  # but for rounding it is there
    return Batch(records.x, features(records.x), records.a, y)


def records_of(
    records: CausalData | RecordStream, features: FeatureMap, domain: Domain, make: Make | None = None
) -> Records:
    """Return records as average effects see them, in memory as a copy: the caller's arrays may change.

    Args:
        records: In memory within the domain; or a stream, which is read once here.
        features: Feature map, set up.
        domain: Public bounds.
        make: Makes a batch; None takes ``make_batch``.

    Raises:
        InputError: See ``StreamedRecords.check``.
    """
    if isinstance(records, CausalData):
        return StackedRecords((make or make_batch)(records.copy(), features, domain))
    kind = PartedRecords if isinstance(records, PartedStream) else StreamedRecords
    found = kind(records, features, domain, make)  # type: ignore[arg-type]
    found.check()
    return found
