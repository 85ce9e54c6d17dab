"""What a reader may make of a release at no further privacy cost: means, rankings, clipped and monotone effects.

All of it is free, because each result is a function of the release and of what the reader brings, which are public:
differential privacy survives post-processing (Dwork & Roth 2014, proposition 2.1). Averages over the *records'*
covariates are not free, for those are private: they need a mechanism and a charge of their own.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.features.maps import batches
from torchdpcate.release.release import FunctionRelease
from torchdpcate.release.views import Clipped, Effects, clipped, monotone, noise_scales, quantile

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["clipped", "mean_effect", "monotone", "noise_scales", "rank"]

_LARGEST_GRAM = 4_096  # rows and columns of a matrix whose largest eigenvalue is asked for: some seconds


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
        >>> from torchdpcate.release.views import _example
        >>> rank(_example(), [[0.0], [1.0]])
           effect  rank
        1     0.8     1
        0    -0.2     2
    """
    import pandas as pd

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
        >>> from torchdpcate.release.views import _example
        >>> mean_effect(_example(), [[0.0], [1.0], [1.0]], strata=["b", "a", "a"]).round(3)
          stratum  rows  mean  noise    low   high
        0       a     2   0.8    0.1  0.604  0.996
        1       b     1  -0.2    0.1 -0.396 -0.004
    """
    import pandas as pd

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
    while isinstance(release, Clipped):
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
