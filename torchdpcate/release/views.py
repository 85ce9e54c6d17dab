"""Effects made of a release's: clipped, or monotone in a covariate. Post-processing, hence free."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.covariates import Numeric
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.features.maps import batches
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.release import EffectRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.typing import Covariates

Effects = Union[EffectRelease, "View"]
"""Whatever answers ``effect`` and ``noise_band``."""


class View(ABC):
    """Effects made of a release's: the same questions, and no further privacy cost, for it is post-processing.

    Args:
        release: A release, or another view.
    """

    def __init__(self, release: Effects) -> None:
        self.release = release

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy statement of the release, which holds for the view as it stands."""
        return self.release.privacy

    @property
    def schema(self) -> TableSchema:
        """Columns and public bounds."""
        return self.release.schema

    def effect(self, X: Covariates) -> np.ndarray:
        """Return the effects at X, float64 [m]; arguments and errors are ``EffectRelease.effect``'s."""
        return self.effect_tensor(self._covariates(X)).numpy()

    def noise_band(self, X: Covariates, level: float = 0.95) -> np.ndarray:
        """Return the noise band of the second stage, [m, 2]; what it holds: see ``EffectRelease.noise_band``."""
        x = self._covariates(X)
        half = quantile(level) * _required_scale(self, x)
        effect, bound = self.effect_tensor(x), self.schema.domain.outcome_range
        return torch.stack([effect - half, effect + half], 1).clamp(-bound, bound).numpy()

    @abstractmethod
    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the effects at encoded covariates x [m, q], float64 [m]."""

    @abstractmethod
    def _noise_scale(self, x: Tensor) -> Tensor:
        """Return the public noise scale of each effect, [m]."""

    def _covariates(self, X: Any) -> Tensor:
        return self.release._covariates(X)


class Clipped(View):
    """Clipped effects; see ``clipped``."""

    def __init__(self, release: Effects, low: float, high: float) -> None:
        super().__init__(release)
        if not -np.inf < low <= high < np.inf:
            raise InputError(f"low, high = {low}, {high}: give two numbers, the smaller one first")
        self.low, self.high = low, high

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the clipped effects, [m]."""
        return self.release.effect_tensor(x).clamp(self.low, self.high)

    def noise_band(self, X: Covariates, level: float = 0.95) -> np.ndarray:
        """Return the noise band of the release's second stage, clipped, [m, 2]."""
        # a monotone map takes medians to medians and bands to bands
        _required_scale(self, self._covariates(X))
        return self.release.noise_band(X, level).clip(self.low, self.high)

    def _noise_scale(self, x: Tensor) -> Tensor:
        return self.release._noise_scale(x)


class Monotone(View):
    """Effects that are monotone in a covariate; see ``monotone``."""

    def __init__(self, release: Effects, covariate: str, increasing: bool, points: int) -> None:
        super().__init__(release)
        numeric = [column.name for column in self.schema.covariates if isinstance(column, Numeric)]
        if covariate not in numeric:
            raise InputError(f"covariate = {covariate}: no numeric covariate; choose one of {', '.join(numeric)}")
        if points < 2:
            raise InputError(f"points = {points}: give a grid of at least two points")
        domain = self.schema.domain
        self.column, self.sign = domain.names.index(covariate), 1.0 if increasing else -1.0
        self.grid = domain.line(self.column, points)

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return the projected effects, [m]."""
        return torch.cat([self._projected(part) for part in self._parts(x)])

    def _noise_scale(self, x: Tensor) -> Tensor:
        # An answer is a weighted mean of effects on the row's line (pools of the projection, then the line between
        # two grid points), so it moves with the noise no more than the effect on that line that moves most.
        lines = [self.release._noise_scale(self._lines(part)).view(len(part), -1).amax(1) for part in self._parts(x)]
        return torch.cat(lines)

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        return batches(x, len(self.grid) * x.shape[1])

    def _lines(self, x: Tensor) -> Tensor:
        """Return each row at every grid point, the other covariates as they are, [m points, q]."""
        lines = x.repeat_interleave(len(self.grid), 0)
        lines[:, self.column] = self.grid.repeat(len(x))
        return lines

    def _projected(self, x: Tensor) -> Tensor:
        values = self.sign * self.release.effect_tensor(self._lines(x)).view(len(x), -1)
        values = self.sign * _isotonic(values)
        last = len(self.grid) - 2
        left = (torch.searchsorted(self.grid, x[:, self.column].contiguous(), right=True) - 1).clamp(0, last)
        share = (x[:, self.column] - self.grid[left]) / (self.grid[left + 1] - self.grid[left])
        before, after = values.gather(1, torch.stack([left, left + 1], 1)).unbind(1)
        return torch.lerp(before, after, share)


def clipped(release: Effects, low: float, high: float) -> View:
    """Return a view whose effects are clipped to [low, high]. Free: post-processing.

    Its noise band (of the second stage) is the release's, clipped, and holds the median of the clipped effect.

    Args:
        release: A release, or another view.
        low: Smallest effect, in outcome units; public, as all that a reader brings.
        high: Largest effect.

    Raises:
        InputError: Low above high, or not finite.

    Example:
        >>> clipped(_example(), 0.0, 0.5).effect([[0.0], [1.0]]).tolist()
        [0.0, 0.5]
    """
    return Clipped(release, low, high)


def monotone(release: Effects, covariate: str, increasing: bool = True, points: int = 101) -> View:
    """Return a view whose effects are monotone in one covariate. Free: post-processing.

    The released effect on a public grid over the covariate's bounds, with the row's other covariates, is projected
    on monotone sequences (isotonic regression: nearest in squares); between grid points the view is linear. Where
    the true effect is monotone, this takes noise away. The noise band's width is that of the noisiest effect on the
    row's line: projection moves no answer by more than the largest change of an effect on it.

    Args:
        release: A release, or another view; one that answers anywhere, since the grid is asked.
        covariate: A numeric covariate.
        increasing: Whether effects grow with it rather than fall.
        points: Points of the grid.

    Raises:
        InputError: Not a numeric covariate, or fewer than two points; when it is asked, a query release that has no
            answers on the grid.

    Example:
        >>> view = monotone(_example(), "x0", increasing=False, points=2)
        >>> view.effect([[0.0], [0.25], [1.0]]).round(3).tolist()
        [0.3, 0.3, 0.3]
    """
    return Monotone(release, covariate, increasing, points)


def noise_scales(release: Effects, x: Tensor) -> Tensor | None:
    """Return the public noise scale of each effect at encoded covariates x [m, q], in outcome units.

    Returns:
        [m], or None where there is none to speak of: the scale is secret or unknown, or the release is not certified.
    """
    if release.privacy.level != Level.CERTIFIED.value or not release.privacy.claims:
        return None
    try:
        return release._noise_scale(x)
    except InputError:
        return None


def _required_scale(release: Effects, x: Tensor) -> Tensor:
    scales = noise_scales(release, x)
    if scales is None:
        while isinstance(release, View):
            release = release.release
        raise release._no_band()
    return scales


def quantile(level: float) -> Tensor:
    """Return the two-sided normal quantile of a level.

    Raises:
        InputError: A level outside (0, 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level = {level}: give a probability strictly between 0 and 1")
    return torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))


def _isotonic(values: Tensor) -> Tensor:
    """Return the isotonic projection of every row of values [m, k]."""
    from sklearn.isotonic import isotonic_regression

    # One call for all rows: shifted apart by more than they span, no two of them are ever pooled.
    shift = (values.amax() - values.amin()) * torch.arange(len(values), dtype=torch.float64)[:, None]
    fitted = isotonic_regression((values + shift).flatten().numpy())
    return torch.from_numpy(fitted).view_as(values) - shift


def _example() -> EffectRelease:
    """Return the release of the examples above: effects -0.2 and 0.8 at the ends of [0, 1]."""
    from torchdpcate.data.domain import Domain

    domain = Domain([0.0], [1.0], -1.0, 1.0)
    x, answers, scales = torch.tensor([[[0.0], [1.0]], [[-0.2], [0.8]], [[0.1], [0.1]]], dtype=torch.float64)
    privacy = PrivacyStatement("output", "", "certified", "(1, 1e-05)", 1.0, 1e-5, 100, ())
    return QueryRelease(x, answers[:, 0], TableSchema.from_domain(domain), privacy, scales[:, 0])
