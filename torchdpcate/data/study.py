"""What a data source hands over: records, their schema, and where effects are requested."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import LongTensor, Tensor

from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data._frames import CSV, about, file_kind, read_frame
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import check_integer
from torchdpcate.data.records import CausalData, check_treatment, public_generator, public_split
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.privacy.unit import RECORD, PrivacyUnit


@dataclass(frozen=True, eq=False)
class Study:
    """Records with their public facts, the queries, and the truth there if it is known.

    Args:
        records: The private records.
        schema: The public facts of the table.
        queries: Public points [d, q] at which effects are requested, or None.
        effect: True effects [d] at the queries, or None where unknown.
        name: Name of the data, for summaries and figures.
        truth: The true effect [m] at any encoded covariates [m, q]; returns None, or is None, where it is unknown.
        average: The true average effect of an estimand (ATE, ATT, ATC or ATO) under the law of the data, or over the
            records; returns None, or is None, where it is unknown.
        unit: Who is protected: a record, or a person with k of the records.
    """

    records: CausalData
    schema: TableSchema
    queries: Tensor | None
    effect: Tensor | None
    name: str
    truth: Callable[[Tensor], Tensor | None] | None = None
    average: Callable[[str], float | None] | None = None
    unit: PrivacyUnit = RECORD

    @property
    def domain(self) -> Domain:
        """Public bounds of the encoded columns."""
        return self.schema.domain

    @property
    def own_propensity(self) -> Tensor | None:
        """Each record's propensity [n], as learners' ``fit`` takes it; None unless the domain names a column of it."""
        return self.schema.own_propensity(self.records)

    @property
    def outcomes(self) -> Tensor:
        """What learners' ``fit`` takes as Y: outcomes [n], or time and event [n, 2]."""
        return self.schema.outcome_of(self.records)

    @property
    def own(self) -> dict[str, Any]:
        """What learners' ``fit`` takes of each record beside X, A and Y, by its arguments' names."""
        return self.schema.own(self.records)

    @property
    def n(self) -> int:
        """Number of records, public."""
        return self.records.n


@dataclass(frozen=True, eq=False)
class PublicStudy:
    """What is public of a study before a record is read: all that plans look at.

    Args:
        schema: The public facts of the table.
        name: Name of the data.
        n: Number of records; None where only the records know it.
        queries: Public points [d, q] at which effects are requested.
        unit: Who is protected.
    """

    schema: TableSchema
    name: str
    n: int | None = None
    queries: Tensor | None = None
    unit: PrivacyUnit = RECORD
    effect: ClassVar[None] = None

    @property
    def domain(self) -> Domain:
        """Public bounds of the encoded columns."""
        return self.schema.domain


@dataclass(frozen=True, eq=False)
class StreamedStudy:
    """Records that are read batch by batch, of a table whose truth is unknown.

    Args:
        records: The private records.
        name: Name of the data, for summaries and figures.
        queries: Public points [d, q] at which effects are requested.
    """

    records: RecordStream
    name: str
    queries: Tensor | None = None
    effect: ClassVar[None] = None
    truth: ClassVar[None] = None
    unit: ClassVar[PrivacyUnit] = RECORD

    @property
    def schema(self) -> TableSchema:
        """The public facts of the table."""
        return self.records.schema

    @property
    def domain(self) -> Domain:
        """Public bounds of the encoded columns."""
        return self.schema.domain

    @property
    def n(self) -> int:
        """Number of records, public."""
        return self.records.n


def record_average(effect: Tensor, a: Tensor, estimand: str) -> float | None:
    """Return the average of true effects [n] over the records that the estimand is an average of; None if not of any.

    Example:
        >>> import torch
        >>> record_average(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 1, 1]), "ATT")
        4.0
    """
    members = make_estimand(estimand, 0.5).members(a)
    return None if members is None else effect[members].mean().item()


class StudySource(ABC):
    """A choice of ``data=...``: something that can load a study."""

    queries: int
    queries_path: str | Path | None

    @abstractmethod
    def load(self) -> Study:
        """Read or generate the study.

        Raises:
            InputError: The data are not what the schema declares.
        """

    def public(self) -> PublicStudy:
        """Return what is public of the study; no record is read.

        Raises:
            InputError: A source that does not say.
        """
        raise InputError(
            f"data = {type(self).__name__}: does not say what is public of its records before it reads them, so that "
            "nothing can be planned; give it a method public()"
        )

    def _points(self, schema: TableSchema) -> Tensor:
        """Return the public points at which effects are requested: those of a file, else so many of a grid."""
        return (
            schema.grid(self.queries)
            if self.queries_path is None
            else read_queries(self.queries_path, schema, CsvForm.of(self))
        )


def read_queries(path: str | Path, schema: TableSchema, form: CsvForm | None = None) -> Tensor:
    """Read queries from a file of a table with the schema's covariate columns.

    Args:
        path: The file; other columns than the covariates are not read.
        schema: Public facts of the table.
        form: How it is written, if it is csv, with queries alone below its header, and nothing before it. None is of
            data that have no settings for it: commas, decimal points and UTF-8.

    Returns:
        Queries, float64 [d, q], in the file's order.

    Raises:
        InputError: Missing file or column, values that are missing or not numeric, or a query
            outside the domain, unless the schema clips.
    """
    own = PLAIN if form is None or file_kind(path) != CSV else replace(form, skip_lines=0, skip_after_header=0)
    try:
        frame = read_frame(path, schema.columns, schema.text_in(path), form=own)
    except InputError as error:
        fault, _, settings = str(error).partition("; give data.")
        remedy = "save it as comma-separated UTF-8 with decimal points" if form is None else f"give data.{settings}"
        raise InputError(f"{fault}; {remedy}" if settings else fault) from None
    with about(path):
        return schema.within(schema.encode(frame), "query")


@dataclass(eq=False, repr=False)
class GeneratedStudy(StudySource):
    """Records drawn from a known law.

    The seed draws everything; whoever knows it knows the records, so these data protect no one: they measure error and
    check guarantees. The domain holds facts of the law that are true for every seed.

    Args:
        n: Number of samples, records and held-out points together.
        train_fraction: Share that become records; the others are held out.
        queries: Request for effects at this many held-out points (the first ones; all if fewer).
        seed: Public seed of samples and split, and of coefficients where the law has random ones.
        queries_path: csv or parquet of queries with columns x0, x1, ...; replaces held-out points.

    Raises:
        InputError: On ``load``, n too small to split, or bad queries.
    """

    n: int = 3000
    train_fraction: float = 0.9
    queries: int = 300
    seed: int = 0
    queries_path: str | Path | None = None

    @property
    def name(self) -> str:
        """Name of the data, for summaries and figures."""
        return type(self).__name__.lower()

    @abstractmethod
    def effect(self, x: Tensor) -> Tensor:
        """Return the true effect E[Y(1) - Y(0) | x], [n], at x [n, q], in outcome units."""

    @abstractmethod
    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x), [n], at x [n, q]."""

    @abstractmethod
    def domain(self) -> Domain:
        """Return the public facts of the law of these data."""

    def schema(self) -> TableSchema:
        """Return the public facts of the table: those of the domain, all covariates numbers."""
        return TableSchema.from_domain(self.domain())

    def average_effect(self, estimand: str) -> float | None:
        """Return the true effect of an estimand under the law; None where the law has none in closed form."""
        return None

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples, drawn with a generator."""

    def _sample(self) -> CausalData:
        """Draw n samples from the seed."""
        return self.draw(self.n, public_generator(self.seed, "samples"))

    def public(self) -> PublicStudy:
        """Return schema, number of records and as many public points as there are to be queries; nothing is drawn."""
        schema, (train, _) = self.schema(), self._split()
        return PublicStudy(schema, self.name, len(train), self._points(schema))

    def load(self) -> Study:
        """Draw the samples, and hold some out."""
        train, held_out = self._split()
        samples, schema = self._sample(), self.schema()
        queries = samples.x[held_out[: self.queries]] if self.queries_path is None else self._points(schema)
        records = samples.subset(train)
        check_treatment(records.a)
        return Study(records, schema, queries, self.effect(queries), self.name, self.effect, self.average_effect)

    def _split(self) -> tuple[LongTensor, LongTensor]:
        """Return the positions of records, and of samples that are held out."""
        check_integer("data.n", self.n)
        return public_split(self.n, self.train_fraction, self.seed, "held-out")

    def _origin(self) -> str:
        return f"generator {type(self).__name__}: known by construction"
