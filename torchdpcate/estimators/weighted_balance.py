"""How far an estimated propensity balances the covariates of the arms: the curator's diagnostic."""

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.release.released_weights import StandardisedBalance

_CONSTANT = 1e-12  # deviation of a covariate that does not vary but for rounding


def weighted_balance(domain: Domain, records: CausalData, pi: Tensor) -> StandardisedBalance:
    r"""Return standardised differences of the arms' means of every covariate, as they are and weighted by 1/pi.

    .. math:: \frac{1}{s_j} \Big(\frac{\sum_i a_i w_i u_{ij}}{\sum_i a_i w_i}
        - \frac{\sum_i (1 - a_i) w_i u_{ij}}{\sum_i (1 - a_i) w_i}\Big), \qquad
        w_i = \frac{a_i}{\pi_i} + \frac{1 - a_i}{1 - \pi_i},

    u being the covariates scaled to [-1, 1] and s their standard deviations (Austin & Stuart 2015). Beyond .1 they are
    usually called imbalanced. Nothing of it is private: it is the curator's, never to be published.

    Args:
        domain: Public bounds.
        records: Of both arms.
        pi: Propensities [n], as they were used.

    Example:
        >>> domain = Domain([0.0], [1.0], 0.0, 1.0)
        >>> x, a = torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.tensor([0.0, 1.0, 0.0, 1.0])
        >>> weighted_balance(domain, CausalData(x, a, a), torch.full((4,), 0.5)).before
        [0.0]
    """
    u, a, pi = domain.scale(records.x).double().cpu(), records.a.double().cpu(), pi.double().cpu()
    scale = u.std(0, correction=0)
    varies = scale > _CONSTANT

    def difference(weight: Tensor) -> list[float]:
        arms = (((weight * arm) @ u) / (weight * arm).sum().clamp_min(1e-300) for arm in (a, 1 - a))
        treated, controls = arms
        return torch.where(varies, (treated - controls) / scale.clamp_min(_CONSTANT), 0.0).tolist()

    after = difference(a / pi + (1 - a) / (1 - pi))
    return StandardisedBalance(list(domain.names), before=difference(torch.ones_like(a)), after=after)
