"""Matched learning in its certified form: every record compared with those of the other arm, by a public normaliser."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome, SignedResidual, magnitudes
from torchdpcate.estimators.rules.weighted_erm import WeightedERM
from torchdpcate.fit.feature_maps import batches
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.privacy.budget import positive

GAPS = ("difference", "sign")
"""What a pair weighs: the difference of its residuals as a share of their range, or one whatever the difference."""


class PairTotals(NamedTuple):
    r"""Total weight of each record's comparisons, by the label that they speak for.

    Attributes:
        treat: [n], the sum over opposite records of kappa g where a_i sign(r_i - r_j) = +1.
        leave: [n], the same for -1.
    """

    treat: Tensor
    leave: Tensor


class Matching(ABC):
    """A public weight kappa(x, x') in [0, 1]: how much two records of opposite arms are compared.

    It looks at the two records alone. A nearest neighbour does not: whose neighbour a record is depends on all others.

    Attributes:
        name: The name users give.
        states: Public constants that statements have of it.
    """

    name: ClassVar[str]
    states: ClassVar[tuple[str, ...]] = ()

    def check(self, domain: Domain) -> None:  # noqa: B027  most fit every domain
        """Refuse, before anything is spent, settings that do not fit the domain."""

    @abstractmethod
    def totals(self, x: Tensor, a: Tensor, r: Tensor, domain: Domain, sized: bool) -> PairTotals:
        """Add up the comparisons of every record in bounded memory.

        Args:
            x: Covariates [n, q] in their own units.
            a: Treatment [n] in {0, 1}.
            r: Residuals [n], scaled to [-1/2, 1/2].
            domain: Public bounds.
            sized: g = |r_i - r_j| if True, else 1; equal residuals say nothing either way.
        """

    def public(self) -> dict[str, Any]:
        """Return the settings, for a privacy statement."""
        return {"matching": self.name}


@dataclass(frozen=True)
class AllPairs(Matching):
    """kappa = 1: a record is compared with every record of the other arm. O(n log n)."""

    name = "all"

    def totals(self, x: Tensor, a: Tensor, r: Tensor, domain: Domain, sized: bool) -> PairTotals:
        """See `Matching.totals`."""
        return _ranked(torch.zeros(len(a), dtype=torch.int64), a, r, sized)


@dataclass(frozen=True)
class CellPairs(Matching):
    """kappa = 1 for records that agree exactly in some columns, else 0. O(n log n).

    Args:
        columns: Names or positions of the columns, usually of categories.
    """

    name = "cells"
    states = ("columns",)
    columns: Sequence[str | int]

    def check(self, domain: Domain) -> None:
        """Refuse columns that the domain does not have."""
        self._positions(domain)

    def totals(self, x: Tensor, a: Tensor, r: Tensor, domain: Domain, sized: bool) -> PairTotals:
        """See `Matching.totals`."""
        cell = torch.unique(x[:, self._positions(domain)], dim=0, return_inverse=True)[1]
        return _ranked(cell, a, r, sized)

    def public(self) -> dict[str, Any]:
        """Return the name and the columns."""
        return {**super().public(), "columns": list(self.columns)}

    def _positions(self, domain: Domain) -> list[int]:
        positions = [domain.names.index(c) if c in domain.names else c for c in self.columns]
        if not positions or not all(isinstance(p, int) and 0 <= p < domain.dimension for p in positions):
            raise InputError(f"matching.columns = {list(self.columns)}: name columns of {list(domain.names)}")
        return [p for p in positions if isinstance(p, int)]


@dataclass(frozen=True)
class GaussianPairs(Matching):
    """kappa = exp(-||z - z'||^2 / (2 bandwidth^2)), z the covariates scaled to [-1, 1]. O(n^2) time, in blocks.

    Args:
        bandwidth: Public length scale in units of the scaled covariates.

    Raises:
        InputError: A bandwidth that is not positive.
    """

    name = "gaussian"
    states = ("bandwidth",)
    bandwidth: float = 0.5

    def __post_init__(self) -> None:
        positive("matching.bandwidth", self.bandwidth)

    def totals(self, x: Tensor, a: Tensor, r: Tensor, domain: Domain, sized: bool) -> PairTotals:
        """See `Matching.totals`."""
        z, treated = domain.scale(x), a > 0.5
        treat, leave = torch.zeros_like(r), torch.zeros_like(r)
        ones, zeros = treated.nonzero().flatten(), (~treated).nonzero().flatten()
        # a comparison speaks for the same label on both sides: a_i sign(r_i - r_j) = a_j sign(r_j - r_i)
        for rows in batches(ones, max(1, len(zeros))):
            gap = r[rows, None] - r[zeros]
            # by differences: a matrix product would let the other records of the batch move kappa at a tiny bandwidth
            distance = torch.cdist(z[rows], z[zeros], compute_mode="donot_use_mm_for_euclid_dist")
            kappa = distance.div_(self.bandwidth).square_().mul_(-0.5).exp_()
            kappa *= gap if sized else gap.sign()
            for total, part in ((treat, kappa.clamp(min=0)), (leave, kappa.neg().clamp(min=0))):
                total[rows] = part.sum(1)
                total[zeros] += part.sum(0)
        return PairTotals(treat, leave)

    def public(self) -> dict[str, Any]:
        """Return the name and the bandwidth."""
        return {**super().public(), **asdict(self)}


def pair_bounds(gap: str) -> WeightBounds:
    r"""Return how far one record moves the pairwise sum, with kappa in [0, 1] and g in [0, 1].

    For an opposite record i let d and d' be its signed difference to the record before and after, in units of 2K. The
    record's own term moves by :math:`\kappa g(d) + \kappa' g(d')` over n - 1. The term of i moves by as much where d
    and d' have different signs, and else by :math:`|\kappa g(d) - \kappa' g(d')|`; with :math:`\kappa' = 0` or
    :math:`\kappa = 0` where only one of the two is of the other arm.

    - Any g at most one: both together move by at most 2 (kappa g + kappa' g') <= 4.
    - ``difference``, g(d) = |d|: on one side by 2 max(kappa g, kappa' g') <= 2; on different sides by 2 (kappa |d| +
      kappa' |d'|) <= 2 (|d| + |d'|) <= 2, for |d| + |d'| is the distance of two residuals in a range of length one.

    Summed over n - 1 others and divided by n - 1 that is W_1. W_2 counts what a record takes away: kappa g twice.

    Args:
        gap: One of `GAPS`.

    Raises:
        InputError: It is none.

    Example:
        >>> pair_bounds("difference").first, pair_bounds("sign").first
        (2.0, 4.0)
    """
    if gap not in GAPS:
        raise InputError(f"gap = {gap}: choose one of {', '.join(GAPS)}")
    return WeightBounds(1.0, 2.0 if gap == "difference" else 4.0, 2.0, own=False)


def _ranked(cell: Tensor, a: Tensor, r: Tensor, sized: bool) -> PairTotals:
    """Totals over the opposite records of the same cell [n], by sorting and prefix sums."""
    rank = torch.unique(r, return_inverse=True)[1]
    width = len(r) + 1
    key = cell * width + rank
    treat, leave = torch.zeros_like(r), torch.zeros_like(r)
    for arm in (0, 1):
        mine = a == arm
        order = key[~mine].sort()
        before = torch.cat([r.new_zeros(1), r[~mine][order.indices].cumsum(0)])  # sums of the sorted residuals
        edges = [cell[mine] * width, key[mine], key[mine] + 1, (cell[mine] + 1) * width]
        start, low, high, end = (torch.searchsorted(order.values, edge.contiguous()) for edge in edges)
        if sized:
            below = r[mine] * (low - start) - (before[low] - before[start])
            above = (before[end] - before[high]) - r[mine] * (end - high)
        else:
            below, above = (low - start).to(r), (end - high).to(r)
        # a treated record above its opposite speaks for treatment, and so does an untreated one below
        treat[mine], leave[mine] = (below, above) if arm else (above, below)
    return PairTotals(treat.clamp(min=0), leave.clamp(min=0))


@dataclass(eq=False, repr=False, kw_only=True)
class PairwiseRule(RuleLearner):
    r"""Matched learning with a public kernel and normaliser.

    .. math::
        \min_\theta \sum_i \sum_j \frac{\kappa(x_i, x_j)}{n - 1} 1\{a_i \ne a_j\}\, g(|r_i - r_j|)\,
        \ell\big(\psi_i^\top\theta,\ (2 a_i - 1)\,\mathrm{sign}(r_i - r_j)\big) + \tfrac\gamma2 \|\theta\|^2

    r is the outcome, clipped to a public range of width 2K. A pair says: of two similar
    records, the one that did better had the better arm. No propensity is needed, for kappa compares like with like.
    It is a weighted ERM with two terms a record, one for either label (`PairTotals`).

    Guarantee:
        W_1 = 2 and W_2 = 2 with ``gap="difference"``, W_1 = 4 and W_2 = 2 with ``"sign"`` (theory note
        ``policy_learning``, section 5.4, has 4 for both; see `pair_bounds`). Nearest-neighbour matching has no such
        bound: one record can be the nearest neighbour of all others.

    Args:
        matching: kappa.
        gap: g: ``difference`` (least noise) or ``sign``.
        outcome: ``signed_residual``, or a ``SignedResidual`` with its clip K.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.rand(400, 1, generator=generator, dtype=torch.float64) * 2 - 1
        >>> a = (torch.rand(400, generator=generator) < 0.5).double()
        >>> y = (2 * a - 1) * x[:, 0]
        >>> from torchdpcate import PrivacyBudget
        >>> domain = Domain([-1.0], [1.0], -1.0, 1.0, better="higher")
        >>> rule = PairwiseRule(domain, PrivacyBudget(4.0, 0.0), matching=GaussianPairs())
        >>> rule.fit(x, a, y).release().decide([[-1.0], [1.0]]).tolist()
        [0, 1]
    """

    typical_weight = 0.5  # half of all pairs are of opposite arms, if the arms are equally large

    matching: Matching = AllPairs()
    gap: str = "difference"
    outcome: str | Outcome = field(default="signed_residual", kw_only=True)
    weights: str = field(default="constant", init=False)  # the comparisons are the weights

    def check(self, n: int) -> None:
        """See ``RuleLearner``."""
        self.matching.check(TableSchema.of(self.domain).domain)
        pair_bounds(self.gap)
        if not isinstance(OUTCOMES.make(self.outcome, Outcome), SignedResidual):
            raise InputError(f"outcome = {self.outcome}: pairs compare residuals; use signed_residual")
        super().check(n)

    def bounds(self, weights: WeightBounds) -> WeightBounds:
        """Return `pair_bounds`; the constant weights do not enter."""
        return pair_bounds(self.gap)

    @classmethod
    def restated_bounds(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """See ``RuleLearner.restated_bounds``."""
        names = ("matching", "gap", *(name for name in ("columns", "bandwidth") if name in public))
        return pair_bounds(public["gap"]), {name: public[name] for name in names}

    def problem(self, records: CausalData) -> WeightedERM:
        """Return the weighted ERM of these records, two terms a record; the curator's.

        Args:
            records: Records of the rule's block, within the domain.
        """
        domain = self.schema_.domain
        magnitude, sign = magnitudes(self.outcome_, records.y, domain)
        totals = self.matching.totals(records.x, records.a, magnitude * sign / 2, domain, self.gap == "difference")
        # no pair at all leaves the ridge alone, which has a minimiser like any other
        weights = (torch.cat([totals.treat, totals.leave]) / (records.n - 1)).clamp(0, 1)
        one = torch.ones_like(records.y)
        return self._weighted(records.x, torch.cat([one, -one]), weights)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {**self.matching.public(), "gap": self.gap}
