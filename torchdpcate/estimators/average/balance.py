"""How far treated and controls differ before and after weighting: what the noise is expected to leave, and what is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.average.ratio_of_sums import NoisySums, Sums
from torchdpcate.estimators.average.weighted import EffectFacts, ReleasedRanges, released_ranges
from torchdpcate.fit.feature_maps import FeatureMap, Identity
from torchdpcate.fit.minimise import linear_predictor
from torchdpcate.fit.stacked_records import Batch, Records
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.mechanisms import KNormMechanism, LaplaceMechanism, k_norm_deviation
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


COUNT = 0.2
"""Part of the balance statistics' epsilon that is for the number of treated."""


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


@dataclass(frozen=True, eq=False)
class BalanceStatistics(NoisySums):
    r"""Private imbalance of every feature phi_j in [-1, 1] before and after weighting.

    .. math::
        b_j = \frac{\sum_i (z_i - p) \phi_{ij}}{n p (1 - p)}, \qquad a_j = \frac{\sum_i t_i w_i \phi_{ij}}{N}

    with p the released share of treated: differences of the arms' means, plain and weighted. All sums share one draw of
    cube-shaped noise: with M = max(p, 1-p), one record moves the first by at most 2 M and the second by 2 W, W the
    largest weight over the domain at the released coefficients.

    Guarantee:
        Certified, pure: a fifth of epsilon for p (sensitivity 1), the rest for the sums. Source: theory note
        ``covariate_balancing``, section 8.1 (balance tables are private statistics);
        docs/guarantees/average_effects.md.

    Attributes:
        n: Number of records.
        epsilon: What they cost.
        estimand: Estimand and clip.
        features: Feature map.
        theta: Released coefficients of the weights, [1, p]; None before there are any.
    """

    n: int
    epsilon: float
    estimand: Estimand
    features: FeatureMap
    theta: Tensor | None = None

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        """See ``NoisySums``: the number of treated, and all sums, in units of what one record moves them by."""
        # terms are rounded so that sums are exact, each by half a step
        cube = KNormMechanism((1 - COUNT) * self.epsilon, 1 + sum_grid(self.n, 1.0), math.inf)
        count = AddedNoise(LaplaceMechanism(COUNT * self.epsilon, 1.0), 1, float(self.n))
        return {"treated": count, "sums": AddedNoise(cube, 2 * self.many, float(self.n))}

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """See ``NoisySums``."""
        if query == "treated":
            return Sums(("treated",), _treated, self.n, (1.0,))
        share, names = self.share(numbers), self._names("before") + self._names("after")
        unit = self.units(share)
        assert self.theta is not None
        terms = partial(_imbalances, self.estimand, self.ranges, self.features.largest_entry, self.theta, share, unit)
        return Sums(names, terms, self.n, (1.0,) * len(names), unit=unit)

    def table(self, numbers: Mapping[str, Tensor], size: float, noise: bool = True) -> BalanceTable:
        """Return the statistics that follow from the released numbers, the first run's.

        Args:
            numbers: By the names of ``sums``.
            size: N, released.
            noise: Whether the numbers have noise, whose deviations are stated.
        """
        share = self.share(numbers)[0].item()
        plain = self.n * share * (1 - share)
        moved = {way: torch.stack([numbers[name][0] for name in self._names(way)]) for way in ("before", "after")}
        before_sd, after_sd = ([sd] * self.many for sd in self.deviations(share, size)) if noise else (None, None)
        return BalanceTable(
            names_of(self.features),
            before=(moved["before"] / plain).tolist(),
            before_sd=before_sd,
            after=(moved["after"] / size).tolist(),
            after_sd=after_sd,
        )

    def stated(self, table: BalanceTable, treated: float, size: float) -> dict[str, Tensor]:
        """Return the numbers by a released table and number of treated, but for rounding; the inverse of ``table``."""
        numbers = {"treated": torch.tensor([treated], dtype=torch.float64)}
        share = self.share(numbers)[0].item()
        assert table.before is not None
        assert table.after is not None
        for way, column, unit in (
            ("before", table.before, self.n * share * (1 - share)),
            ("after", table.after, size),
        ):
            values = torch.tensor(column, dtype=torch.float64) * unit
            numbers |= dict(zip(self._names(way), values[:, None], strict=True))
        return numbers

    @property
    def many(self) -> int:
        """How many features there are beside the intercept."""
        return self.features.dimension - 1

    def share(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """Return p, the share of treated by their released number, inside (0, 1), [runs]."""
        return numbers["treated"].clamp(1.0, self.n - 1.0) / self.n

    def deviations(self, share: float, size: float) -> tuple[float, float]:
        """Return the standard deviation of the noise in each b and in each a.

        Args:
            share: p.
            size: N, released.
        """
        plain = self.n * share * (1 - share)
        units = self.units(torch.tensor([share], dtype=torch.float64))[0, :: self.many]
        before, after = (units * self.laws["sums"].scale * k_norm_deviation(2 * self.many, math.inf)).tolist()
        # p is off by that, and with it the centre of z: times the mean of phi, which is at most 1
        off = self.laws["treated"].scale * math.sqrt(2) / plain
        return math.hypot(before / plain, off), after / size

    @cached_property
    def ranges(self) -> ReleasedRanges:
        """Of weights, as released coefficients leave them."""
        assert self.theta is not None
        return released_ranges(EffectFacts(1, self.estimand), self.features, self.theta, None)

    def units(self, share: Tensor) -> Tensor:
        """Return by how much one record moves an entry of the plain and of the weighted sums, [runs, 2 features].

        Args:
            share: p of each run, [runs].
        """
        most = EffectFacts(1, self.estimand, ranges=self.ranges).weight_bounds.amax(-1)
        plain, weighted = torch.broadcast_tensors(torch.maximum(share, 1 - share), most)
        return 2 * torch.stack([plain, weighted], -1).repeat_interleave(self.many, -1)

    def without_noise(self, records: Records) -> BalanceTable:
        """Return the imbalance as it is. The curator's, never to be published."""
        theta = self.theta
        assert theta is not None
        size = records.total(
            lambda b: self.estimand.weights(linear_predictor(b.psi, theta), b.z).sum(-1, keepdim=True) / 2
        )
        return self.table(self.exact(records.total), size[0, 0].item(), noise=False)

    def _names(self, way: str) -> tuple[str, ...]:
        return tuple(f"{way}_{k}" for k in range(self.many))


def _treated(batch: Batch) -> tuple[Tensor]:
    return (batch.z.reshape(1, -1),)


def _imbalances(
    estimand: Estimand,
    ranges: ReleasedRanges,
    largest_entry: float,
    theta: Tensor,
    share: Tensor,
    unit: Tensor,
    batch: Batch,
) -> tuple[Tensor, ...]:
    """Return what records add to each plain sum, then to each weighted one, over its unit [runs, 2 features]."""
    phi = (batch.psi[:, 1:] / largest_entry).T
    g = linear_predictor(batch.psi, theta)
    z = batch.z.expand_as(g)
    w = ranges.within(estimand.weights(g, z), z)[0]
    plain = (batch.z - share[:, None, None]) * phi
    weighted = ((2 * batch.z - 1) * w * phi).expand_as(plain)
    return torch.cat([plain, weighted], -2).div_(unit[..., None]).unbind(-2)
