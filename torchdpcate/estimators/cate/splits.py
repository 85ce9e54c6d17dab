"""Which records train the nuisances and which fit the second stage: by position and public seed alone."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import LongTensor

from torchdpcate.data.records import public_split
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.registry import refuse_strings

NUISANCE, SECOND_STAGE, FOLDS = "nuisance", "second_stage", ("fold_1", "fold_2")
_NUISANCE_SHARE = 0.7  # of epsilon and delta, for the nuisances of two folds; releases spend what is left
TWO_FOLDS = "two folds, cross-fitted"
"""How a statement says that there are two folds."""


@dataclass(frozen=True)
class Fold:
    """Nuisances of one block of records, applied to the records of a block.

    Attributes:
        train: The block that trains the nuisances.
        apply: The block whose regression pairs they make.
    """

    train: str
    apply: str


class Split(ABC):
    """How records are shared out between the two stages: in two blocks.

    Attributes:
        names: Of the blocks.
        folds: Nuisances to train, and the second-stage records they are applied to.
        choices: Nuisances and records on which second-stage settings are chosen privately.
        fraction: Share of the records in the first block, in (0, 1).
    """

    names: ClassVar[tuple[str, ...]]
    folds: ClassVar[tuple[Fold, ...]]
    choices: ClassVar[tuple[Fold, ...]]
    fraction: float

    @property
    @abstractmethod
    def fact(self) -> float | str:
        """The split as privacy statements have it."""

    @abstractmethod
    def nuisance_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return what training and tuning may spend of a block's budget."""

    @abstractmethod
    def release_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return what is left for releases at least."""

    def blocks(self, n: int, seed: int) -> dict[str, LongTensor]:
        """Return the positions of the records of each block: disjoint, together all.

        Raises:
            InputError: Too few records.
        """
        return dict(zip(self.names, public_split(n, self.fraction, seed), strict=True))

    def sizes(self, n: int) -> dict[str, int]:
        """Return the number of records of each block, as ``blocks`` shares them out."""
        first = round(self.fraction * n)
        return dict(zip(self.names, (first, n - first), strict=True))

    def fitted(self, sizes: Mapping[str, int]) -> int:
        """Return the number of records that fit the second stage."""
        return sum(sizes[fold.apply] for fold in self.folds)


@dataclass(frozen=True)
class DisjointSplit(Split):
    """Each record enters one stage, so a release costs the larger of the blocks' budgets.

    The blocks are ``nuisance`` and ``second_stage``; both stages have all of the budget.

    Attributes:
        fraction: Share of the records that trains the nuisances, in (0, 1).
    """

    names: ClassVar[tuple[str, ...]] = (NUISANCE, SECOND_STAGE)
    folds = (Fold(NUISANCE, SECOND_STAGE),)
    choices = (Fold(NUISANCE, NUISANCE),)

    fraction: float = 0.5

    def __post_init__(self) -> None:
        """Refuse a string; the share is checked where records are split."""
        refuse_strings(type(self), vars(self))

    @property
    def fact(self) -> float:
        """The share of the records that trains the nuisances."""
        return self.fraction

    def nuisance_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return all of the budget."""
        return budget

    release_budget = nuisance_budget


@dataclass(frozen=True)
class AllRecords(DisjointSplit):
    """All records train the nuisances, for there is no second stage (``PlugInSecondStage``)."""

    names = (NUISANCE,)
    folds = choices = (Fold(NUISANCE, NUISANCE),)

    fraction: float = 1.0

    def blocks(self, n: int, seed: int) -> dict[str, LongTensor]:
        """Return the positions of all records."""
        return {NUISANCE: torch.arange(n)}  # type: ignore[dict-item]  # torch has one class for all types

    def sizes(self, n: int) -> dict[str, int]:
        """Return the number of all records."""
        return {NUISANCE: n}


@dataclass(frozen=True)
class CrossFit(Split):
    r"""Two folds; each trains nuisances for the other, and both fit the second stage.

    Every record enters one nuisance fit *and* the second stage, so the two costs compose: the nuisances spend a
    share of the budget, releases what the joint accounting leaves. With Gaussian-type costs at equal parts of
    :math:`\mu^2` the second stage's noise is :math:`\sqrt2` smaller than with disjoint blocks, and the nuisances'
    :math:`\sqrt2` larger. Source: theory note ``dp_cate``, section 3.1.
    """

    names = FOLDS
    folds = (Fold(*FOLDS), Fold(*reversed(FOLDS)))
    choices = folds
    fraction = 0.5

    @property
    def fact(self) -> str:
        """That there are two folds."""
        return TWO_FOLDS

    def nuisance_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return the nuisances' share."""
        return _share(budget, _NUISANCE_SHARE)

    def release_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return the rest; joint accounting leaves more."""
        return _share(budget, 1 - _NUISANCE_SHARE)


def _share(budget: PrivacyBudget, share: float) -> PrivacyBudget:
    return PrivacyBudget(budget.epsilon * share, budget.delta * share)
