"""Polynomials of scaled covariates."""

import math

import torch
from torch import Tensor


def additive_legendre(z: Tensor, degree: int) -> Tensor:
    """Intercept and Legendre polynomials P_1..P_degree of each coordinate, over sqrt(1 + q degree): norm at most 1.

    Args:
        z: Scaled covariates ``[B, q]`` in [-1, 1].
        degree: Highest degree; 0 is the intercept alone.

    Example:
        >>> additive_legendre(torch.tensor([[1.0]]), 3).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
    """
    polynomials = [z.new_ones(z.shape), z]
    for k in range(1, degree):
        polynomials.append(((2 * k + 1) * z * polynomials[-1] - k * polynomials[-2]) / (k + 1))
    features = torch.cat([z.new_ones(z.shape[0], 1), *polynomials[1 : degree + 1]], 1)
    return features / math.sqrt(features.shape[1])
