"""Released effects in subgroups: noisy sums of public cells, and what follows from them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.data.words import labelled
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import ReleasedWeights
from torchdpcate.release.cell_effects import BASES, NUMBERS, CellEffects, cell_effects
from torchdpcate.release.estimate import checked_level, half_width
from torchdpcate.release.file import Release, draw
from torchdpcate.release.release import require_tensor
from torchdpcate.release.statement import STATED_AS, PrivacyStatement, and_counting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LEVEL = 0.95
"""Probability of the intervals that cards and ``torchdpcate verify`` show."""
SEPARATE, CROSSED = "separate", "crossed"
"""Sums of the cells of each partition; or of the cells of all partitions crossed, whose unions the cells are."""


@dataclass(frozen=True, eq=False, repr=False)
class SubgroupRelease(Release):
    r"""Effects in subgroups of public cuts, each with an interval that counts sampling and all noise.

    Of K > 2 arms each cell has K - 1 effects, of ``arms`` against the reference: they stand cell after cell wherever it
    says [cells] below.

    Attributes:
        subgroups: The cells.
        released: ``separate``: the numbers are of the cells of each partition; ``crossed``: of the cells of all
            partitions crossed.
        statistics: Released numbers of each of those, controls before treated, float64 [strata, arms, 3]; of scores
            [strata, 1, 3]; see ``cell_effects.BASES``.
        law: Law of their noise, ``laplace`` or ``gaussian``.
        scale: Of the noise of each number.
        schema: Columns and public bounds.
        privacy: The privacy statement.
        weights: Released propensity; None where the effects use none, or a known one.
        scores: What doubly robust scores were scaled by; None where outcomes are summed.

    Raises:
        InputError: No such law, or a scale that is not positive.

    Example:
        >>> from torchdpcate.release.subgroups import _example
        >>> release = _example()
        >>> release.table().round(3)[["cell", "estimate", "low", "high"]].to_numpy().tolist()
        [['x0 < 0.5', 0.5, 0.133, 0.867], ['x0 >= 0.5', 0.0, -0.392, 0.392]]
    """

    kind = "subgroups"
    column = "effect"

    subgroups: Subgroups
    released: str
    statistics: Tensor
    law: str
    scale: float
    schema: TableSchema
    privacy: PrivacyStatement
    weights: ReleasedWeights | None = field(default=None)

    def __post_init__(self) -> None:
        """Refuse what no reader could use."""
        if self.law not in BASES or self.released not in (SEPARATE, CROSSED) or not 0 < self.scale < float("inf"):
            raise InputError(
                f"law = {self.law!r}, released = {self.released!r}, scale = {self.scale}: not of a release"
            )

    @property
    def subject(self) -> str:  # type: ignore[override]
        """What it is about, of a treatment and an outcome."""
        return "Estimated average effects of {contrast} on {outcome}" + " in subgroups" * (
            not self.subgroups.of_everybody
        )

    @property
    def lines(self) -> list[tuple[int, str, str]]:
        """Partition, cell and arm of each effect; the arm is empty where there are two."""
        cells = zip(self.subgroups.in_partition, self.subgroups.labels, strict=True)
        return [(place, label, arm) for place, label in cells for arm in self.arms or ("",)]

    @property
    def titles(self) -> list[str]:
        """What each effect is of, in words: its cell, and of more than two arms which is compared with which."""
        return labelled(self.schema, self.line_names)

    @property
    def line_names(self) -> list[str]:
        """The same by the names of columns, levels and arms, which sites share."""
        if not self.arms:
            return list(self.subgroups.labels)
        before = "" if self.subgroups.of_everybody else "{}: "
        return [before.format(cell) + f"{arm} instead of {self.schema.reference}" for _, cell, arm in self.lines]

    @property
    def strata(self) -> Subgroups:
        """The cells that the released numbers are of."""
        return strata_of(self.subgroups, self.released)

    @cached_property
    def effects(self) -> CellEffects:
        """The effects with the laws of their errors."""
        return self._effects(self.statistics)

    def _effects(self, statistics: Tensor) -> CellEffects:
        """Return the effects of all arms but the first of these numbers, against the first."""
        members = self.subgroups.members(self.strata)
        half, per_person = self.domain.outcome_range / 2, self.privacy.protected.records * self.schema.design_effect
        return cell_effects(statistics, members, self.law, self.scale, half, per_person)

    @property
    def estimate(self) -> np.ndarray:
        """The estimates, float64 [cells], in outcome units."""
        return self.effects.estimate.numpy()

    @property
    def records(self) -> np.ndarray:
        """About how many records each cell has, by released counts, float64 [cells]; fewer by overlap weights.

        Of more than two arms those in the two that are compared. Weights of surveys, and of follow-up that ended, are
        taken to be as large on average in each cell.
        """
        unit = torch.ones(1, dtype=torch.float64)
        if self.weighted:  # inverse probabilities count each record once in either arm, overlap weights 1/4 at most
            share = 2.0 if self.privacy.public.get("estimand") == "ATO" else 0.5
            unit = torch.tensor([float(self.privacy.public.get(name, 1.0)) for name in WEIGHTS]) * share
        return (self.effects.size * unit).sum(1).numpy()

    @property
    def weighted(self) -> bool:
        """Whether records weigh by a propensity."""
        return self.privacy.public.get("weights", "equal") != "equal"

    @property
    def assumptions(self) -> str | None:
        """What estimates and intervals rest on, in words; None where that is not known."""
        words = self.privacy.public.get(STATED_AS)
        return None if words is None else and_counting(words, self.domain)

    def interval(self, level: float = LEVEL, simultaneous: bool = False) -> np.ndarray:
        r"""Return the confidence interval of each cell's effect, float64 [cells, 2], in outcome units.

        Pointwise, each holds the effect of its cell with about this probability over sampling and noise; simultaneous
        ones hold all effects at once with at least about that: each is one of the level :math:`p^{1/m}` for m effects
        (Sidak 1967), which is exact for disjoint cells and holds for any others, and for arms that share a reference,
        because the noise is Gaussian or a mixture of Gaussians. Both where cells are not small, nothing confounds but
        what ``assumptions`` names, and arms overlap. Where noise dominates a count, the interval is the full range of
        effects.

        Args:
            level: Probability in (0, 1).
            simultaneous: Whether the level is that of all cells together.

        Raises:
            InputError: A level outside (0, 1).
        """
        checked_level(level)
        found, bound = self.effects, self.domain.outcome_range
        half = found.half_width(level ** (1 / len(found.estimate)) if simultaneous else level)
        half = torch.where(found.noise_dominated, torch.inf, half)
        return torch.stack([found.estimate - half, found.estimate + half], 1).clamp(-bound, bound).numpy()

    def interval_at(self, x: Tensor, level: float = LEVEL) -> np.ndarray:
        """Return the pointwise interval of the cell of each row of encoded covariates x [m, q], [m, 2].

        Of K > 2 arms [m, K - 1, 2].

        Raises:
            InputError: Several partitions, as ``answer``, or a level outside (0, 1).
        """
        found = self.interval(level)
        if self.arms:
            found = found.reshape(-1, len(self.arms), 2)
        return found[self.cells(x).numpy()]

    def contrast(self, cell: str, other: str, level: float = LEVEL, arm: str = "") -> tuple[float, float, float]:
        """Return the effect in one cell minus that in another of the same partition, and the ends of its interval.

        Errors of disjoint cells are independent, noise and sampling alike, so that this interval is narrower than what
        the two cells' own ones leave. Where a person has k records, each cell's sampling variance counts k times, which
        holds for the difference too, in whichever cells they lie.

        Args:
            cell: Name of a cell, as ``table`` has it.
            other: Of a cell that is disjoint from it.
            level: Probability of the interval, of this contrast alone.
            arm: Whose effects, one of ``arms``; left out where there are two.

        Raises:
            InputError: No such cells in one partition, no such arm, or a level outside (0, 1).

        Example:
            >>> from torchdpcate.release.subgroups import _example
            >>> [round(number, 3) for number in _example().contrast("x0 < 0.5", "x0 >= 0.5")]
            [0.5, -0.037, 1.037]
        """
        if arm not in (self.arms or ("",)):
            raise InputError(f"contrast: arm = {arm!r}: choose one of {', '.join(self.arms) or 'none, of two arms'}")
        names, found = self.lines, self.effects
        pairs = [
            (names.index((place, cell, arm)), names.index((place, other, arm)))
            for place in range(len(self.subgroups.partitions))
            if {(place, cell, arm), (place, other, arm)} <= set(names)
        ]
        if not pairs or cell == other:
            raise InputError(f"contrast: {cell!r} and {other!r} are no two cells of one partition; see table()")
        one, two = pairs[0]
        value, bound = float(found.estimate[one] - found.estimate[two]), 2 * self.domain.outcome_range
        laplace = torch.cat([found.laplace[one], found.laplace[two]])[None]
        both = torch.hypot(found.gaussian[one], found.gaussian[two])
        half = float(half_width(level, both[None], laplace))
        if bool(found.noise_dominated[one] | found.noise_dominated[two]):
            half = 2 * bound
        return value, max(value - half, -bound), min(value + half, bound)

    def table(self, level: float = LEVEL, simultaneous: bool = False) -> "pd.DataFrame":
        """Return one row a cell: cell, estimate, low, high, noise, records and partition.

        Of more than two arms it is one row a cell and ``arm``, which is compared with the reference. ``noise`` is the
        standard deviation of the privacy noise in the estimate, which the interval holds beside that of sampling;
        ``records`` is about the number of records.

        Args:
            level: Probability of the intervals.
            simultaneous: Whether it is that of all cells together.

        Raises:
            InputError: A level outside (0, 1).
        """
        import pandas as pd

        low, high = self.interval(level, simultaneous).T
        lines = self.lines
        columns = {
            "cell": [cell for _, cell, _ in lines],
            **({"arm": [arm for *_, arm in lines]} if self.arms else {}),
            "estimate": self.estimate,
            "low": low,
            "high": high,
            "noise": self.effects.noise.numpy(),
            "records": self.records.round(),
            "partition": [self.subgroups.partitions[place].name for place, *_ in lines],
        }
        return pd.DataFrame(columns)

    def against(self, arm: str, level: float = LEVEL) -> "pd.DataFrame":
        """Return the effects of more than two arms against one of ``arms`` in the place of the reference.

        They follow from the same released sums, at no cost: one row a cell and arm, with pointwise intervals.

        Args:
            arm: One of ``arms``.
            level: Probability of the intervals.

        Returns:
            A frame with the columns ``cell``, ``arm``, ``estimate``, ``low`` and ``high``.

        Raises:
            InputError: No such arm, or a level outside (0, 1).
        """
        import pandas as pd

        if arm not in self.arms:
            raise InputError(f"against: arm = {arm!r}: choose one of {', '.join(self.arms) or 'none, of two arms'}")
        names = [self.schema.reference, *self.arms]
        order = [names.index(arm), *(place for place, name in enumerate(names) if name != arm)]
        found, bound = self._effects(self.statistics[:, order]), self.domain.outcome_range
        half = torch.where(found.noise_dominated, torch.inf, found.half_width(level))
        low, high = ((found.estimate + sign * half).clamp(-bound, bound).numpy() for sign in (-1, 1))
        lines = [(cell, names[place]) for cell in self.subgroups.labels for place in order[1:]]
        columns = {"estimate": found.estimate.numpy(), "low": low, "high": high}
        return pd.DataFrame({"cell": [c for c, _ in lines], "arm": [a for _, a in lines], **columns})

    def answer(self, x: Tensor) -> Tensor:
        """Return the effect of the cell of each row of encoded covariates x [m, q], [m]; of K > 2 arms [m, K - 1].

        Raises:
            InputError: Several partitions, in which a row has several cells.
        """
        found = self.effects.estimate
        return (found.view(-1, len(self.arms)) if self.arms else found)[self.cells(x)]

    def cells(self, x: Tensor) -> Tensor:
        """Return the positions of the rows' cells, [m]."""
        if len(self.subgroups.partitions) > 1:
            raise InputError(
                f"release of subgroups: each row is in {len(self.subgroups.partitions)} cells, one of each partition; "
                "see them with torchdpcate verify, or release one partition"
            )
        return self.subgroups.positions(x)[:, 0]

    def plot(self, *, level: float = LEVEL) -> "Figure":  # type: ignore[override]
        """Return the forest plot: effects with pointwise and simultaneous intervals, a line a cell.

        Args:
            level: Probability of the intervals, in (0, 1).

        Raises:
            InputError: A level outside (0, 1).

        Example:
            >>> from torchdpcate.release.subgroups import _example
            >>> [label.get_text() for label in _example().plot().axes[0].get_yticklabels()]
            ['x0 < 0.5', 'x0 >= 0.5']
        """
        return draw("plot_subgroups", self, level=level)

    def summary(self) -> dict[str, Any]:
        """Return the cells with estimates and intervals, and what they rest on.

        Example:
            >>> from torchdpcate.release.subgroups import _example
            >>> found = _example().summary()
            >>> [cell["cell"] for cell in found["cells"]], found["noise_dominated"]
            (['x0 < 0.5', 'x0 >= 0.5'], 0)
        """
        table, arms = self.table().drop(columns="partition"), self.schema.arm_labels[1:] * self.subgroups.size
        shown = {"cell": labelled(self.schema, table["cell"])} | ({"arm": list(arms)} if self.arms else {})
        rows = table.assign(**shown).to_dict("records")
        wide = self.interval(simultaneous=True).tolist()
        found: dict[str, Any] = {
            "cells": [{**row, "simultaneous": ends} for row, ends in zip(rows, wide, strict=True)],
            "interval_level": LEVEL,
            "noise_dominated": int(self.effects.noise_dominated.sum()),
        }
        found |= {"reference": self.schema.arm_labels[0]} if self.arms else {}
        return found | ({} if self.assumptions is None else {STATED_AS: self.assumptions})

    def tensors(self) -> dict[str, Tensor]:
        """Return the released numbers and coefficients."""
        return {"statistics": self.statistics} | ({} if self.weights is None else self.weights.tensors())

    def facts(self) -> dict[str, Any]:
        """Return the cells, and the law and scale of the noise."""
        return {
            "subgroups": self.subgroups.config(),
            "released": self.released,
            "law": self.law,
            "scale": self.scale,
            "weights": None if self.weights is None else self.weights.facts(),
        }

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "SubgroupRelease":
        """Rebuild a release from ``tensors`` and ``facts``, and refuse whatever else they hold."""
        subgroups, weights = Subgroups.of(facts["subgroups"], schema), facts["weights"]
        strata = strata_of(subgroups, facts["released"])
        require_tensor(tensors["statistics"], (strata.size, len(schema.actions), NUMBERS), "statistics")
        return cls(
            subgroups,
            facts["released"],
            tensors["statistics"],
            facts["law"],
            float(facts["scale"]),
            schema,
            privacy,
            None if weights is None else ReleasedWeights.build(tensors, weights, schema.domain),
        )


WEIGHTS = ("weight_control", "weight_treated")
"""Public constants: the largest weight of a control and of a treated record."""


def strata_of(subgroups: Subgroups, released: str) -> Subgroups:
    """Return the cells that numbers are released of.

    Args:
        subgroups: The cells that are requested.
        released: ``separate`` or ``crossed``.

    Raises:
        InputError: Partitions that cannot be crossed.
    """
    return subgroups if released == SEPARATE else Subgroups((subgroups.crossed(),), subgroups.dimension)


def _example() -> SubgroupRelease:
    """Two cells of a hundred records of outcomes in [-1, 1], for examples."""
    from torchdpcate.release.rule import _example as rule

    schema, privacy = rule().schema, rule().privacy
    numbers = [[[25.0, 0.0, 25.0], [12.5, 0.0, 37.5]], [[25.0, 0.0, 25.0], [25.0, 0.0, 25.0]]]
    statistics = torch.tensor(numbers, dtype=torch.float64)
    return SubgroupRelease(
        Subgroups.of([{schema.columns[0]: [0.5]}], schema), SEPARATE, statistics, "laplace", 2.0**-20, schema, privacy
    )
