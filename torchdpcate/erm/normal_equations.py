"""Sums over records from which every ridge regression follows, in memory that does not grow with the records."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class NormalEquations:
    r"""The sums A = sum v v' [p, p], b = sum s v [p] and n of weighted features v and targets s.

    They are all that ridge regression needs to know of the records:

    .. math:: \theta(\lambda) = (A_+ + n\lambda I)^{-1} b
        = \arg\min_\theta \tfrac1n\sum_i (s_i - v_i^\top\theta)^2 + \lambda\|\theta\|^2

    with A_+ the positive part, which is A itself unless noise was added to it. Batches are added as they come, on
    the CPU or a GPU, and the sums of several processes by ``all_reduce``: a batch and p^2 numbers lie in memory.
    Not private, unless a mechanism released them.

    Args:
        size: Number of features p.
        device: Where the sums are kept; batches must be there too.

    Attributes:
        matrix: A, float64 [p, p].
        vector: b, float64 [p].
        n: Number of records added.

    Example:
        >>> equations = NormalEquations(2)
        >>> for v, s in ((torch.eye(2), torch.ones(2)), (torch.ones(1, 2), torch.ones(1))):
        ...     equations.add(v.double(), s.double())
        >>> equations.n, equations.solve(1.0)
        (3, tensor([0.3333, 0.3333], dtype=torch.float64))
    """

    def __init__(self, size: int, device: str | torch.device = "cpu") -> None:
        self.matrix = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.vector = torch.zeros(size, dtype=torch.float64, device=device)
        self.n = 0

    @classmethod
    def of(cls, matrix: Tensor, vector: Tensor, n: int) -> "NormalEquations":
        """Return the equations with these sums."""
        equations = cls(0)
        equations.matrix, equations.vector, equations.n = matrix, vector, n
        return equations

    def add(self, v: Tensor, s: Tensor) -> None:
        """Add a batch of records.

        Args:
            v: Weighted features w psi(x), float64 [B, p].
            s: Targets, float64 [B].

        Raises:
            InputError: Shapes that do not fit.
        """
        if v.ndim != 2 or v.shape[1] != len(self.vector) or s.shape != v.shape[:1]:
            raise InputError(
                f"v {tuple(v.shape)}, s {tuple(s.shape)}: give v [B, {len(self.vector)}] and s [B] of the same records"
            )
        self.matrix.addmm_(v.T, v)
        self.vector.addmv_(v.T, s)
        self.n += len(s)

    def merge(self, other: "NormalEquations") -> None:
        """Add the sums of other records."""
        self.matrix += other.matrix.to(self.matrix)
        self.vector += other.vector.to(self.vector)
        self.n += other.n

    def all_reduce(self, group: "ProcessGroup | None" = None) -> None:
        """Replace the sums of each process by those of all, by ``torch.distributed``; all of them must call it.

        Args:
            group: The processes; None takes all.
        """
        import torch.distributed as dist

        count = torch.tensor(float(self.n), dtype=torch.float64, device=self.matrix.device)
        for part in (self.matrix, self.vector, count):
            dist.all_reduce(part, group=group)
        self.n = int(count)

    def solve(self, ridge: float | Tensor) -> Tensor:
        """Return theta(ridge), [p], or [k, p] for k ridges at once: one eigendecomposition serves them all.

        Raises:
            InputError: A ridge that is not positive.
        """
        ridges = torch.as_tensor(ridge, dtype=torch.float64, device=self.matrix.device)
        if not bool(((ridges > 0) & ridges.isfinite()).all()):
            raise InputError(f"ridge = {ridge}: give positive numbers")
        values, vectors = torch.linalg.eigh(self.matrix)
        filters = 1 / (values.clamp(min=0) + self.n * ridges[..., None])
        return (filters * (vectors.T @ self.vector)) @ vectors.T
