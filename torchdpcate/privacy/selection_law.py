"""Exact laws of the largest of several numbers plus noise: which of them it is."""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

_NODES = 64  # of the quadrature, enough for 1e-13 however many candidates there are, see _above
_NEGLIGIBLE = 40.0  # exp(-40) of an integral is left out
_PIECE, _PIECE_NODES = 2.0, 16  # length of a piece of the Laplace law below the best utility, and nodes on it
_RIVALS = 64  # candidates whose kinks cut pieces: where more of them lie above, the integrand is below 2^-64


def exponential_law(gaps: Tensor) -> Tensor:
    r"""Law of the largest under independent exponential noise of scale one.

    With p_j = exp(-d_j),

    .. math:: P(i) = p_i \int_0^1 \prod_{j \ne i} (1 - v p_j)\, dv :

    the largest sum lies at x above the best utility with v = e^-x, and there i has density v p_i, and each rival stays
    below with probability 1 - v p_j. Relative error below 1e-12.

    Args:
        gaps: d, how far each utility is behind the best, [..., M]; the smallest is 0.

    Returns:
        float64 [..., M].

    Example:
        >>> exponential_law(torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64))
        tensor([0.6303, 0.2807, 0.0890], dtype=torch.float64)
    """
    return _above(torch.exp(-gaps), 1.0)


def laplace_law(gaps: Tensor) -> Tensor:
    """Law of the largest under independent Laplace noise of scale one; arguments as in ``exponential_law``.

    Absolute error below 1e-12.

    Example:
        >>> laplace_law(torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64))
        tensor([0.5573, 0.3324, 0.1104], dtype=torch.float64)
    """
    return _above(torch.exp(-gaps), 0.5) + _below(gaps)


def _above(heads: Tensor, top: float) -> Tensor:
    r"""Probability that i has the largest sum and it lies above the best utility: p_i int_0^top prod (1 - v p_j) dv.

    The integrand is a polynomial in v below exp(-v (sum p - 1)), so where that sum is large only a short interval
    counts. On it the product varies like an exponential of at most 40, and 64 Gauss-Legendre nodes decide to 1e-13;
    for up to 128 candidates ceil(M / 2) nodes are exact.

    Args:
        heads: p, [..., M], the largest 1.
        top: 1 for exponential noise; 1/2 for Laplace noise, half of which lies below.
    """
    nodes, weights = _gauss_legendre(min(math.ceil(heads.shape[-1] / 2), _NODES))
    end = (_NEGLIGIBLE / (heads.sum(-1, keepdim=True) - 1).clamp(min=1e-9)).clamp(max=top)
    logs = torch.log1p(-(end * nodes)[..., None] * heads[..., None, :])
    others = torch.exp(logs.sum(-1, keepdim=True) - logs)
    return heads * end * (weights[:, None] * others).sum(-2)


def _below(gaps: Tensor) -> Tensor:
    r"""Probability that i has the largest sum and it lies below the best utility, for Laplace noise of scale one.

    .. math:: \int_0^\infty f(d_i - t) \prod_{j \ne i} F(d_j - t)\, dt

    cut where t passes a gap d_j, the density's kink; every factor that it has passed is below a half.

    Args:
        gaps: d, [..., M], the smallest 0.
    """
    kinks = gaps.topk(min(_RIVALS, gaps.shape[-1]), largest=False).values.clamp(max=_NEGLIGIBLE)
    even = torch.arange(0.0, _NEGLIGIBLE + 1, _PIECE, dtype=torch.float64).expand(*gaps.shape[:-1], -1)
    edges = torch.cat([kinks, even], -1).sort(-1).values
    nodes, weights = _gauss_legendre(_PIECE_NODES)
    chances = torch.zeros_like(gaps)
    for start, end in zip(edges.unbind(-1), edges[..., 1:].unbind(-1), strict=False):  # all at once would not fit
        width = (end - start)[..., None]
        x = gaps[..., None, :] - (start[..., None] + width * nodes)[..., None]
        density = 0.5 * torch.exp(-x.abs())
        logs = torch.where(x > 0, torch.log1p(-density), x - math.log(2))
        others = torch.exp(logs.sum(-1, keepdim=True) - logs)
        chances += width * (weights[:, None] * density * others).sum(-2)
    return chances


@cache
def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy(nodes + 1) / 2, torch.from_numpy(weights) / 2
