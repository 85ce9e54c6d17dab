"""The records (x, a, y) as float64 tensors."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._arrays import plural, to_float64, to_matrix
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError


@dataclass(frozen=True, eq=False)
class CausalData:
    """Records: covariates x [n, q], treatment a [n] in {0, 1}, outcome y [n], all float64.

    The constructor trusts its arguments; `from_arrays` checks them.

    Example:
        >>> records = CausalData.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], [0.0, 1.0, 2.0])
        >>> records.n, records.subset(torch.tensor([2])).y.tolist()
        (3, [2.0])
    """

    x: Tensor
    a: Tensor
    y: Tensor

    @classmethod
    def from_arrays(cls, X: Any, A: Any, Y: Any, domain: Domain | None = None) -> "CausalData":
        """Check and convert NumPy, torch or pandas arrays.

        Args:
            X: covariates [n, q].
            A: treatment [n], 0/1 or bool.
            Y: outcome [n].
            domain: if given, X must have its columns, and a DataFrame is read by its names. Bounds
                are not checked here.

        Raises:
            InputError: wrong shapes, missing or infinite values (which column, how many), treatment
                not 0/1, or only one arm.
        """
        x = domain.matrix(X) if domain is not None else to_matrix(X)
        a, y = _column(A, "treatment"), _column(Y, "outcome")
        if not len(x) == len(a) == len(y):
            raise InputError(f"X, A and Y have {len(x)}, {len(a)} and {len(y)} records; they must be as many")
        check_treatment(a)
        return cls(x, a, y)

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self.y)

    def __len__(self) -> int:
        return self.n

    def subset(self, index: Tensor) -> "CausalData":
        """Return the records at `index` (long or bool tensor)."""
        return CausalData(self.x[index], self.a[index], self.y[index])

    def to(self, device: torch.device | str) -> "CausalData":
        """Return the records on `device`."""
        return CausalData(self.x.to(device), self.a.to(device), self.y.to(device))


def check_treatment(a: Tensor, name: str = "treatment") -> None:
    """Refuse a treatment [n] that is not 0/1, or of one arm only.

    Raises:
        InputError: says how many values are neither 0 nor 1, or which arm is empty.
    """
    other = int(((a != 0) & (a != 1)).sum())
    if other:
        raise InputError(f"{name} has {plural(other, 'value')} other than 0 and 1; code the arms as 0 and 1")
    treated = int(a.sum())
    if treated in (0, len(a)):
        arm = int(treated == 0)
        raise InputError(f"{name} has no record with value {arm}; both arms, 0 and 1, are needed")


def _column(value: Any, what: str) -> Tensor:
    vector = to_float64(value, what)
    if vector.ndim == 2 and vector.shape[1] == 1:
        vector = vector[:, 0]
    if vector.ndim != 1:
        raise InputError(f"{what} has shape {tuple(vector.shape)}; it must be [records]")
    bad = int((~torch.isfinite(vector)).sum())
    if bad:
        raise InputError(f"{what} has {plural(bad, 'missing or infinite value')}; drop or impute these rows")
    return vector
