"""What a data source hands over: records, their schema, and where effects are asked for."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchdpcate.causal.estimand import known_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.record_stream import RecordStream
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.unit import RECORD, PrivacyUnit


@dataclass(frozen=True, eq=False)
class Study:
    """Records with their public facts, the queries, and the truth there if it is known.

    Args:
        records: The private records.
        schema: The public facts of the table.
        queries: Public points [d, q] at which effects are asked for, or None.
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
        queries: Public points [d, q] at which effects are asked for.
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
    """

    records: RecordStream
    name: str
    queries: ClassVar[None] = None
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
    members = known_estimand(estimand).members(a)
    return None if members is None else effect[members].mean().item()


class StudySource(ABC):
    """A choice of ``data=...``: something that can load a study."""

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
