"""What estimators of an average found on many data sets."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from experiments.covariate_balancing.root_polytope import error_width
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate

LEVEL = 0.95


@dataclass(frozen=True)
class Found:
    """Estimates and half widths of intervals, [runs]; nan where there is no interval."""

    estimate: Tensor
    half: Tensor


def found(conclusion: NoisyEstimate) -> Found:
    """Estimate and exact half width; the whole range where noise dominates the denominator."""
    none = ~conclusion.gaussian.isfinite()
    gaussian = conclusion.gaussian.nan_to_num(0.0, posinf=0.0)
    half = error_width(LEVEL, replace(conclusion, gaussian=gaussian))
    half = torch.where(conclusion.noise_dominated, 2.0, half)
    return Found(conclusion.estimate, half.masked_fill(none, math.nan))
