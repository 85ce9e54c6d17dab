"""The unit of privacy: a record, or a person with k records; what is charged by record bounds what a person loses."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import LEAST_DELTA, PrivacyBudget, integer
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, Target, worst_case

_INWARDS = 1e-12  # of a record's budget, above the rounding of k times it
_KINDS = {"column": str, "records": int}
_MOST = 100_000  # records of a person: delta by person is a sum of as many terms


@dataclass(frozen=True)
class PrivacyUnit:
    r"""Who is protected: one record, one person with exactly k of the n records, or one pair that counts as a record.

    Replacing a person replaces k records, one after the other. A mechanism that is :math:`(\epsilon, \delta)`-private
    for each of these steps satisfies

    .. math:: P(M(D) \in S) \le e^{k\epsilon} P(M(D') \in S) + \delta \sum_{j<k} e^{j\epsilon}

    (Vadhan 2017, lemma 2.2; docs/guarantees/composition.md), whatever it is made of and in whatever blocks the records
    lie.
    So learners spend ``record_budget`` by record, and the statement says what that is by person. k Gaussian steps at
    distance mu come to k mu; the bound above requests at most a few percent more noise.

    Attributes:
        column: The table's column that names the person; empty where the unit is a record.
        records: k, records of each person.
        is_pair: Whether it is a pair, which counts as one record.

    Example:
        >>> budget = PrivacyUnit.person("subject_id", 4).record_budget(PrivacyBudget(1.0, 0.0))
        >>> round(budget.epsilon, 9), budget.delta
        (0.25, 0.0)
    """

    column: str = ""
    records: int = 1
    is_pair: bool = field(default=False, init=False)

    @classmethod
    def person(cls, column: str, records: int = 1) -> "PrivacyUnit":
        """Return the unit of a person with k records.

        Raises:
            InputError: No column, or k is not an integer from 1 to 100,000.
        """
        if not column:
            raise InputError("person: name the column that tells whose a record is")
        records = integer("per_person", records, least=1)
        if records > _MOST:
            raise InputError(f"per_person = {records}: give at most {_MOST:,}; split the records before")
        return cls(str(column), records)

    def paired(self) -> "PrivacyUnit":
        """Return the unit of a pair that the column names."""
        unit = PrivacyUnit(self.column)
        object.__setattr__(unit, "is_pair", True)
        return unit

    @property
    def is_person(self) -> bool:
        """Whether persons or pairs are protected, not rows."""
        return bool(self.column)

    @property
    def name(self) -> str:
        """``"person"``, ``"pair"`` or ``"record"``."""
        return "pair" if self.is_pair else "person" if self.is_person else "record"

    @property
    def counted(self) -> str:
        """What n counts: rows are records, but of a unit that counts as one of them."""
        return self.name if self.records == 1 else "record"

    def record_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return what may be spent by record so that all k records of a unit together cost at most a budget.

        Args:
            budget: Of the unit.

        Raises:
            InputError: The delta by record is below ``LEAST_DELTA``.
        """
        if self.records == 1:
            return budget
        epsilon = budget.epsilon / self.records * (1 - _INWARDS)
        delta = budget.delta * math.exp(-_log_sum(epsilon, self.records)) * (1 - _INWARDS)
        if budget.delta and delta < LEAST_DELTA:
            raise InputError(
                f"privacy.epsilon = {budget.epsilon:g}: {self.records} records of a person leave delta = {delta:.3g} "
                f"by record, below {LEAST_DELTA:g}; give a smaller epsilon, a larger delta, or data.per_person=1"
            )
        return PrivacyBudget(epsilon, delta)

    def cost(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Return the epsilon and delta of the unit, of what costs these by record.

        Example:
            >>> [round(value, 9) for value in PrivacyUnit.person("id", 2).cost(0.5, 1e-6)]
            [1.0, 2.649e-06]
        """
        if self.records == 1:
            return epsilon, delta
        return self.records * epsilon, min(delta * math.exp(_log_sum(epsilon, self.records)), 1.0) if delta else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return column and k; nothing of a record."""
        pair = {"pair": True} if self.is_pair else {}
        return {"column": self.column, "records": self.records, **pair} if self.is_person else {}

    @classmethod
    def from_dict(cls, stated: dict[str, Any]) -> "PrivacyUnit":
        """Inverse of ``to_dict``.

        Raises:
            InputError: Other entries.
        """
        if not stated:
            return RECORD
        if {name: type(value) for name, value in stated.items()} not in (_KINDS, {**_KINDS, "pair": bool}):
            raise InputError(f"unit = {stated!r}: not a unit of privacy")
        unit = cls.person(stated["column"], stated["records"])
        return unit.paired() if stated.get("pair") else unit


RECORD = PrivacyUnit()
"""The unit of a record, a row of a table."""


def _log_sum(epsilon: float, k: int) -> float:
    """Return log of 1 + e^epsilon + ... + e^((k - 1) epsilon), without overflow."""
    terms = [j * epsilon - (k - 1) * epsilon for j in range(k)]
    return (k - 1) * epsilon + math.log(math.fsum(map(math.exp, terms)))


_RECORDS = 4


@worst_case(
    "person",
    PrivacyUnit,
    attacks=[Target(None, person=True)],
    pair="four records of one person, each as far as one can be from its replacement",
)
def _person(budget: PrivacyBudget) -> Game:
    unit = PrivacyUnit.person("person", _RECORDS)
    mechanism = GaussianMechanism(unit.record_budget(budget), 1.0)
    sums = torch.tensor([0.0, float(_RECORDS)], dtype=torch.float64)

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return mechanism.add_noise(sums[dataset].expand(runs, 1), noise)

    event = GaussianEvent(mechanism.event.noise_multiplier / _RECORDS)
    return Game(draw, event, Guarantee(Level.CERTIFIED, budget), evidence=lambda outputs: outputs[:, 0])
