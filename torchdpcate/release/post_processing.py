"""What a reader may make of a release at no further privacy cost: means, rankings, clipped and monotone effects.

All of it is free, because each result is a function of the release and of what the reader brings, which are public:
differential privacy survives post-processing (Dwork & Roth 2014, proposition 2.1). Averages over the *records'*
covariates are not free, for those are private: they need a mechanism and a charge of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.covariates import Numeric
from torchdpcate.data.domain import unit_grid
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import batches
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.release import EffectRelease, FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.typing import Covariates

if TYPE_CHECKING:
    import pandas as pd

Effects = Union[EffectRelease, "View"]
"""Whatever answers ``effect`` and ``noise_band``."""


class View(ABC):
    """Effects made of a release's: the same questions, and no further privacy cost, for it is post-processing.

    Args:
        release: A release, or another view.
    """

    def __init__(self, release: Effects) -> None:
        release.schema.two_arms("a view of effects")
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


class ClippedEffects(View):
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
    return ClippedEffects(release, low, high)


def monotone(release: Effects, covariate: str, increasing: bool = True, points: int = 101) -> View:
    """Return a view whose effects are monotone in one covariate. Free: post-processing.

    The released effect on a public grid over the covariate's bounds, with the row's other covariates, is projected
    on monotone sequences (isotonic regression: nearest in squares); between grid points the view is linear. Where
    the true effect is monotone, this takes noise away. The noise band's width is that of the noisiest effect on the
    row's line: projection moves no answer by more than the largest change of an effect on it.

    Args:
        release: A release, or another view; one that answers anywhere, since the grid is requested.
        covariate: A numeric covariate.
        increasing: Whether effects grow with it rather than fall.
        points: Points of the grid.

    Raises:
        InputError: Not a numeric covariate, or fewer than two points; when it is requested, a query release that has no
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


__all__ = ["clipped", "mean_effect", "monotone", "noise_scales", "rank"]

_LARGEST_GRAM = 4_096  # rows and columns of a matrix whose largest eigenvalue is requested: some seconds


def rank(release: Effects, X: Any) -> "pd.DataFrame":
    """Return the rows of X from the largest released effect to the smallest. Free: post-processing.

    Noise shuffles rows whose effects are closer than it; ``noise_band`` shows by how much.

    Args:
        release: A release, or a view.
        X: Public covariates [m, q], as for ``EffectRelease.effect``.

    Returns:
        A frame with columns ``effect`` and ``rank`` (1, 2, ...) whose index is the row's position in X; of equal
        effects the earlier row comes first.

    Example:
        >>> from torchdpcate.release.post_processing import _example
        >>> rank(_example(), [[0.0], [1.0]])
           effect  rank
        1     0.8     1
        0    -0.2     2
    """
    import pandas as pd

    release.schema.two_arms("a ranking by an effect")
    effect = release.effect(X)
    order = np.argsort(-effect, kind="stable")
    return pd.DataFrame({"effect": effect[order], "rank": np.arange(1, len(order) + 1)}, index=order)


def mean_effect(release: Effects, X: Any, strata: Any = None, level: float = 0.95) -> "pd.DataFrame":
    r"""Return the mean released effect over public strata. Free: post-processing, for X is public.

    The mean over the *records'* covariates is another thing and not free: those are private.

    With probability of at least ``level`` over the privacy noise, for each stratum by itself, its band holds the
    median of what the mechanism would give as this mean on these records. It says nothing about sampling error. Its
    half-width is z times

    .. math:: s\,\min\big(\|\Psi\|/\sqrt m,\; \tfrac1m\textstyle\sum_i\|\psi(x_i)\|\big)

    for a function release with public noise scale s, Psi the stratum's features [m, p]: effects are clipped to the
    outcome range, so the mean's gradient in the coefficients is Psi'c / m with some c in [0, 1]^m, and a Lipschitz map
    of Gaussian noise is as concentrated as a linear one (Borell 1975). Without clipping the noise of output
    perturbation is exactly normal with standard deviation s ||mean psi||, at most the above and equal to it for one
    row; one cannot rely on it, as whether effects are clipped depends on the noise. Otherwise (query releases, monotone
    views) it is the mean of the answers' scales, which holds however their noises are correlated.

    Args:
        release: A release, or a view.
        X: Public covariates [m, q], as for ``EffectRelease.effect``.
        strata: Public labels of the rows, [m]; None takes all rows together.
        level: Probability in (0, 1).

    Returns:
        A frame with a row a stratum and columns ``stratum``, ``rows``, ``mean``, ``noise`` (scale of its noise),
        ``low`` and ``high``, in outcome units; the last three are NaN where the release has no honest band.

    Raises:
        InputError: No rows; labels missing or not one a row; a level outside (0, 1); as ``EffectRelease.effect``.

    Example:
        >>> from torchdpcate.release.post_processing import _example
        >>> mean_effect(_example(), [[0.0], [1.0], [1.0]], strata=["b", "a", "a"]).round(3)
          stratum  rows  mean  noise    low   high
        0       a     2   0.8    0.1  0.604  0.996
        1       b     1  -0.2    0.1 -0.396 -0.004
    """
    import pandas as pd

    release.schema.two_arms("mean_effect")
    z, x = quantile(level).item(), release._covariates(X)
    labels = _labels(strata, len(x))
    effect, bound = release.effect_tensor(x), release.schema.domain.outcome_range
    means = pd.DataFrame({"stratum": labels, "effect": effect.numpy()}).groupby("stratum")["effect"]
    table = means.agg(["size", "mean"]).reset_index().rename(columns={"size": "rows"})
    rows = [x[torch.from_numpy(means.indices[label])] for label in table["stratum"]]
    table["noise"] = np.array([_mean_scale(release, part) for part in rows], dtype=np.float64)  # None becomes NaN
    table["low"] = (table["mean"] - z * table["noise"]).clip(-bound, bound)
    table["high"] = (table["mean"] + z * table["noise"]).clip(-bound, bound)
    return table


def _mean_scale(release: Effects, x: Tensor) -> float | None:
    """Return the public noise scale of the mean effect at x [m, q]; None where there is none."""
    scales = noise_scales(release, x)
    if scales is None:
        return None
    while isinstance(release, ClippedEffects):
        release = release.release
    scale = scales.mean().item()
    if not isinstance(release, FunctionRelease) or min(len(x), release.features.dimension) > _LARGEST_GRAM:
        return scale
    assert release.noise_scale is not None
    return min(scale, release.noise_scale * _norm(release, x) / len(x) ** 0.5)


def _norm(release: FunctionRelease, x: Tensor) -> float:
    """Return the largest singular value of the features at x, from the smaller of their two Gram matrices."""
    features, p = release.features, release.features.dimension
    if len(x) <= p:
        gram = features.covariance(x, x)
    else:
        gram = torch.zeros(p, p, dtype=torch.float64)
        for part in batches(x, p):
            psi = features(part)
            gram += psi.T @ psi
    return torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt().item()


def _labels(strata: Any, m: int) -> np.ndarray:
    import pandas as pd

    if m == 0:
        raise InputError("X: has no rows; give at least one")
    labels = np.full(m, "all") if strata is None else np.asarray(strata)
    if labels.shape != (m,):
        raise InputError(f"strata: has shape {labels.shape} for {m} rows; give one label a row")
    if pd.isna(labels).any():
        raise InputError(f"strata: {pd.isna(labels).sum()} of {m} labels are missing; label every row or leave it out")
    return labels


_ROWS = 256
_END = 0.01  # of a mean, from the ends of its bounds, in their width
_MOST_VARIANCE = 0.9  # of what a mean allows between bounds
_LEAST_SHARE = 1e-6  # of a level, so that shares can be divided by their sum


def reference_population(release: ComposedRelease, count: int = _ROWS) -> Tensor:
    """Return encoded rows whose covariates have the released means and spreads, float64 [count, q].

    Covariates are independent of each other: categories come with their released shares (those that the release leaves
    out divide what is left), numbers by the Beta law between their bounds that has the released mean and spread, on
    their scale. Covariates that the release leaves out are uniform over their scale; its effect does not depend on
    them. The rows follow from released numbers and a fixed seed alone: post-processing, at no cost. No record is among
    them.

    Args:
        release: A release of one composition.
        count: Number of rows.

    Raises:
        InputError: ``count`` is not a positive integer.
    """
    schema, domain = release.schema, release.domain
    width = domain.dimension
    mean, spread = torch.zeros(width, dtype=torch.float64), torch.full((width,), 3**-0.5, dtype=torch.float64)
    columns = list(range(width)) if release.columns is None else list(release.columns)
    mean[columns], spread[columns] = release.standardisation.mean, release.standardisation.sd
    share, variance = (mean + 1) / 2, (spread / 2).square()  # of the way from the lower bound to the upper one
    known = torch.zeros(width, dtype=torch.bool)
    known[columns] = True
    u, found = unit_grid(count, len(schema.covariates)), []
    for i, covariate in enumerate(schema.covariates):
        of = list(schema.places[covariate.name])
        if covariate.levels:
            found.append(_levels(u[:, i], share[of], known[of]))
            continue
        value, *gone = of
        rest, missing = _split(u[:, i], share[gone[0]].item() if gone else 0.0)
        values = _between(rest, share[value].item(), variance[value].item())
        # a missing value is the middle of its scale
        found.append(torch.stack([torch.where(missing, 0.5, values), *([missing.double()] if gone else [])], 1))
    scaled = torch.cat(found, 1)
    return domain.from_unit(scaled)


def _levels(u: Tensor, share: Tensor, known: Tensor) -> Tensor:
    """Return indicators [count, k] of levels with these shares [k]; of two levels, that of the second, [count, 1].

    Levels whose share was not released divide what the others leave.
    """
    if len(share) == 1:
        return (u[:, None] >= 1 - share).double()
    rest = (1 - share[known].sum()) / (~known).sum().clamp_min(1)
    shares = torch.where(known, share, rest).clamp_min(_LEAST_SHARE)
    level = torch.searchsorted((shares / shares.sum()).cumsum(0)[:-1], u.contiguous(), right=True)
    return torch.nn.functional.one_hot(level, len(share)).double()


def _split(u: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return quantiles u [count] of the values that are there, and which are missing, a share of them."""
    if share <= 0:
        return u, torch.zeros(len(u), dtype=torch.bool)
    missing = u < min(share, 1.0)
    return ((u - share) / (1 - share) if share < 1 else u).clamp(0, 1), missing


def _between(u: Tensor, mean: float, variance: float) -> Tensor:
    """Return quantiles u [count] of the Beta law on [0, 1] of this mean and variance."""
    from scipy.special import betaincinv

    mean = min(max(mean, _END), 1 - _END)
    size = mean * (1 - mean) / min(variance, _MOST_VARIANCE * mean * (1 - mean)) - 1
    return torch.from_numpy(betaincinv(mean * size, (1 - mean) * size, u.numpy()))
