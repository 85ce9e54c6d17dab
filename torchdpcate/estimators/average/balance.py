"""How far treated and controls differ before and after weighting: what the noise is expected to leave, and what is."""

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.feature_maps import FeatureMap, Identity
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.stacked_records import Batch, Records
from torchdpcate.release.average_effect import BalanceTable, StandardisedBalance

_CONSTANT = 1e-12  # deviation of a covariate that does not vary but for rounding


def weighted_balance(domain: Domain, records: CausalData, pi: Tensor) -> StandardisedBalance:
    r"""Return standardised differences of the arms' means of every covariate, as they are and weighted by 1/pi.

    .. math:: \frac{1}{s_j} \Big(\frac{\sum_i a_i w_i u_{ij}}{\sum_i a_i w_i}
        - \frac{\sum_i (1 - a_i) w_i u_{ij}}{\sum_i (1 - a_i) w_i}\Big), \qquad
        w_i = \frac{a_i}{\pi_i} + \frac{1 - a_i}{1 - \pi_i},

    u being the covariates scaled to [-1, 1] and s their standard deviations (Austin & Stuart 2015); records with
    weights count by these both times. Beyond .1 they are usually called imbalanced. Nothing of it is private: it is the
    curator's, never to be published.

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

    own = torch.ones_like(a) if records.weight is None else records.weight.double().cpu()
    after = difference(own * (a / pi + (1 - a) / (1 - pi)))
    return StandardisedBalance(list(domain.names), before=difference(own), after=after)


def names_of(features: FeatureMap) -> list[str]:
    """Return what the features but the intercept are called: covariates by their names, others by their position."""
    if isinstance(features, Identity):
        return list(features.domain.names)
    return [f"feature {k}" for k in range(1, features.dimension)]


def expected_balance(theta: Tensor, features: FeatureMap, ridge: float, imbalance: float, size: float) -> BalanceTable:
    r"""Return the imbalance that public facts lead one to expect; it costs nothing.

    .. math:: \frac1N \sum_i t_i w_i \phi_{ij} = \frac{V_j + \gamma \theta_j}{N}

    at the minimiser of a perturbed balancing loss: a known shrinkage plus the injected noise, whose law is public.

    Args:
        theta: Released coefficients, [p].
        features: Feature map.
        ridge: gamma, of the fit with a balancing loss.
        imbalance: Standard deviation of an entry of V, in units of the features' largest entry.
        size: N, released.

    Returns:
        Rows by feature, in units of half its range (phi is in [-1, 1]).
    """
    mean = (ridge * theta[1:] / features.largest_entry / size).tolist()
    return BalanceTable(names_of(features), expected=mean, expected_sd=[imbalance / size] * len(mean))


def exact_balance(records: Records, estimand: Estimand, features: FeatureMap, theta: Tensor) -> BalanceTable:
    r"""Return the imbalance of every feature phi_j in [-1, 1] before and after weighting, as it is.

    .. math::
        b_j = \frac{\sum_i (z_i - p) \phi_{ij}}{n p (1 - p)}, \qquad a_j = \frac{\sum_i t_i w_i \phi_{ij}}{N}

    with p the share of treated, t = 2z - 1 and N half of the weights' sum: differences of the arms' means, plain and
    weighted. Nothing of it is private: it is the curator's, never to be published.

    Args:
        records: Of both arms.
        estimand: Estimand and clip.
        features: Feature map.
        theta: Coefficients of the weights, [1, p].
    """
    share = records.total(lambda batch: batch.z.reshape(1, -1).sum(-1, keepdim=True))[0, 0] / records.n

    def sums(batch: Batch) -> Tensor:
        phi, z = batch.psi[:, 1:] / features.largest_entry, batch.z.reshape(1, -1)
        w = estimand.weights(linear_predictor(batch.psi, theta), z)
        return torch.cat([(z - share) @ phi, ((2 * z - 1) * w) @ phi, w.sum(-1, keepdim=True) / 2], -1)

    *moved, size = records.total(sums)[0].tolist()
    plain, many = (records.n * share * (1 - share)).item(), features.dimension - 1
    before, after = ([value / unit for value in part] for part, unit in ((moved[:many], plain), (moved[many:], size)))
    return BalanceTable(names_of(features), before=before, after=after)
