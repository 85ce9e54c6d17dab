"""The regret to expect of a rule by the sign of a composed effect, from its public plan."""

import math
from typing import NamedTuple

from torchdpcate.composition.plan import ComposedPlan

_UNIT = math.sqrt(1 / (2 * math.pi))  # half the mean of |N(0, 1)|


class Regret(NamedTuple):
    """Regrets in residual scales S, against the rule that knows the effect.

    Attributes:
        rule: Of the plan's rule.
        constant: Of the better one of treating everybody and nobody.
    """

    rule: float
    constant: float


def planned_regret(plan: ComposedPlan) -> Regret:
    r"""Return the expected regret of the sign of the plan's effect, and that of the best constant rule.

    With an effect tau ~ N(0, G), the prior of a linear rule, and a score t of the correlation rho with it,

    .. math:: E[\tau^+] - E[\tau\, 1\{t > 0\}] = \sqrt{\tfrac{G}{2\pi}}\,(1 - \rho)

    Effects s tau of several sizes s are expected, and the score's correlation with them grows with s: rho is its mean
    with the weights s (``ComposedPlan.planned_correlation``), so that regrets are means over s, over the mean size.
    A constant rule that is the better one has :math:`\rho^2 = g_0 / G`.

    Args:
        plan: The public plan of a rule.

    Example:
        >>> from torchdpcate.composition.constants import RuleConstants
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> few, many = (ComposedPlan(n, PrivacyBudget(1.0, 1e-5), 6, constants=RuleConstants()) for n in (500, 50_000))
        >>> planned_regret(many).rule < planned_regret(few).rule
        True
    """
    rules = plan.rules
    total = rules.constant_variance + rules.linear_variance
    size, constant = _UNIT * math.sqrt(total), math.sqrt(rules.constant_variance / total)
    return Regret(size * (1 - plan.planned_correlation), size * (1 - constant))
