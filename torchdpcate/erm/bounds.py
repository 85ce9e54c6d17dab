"""How much one record may move the weights of a sum: public suprema over neighbours."""

from dataclasses import dataclass
from typing import Self

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import number, positive


@dataclass(frozen=True)
class WeightBounds:
    r"""Suprema over ordered pairs of neighbours that differ in record j (policy_learning, section 3).

    .. math::
        W_1 = \sum_{i \ne j} |w_i - w'_i| + w_j + w'_j, \qquad W_2 = \sum_{i \ne j} (w_i - w'_i)_+ + w_j

    They are computed from public facts, never from the weights of the data at hand.

    Attributes:
        most: w_max, the largest weight.
        first: W_1; a record moves the summed gradient by at most slope * W_1.
        second: W_2; a record raises the trace of the summed Hessian by at most curvature * W_2.
        own: Whether only the replaced record's own term changes, so that the Hessian moves by rank one.

    Raises:
        InputError: If a number is not positive, or the three contradict each other.

    Example:
        >>> WeightBounds.with_indirect(4.0, 21.908902)
        WeightBounds(most=4.0, first=29.908902, second=25.908902, own=False)
    """

    most: float
    first: float
    second: float
    own: bool

    def __post_init__(self) -> None:
        for name in ("most", "first", "second"):
            positive(f"bounds.{name}", getattr(self, name))
        if self.first < 2 * self.most or self.second < self.most:
            raise InputError(
                f"bounds.first = {self.first:g}, second = {self.second:g}: a replaced record of weight up to "
                f"{self.most:g} alone moves {2 * self.most:g} and {self.most:g}; give at least those"
            )

    @classmethod
    def per_record(cls, most: float) -> Self:
        """Weights in [0, most] by a public map of the record itself: W_1 = 2 w_max, W_2 = w_max."""
        return cls(most, 2 * most, most, own=True)

    @classmethod
    def with_indirect(cls, most: float, indirect: float) -> Self:
        """Weights in [0, most], the others of which move by at most ``indirect`` in all: W_1 and W_2 grow by it.

        Raises:
            InputError: If ``indirect`` is negative.
        """
        if number("indirect", indirect) < 0:
            raise InputError(f"indirect = {indirect:g}: give a number of at least 0")
        return cls(most, 2 * most + indirect, most + indirect, own=indirect == 0)

    @classmethod
    def pairs(cls, most: float) -> Self:
        """Pairwise terms over n - 1, each of weight up to most: W_1 = 4 most, W_2 = 2 most (section 5.4).

        A record stands in n - 1 terms of its own and in one of each other record: 2 most before, 2 most after.
        """
        return cls(most, 4 * most, 2 * most, own=False)

    @property
    def indirect(self) -> float:
        """D_1, how much the other records' terms move."""
        return self.first - 2 * self.most

    def scaled(self, factor: float) -> Self:
        """The bounds of weights that are multiplied by a public factor.

        Raises:
            InputError: If ``factor`` is not positive.
        """
        factor = positive("factor", factor)
        return type(self)(factor * self.most, factor * self.first, factor * self.second, self.own)
