"""How far treated and controls differ before and after weighting: what the noise is expected to leave, and what is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.erm.records import Batch, Records, Terms
from torchdpcate.erm.solver import linear_predictor
from torchdpcate.estimators.average.effect_estimator import Ask, EffectFacts, ReleasedRanges, released_ranges
from torchdpcate.features.maps import FeatureMap, Identity
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import KNormMechanism, LaplaceMechanism, k_norm_deviation
from torchdpcate.release.released_weights import BalanceTable

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


@dataclass(frozen=True)
class BalanceStatistics:
    r"""Private imbalance of every feature phi_j in [-1, 1] before and after weighting.

    .. math::
        b_j = \frac{\sum_i (z_i - p) \phi_{ij}}{n p (1 - p)}, \qquad a_j = \frac{\sum_i t_i w_i \phi_{ij}}{N}

    with p the released share of treated: differences of the arms' means, plain and weighted. All sums share one draw of
    cube-shaped noise: with M = max(p, 1-p), one record moves the first by at most 2 M and the second by 2 W, W the
    largest weight over the domain at the released coefficients.

    Guarantee:
        Certified, pure: a fifth of epsilon for p (sensitivity 1), the rest for the sums. Source: theory note
        ``covariate_balancing``, section 8.1 (balance tables are private statistics);
        docs/guarantees/balance_statistics.md.

    Args:
        epsilon: What they cost.
        estimand: Estimand and clip.
    """

    epsilon: float
    estimand: Estimand

    def laws(self, n: int, features: int) -> dict[str, AddedNoise]:
        """Return the noise of the number of treated, and of all sums, each in units of what one record moves it by.

        Args:
            n: Number of records.
            features: How many there are.
        """
        # terms are rounded so that sums are exact, each by half a step
        cube = KNormMechanism((1 - COUNT) * self.epsilon, 1 + sum_grid(n, 1.0), math.inf)
        count = AddedNoise(LaplaceMechanism(COUNT * self.epsilon, 1.0), 1, float(n))
        return {"treated": count, "sums": AddedNoise(cube, 2 * features, float(n))}

    def ask(self, records: Records, theta: Tensor, features: FeatureMap, ask: Ask) -> dict[str, Tensor]:
        """Return the numbers that everything follows from, with noise: the treated, and sums in their units.

        Args:
            records: The records.
            theta: Released coefficients of the weights, [1, p].
            features: Feature map.
            ask: Charges before it draws.
        """
        treated = ask("treated", _treated(records))
        terms = self.terms(theta, features, self.share(treated[:, 0], records.n), records.n)
        return {"treated": treated, "sums": ask("sums", records.total(terms))}

    def table(
        self, answers: Mapping[str, Tensor], theta: Tensor, features: FeatureMap, n: int, size: float
    ) -> BalanceTable:
        """Return the statistics that follow from the answers of ``ask``, the first run's.

        Args:
            answers: By the names of ``laws``.
            theta: Released coefficients of the weights, [1, p].
            features: Feature map.
            n: Number of records.
            size: N, released.
        """
        share, half = self.share(answers["treated"][:, 0], n)[0].item(), features.dimension - 1
        plain, most = n * share * (1 - share), self.largest(features, theta)
        moved = answers["sums"][0] * self.units(share, half, most)[0]
        before_sd, after_sd = self.deviations(n, share, half, size, most.item())
        return BalanceTable(
            names_of(features),
            before=(moved[:half] / plain).tolist(),
            before_sd=[before_sd] * half,
            after=(moved[half:] / size).tolist(),
            after_sd=[after_sd] * half,
        )

    def places(
        self, table: BalanceTable, treated: float, theta: Tensor, features: FeatureMap, n: int, size: float
    ) -> dict[str, Tensor]:
        """Return the answers by a released table and number of treated, but for rounding; see ``table``."""
        count = torch.tensor([[treated]], dtype=torch.float64)
        share, half = self.share(count[:, 0], n)[0].item(), features.dimension - 1
        assert table.before is not None
        assert table.after is not None
        plain = torch.tensor(table.before, dtype=torch.float64) * (n * share * (1 - share))
        weighted = torch.tensor(table.after, dtype=torch.float64) * size
        units = self.units(share, half, self.largest(features, theta))
        return {"treated": count, "sums": torch.cat([plain, weighted])[None] / units}

    def share(self, treated: Tensor, n: int) -> Tensor:
        """Return p, the share of treated by their released number, inside (0, 1)."""
        return treated.clamp(1.0, n - 1.0) / n

    def deviations(self, n: int, share: float, features: int, size: float, most: float) -> tuple[float, float]:
        """Return the standard deviation of the noise in each b and in each a.

        Args:
            n: Number of records.
            share: p.
            features: How many there are.
            size: N, released.
            most: W, the largest weight.
        """
        plain, laws = n * share * (1 - share), self.laws(n, features)
        noise = laws["sums"].scale
        before, after = (
            self.units(share, 1, torch.tensor([most], dtype=torch.float64))[0]
            * noise
            * k_norm_deviation(2 * features, math.inf)
        ).tolist()
        # p is off by that, and with it the centre of z: times the mean of phi, which is at most 1
        off = laws["treated"].scale * math.sqrt(2) / plain
        return math.hypot(before / plain, off), after / size

    def ranges(self, features: FeatureMap, theta: Tensor) -> ReleasedRanges:
        """Return the ranges of weights that released coefficients [runs, p] leave."""
        return released_ranges(EffectFacts(1, self.estimand), features, theta, None)

    def largest(self, features: FeatureMap, theta: Tensor) -> Tensor:
        """Return W, the largest weight at released coefficients [runs, p], [runs]."""
        return EffectFacts(1, self.estimand, ranges=self.ranges(features, theta)).weight_bounds.amax(-1)

    def units(self, share: float | Tensor, features: int, most: Tensor) -> Tensor:
        """Return by how much one record moves an entry of the plain and of the weighted sums, [runs, 2 * features].

        Args:
            share: p, of each run, or of all.
            features: How many there are.
            most: W, of each run, or of all in [1].
        """
        share = torch.as_tensor(share, dtype=torch.float64)
        plain, weighted = torch.broadcast_tensors(torch.maximum(share, 1 - share), most)
        return 2 * torch.stack([plain, weighted], -1).repeat_interleave(features, -1)

    def terms(self, theta: Tensor, features: FeatureMap, share: Tensor, n: int) -> Terms:
        """Return the sums of a batch in their ``units``, [runs, 2 (p - 1)]: plain ones, then weighted ones.

        Args:
            theta: Released coefficients of the weights, [1, p].
            features: Feature map.
            share: p of each run, [runs].
            n: Number of records.
        """
        ranges = self.ranges(features, theta)
        unit = self.units(share, features.dimension - 1, self.largest(features, theta))[..., None]

        def terms(batch: Batch) -> Tensor:
            phi = (batch.psi[:, 1:] / features.largest_entry).T
            g = linear_predictor(batch.psi, theta)
            z = batch.z.expand_as(g)
            w = ranges.within(self.estimand.weights(g, z), z)[0]
            plain = (batch.z - share[:, None, None]) * phi
            weighted = ((2 * batch.z - 1) * w * phi).expand_as(plain)
            return exact_sum(torch.cat([plain, weighted], -2).div_(unit), n, 1.0)

        return terms

    def without_noise(self, records: Records, theta: Tensor, features: FeatureMap) -> BalanceTable:
        """Return the imbalance as it is. The curator's, never to be published."""
        share = _treated(records)[0, 0].item() / records.n
        units = self.units(share, features.dimension - 1, self.largest(features, theta))[0]
        one = torch.tensor([share], dtype=torch.float64)
        sums = records.total(self.terms(theta, features, one, records.n))[0] * units
        size = records.total(
            lambda b: self.estimand.weights(linear_predictor(b.psi, theta), b.z).sum(-1, keepdim=True) / 2
        )
        half, plain = len(sums) // 2, records.n * share * (1 - share)
        return BalanceTable(
            names_of(features),
            before=(sums[:half] / plain).tolist(),
            after=(sums[half:] / size[0, 0]).tolist(),
        )


def _treated(records: Records) -> Tensor:
    """Return the number of treated of one data set, [1, 1]."""
    return records.total(lambda batch: batch.z.sum(-1).reshape(1, 1))
