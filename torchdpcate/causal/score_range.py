"""How far one record's scores of two actions lie apart: by public intervals of the nuisances over the domain."""

from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.errors import NumericalError

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain


def score_spread(domain: "Domain", propensity: Tensor, outcome: Tensor) -> float:
    r"""Return S, the most by which one record's scores of two actions differ, by intervals of the nuisances.

    .. math:: S = \sup_{y, a, b, c} \max\Big\{\Big|\frac{y - \mu_a}{e_a} + \mu_a - \mu_b\Big|, |\mu_b - \mu_c|\Big\}

    The supremum runs over the corners of the intervals, where it is attained: the expression is linear in y, 1/e and
    each mu alone. A replaced scoring record moves two policies' utilities apart by at most 2 S. Source: theory note
    ``policy_learning``, section 6.1.

    Args:
        domain: Public bounds of the outcome.
        propensity: Least and largest propensity of each arm over the domain, [K, 2], positive.
        outcome: Least and largest outcome model of each arm over the domain, [K, 2].

    Raises:
        NumericalError: An end of an interval is not finite.

    Returns:
        S in outcome units; R / zeta where the intervals are all that floor and domain allow.

    Example:
        >>> from torchdpcate.data import Domain
        >>> half, middle = torch.full((2, 2), 0.5), torch.zeros(2, 2)
        >>> score_spread(Domain([0], [1], -0.5, 0.5), half, middle)
        1.0
    """
    if not bool(torch.isfinite(propensity).all() & torch.isfinite(outcome).all()):
        raise NumericalError("nuisances are not finite over the domain: nothing is released")
    arms, worst = len(propensity), 0.0
    ends = (domain.outcome_low, domain.outcome_high)
    mu, e = outcome.tolist(), propensity.tolist()
    for a, b in product(range(arms), repeat=2):
        if a == b:
            continue
        for y, mu_a, mu_b, e_a in product(ends, mu[a], mu[b], e[a]):
            worst = max(worst, abs((y - mu_a) / e_a + mu_a - mu_b))
            if arms > 2:
                worst = max(worst, abs(mu_a - mu_b))
    return worst
