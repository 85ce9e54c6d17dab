"""The records (x, a, y) as float64 tensors, at once or batch by batch, and how many values were moved."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import LongTensor, Tensor

from torchdpcate.data._arrays import MEND_MISSING, check_aligned, listed, plural, to_float64, to_matrix
from torchdpcate.errors import InputError

NAMED_ARMS = "treatment: {name: COLUMN, categories: [CONTROL, TREATED]}"
"""How a domain file names the arms of a treatment that is not coded as 0 and 1."""
NAMED_LEVELS = "outcome: {name: COLUMN, categories: [FAILURE, SUCCESS]}"
"""How it names the levels of a binary outcome that is not."""


@dataclass(frozen=True)
class ClippedValues:
    """How many values of each column were moved to their bounds; never to be published.

    Args:
        rows: Rows that were read, of a pair two.
        moved: Number of values moved, by the column's name; columns without any are left out.

    Example:
        >>> print(ClippedValues(200, {"y": 3}) + ClippedValues(100, {"y": 3, "age": 1}))
        y 6 of 300 (2 %), age 1 of 300 (0.333 %)
        >>> print(ClippedValues(200, {DIFFERENCES: 3}))
        differences within pairs beyond most 3 of 100 (3 %)
    """

    rows: int = 0
    moved: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "ClippedValues") -> "ClippedValues":
        names = dict.fromkeys([*self.moved, *other.moved])
        moved = {name: self.moved.get(name, 0) + other.moved.get(name, 0) for name in names}
        return ClippedValues(self.rows + other.rows, moved)

    def __str__(self) -> str:
        """Return columns, counts and shares in one line, the most first; ``none`` if nothing was moved."""
        most = sorted(self.moved, key=self.moved.__getitem__, reverse=True)
        return ", ".join(f"{name} {self.count(name)}" for name in most) or "none"

    def share(self, name: str) -> float:
        """Return the share of a column's values that were moved; of differences, that of two rows each."""
        return self.moved[name] / self._of(name)

    def count(self, name: str) -> str:
        """Return how many values of a column were moved, of how many, in words."""
        return f"{self.moved[name]:,} of {self._of(name):,} ({100 * self.share(name):.3g} %)"

    def _of(self, name: str) -> int:
        return self.rows // 2 if name == DIFFERENCES else self.rows


DIFFERENCES = "differences within pairs beyond most"
"""What is counted beside columns where it is moved to ``most`` of pairs."""
NOTHING_CLIPPED = ClippedValues()
"""Of records that were within their bounds as they came."""


@dataclass(frozen=True, eq=False, repr=False)
class CausalData:
    """Records: covariates x [n, q], treatment a [n] (0 or 1, or a label of K arms), outcome y [n], all float64.

    The constructor trusts its arguments; ``from_arrays`` checks them.

    Args:
        x: Covariates [n, q].
        a: Treatment [n].
        y: Outcome [n].
        propensity: Each record's own propensity [n], where the design of the study makes it known; else None.
        clipped: How many values of what was read were moved to their bounds. The curator's.
        weight: v [n] in [0, 1], by which each record counts, where the domain has weights (``RecordWeights``).
        follow_up: Time and event [n, 2] of an outcome by a horizon (``Censoring``).

    Example:
        >>> records = CausalData.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], [0.0, 1.0, 2.0])
        >>> records.n, records.subset(torch.tensor([2])).y.tolist()
        (3, [2.0])
    """

    x: Tensor
    a: Tensor
    y: Tensor
    propensity: Tensor | None = None
    clipped: ClippedValues = NOTHING_CLIPPED
    weight: Tensor | None = field(default=None, kw_only=True)
    follow_up: Tensor | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        """Return how many records there are, and none of them."""
        more = {", propensities": self.propensity, ", weights": self.weight}
        known = "".join(words for words, given in more.items() if given is not None)
        return f"<CausalData: {self.n:,} records of {self.x.shape[1]} covariates{known}>"

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        A: Any,
        Y: Any,
        actions: Sequence[int] = (0, 1),
        dropped: Sequence[str] = (),
    ) -> "CausalData":
        """Check and convert NumPy, torch or pandas arrays.

        Args:
            X: Covariates [n, q].
            A: Treatment [n], one of ``actions``, or bool for 0 and 1.
            Y: Outcome [n].
            actions: Labels of the arms.
            dropped: Which of ``outcome`` and ``treatment`` may be missing, which are NaN then.

        Raises:
            InputError: Wrong shapes, missing or infinite values (which column, how many), treatment
                not among the actions, an arm without records, or pandas arrays of different indexes.
        """
        check_aligned(X=X, A=A, Y=Y)
        x = to_matrix(X)
        a, y = (column_of(given, name, name in dropped) for given, name in ((A, "treatment"), (Y, "outcome")))
        if not len(x) == len(a) == len(y):
            raise InputError(f"X, A and Y have {len(x)}, {len(a)} and {len(y)} records; they must be as many")
        check_treatment(a[~a.isnan()], actions=actions)
        return cls(x, a, y)

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self.y)

    def __len__(self) -> int:
        return self.n

    def subset(self, index: Tensor) -> "CausalData":
        """Return the records at ``index`` (long or bool tensor)."""
        return self._each(lambda column: column[index])

    def to(self, device: torch.device | str) -> "CausalData":
        """Return the records on ``device``."""
        return self._each(lambda column: column.to(device))

    def copy(self) -> "CausalData":
        """Return records of their own memory, for the caller's arrays may change."""
        return self._each(torch.clone)

    def with_propensity(self, propensity: Tensor | None) -> "CausalData":
        """Return the records with their known propensity [n]."""
        return replace(self, propensity=propensity)

    def with_weight(self, weight: Tensor | None) -> "CausalData":
        """Return the records with their weights v [n], in [0, 1]."""
        return replace(self, weight=weight)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "CausalData":
        own = self.propensity, self.weight, self.follow_up
        known, weight, follow_up = (None if column is None else change(column) for column in own)
        x, a, y = map(change, (self.x, self.a, self.y))
        return CausalData(x, a, y, known, self.clipped, weight=weight, follow_up=follow_up)


def check_treatment(a: Tensor, name: str = "treatment", actions: Sequence[int] = (0, 1)) -> None:
    """Refuse a treatment [n] that is not one of the actions, or an action that no record has.

    Raises:
        InputError: Says how many values are no action, or which arm is empty.
    """
    check_arms(arm_sizes(a, name, actions), name, actions)


def arm_sizes(a: Tensor, name: str = "treatment", actions: Sequence[int] = (0, 1)) -> Tensor:
    """Return how many of the treatments [n] are each of the actions, [K].

    Raises:
        InputError: Says how many values are no action.
    """
    arms = torch.tensor(list(actions), dtype=a.dtype, device=a.device)
    members = a == arms[:, None]
    other = int((~members.any(0)).sum())
    if other:
        words = _in_words(actions)
        raise InputError(
            f"{name} has {plural(other, 'value')} other than {words}; code the arms as {words}, or name those of a "
            f"table in its domain: {NAMED_ARMS}"
        )
    return members.sum(1)


def check_arms(sizes: Tensor, name: str = "treatment", actions: Sequence[int] = (0, 1)) -> None:
    """Refuse arms of which one, of sizes [K], has no record.

    Raises:
        InputError: Says which.
    """
    empty = (sizes == 0).nonzero().flatten().tolist()
    if empty:
        which, words = "both" if len(actions) == 2 else "all", _in_words(actions)
        raise InputError(f"{name} has no record with value {actions[empty[0]]}; {which} arms, {words}, are needed")


def _in_words(actions: Sequence[int]) -> str:
    return " and ".join(filter(None, (listed(actions[:-1], len(actions)), str(actions[-1]))))


def column_of(value: Any, what: str, missing: bool = False) -> Tensor:
    """Return a column of finite numbers, float64 [n]; ``what`` names it in messages.

    Args:
        value: Numbers.
        what: Their name.
        missing: Whether numbers may be missing, which are NaN then.

    Raises:
        InputError: Not one column of numbers, or missing values (how many).
    """
    vector = to_float64(value, what)
    if vector.ndim == 2 and vector.shape[1] == 1:
        vector = vector[:, 0]
    if vector.ndim != 1:
        raise InputError(f"{what} has shape {tuple(vector.shape)}; it must be [records]")
    bad = int((vector.isinf() if missing else ~torch.isfinite(vector)).sum())
    if bad:
        raise InputError(f"{what} has {plural(bad, 'missing or infinite value')}; {MEND_MISSING}")
    return vector


def public_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator seeded by ``seed``, on a stream of its own for each ``purpose``.

    For public choices only (splits, subsamples, simulated records): never for privacy noise.

    Raises:
        InputError: ``seed`` is not an integer of 0 or more.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed is {seed!r}; give an integer of 0 or more")
    sequence = np.random.SeedSequence(int(seed), spawn_key=(zlib.crc32(purpose.encode()),))
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def public_permutation(n: int, seed: int, purpose: str) -> Tensor:
    """Return a seeded permutation of 0 ... n - 1 (int64)."""
    return torch.randperm(n, generator=public_generator(seed, purpose))


def public_split(n: int, fraction: float, seed: int, purpose: str = "split") -> tuple[LongTensor, LongTensor]:
    """Split record positions in two by a seeded permutation that never looks at the records.

    Args:
        n: Number of records.
        fraction: Share of the first part, between 0 and 1, both excluded.
        seed: Public seed.
        purpose: Splits of different purposes use independent streams of one seed.

    Returns:
        Indices (int64) of the first part, ``round(fraction * n)`` of them, and of the second.

    Raises:
        InputError: ``fraction`` is outside (0, 1), or n is too small for both parts to hold a record.

    Example:
        >>> first, second = public_split(10, 0.3, seed=0)
        >>> len(first), sorted(torch.cat([first, second]).tolist()) == list(range(10))
        (3, True)
    """
    size, _ = split_sizes(n, fraction)
    order = public_permutation(n, seed, purpose)
    return order[:size], order[size:]  # type: ignore[return-value]


def split_sizes(n: int, fraction: float) -> tuple[int, int]:
    """Return the sizes of the two parts of ``public_split``, for any n.

    Raises:
        InputError: See ``public_split``.

    Example:
        >>> split_sizes(10**9, 0.3)
        (300000000, 700000000)
    """
    if not 0.0 < fraction < 1.0:
        raise InputError(f"split fraction is {fraction}; it must lie between 0 and 1, both excluded")
    size = round(fraction * n)
    if not 0 < size < n:
        raise InputError(f"n = {n} records are too few to split {fraction:g} / {1 - fraction:g}; bring more")
    return size, n - size
