"""The neighbouring data sets whose linear heads lie farthest apart, as far as is known."""

import math
from dataclasses import dataclass

import torch

from torchdpcate.errors import InputError
from torchdpcate.second_stage.linear import LinearProblem, sensitivity, solve

_ANGLES, _LENGTHS = 4_001, 201  # of the grid


@dataclass(frozen=True, eq=False)
class WorstPair:
    """Two regressions that differ in record 0 alone.

    Attributes:
        first: The regression on D.
        second: The regression on its neighbour D'.
    """

    first: LinearProblem
    second: LinearProblem

    @property
    def change(self) -> float:
        """Distance of the two minimisers, coefficients as they are solved for."""
        return (solve(self.first).theta - solve(self.second).theta).norm().item()

    @property
    def share(self) -> float:
        """Share of the proved sensitivity that the pair reaches; never above one."""
        return self.change / sensitivity(self.first)


def worst_pair(
    weight_bound: float, target_bound: float, ridge: float, n: int, threshold: float = math.inf
) -> WorstPair:
    r"""Return the mirrored pair: a record jumps across the line on which all others lie, in two dimensions.

    The other n - 1 records are alike: v = (u, 0), s = S with u near sqrt(ridge), which makes theta as long as it
    gets, about S / (2 sqrt(ridge)), and leaves the second direction to the ridge alone. Record 0 has s = -S and
    v = B (cos t, sin t) on D, v = B (cos t, -sin t) on D'. By symmetry the minimisers are mirrored too, 2 y apart.
    With q = (n-1)/n u S, a = ridge + (n-1)/n u^2 and k = B^2 / n the squared loss has

    .. math:: y = \sin t\,\frac{a S B / n + k q \cos t}{a\lambda + a k \sin^2 t + \lambda k \cos^2 t}

    and the Huber loss y or B tau sin(t) / (ridge n), whichever is less. t and u are the best of a fine grid.

    Source: found by searches over data sets (``experiments.audit.worst_problem``). No search went beyond it
    for the squared loss and for tau <= S, and by less than one per cent for larger tau. For the squared loss as n
    grows, cos t = (sqrt(1 + 2 beta^2) - 1) / (2 beta) with beta = B / sqrt(ridge), and the change tends to
    the proved sensitivity.

    Args:
        weight_bound: Public bound B of ||v||.
        target_bound: Public bound S of |s|.
        ridge: lambda, positive.
        n: Records, at least 2.
        threshold: Huber threshold; infinity means the squared loss.

    Raises:
        InputError: Fewer than two records, or a bad ridge or threshold.

    Example:
        >>> round(worst_pair(0.9, 1.0, 0.01, 1350).share, 3), round(worst_pair(0.9, 1.0, 0.01, 1350, 0.5).share, 6)
        (0.955, 1.0)
    """
    if n < 2:
        raise InputError(f"n = {n}: neighbours that are not all there is need at least 2 records")
    rest = (n - 1) / n
    angle = torch.linspace(0, math.pi / 2, _ANGLES, dtype=torch.float64)[1:, None]
    u = (math.sqrt(ridge) * torch.logspace(-0.5, 0.5, _LENGTHS, dtype=torch.float64)).clamp(max=weight_bound)
    cos, sin, q, a, k = angle.cos(), angle.sin(), rest * u * target_bound, ridge + rest * u**2, weight_bound**2 / n
    top = a * target_bound * weight_bound / n + k * q * cos
    y = sin * top / (a * ridge + a * k * sin**2 + ridge * k * cos**2)
    best, length = divmod(int(torch.minimum(y, weight_bound * threshold / (ridge * n) * sin).argmax()), _LENGTHS)
    psi = torch.zeros(n, 2, dtype=torch.float64)
    psi[:, 0] = 1.0
    s, w = torch.full((n,), target_bound, dtype=torch.float64), torch.full((n,), float(u[length]), dtype=torch.float64)
    s[0], w[0] = -target_bound, weight_bound
    pair = []
    for side in (1.0, -1.0):
        psi[0] = torch.cat([cos[best], side * sin[best]])
        pair.append(LinearProblem(psi.clone(), s, w, ridge, weight_bound, target_bound, threshold))
    return WorstPair(*pair)
