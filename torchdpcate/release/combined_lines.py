"""Average effects, and effects in the same subgroups, of several sites combined: one number a line."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combined import Combined, columns
from torchdpcate.release.estimate import noise_deviation
from torchdpcate.release.statement import STATED_AS
from torchdpcate.release.subgroups import LEVEL, SubgroupRelease

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUISANCES = "error"
"""Name of the number of an average effect that says what errors of both nuisances add, in outcome ranges."""


class CombinedLines(Combined):
    """Numbers of several sites, a line each."""

    column = "effect"

    @property
    def estimate(self) -> np.ndarray:
        """The means over sites, float64 [lines], in outcome units."""
        return self.pooled.mean.numpy()

    def interval(self, level: float = LEVEL) -> np.ndarray:
        """Return confidence intervals of the means over sites, float64 [lines, 2], in outcome units.

        They hold sampling, all privacy noise, and how sites differ (``between=random``), if what ``assumptions`` says
        is so. A line that noise dominates at all sites has the full range of effects.

        Args:
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
        """
        bound, half = self.domain.outcome_range, self.pooled.half_width(level)
        ends = torch.stack([self.pooled.mean - half, self.pooled.mean + half], 1)
        unknown = torch.tensor([-bound, bound], dtype=torch.float64)
        return torch.where((self.pooled.sites > 0)[:, None], ends.clamp(-bound, bound), unknown).numpy()

    def _mean(self, level: float) -> Tensor:
        return torch.cat([self.pooled.mean[:, None], torch.from_numpy(self.interval(level))], 1)

    def plot(self, *, level: float = LEVEL) -> "Figure":  # type: ignore[override]
        """Return ``forest``."""
        return self.forest(level=level)

    def summary(self) -> dict[str, Any]:
        """Return each line with its interval, how far sites differ, and what each site guarantees."""
        rows = zip(self.lines, self.estimate.tolist(), self.interval().tolist(), strict=True)
        lines = [{"line": title, "estimate": y, "low": low, "high": high} for title, y, (low, high) in rows]
        return {"estimates": lines, "interval_level": LEVEL} | self._shown() | {STATED_AS: self.assumptions}


class CombinedAverage(CombinedLines):
    """The mean of the sites' average effects.

    Attributes:
        sites: The sites' releases, of one estimand.
    """

    kind = "combined_average"
    of = AverageEffectRelease
    subject = "Estimated average effect of {contrast} on {outcome}, combined over sites"

    sites: tuple[AverageEffectRelease, ...]

    @property
    def lines(self) -> list[str]:
        """The estimand."""
        return [self.sites[0].estimand]

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        unit = self.domain.outcome_range
        numbers = [
            [*site.main.moments(site.privacy.protected.records), unit * site.numbers.get(NUISANCES, 0.0)]
            for site in self.sites
        ]
        return columns(numbers)

    def _released(self, level: float) -> Tensor:
        bound = self.domain.outcome_range
        rows = [[s.estimate, *s.main.range(level, bound, s.privacy.protected.records)] for s in self.sites]
        return torch.tensor(rows, dtype=torch.float64)[:, None]

    def answer(self, x: Tensor) -> Tensor:
        """Refuse: there is nothing to say row by row.

        Raises:
            InputError: Always.
        """
        return self.sites[0].answer(x)


class CombinedSubgroups(CombinedLines):
    """The means over sites of the effects in the same public cells.

    Attributes:
        sites: The sites' releases, of the same cells.
    """

    kind = "combined_subgroups"
    of = SubgroupRelease
    subject = "Estimated average effects of {contrast} on {outcome} in subgroups, combined over sites"

    sites: tuple[SubgroupRelease, ...]

    @property
    def lines(self) -> list[str]:
        """The cells, and of more than two arms what is compared."""
        return self.sites[0].titles

    def _known(self) -> tuple[Tensor, Tensor, Tensor]:
        effects = [site.effects for site in self.sites]
        variances = [e.gaussian.square() + noise_deviation(e.laplace).square() for e in effects]
        known = [torch.where(e.noise_dominated, torch.inf, v) for e, v in zip(effects, variances, strict=True)]
        return (
            torch.stack([e.estimate for e in effects]),
            torch.stack(known),
            torch.stack([e.nuisances for e in effects]),
        )

    def _released(self, level: float) -> Tensor:
        each = [np.column_stack([site.estimate, site.interval(level)]) for site in self.sites]
        return torch.from_numpy(np.stack(each))

    def answer(self, x: Tensor) -> Tensor:
        """Return the mean over sites of the effect of each row's cell, [m]; of K > 2 arms [m, K - 1].

        Raises:
            InputError: Several partitions, in which a row has several cells.
        """
        return self._of_rows(self.pooled.mean, x)

    def interval_at(self, x: Tensor, level: float = LEVEL) -> np.ndarray:
        """Return the interval of the cell of each row of encoded covariates x [m, q], [m, 2].

        Raises:
            InputError: As ``answer``, or a level outside (0, 1).
        """
        low, high = torch.from_numpy(self.interval(level)).unbind(1)
        return torch.stack([self._of_rows(low, x), self._of_rows(high, x)], -1).numpy()

    def _of_rows(self, values: Tensor, x: Tensor) -> Tensor:
        arms = len(self.arms)
        return (values.view(-1, arms) if arms else values)[self.sites[0].cells(x[:, self._position(0)])]
