"""Scores of single records: of orthogonal learners, of arms, and of average effects, with their public ranges."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.errors import InputError, NumericalError

if TYPE_CHECKING:
    from torchdpcate.data.domain import Domain
    from torchdpcate.fit.nuisances import NuisanceValues


@dataclass(frozen=True)
class ScoreBounds:
    """Suprema over the public domain of the second-stage regression of s on w psi(x).

    Attributes:
        weight: Bound of |w|.
        target: Bound of |s|, in outcome units, for the offset zero or these nuisances' own mu1 - mu0; for another
            offset s is clipped to it.
        rho: Bound of rho = w^2.
        rho_phi: Bound of |rho phi|, in outcome units.
    """

    weight: float
    target: float
    rho: float
    rho_phi: float


class RegressionScore(ABC):
    r"""The score of one weight function lambda(pi), whose loss is the least squares of s on w (g - offset).

    .. math::
        \rho = (a - \pi)\lambda'(\pi) + \lambda(\pi), \qquad
        \rho\,\phi = \frac{\lambda(\pi)}{\pi(1-\pi)}(a - \pi)(y - \mu_a) + \rho\,(\mu_1 - \mu_0)

    (Schroeder, Melnychuk & Feuerriegel 2025, eqs 4 and 5). A new learner states ``weight`` and
    ``derivative``, and ``ratio`` where the inverse propensity cancels.
    """

    @abstractmethod
    def weight(self, pi: Tensor) -> Tensor:
        """Return lambda(pi)."""

    @abstractmethod
    def derivative(self, pi: Tensor) -> Tensor:
        """Return lambda'(pi)."""

    def ratio(self, pi: Tensor) -> Tensor:
        """Return lambda(pi) / (pi (1 - pi))."""
        return self.weight(pi) / (pi * (1 - pi))

    def rho(self, a: Tensor, pi: Tensor) -> Tensor:
        """Return the weight rho of each record, shape [B]."""
        return (a - pi) * self.derivative(pi) + self.weight(pi)

    def rho_phi(self, a: Tensor, y: Tensor, values: "NuisanceValues") -> Tensor:
        """Return rho * phi of each record, shape [B], without dividing by rho."""
        pi, mu0, mu1 = values
        observed = a * mu1 + (1 - a) * mu0
        return self.ratio(pi) * (a - pi) * (y - observed) + self.rho(a, pi) * (mu1 - mu0)

    @abstractmethod
    def regression(
        self, a: Tensor, y: Tensor, values: "NuisanceValues", offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return (s, w), each [B], with (s - w f)^2 = rho (phi - offset - f)^2 for every f.

        Args:
            a: Treatment in {0, 1}, shape [B].
            y: Outcome, shape [B].
            values: Nuisances at the records, each [B], clipped to the domain.
            offset: g0 at the records, fixed before these records are touched.
        """

    @abstractmethod
    def bounds(self, domain: "Domain") -> ScoreBounds:
        """Return the suprema over the domain; all of them are attained."""


class RScore(RegressionScore):
    r"""R-learner: lambda = pi (1 - pi), rho = (a - pi)^2, no inverse propensity anywhere.

    .. math:: w = a - \pi,\quad s = y - \hat m - w\,g_0,\quad \hat m = \pi\mu_1 + (1-\pi)\mu_0

    Source: Nie & Wager (2021); bounds of the theory note ``dp_cate``, section 3.2.

    Example:
        >>> import torch
        >>> from torchdpcate.fit.nuisances import NuisanceValues
        >>> one = lambda v: torch.tensor([v], dtype=torch.float64)
        >>> s, w = RScore().regression(one(1.0), one(0.8), NuisanceValues(one(0.3), one(0.2), one(0.6)))
        >>> round(s.item(), 6), round(w.item(), 6)
        (0.48, 0.7)
    """

    def weight(self, pi: Tensor) -> Tensor:
        """Return pi (1 - pi)."""
        return pi * (1 - pi)

    def derivative(self, pi: Tensor) -> Tensor:
        """Return 1 - 2 pi."""
        return 1 - 2 * pi

    def ratio(self, pi: Tensor) -> Tensor:
        """Return one: the inverse propensity cancels."""
        return pi.new_ones(pi.shape)

    def rho(self, a: Tensor, pi: Tensor) -> Tensor:
        """Return (a - pi)^2, equal to the general form for a in {0, 1} and never negative."""
        return (a - pi).square()

    def regression(
        self, a: Tensor, y: Tensor, values: "NuisanceValues", offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return s = y - m - w offset and w = a - pi, each [B]."""
        pi, mu0, mu1 = values
        w = a - pi
        return y - (pi * mu1 + (1 - pi) * mu0) - w * offset, w

    def bounds(self, domain: "Domain") -> ScoreBounds:
        """Return |w| <= c, |s| <= R, rho <= c^2, |rho phi| <= c R with c = 1 - least propensity of an arm."""
        c = 1 - domain.least_propensity
        return ScoreBounds(c, domain.outcome_range, c**2, c * domain.outcome_range)


class DRScore(RegressionScore):
    r"""DR-learner: lambda = 1, rho = 1, phi the doubly robust pseudo-outcome.

    .. math:: w = 1,\quad s = \phi - g_0,\quad
        \phi = \mu_1 - \mu_0 + \frac{a - \pi}{\pi(1-\pi)}(y - \mu_a)

    Source: Kennedy (2023); bounds of the theory note ``dp_cate``, section 3.2.

    Example:
        >>> import torch
        >>> from torchdpcate.fit.nuisances import NuisanceValues
        >>> one = lambda v: torch.tensor([v], dtype=torch.float64)
        >>> s, _ = DRScore().regression(one(1.0), one(0.8), NuisanceValues(one(0.3), one(0.2), one(0.6)))
        >>> round(s.item(), 9)
        1.066666667
    """

    def weight(self, pi: Tensor) -> Tensor:
        """Return one."""
        return pi.new_ones(pi.shape)

    def derivative(self, pi: Tensor) -> Tensor:
        """Return zero."""
        return pi.new_zeros(pi.shape)

    def regression(
        self, a: Tensor, y: Tensor, values: "NuisanceValues", offset: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return s = phi - offset and w = 1, each [B]."""
        s = self.rho_phi(a, y, values) - offset
        return s, s.new_ones(s.shape)

    def bounds(self, domain: "Domain") -> ScoreBounds:
        """Return |w| = 1, |s| <= R / zeta, rho = 1, |rho phi| <= R / zeta with the least propensity zeta of an arm."""
        target = domain.outcome_range / domain.least_propensity
        return ScoreBounds(1.0, target, 1.0, target)


def dr_scores(arm: Tensor, y: Tensor, propensity: Tensor, outcome: Tensor) -> Tensor:
    r"""Return the doubly robust score of every record under every action.

    .. math::
        \phi_i(a) = \mu_a(x_i) + \frac{1\{a_i = a\}}{e_a(x_i)} (y_i - \mu_a(x_i))

    Args:
        arm: Position of the action that each record got, int64 [n].
        y: Outcome [n].
        propensity: e, [..., n, K], positive; leading dimensions are nuisances side by side.
        outcome: mu, [..., n, K], in the unit of y.

    Returns:
        phi [..., n, K], in the unit of y.

    Raises:
        InputError: Shapes that do not fit each other.

    Guarantee:
        None by itself: the curator's. One record's scores spread over actions by at most R / floor where propensities
        are at least ``floor`` and outcomes and their models lie in an interval of length R; what a replaced training
        record does to them is another matter. Source: Robins, Rotnitzky & Zhao (1994); theory note
        ``policy_learning``, section 6.1.

    Example:
        >>> e, mu = torch.full((1, 2), 0.5), torch.tensor([[0.0, 1.0]])
        >>> dr_scores(torch.tensor([1]), torch.tensor([2.0]), e, mu).tolist()
        [[0.0, 3.0]]
    """
    if not len(arm) == len(y) == outcome.shape[-2] == propensity.shape[-2] or propensity.shape[-1] != outcome.shape[-1]:
        raise InputError(
            f"scores: {len(arm)} actions, {len(y)} outcomes, propensities {list(propensity.shape)} and outcome models "
            f"{list(outcome.shape)}; they must have the same records and actions"
        )
    got = torch.nn.functional.one_hot(arm, outcome.shape[-1]).to(outcome.dtype)
    return outcome + got * (y[:, None] - outcome) / propensity


def project_to_floor(p: Tensor, floor: float) -> Tensor:
    r"""Return the nearest probabilities (Euclidean) that are all at least ``floor``.

    .. math::
        \operatorname{argmin}_q \{\lVert q - p \rVert_2 : q_a \ge \zeta, \sum_a q_a = 1\}
        = \zeta + (p - \tau)_+

    with the one :math:`\tau` that makes the sum 1, found by sorting. For two actions and p of sum 1 it clamps p to
    [floor, 1 - floor]. In the largest entry it moves no more than 2 - 2 / K times as far as p does.

    Args:
        p: [..., K], finite.
        floor: Smallest probability, public, at most 1 / K.

    Raises:
        InputError: A floor that K probabilities cannot keep.

    Source:
        Held, Wolfe & Crowder (1974); Lipschitz constant: theory note ``policy_learning``, section 6.2.

    Example:
        >>> project_to_floor(torch.tensor([[1.0, 0.25, -0.25]], dtype=torch.float64), 0.125).tolist()
        [[0.75, 0.125, 0.125]]
    """
    K = p.shape[-1]
    mass = 1 - K * floor
    if floor < 0 or mass < -1e-12:
        raise InputError(f"floor = {floor:g}: {K} propensities add up to one; give at most {1 / K:.4g}")
    # each entry's excess over the floor, projected on what the floors leave
    above = p - floor
    sorted_above = above.sort(dim=-1, descending=True).values
    excess = sorted_above.cumsum(-1) - max(mass, 0.0)
    ranks = torch.arange(1, K + 1, device=p.device)
    # entries above tau come first; without any mass the largest alone defines it
    kept = (sorted_above * ranks > excess).sum(-1, keepdim=True).clamp(min=1)
    tau = excess.gather(-1, kept - 1) / kept
    return floor + (above - tau).clamp(min=0)


def score_spread(domain: "Domain", propensity: Tensor, outcome: Tensor) -> float:
    r"""Return S, the most by which one record's scores of two actions differ, by intervals of the nuisances.

    .. math:: S = \sup_{y, a, b, c} \max\Big\{\Big|\frac{y - \mu_a}{e_a} + \mu_a - \mu_b\Big|, |\mu_b - \mu_c|\Big\}

    The supremum runs over the corners of the intervals, where it is attained: the expression is linear in y, 1/e and
    each mu alone. A replaced scoring record moves two policies' utilities apart by at most 2 S. Source: theory note
    ``policy_learning``, section 6.1.

    Args:
        domain: Public bounds of the outcome.
        propensity: Least and largest propensity of each arm over the domain, [K, 2], positive.
        outcome: Least and largest outcome model of each arm over the domain, [K, 2].

    Raises:
        NumericalError: An end of an interval is not finite.

    Returns:
        S in outcome units; R / zeta where the intervals are all that floor and domain allow.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> half, middle = torch.full((2, 2), 0.5), torch.zeros(2, 2)
        >>> score_spread(Domain([0], [1], -0.5, 0.5), half, middle)
        1.0
    """
    if not bool(torch.isfinite(propensity).all() & torch.isfinite(outcome).all()):
        raise NumericalError("nuisances are not finite over the domain: nothing is released")
    arms, worst = len(propensity), 0.0
    ends = (domain.outcome_low, domain.outcome_high)
    mu, e = outcome.tolist(), propensity.tolist()
    for a, b in product(range(arms), repeat=2):
        if a == b:
            continue
        for y, mu_a, mu_b, e_a in product(ends, mu[a], mu[b], e[a]):
            worst = max(worst, abs((y - mu_a) / e_a + mu_a - mu_b))
            if arms > 2:
                worst = max(worst, abs(mu_a - mu_b))
    return worst
