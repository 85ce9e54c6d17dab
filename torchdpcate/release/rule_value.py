"""What a released rule is worth: its gain and its regret over a public population, with an interval."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdpcate.release.composed import ComposedRule


@dataclass(frozen=True)
class RuleValue:
    """Gain and regret of a rule over a population, in outcome units a person.

    Attributes:
        gain: Estimate of the gain over treating nobody.
        interval: Its ends.
        regret: Upper end of what the best rule would gain beyond it.
        share: Share of the population that the rule treats.
    """

    gain: float
    interval: tuple[float, float]
    regret: float
    share: float


def value_of(rule: "ComposedRule", x: Tensor, level: float) -> RuleValue:
    r"""Return the value of a rule over encoded covariates x [m, q], from released numbers and public facts alone.

    With the target :math:`\tau^*` of the release's intervals, s = -1 where lower outcomes are better and else 1, and
    :math:`g(x) = s\,\tau^*(x) - \text{cost}`,

    .. math:: \mathrm{gain} = \frac1m \sum_i d(x_i)\,g(x_i), \qquad
        \mathrm{regret} = \frac1m \sum_i |g(x_i)|\,1\{d(x_i) \ne 1\{g(x_i) > 0\}\}.

    The rule is made of the numbers that tell its value, which an interval of fixed covariates would not count. All
    combinations of the features' errors lie at once within
    :math:`\sqrt{\chi^2_{r, \text{level}}}` of their deviations, r being how many errors there are (Scheffe 1953): so
    the interval of the gain, and the regret's bound by the intervals of all g(x_i), hold whatever the rule.

    Args:
        rule: The rule.
        x: Covariates of the population.
        level: Probability in (0, 1) with which interval and bound hold together.
    """
    effect, direction = rule.effect, rule.domain.direction
    law, psi, treated = effect.law, effect.features(x), rule.score_tensor(x) > 0
    assert law is not None
    one, share = torch.ones(len(x), dtype=torch.float64), treated.double().mean()
    mean = (psi * treated[:, None]).mean(0, keepdim=True)
    ends = direction * law.at_once(mean, share[None], level)[0] - rule.cost * share
    each = direction * law.at_once(psi, one, level) - rule.cost
    wrong = torch.where(treated, -each.amin(1), each.amax(1)).clamp_min(0)
    low, high = ends.sort().values.tolist()
    return RuleValue((low + high) / 2, (low, high), wrong.mean().item(), share.item())
