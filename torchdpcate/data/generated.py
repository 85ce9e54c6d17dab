"""What every generator of data with a known effect does: draw samples, hold some out, ask there."""

from abc import abstractmethod
from pathlib import Path

from torch import LongTensor, Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.queries import read_queries
from torchdpcate.data.records import CausalData, check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_split
from torchdpcate.data.study import PublicStudy, Study, StudySource
from torchdpcate.errors import InputError


class GeneratedStudy(StudySource):
    """Records drawn from a known law.

    The seed draws everything; whoever knows it knows the records, so these data protect no one: they measure error and
    check guarantees. The domain holds facts of the law that are true for every seed.

    Args:
        n: Number of samples, records and held-out points together.
        train_fraction: Share that become records; the others are held out.
        queries: Ask for effects at this many held-out points (the first ones; all if fewer).
        seed: Public seed of samples and split, and of coefficients where the law has random ones.
        queries_path: csv or parquet of queries with columns x0, x1, ...; replaces held-out points.

    Raises:
        InputError: On ``load``, n too small to split, or bad queries.
    """

    def __init__(
        self,
        n: int = 3000,
        train_fraction: float = 0.9,
        queries: int = 300,
        seed: int = 0,
        queries_path: str | Path | None = None,
    ) -> None:
        self.n = n
        self.train_fraction = train_fraction
        self.queries = queries
        self.seed = seed
        self.queries_path = queries_path

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

    @property
    def trial_propensity(self) -> float | None:
        """P(A = 1) where a coin that knows nothing of the covariates decides on the treatment; else None."""
        return None

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
    def _sample(self) -> CausalData:
        """Draw n samples from the seed."""

    def public(self) -> PublicStudy:
        """Return schema, number of records and as many public points as there are to be queries; nothing is drawn."""
        schema, (train, _) = self.schema(), self._split()
        points = read_queries(self.queries_path, schema) if self.queries_path else schema.grid(self.queries)
        return PublicStudy(schema, self.name, len(train), points)

    def load(self) -> Study:
        """Draw the samples, and hold some out."""
        train, held_out = self._split()
        samples, schema = self._sample(), self.schema()
        if self.queries_path is None:
            queries = samples.x[held_out[: self.queries]]
        else:
            queries = read_queries(self.queries_path, schema)
        records = samples.subset(train)
        check_treatment(records.a)
        return Study(records, schema, queries, self.effect(queries), self.name, self.effect, self.average_effect)

    def _split(self) -> tuple[LongTensor, LongTensor]:
        """Return the positions of records, and of samples that are held out."""
        if not isinstance(self.n, int) or self.n < 1:
            raise InputError(f"data.n is {self.n}; give a positive integer")
        return public_split(self.n, self.train_fraction, self.seed, "held-out")

    def _origin(self) -> str:
        return f"generator {type(self).__name__}: known by construction"
