"""How well the sign of an estimated effect follows the effect's, from prior variances and noise."""

import math

import torch
from torch import Tensor

from torchdpcate.composition.constants import RuleConstants


def sign_correlation(held: Tensor, noise: Tensor, rules: RuleConstants, shrinks: bool) -> float:
    r"""Return the planned correlation of the effect and its estimate, which its sign follows.

    .. math:: \rho^2 = \frac{1}{G} \sum_j \frac{g_j^2}{g_j + v_j} \;\text{ or }\;
        \frac{(\sum_j g_j)^2}{G \sum_j (g_j + v_j)}

    of shrunk and of unshrunk coefficients, with the noise v_j and the prior variance G of a linear rule.

    Args:
        held: Parts g_j of that variance that the features in use hold, [p].
        noise: v, of the constant and of each feature, [1 + p].
        rules: Constants of the plan of a rule.
        shrinks: Whether coefficients are shrunk.

    Example:
        >>> held, noise = torch.tensor([1.0]).double(), torch.zeros(2).double()
        >>> sign_correlation(held, noise, RuleConstants(), shrinks=True)
        1.0
    """
    total = rules.constant_variance + rules.linear_variance
    prior = torch.cat([held.new_tensor([rules.constant_variance]), held])
    if shrinks:
        return math.sqrt(min(float((prior.square() / (prior + noise)).sum()) / total, 1.0))
    return math.sqrt(float(prior.sum().square() / (prior + noise).sum()) / total)
