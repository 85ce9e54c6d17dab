"""Released effects in subgroups: noisy sums of public cells, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.censoring import curve_errors
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.data.words import labelled
from torchdpcate.errors import InputError
from torchdpcate.release.average_effect import LinesRelease
from torchdpcate.release.cell_effects import DEVIATIONS, NUMBERS, CellEffects, cell_effects
from torchdpcate.release.estimate import checked_level, noise_deviation
from torchdpcate.release.lines import EVERYBODY, LEVEL, Lines
from torchdpcate.release.release import require_tensor
from torchdpcate.release.statement import PrivacyStatement

if TYPE_CHECKING:
    import pandas as pd

SEPARATE, CROSSED = "separate", "crossed"
"""Sums of the cells of each partition; or of the cells of all partitions crossed, whose unions the cells are."""


@dataclass(frozen=True, eq=False, repr=False)
class SubgroupRelease(LinesRelease):
    r"""Effects in subgroups of public cuts.

    Of K > 2 arms each cell has K - 1 effects, of ``arms`` against the reference: they stand cell after cell wherever it
    says [cells] below.

    Attributes:
        subgroups: The cells.
        released: ``separate``: the numbers are of the cells of each partition; ``crossed``: of the cells of all
            partitions crossed.
        statistics: Released numbers of each of those, controls before treated, float64 [strata, arms, 3]; of pairs
            [strata, 1, 3]; see ``cell_effects.BASES``.
        law: Law of their noise, ``laplace`` or ``gaussian``.
        scale: Of the noise of each number.
        schema: Columns and public bounds.
        privacy: The privacy statement.
        follow_up: Released counts of the ends of follow-up, see ``curve_errors``; None where outcomes are all known.

    Raises:
        InputError: No such law, or a scale that is not positive.

    Example:
        >>> from torchdpcate.release.subgroups import _example
        >>> release = _example()
        >>> release.lines().round(3)[["line", "estimate", "low", "high"]].to_numpy().tolist()
        [['x0 < 0.5', 0.5, 0.133, 0.867], ['x0 >= 0.5', 0.0, -0.392, 0.392]]
    """

    of = "subgroups"

    subgroups: Subgroups
    released: str
    statistics: Tensor
    law: str
    scale: float
    schema: TableSchema
    privacy: PrivacyStatement
    follow_up: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what no reader could use."""
        if self.law not in NUMBERS or self.released not in (SEPARATE, CROSSED) or not 0 < self.scale < float("inf"):
            raise InputError(
                f"law = {self.law!r}, released = {self.released!r}, scale = {self.scale}: not of a release"
            )

    @property
    def subject(self) -> str:  # type: ignore[override]
        """What it is about, of a treatment and an outcome."""
        return "Estimated average effects of {contrast} on {outcome}" + " in subgroups" * (
            not self.subgroups.of_everybody
        )

    def _titled(self, cells: Sequence[str], order: Sequence[int]) -> list[str]:
        """Return what effects of cells are of, by names, where the arms are in this order, the reference first."""
        if not self.arms:
            return list(cells)
        first, *others = ((self.schema.reference, *self.arms)[arm] for arm in order)
        before = "" if self.subgroups.of_everybody else "{}: "
        return [before.format(cell) + f"{arm} instead of {first}" for cell in cells for arm in others]

    @property
    def strata(self) -> Subgroups:
        """The cells that the released numbers are of."""
        return strata_of(self.subgroups, self.released)

    @cached_property
    def effects(self) -> CellEffects:
        """The effects with the laws of their errors."""
        return self._effects(range(self.statistics.shape[1]))

    def _effects(self, order: Sequence[int]) -> CellEffects:
        """Return the effects of all arms in this order but its first, against that."""
        members, statistics = self.subgroups.members(self.strata), self.statistics[:, list(order)]
        unit, per_person = self.schema.cell_unit, self.privacy.protected.records * self.schema.design_effect
        found = cell_effects(statistics, members, self.law, self.scale, unit, per_person, self.schema.event)
        censoring = self.domain.censoring
        if self.follow_up is None or censoring is None:
            return found
        counts, noise = self.follow_up, DEVIATIONS[self.law] * float(self.privacy.public["follow_up_scale"])
        counts = counts.view(len(order), -1)[list(order)].flatten() if censoring.by_arm else counts
        curve = curve_errors(counts, censoring, noise, len(order)).repeat(len(members))
        return replace(found, gaussian=found.gaussian.hypot(curve), noise=found.noise.hypot(curve), curve=curve)

    @property
    def named(self) -> Lines:
        """The effects as lines, in the groups of their partitions."""
        return self._named(range(self.statistics.shape[1]))

    def _named(self, order: Sequence[int]) -> Lines:
        r"""Return the lines of the arms in this order against the first of it.

        Intervals are pointwise; simultaneous ones hold all effects at once with at least about their level: each is one
        of the level :math:`p^{1/m}` for m effects (Sidak 1967), which is exact for disjoint cells and holds for any
        others, and for arms that share a reference, because the noise is Gaussian or a mixture of Gaussians.
        """
        found = self.effects if list(order) == sorted(order) else self._effects(order)
        cells, bound = self.subgroups, self.schema.greatest
        names = tuple(self._titled(cells.names, order))
        titles = tuple(labelled(self.schema, self._titled(cells.labels, order)))
        labels = {covariate.name: covariate.label for covariate in self.schema.covariates}
        parts = [" and ".join(labels.get(one, one) for one in name.split(" and ")) for name in cells.of_partition]
        groups = tuple(name for name in parts for _ in self.arms or ("",))
        errors = torch.hypot(found.gaussian, noise_deviation(found.laplace))

        def ends(level: float) -> Tensor:
            half = torch.where(found.noise_dominated, torch.inf, found.half_width(checked_level(level)))
            return torch.stack([found.estimate - half, found.estimate + half], 1).clamp(-bound, bound)

        return Lines(
            names,
            titles,
            (EVERYBODY,) * len(titles) if cells.of_everybody else groups,
            found.estimate,
            torch.where(found.noise_dominated, torch.inf, errors),
            found.noise,
            torch.from_numpy(self.records),
            ends,
            self.assumptions,
            at_once=lambda level: ends(checked_level(level) ** (1 / len(names))),
            laplace=found.laplace,
            common=found.curve.square(),
            disjoint=() if self.arms else groups,  # effects of arms share the reference
            comparable=names,
        )

    @property
    def records(self) -> np.ndarray:
        """About how many records each cell has, by released counts, float64 [cells].

        Of more than two arms those in the two that are compared. Weights of surveys, and of follow-up that ended, are
        taken to be as large on average in each cell.
        """
        unit = torch.ones(1, dtype=torch.float64)
        if self.weighted:  # inverse probabilities count each record once in either arm, overlap weights 1/4 at most
            share = 2.0 if self.privacy.public.get("estimand") == "ATO" else 0.5
            most = (self.privacy.public.get(name, 1.0) for name in ("weight_control", "weight_treated"))
            unit = share * torch.tensor(list(map(float, most)))
        found, n = (self.effects.size * unit).sum(1), self.privacy.n
        if not self.arms:  # whatever noise says, each partition has no more than all records, and all if all count
            every = not (self.domain.weights or self.domain.dropped or self.weighted)
            each = found.split([partition.size for partition in self.subgroups.partitions])
            sums = [float(part.sum().clamp_min(1)) for part in each]
            pairs = zip(each, sums, strict=True)
            found = torch.cat([part * (n / total if every or total > n else 1) for part, total in pairs])
        return found.numpy()

    @property
    def weighted(self) -> bool:
        """Whether records weigh by a propensity."""
        return self.privacy.public.get("weights", "equal") != "equal"

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

    def against(self, arm: str, level: float = LEVEL) -> "pd.DataFrame":
        """Return the lines of more than two arms against one of ``arms`` in the place of the reference, see ``lines``.

        They follow from the same released sums, at no cost.

        Args:
            arm: One of ``arms``.
            level: Probability of the intervals.

        Raises:
            InputError: No such arm, or a level outside (0, 1).
        """
        if arm not in self.arms:
            raise InputError(f"against: arm = {arm!r}: choose one of {', '.join(self.arms) or 'none, of two arms'}")
        first = self.arms.index(arm) + 1
        order = [first, *(place for place in range(len(self.arms) + 1) if place != first)]
        return self._named(order).table(level)

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

    def tensors(self) -> dict[str, Tensor]:
        """Return the released numbers and coefficients."""
        ends = {} if self.follow_up is None else {"follow_up": self.follow_up}
        return {"statistics": self.statistics, **ends}

    def facts(self) -> dict[str, Any]:
        """Return the cells, and the law and scale of the noise."""
        return {
            "subgroups": self.subgroups.config(),
            "released": self.released,
            "law": self.law,
            "scale": self.scale,
        }

    @staticmethod
    def read(tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema) -> dict[str, Any]:
        """Return its own fields by ``tensors`` and ``facts``."""
        subgroups = Subgroups.of(facts["subgroups"], schema)
        strata = strata_of(subgroups, facts["released"])
        arms = len(schema.actions) if schema.pairs is None else 1
        require_tensor(tensors["statistics"], (strata.size, arms, NUMBERS[facts["law"]]), "statistics")
        noise = {"law": facts["law"], "scale": float(facts["scale"]), "statistics": tensors["statistics"]}
        censoring = schema.domain.censoring
        if censoring is not None:
            curves = len(schema.actions) if censoring.by_arm else 1
            noise["follow_up"] = tensors["follow_up"]
            require_tensor(
                tensors["follow_up"], (curves * ((censoring.known_ends + 1) * censoring.bins + 1),), "follow_up"
            )
        return {"subgroups": subgroups, "released": facts["released"], **noise}


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
