"""DP-2ERM as printed by Lee & Chen (arXiv 2602.12604), for comparison alone: level heuristic, no claim.

Equations (3.4) to (3.9), Corollaries 3.3, 3.4 and 6.1, as far as the theory note ``policy_learning`` records them
(sections 7 to 9); its section 7 says what is wrong with each. Nothing in the library uses these numbers.
"""

import math
from typing import NamedTuple


class Movement(NamedTuple):
    """What (3.4) lets one record move: W1, the weights' change, and W2, which sets the ridge."""

    first: float
    second: float


def best_case(n: int) -> Movement:
    """Corollary 3.3: weights that a record cannot move, W1 = 1 and W2 = sqrt 2. Its W1 counts a record once."""
    return Movement(1.0, math.sqrt(2))


def entropy(n: int) -> Movement:
    """Entropy balancing with every O(.) = 1: W1 = 1 + sqrt n, W2 = sqrt n (the note's reading, section 9.1)."""
    return Movement(1 + math.sqrt(n), math.sqrt(n))


def inverse_propensity(n: int, penalty: float = 0.1) -> Movement:
    """Estimated inverse propensities by Corollary 4.3 with every O(.) = 1; Proposition 4.6 is larger by far."""
    return Movement(math.sqrt(n) / (1 + penalty) + math.sqrt(n), math.sqrt(n))


def mmd(n: int, cap: float = 4.0) -> Movement:
    """Kernel balancing, R = 4 and lambda = 1, by (4.19): 0.700 at n = 80, moved to n by its own rate 1 / n.

    The one value in our material is 0.700; section 7 finds a pair that moves 1.893 there.
    """
    return Movement(math.sqrt(n) * 0.700 * 80 / n + cap, math.sqrt(n))


def universal(n: int) -> Movement:
    """Corollary 3.4, whatever the weights: the paper's composition baseline.

    Inverse propensity weights fall back to it: Proposition 4.6 bounds the l2 change by 9,575 at n = 400, p = 10 and by
    730 at n = 1,140, p = 4, which times sqrt n exceeds the 2 n that any two sets of weights are apart.
    """
    return Movement(3.0 * n, math.sqrt(6) * (n + 1) ** 1.5)


def slope(norm: float, most_outcome: float, radius: float) -> float:
    """Corollary 6.1's bound of the squared loss's gradient on an l1 ball: 2 M (2 M_y + M s)."""
    return 2 * norm * (2 * most_outcome + norm * radius)


def ridge(epsilon: float, norm: float, movement: Movement) -> float:
    """Strong convexity of the sum that spends half of epsilon on the Hessian, by (3.8): 2 lambda W2 / epsilon."""
    return 2 * (2 * norm**2) * movement.second / epsilon


def gamma_scale(epsilon: float, slope: float, movement: Movement) -> float:
    """1 / beta of the objective noise's density exp(-beta ||b||), by (3.8): 2 zeta W1 / epsilon.

    The true loss at epsilon = 1 and w = 1 is 1.302733 (section 8).
    """
    return 2 * slope * movement.first / epsilon


def gaussian_scale(epsilon: float, delta: float, slope: float, movement: Movement, n: int, size: int) -> float:
    """Standard deviation of Gaussian objective noise by (3.9), from the remarks of section 7 and its value 14.763.

    (zeta W1 / epsilon) (C + sqrt(C^2 + epsilon / (3 n))), C^2 = p + 2 sqrt(p log(1/delta)) + 2 log(1/delta).
    """
    logs = math.log(1 / delta)
    squared = size + 2 * math.sqrt(size * logs) + 2 * logs
    return slope * movement.first / epsilon * (math.sqrt(squared) + math.sqrt(squared + epsilon / (3 * n)))
