"""One released number and its interval."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.draws import CELLS
from torchdpcate.release.interval_law import IntervalLaw

_MOST_PARTS = 1000  # Laplace parts in a file; an estimate has a few, and each costs time


@dataclass(frozen=True)
class Estimate:
    """An estimate in outcome units, and the law of its error.

    Attributes:
        value: The estimate.
        law: Law of its error, sampling and noise together; None where no interval is known.
        noise_dominated: Whether noise dominates a denominator of it, so that the data say nothing.

    Example:
        >>> low, high = Estimate(0.2, IntervalLaw(0.05)).interval(0.95, bound=1.0)
        >>> round(low, 3), round(high, 3)
        (0.102, 0.298)
    """

    value: float
    law: IntervalLaw | None
    noise_dominated: bool = False

    def interval(self, level: float, bound: float, per_person: int = 1) -> tuple[float, float]:
        """Return the interval, clipped to [-bound, bound]; where noise dominates a denominator, all of that, and warn.

        Args:
            level: Probability in (0, 1).
            bound: Largest effect there can be, for instance the outcome's range.
            per_person: k, records of each person: sums over records have at most k times the variance that independent
                ones would give them, and the Gaussian part of the error, which holds sampling, counts that.

        Raises:
            InputError: No interval is known, or a level outside (0, 1).
        """
        if self.noise_dominated:
            warnings.warn(
                "interval: the denominator of this estimate is dominated by privacy noise, so that any effect is "
                "possible; the interval is the full range. More records, more epsilon or a larger overlap would help",
                stacklevel=3,
            )
        return self.range(level, bound, per_person)

    def range(self, level: float, bound: float, per_person: int = 1) -> tuple[float, float]:
        """Return what ``interval`` does, without a warning."""
        if not 0 < level < 1:
            raise InputError(f"level = {level}: give a probability strictly between 0 and 1")
        if self.noise_dominated:
            return -bound, bound
        if self.law is None:
            raise InputError(
                "interval: no honest interval is known for this estimate; CovariateBalancingEffect has one"
            )
        half = replace(self.law, gaussian=math.sqrt(per_person) * self.law.gaussian).half_width(level)
        low, high = (min(max(end, -bound), bound) for end in (self.value - half, self.value + half))
        return low, high

    def tensor(self) -> Tensor:
        """Return the numbers: value, Gaussian deviation, Laplace scales, polytope factors."""
        law = () if self.law is None else (self.law.gaussian, *self.law.laplace, *self.law.polytope)
        return torch.tensor([self.value, *law], dtype=torch.float64)

    def facts(self) -> dict[str, Any]:
        """Return what is needed, beside the numbers, to rebuild the estimate."""
        parts = None if self.law is None else {"laplace": len(self.law.laplace), "polytope": bool(self.law.polytope)}
        return {"law": parts, "swamped": self.noise_dominated}

    @classmethod
    def build(cls, numbers: Tensor, facts: dict[str, Any]) -> "Estimate":
        """Rebuild an estimate from ``tensor`` and ``facts``.

        Raises:
            ValueError: They do not fit together.
        """
        parts, noise_dominated = facts["law"], facts["swamped"]
        if parts is not None and not 0 <= parts["laplace"] <= _MOST_PARTS:
            raise ValueError("more parts of noise than any estimate has")
        count = 1 if parts is None else 2 + parts["laplace"] + CELLS * bool(parts["polytope"])
        if tuple(numbers.shape) != (count,) or numbers.dtype != torch.float64 or not bool(numbers.isfinite().all()):
            raise ValueError(f"an estimate of {tuple(numbers.shape)} numbers, not {count}")
        if not isinstance(noise_dominated, bool):
            raise TypeError("swamped is no truth value")
        value, *rest = numbers.tolist()
        if parts is None:
            return cls(value, None, noise_dominated)
        end = 1 + parts["laplace"]
        if min(rest[:end]) < 0:
            raise ValueError("a negative scale")
        return cls(value, IntervalLaw(rest[0], tuple(rest[1:end]), tuple(rest[end:])), noise_dominated)
