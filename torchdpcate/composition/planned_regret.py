"""The regret to expect of a rule by the sign of a composed effect, from its public plan."""

import math
from typing import NamedTuple

from torchdpcate.composition.plan import NUISANCES, ComposedPlan

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

    With an effect tau ~ N(0, G), the plan's prior, a score t and the correlation rho of both,

    .. math:: E[\tau^+] - E[\tau\, 1\{t > 0\}] = \sqrt{\tfrac{G}{2\pi}}\,(1 - \rho), \qquad
        \rho^2 = \frac{1}{G} \sum_j \frac{g_j^2}{g_j + v_j}
        \;\text{ or }\; \frac{(\sum_j g_j)^2}{G \sum_j (g_j + v_j)}

    of shrunk and of unshrunk coefficients with noise v_j. A constant rule that is the better one has
    :math:`\rho^2 = g_0 / G`.

    Args:
        plan: The public plan; one of an effect takes the prior variance of its constant from its features.

    Example:
        >>> from torchdpcate.composition.constants import RuleConstants
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> few, many = (ComposedPlan(n, PrivacyBudget(1.0, 1e-5), 6, constants=RuleConstants()) for n in (500, 50_000))
        >>> planned_regret(many).rule < planned_regret(few).rule
        True
    """
    constants, regression = plan.constants, plan.effect()
    first = getattr(constants, "constant_variance", constants.head_variance)
    total = first + constants.head_variance
    prior = regression.prior.new_tensor([first, *regression.prior.tolist()])
    noise = NUISANCES**2 * regression.noise / regression.basis.energies
    if plan.shrinks:
        share = float((prior.square() / (prior + noise)).sum()) / total
    else:
        share = float(prior.sum().square() / (prior + noise).sum()) / total
    size = _UNIT * math.sqrt(total)
    return Regret(size * (1 - math.sqrt(min(share, 1.0))), size * (1 - math.sqrt(first / total)))
