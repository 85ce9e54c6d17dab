"""How far treated and controls differ before and after weighting: what the noise is expected to leave, and what is."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.feature_maps import FeatureMap, Identity
from torchdpcate.fit.losses import Logistic
from torchdpcate.fit.minimise import linear_predictor, minimise
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
    return StandardisedBalance([column.label for column in domain.columns], before=difference(own), after=after)


_FITTED = 100_000  # records at most that the curator's propensity is fitted on
_AT = 1e-9  # of a propensity: rounding
_SHOWN = 0.05  # of the records beyond the overlap: less is not said


@dataclass(frozen=True, eq=False, repr=False)
class Comparability:
    """Whether treated and controls can be compared, without noise: the curator's, never to be published.

    Attributes:
        propensity: Of a logistic regression on all covariates, without privacy, [n]; as it is known, in trials.
        treated: Treatments, [n].
        overlap: As stated; None where the propensity is known.
        alike: Names of categorical covariates of which all records of each level got the same treatment.
        used: The propensity that the release weights by, [n].
    """

    propensity: np.ndarray
    treated: np.ndarray
    overlap: float | None
    alike: tuple[str, ...]
    used: np.ndarray

    @property
    def beyond(self) -> float:
        """Share of the records whose propensity lies beyond the stated overlap; nought in trials."""
        if self.overlap is None:
            return 0.0
        return float(np.mean(np.minimum(self.propensity, 1 - self.propensity) < self.overlap))

    @property
    def at_clip(self) -> float:
        """Share of the records whose propensity in use is at the stated overlap, where it is clipped; no trial's."""
        assert self.overlap is not None
        return float(np.mean(np.minimum(self.used, 1 - self.used) <= self.overlap + _AT))

    @property
    def kept(self) -> float:
        r"""Slope of the log-odds in use on those without privacy, both clipped at the overlap; no trial's.

        One if nothing of them is shrunk, nought if all of it is.
        """
        assert self.overlap is not None
        clipped = (each.clip(self.overlap, 1 - self.overlap) for each in (self.used, self.propensity))
        used, own = (np.log(each / (1 - each)) for each in clipped)
        own = own - own.mean()
        return float(own @ used / max(own @ own, _CONSTANT))

    def words(self) -> list[str]:
        """Return what is wrong, with its remedy, a sentence each; nothing where nothing is."""
        found = []
        if self.beyond > _SHOWN:
            found.append(
                f"{self.beyond:.0%} of the records have a propensity beyond the stated overlap of {self.overlap:g} "
                "(logistic regression without privacy): their effect rests on models alone. State a smaller overlap if "
                "one is known, restrict by public criteria whose records these are, or ask for ATT or ATO"
            )
        found += [
            f"all records of each {name} got the same treatment: the number of {name} levels, not of records, decides "
            f"the interval, which is too narrow. Where {name} is a cluster state assignment: "
            f"{{clusters: {name}}} in the place of the covariate; where the treatment follows from it, leave out whom "
            "one arm cannot reach"
            for name in self.alike
        ]
        return found


def comparability(schema: TableSchema, records: CausalData, pi: Tensor) -> Comparability:
    """Return whether treated and controls can be compared; the curator's, never to be published.

    Args:
        schema: Of the records.
        records: Of both arms; those of weight 0 are left out.
        pi: Propensities [n], as they were used.

    Example:
        >>> x = torch.linspace(0, 1, 200).double()[:, None]
        >>> a = (x[:, 0] > 0.5).double()
        >>> schema = TableSchema.of(Domain([0.0], [1.0], 0.0, 1.0, overlap=0.2))
        >>> comparability(schema, CausalData(x, a, a), a).beyond > 0.5
        True
    """
    if records.weight is not None:  # those that count nothing may have no treatment
        there = records.weight.nonzero()[:, 0]
        records, pi = records.subset(there), pi[there]
    domain, a, used = schema.domain, records.a.double().cpu(), pi.double().cpu().numpy()
    alike = tuple(
        covariate.name
        for covariate in schema.covariates
        if covariate.levels and _alike(records.x[:, list(schema.places[covariate.name])].double().cpu(), a)
    )
    if domain.known_propensity is not None:
        return Comparability(used, a.numpy(), None, alike, used)
    return Comparability(_fitted(domain.scale(records.x).double().cpu(), a), a.numpy(), domain.overlap, alike, used)


def _fitted(u: Tensor, a: Tensor) -> np.ndarray:
    """Return propensities by logistic regression with a ridge of 1, [n]: on records at even distances of many."""
    z = (u - u.mean(0)) / u.std(0, correction=0).clamp_min(_CONSTANT)
    psi, few = torch.cat([torch.ones_like(a)[:, None], z], 1), slice(None, None, -(-len(a) // _FITTED))
    start, stop = torch.zeros(1, psi.shape[1]), 1e-6 * len(a)
    theta = minimise(psi[few], 2 * a[few] - 1, torch.ones_like(a[few]), Logistic(), 1.0, start, stop)
    return torch.sigmoid(linear_predictor(psi, theta)).flatten().numpy()


def _alike(levels: Tensor, a: Tensor) -> bool:
    """Return whether all records of each level [n, k] got the same treatment, and some levels have several."""
    _, place, sizes = torch.unique(levels, dim=0, return_inverse=True, return_counts=True)
    treated = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, place, a)
    mixed = (treated > 0) & (treated < sizes)
    return int((sizes > 1).sum()) > 1 and not bool(mixed.any()) and 0 < float(a.sum()) < len(a)


def names_of(features: FeatureMap) -> list[str]:
    """Return what the features but the intercept are called: covariates by their names, others by their position."""
    if isinstance(features, Identity):
        return [column.label for column in features.domain.columns]
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
