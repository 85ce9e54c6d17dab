"""Records and regressions of tests, as a composition sees them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.composition.linear_fit import Fits
from torchdpcate.composition.rows import InMemory
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream


def batch(x: Tensor, y: Tensor | None = None, a: Tensor | None = None, pi: Tensor | None = None) -> CausalData:
    """Return records; what is not given is zero."""
    none = torch.zeros(len(x), dtype=torch.float64)
    return CausalData(x, none if a is None else a, none if y is None else y, pi)


def rows(x: Tensor, y: Tensor | None = None, a: Tensor | None = None, pi: Tensor | None = None) -> InMemory:
    """Return the same as rows."""
    return InMemory(batch(x, y, a, pi))


@dataclass(frozen=True, eq=False)
class Given(Fits):
    """A regression of which its features are the covariates, and its weights the outcomes."""

    slope: float = 1.0

    def __call__(self, batch: CausalData) -> None:
        raise NotImplementedError

    def curved(self, batch: CausalData) -> tuple[Tensor, Tensor]:
        return batch.x, batch.y


class Batches(RecordStream):
    """Records in batches of a size, and how often they were read; ``lost`` of them are left out."""

    def __init__(self, domain, records: CausalData, size: int, lost: int = 0) -> None:
        self.schema, self.n = TableSchema.of(domain), records.n
        self.records, self.size, self.lost, self.readings = records, size, lost, 0

    def __iter__(self):
        self.readings += 1
        return map(self.records.subset, torch.arange(self.n - self.lost).split(self.size))
