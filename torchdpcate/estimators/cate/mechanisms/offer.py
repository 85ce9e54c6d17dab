"""Which mechanism needs less noise at given queries, from public facts alone."""

import math

import torch
from torch import Tensor

from torchdpcate.estimators.cate.mechanisms.smooth_sensitivity import smooth_bound
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import SmoothNoise, analytic_gaussian_sigma
from torchdpcate.second_stage.linear import squared_sensitivity
from torchdpcate.second_stage.stage import LinearStage, RKHSStage


def noise_at_queries(stage: RKHSStage, queries: Tensor, budget: PrivacyBudget) -> dict[str, float]:
    r"""Return the noise of an answer by two certified mechanisms, in outcome units; free, for nothing is looked at.

    ``function``: the function's own noise (output perturbation, Gaussian-process noise) restricted to the queries,
    root mean square of :math:`\Delta\,\sigma_{AG}\sqrt{K(x, x)}`, exact. ``smooth_sensitivity``: its secret scale is at
    least this, because :math:`A_D \preceq (\lambda + B^2) I` on every data set, so that
    :math:`a(D) \ge \|J\|\,c/(\lambda + B^2)`, c as in ``local_sensitivity``.

    Args:
        stage: The second stage; its records are not looked at.
        queries: Covariates [d, q].
        budget: What a release may spend.

    Returns:
        Noise by name.
        Source: theory note ``dp_cate``, rows 5 and 6.
    """
    kernel, bounds, n = stage.covariance(queries, queries), stage.block.bounds, len(stage.block.s)
    r = stage.sensitivity * analytic_gaussian_sigma(budget.epsilon, budget.delta)
    noise = {"function": r * kernel.diagonal().mean().sqrt().item()}
    norm = torch.linalg.eigvalsh(kernel)[-1].sqrt().item()
    eta, B = bounds.weight**2 / (n * stage.ridge), bounds.weight
    worst = norm * squared_sensitivity(B, bounds.target, stage.ridge, n)
    least = worst * stage.ridge / (stage.ridge + B**2)
    d = len(queries)
    dimension = min(d, stage.features.dimension) if isinstance(stage, LinearStage) else d
    smooth = SmoothNoise(budget.epsilon, budget.delta, dimension, eta, n)
    scale = smooth_bound(least, worst, eta, smooth.smoothness) * smooth.multiplier
    noise["smooth_sensitivity"] = scale * math.sqrt(dimension / d)
    return noise
