"""Private selection among public candidates: the best few, a quantile, the best of scores moved unequally."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget, integer, number, positive
from torchdpcate.privacy.charge import OUTCOME, THRESHOLD, Charge, Purpose
from torchdpcate.privacy.events import BoundedRangeEvent, GaussianEvent, PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, choice_game, worst_case

_EXACT = 2.0**-20  # grid of normalised scores, so that rounding cannot stretch their sensitivity


def top_k(scores: Tensor, count: int, epsilon: float, noise: NoiseSource, sensitivity: float = 1.0) -> list[int]:
    r"""Indices of a few high scores, the highest first; certified, pure epsilon.

    Selects ``count`` times (``NoiseSource.select``, permute-and-flip) at epsilon / count each, every time among the
    candidates that are left; pure budgets add up. The cost is that of OpenDP's ``make_noisy_top_k``. Charge
    ``PureEvent(epsilon)`` first.

    Args:
        scores: Shape [k], finite; higher is better.
        count: How many to select, at most k.
        epsilon: Privacy cost of all together.
        noise: Where the noise comes from.
        sensitivity: The most that replacing one record moves any score.

    Raises:
        InputError: There are fewer scores than requested, a number is outside its range, or see
            ``NoiseSource.select``.

    Example:
        >>> top_k(torch.tensor([0.0, 900.0, 0.0, 2000.0]), 2, 1.0, NoiseSource.system())
        [3, 1]
    """

    def best(left: Tensor) -> int:
        return noise.select(left, positive("epsilon", epsilon) / count, sensitivity)

    return noise.released(_one_by_one(scores, count, best))


def _one_by_one(scores: Tensor, count: int, best: Callable[[Tensor], int]) -> list[int]:
    """Return positions that are chosen one after the other among those that are left.

    Args:
        scores: Of all candidates, [k].
        count: How many to choose.
        best: From the scores that are left to a position among them.

    Raises:
        InputError: There are fewer.
    """
    left = list(range(scores.numel()))
    if integer("count", count, least=1) > len(left):
        raise InputError(f"count = {count}: there are {len(left)} candidates; request no more than that")
    return [left.pop(best(scores[left])) for _ in range(count)]


_INWARDS = 1e-12  # relative: the rounding of logarithms of the normal law


def bounded_range(event: GaussianEvent) -> float:
    r"""Return by how much the losses of two outputs of a choice may differ that costs no more than a Gaussian event.

    .. math:: \eta = 2 \ln\frac{\Phi(\mu/2)}{\Phi(-\mu/2)}, \qquad \mu = 1/\text{noise multiplier}

    A mechanism whose losses differ by at most eta changes the odds of any event by at most :math:`e^\eta`, so that its
    tests have :math:`\frac{\alpha}{1-\alpha}\frac{\beta}{1-\beta} \ge e^{-\eta}`, those of two logistic laws at
    distance eta. Among all points the curve of mu comes nearest at :math:`\alpha = \beta`
    (docs/guarantees/noise.md).

    Args:
        event: What one choice may cost.

    Example:
        >>> round(bounded_range(GaussianEvent(1 / 0.2680511232)), 10)
        0.428097608
    """
    half = 0.5 / event.noise_multiplier
    return 2 * float(scipy.special.log_ndtr(half) - scipy.special.log_ndtr(-half)) * (1 - _INWARDS)


def gumbel_top_k(
    scores: Tensor, count: int, event: GaussianEvent, noise: NoiseSource, sensitivity: float = 1.0
) -> list[int]:
    r"""Indices of a few high scores, the highest first; certified, each choice at the cost of a Gaussian event.

    The exponential mechanism chooses ``count`` times among those that are left, by Gumbel noise of scale
    :math:`2\Delta/\eta`; see ``bounded_range``. Charge ``event`` so often first.

    Args:
        scores: Shape [q], finite; higher is better.
        count: How many to choose, at most q.
        event: What each choice costs.
        noise: Where the noise comes from.
        sensitivity: Delta, the most that replacing one record moves any score.

    Raises:
        InputError: There are fewer scores than requested, or see ``NoiseSource.select``.

    Example:
        >>> gumbel_top_k(torch.tensor([0.0, 900.0, 0.0, 2000.0]), 2, GaussianEvent(2.0), NoiseSource.system())
        [3, 1]
    """
    eta = bounded_range(event)

    def best(left: Tensor) -> int:
        return noise.select(left, eta, positive("sensitivity", sensitivity), law="gumbel")

    return noise.released(_one_by_one(scores, count, best))


def private_quantile(values: Tensor, grid: Tensor, quantile: float, epsilon: float, noise: NoiseSource) -> float:
    r"""A quantile of the values, chosen from public candidates; certified, pure epsilon.

    Selection (``NoiseSource.select``) with the score :math:`-|\#\{v \le t\} - q n|` of candidate t, which
    replacing one record moves by at most 1 (Smith 2011). Charge ``PureEvent(epsilon)`` first.

    Args:
        values: One number per record, shape [n]; n is public.
        grid: Public candidates, shape [k], any order.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Returns:
        The chosen candidate.

    Raises:
        InputError: If the values or the grid are empty, not vectors or not finite, or a number is outside its
            range.

    Example:
        >>> values = torch.arange(1000.0)
        >>> private_quantile(values, torch.arange(0.0, 1000.0, 250.0), 0.5, 1.0, NoiseSource.system())
        500.0
    """
    return noise.released(chosen_quantile(values, grid, quantile, epsilon, noise))


def chosen_quantile(values: Tensor, grid: Tensor, quantile: float, epsilon: float, noise: NoiseSource) -> float:
    """Return ``private_quantile`` as one number of an answer that is handed out with others, for one charge.

    Args:
        values: See ``private_quantile``, as all others.
        grid: Public candidates.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.

    Raises:
        InputError: As ``private_quantile``.
    """
    for name, vector in (("values", values), ("grid", grid)):
        if vector.ndim != 1 or vector.numel() == 0 or not bool(torch.isfinite(vector).all()):
            raise InputError(f"{name} of shape {tuple(vector.shape)}: give a vector of finite numbers")
    quantile = number("quantile", quantile)
    if not 0 <= quantile <= 1:
        raise InputError(f"quantile = {quantile:g}: give a number in [0, 1]")
    candidates = grid.detach().cpu().double()
    ordered = values.detach().cpu().double().sort().values
    below = torch.searchsorted(ordered, candidates, right=True)
    return float(candidates[quantile_by_counts(below, len(ordered), quantile, epsilon, noise)])


def quantile_by_counts(below: Tensor, n: int, quantile: float, epsilon: float, noise: NoiseSource) -> int:
    """Return which candidate ``private_quantile`` chooses, by position.

    Args:
        below: How many of the values are at most each candidate, [k].
        n: How many values there are, public.
        quantile: q in [0, 1].
        epsilon: Privacy cost.
        noise: Where the noise comes from.
    """
    # OpenDP's make_quantile_score_candidates scores in units of 2^-53, which float64 does not hold exactly:
    # a multiple of 2^-20 makes the scores exact, so that rounding cannot stretch their sensitivity
    target = round(quantile * n * 2**20) / 2**20
    return noise.select(-(below.double() - target).abs(), epsilon)


@worst_case(
    "quantile",
    private_quantile,
    attacks=[THRESHOLD, OUTCOME],
    pair="two candidates, equally good; one of four records moves from below to above",
)
def _quantile(budget: PrivacyBudget) -> Game:
    # counts (1, 3) become (0, 2), where 2 is wanted: one score falls by its sensitivity, the other rises by it
    grid = torch.tensor([0.0, 1.0], dtype=torch.float64)
    datasets = torch.tensor([[-1.0, 0.5, 0.5, 2.0], [3.0, 0.5, 0.5, 2.0]], dtype=torch.float64)
    return choice_game(
        lambda dataset, noise: private_quantile(datasets[dataset], grid, 0.5, budget.epsilon, noise), budget
    )


_NODES = 64  # of the quadrature, enough for 1e-13 however many candidates there are
_NEGLIGIBLE = 40.0  # exp(-40) of an integral is left out


def exponential_law(gaps: Tensor) -> Tensor:
    r"""Law of the largest under independent exponential noise of scale one.

    With p_j = exp(-d_j),

    .. math:: P(i) = p_i \int_0^1 \prod_{j \ne i} (1 - v p_j)\, dv :

    the largest sum lies at x above the best utility with v = e^-x, and there i has density v p_i, and each rival stays
    below with probability 1 - v p_j. The integrand is a polynomial in v below exp(-v (sum p - 1)), so where that sum is
    large only a short interval counts. On it the product varies like an exponential of at most 40, and 64
    Gauss-Legendre nodes decide to 1e-13; for up to 128 candidates ceil(M / 2) nodes are exact. Relative error below
    1e-12.

    Args:
        gaps: d, how far each utility is behind the best, [..., M]; the smallest is 0.

    Returns:
        float64 [..., M].

    Example:
        >>> exponential_law(torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64))
        tensor([0.6303, 0.2807, 0.0890], dtype=torch.float64)
    """
    heads = torch.exp(-gaps)
    nodes, weights = _gauss_legendre(min(math.ceil(heads.shape[-1] / 2), _NODES))
    end = (_NEGLIGIBLE / (heads.sum(-1, keepdim=True) - 1).clamp(min=1e-9)).clamp(max=1.0)
    logs = torch.log1p(-(end * nodes)[..., None] * heads[..., None, :])
    others = torch.exp(logs.sum(-1, keepdim=True) - logs)
    return heads * end * (weights[:, None] * others).sum(-2)


@cache
def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy(nodes + 1) / 2, torch.from_numpy(weights) / 2


_GAPS = 2000  # distances at which an expected loss is worked out
_BEHIND = 2.5  # scales that the audit's first utility lies behind: farther, it comes nearer to epsilon as seldom


@dataclass(frozen=True)
class SelectionMechanism(ABC):
    r"""Chooses the largest of utilities plus noise of scale range_sensitivity / epsilon; certified, pure epsilon.

    What is chosen depends on differences of utilities alone. So the noise answers for their bounded range

    .. math:: \Delta_{BR} = \sup_{D \sim D'} \big[\max_i (U_i - U'_i) - \min_i (U_i - U'_i)\big],

    which never exceeds twice the bound of a single |U_i - U'_i|, and is often far smaller. Charge ``event`` first.
    Source: Dong, Durfee & Rogers (2020), policy_learning section 6.1.

    Attributes:
        epsilon: Privacy cost of one choice.
        range_sensitivity: Delta_BR, public, in the utilities' units.
        name: Its name in ``SELECTIONS``.
        formula: Its law, in words.

    Raises:
        InputError: If epsilon or range_sensitivity is not positive.
    """

    epsilon: float
    range_sensitivity: float
    name: ClassVar[str]
    formula: ClassVar[str]
    _noise: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "range_sensitivity", positive("range_sensitivity", self.range_sensitivity))

    @property
    def scale(self) -> float:
        """Scale of the noise, in the utilities' units."""
        return self.range_sensitivity / self.epsilon

    @property
    def event(self) -> PureEvent:
        """The event to charge to a ledger before each choice."""
        return PureEvent(self.epsilon)

    @property
    def beside(self) -> PureEvent:
        """The event to charge in its place where it is composed with others."""
        return self.event

    @property
    def guarantee(self) -> Guarantee:
        """Certified, pure epsilon, if ``range_sensitivity`` bounds the range by which one record moves utilities."""
        source = f"policy_learning section 6.1; {self.formula}"
        return Guarantee(Level.CERTIFIED, PrivacyBudget(self.epsilon, 0.0), source=source)

    def probabilities(self, utilities: Tensor) -> Tensor:
        """Exact law of the chosen index, for expected regrets and tests. The curator's: it shows the utilities.

        Args:
            utilities: [..., M], finite; one law a row.

        Returns:
            float64 [..., M]; rows sum to one.

        Raises:
            InputError: If the utilities are empty or not finite.
        """
        exact = _finite(utilities)
        return self._law((exact.amax(-1, keepdim=True) - exact) / self.scale)

    def select(self, utilities: Tensor, noise: NoiseSource, runs: int = 1) -> Tensor:
        """Indices of high utilities, one independent choice a run; each run costs ``event``.

        Float utilities must be exact on a public grid: rounding that follows the records would stretch it.

        Args:
            utilities: [M], finite.
            noise: Where the noise comes from.
            runs: Number of choices.

        Returns:
            int64 [runs].

        Raises:
            InputError: If the utilities are empty, not a vector or not finite, or runs is not a positive integer.
        """
        if utilities.ndim != 1:
            raise InputError(f"utilities of shape {tuple(utilities.shape)}: give a vector, one number a candidate")
        return noise.released(self._draw(_finite(utilities), noise, integer("runs", runs, least=1)))

    def expected_loss(self, candidates: int) -> float:
        r"""Return what a choice loses of the best utility, in expectation, where all others are equally far behind it.

        .. math:: \max_g \frac{g\, (M - 1)\, e^{-g}}{1 + (M - 1)\, e^{-g}}

        scales: the exponential mechanism's, at the distance at which that is most. Permute-and-flip loses no more
        (McKenna & Sheldon 2020), Laplace noise about as much.

        Args:
            candidates: M.

        Example:
            >>> round(ExponentialMechanism(1.0, range_sensitivity=2.0).expected_loss(160), 3)
            5.955
        """
        gaps = torch.linspace(0, 5 + 2 * math.log(candidates), _GAPS, dtype=torch.float64)
        behind = (candidates - 1) * (-gaps).exp()
        return self.scale * (gaps * behind / (1 + behind)).amax().item()

    def behind(self, candidates: int, probability: float) -> float:
        """Return how far the choice is behind the best utility at most, with a probability: ``s ln(M / (1 - p))``.

        By exponential and Gumbel noise of scale s; twice as far by Laplace noise.

        Args:
            candidates: M.
            probability: p, below one.

        Example:
            >>> round(PermuteAndFlip(1.0, range_sensitivity=2.0).behind(160, 0.95), 3)
            16.142
        """
        return self.scale * math.log(candidates / (1 - probability))

    @abstractmethod
    def _law(self, gaps: Tensor) -> Tensor:
        """Probabilities from how far each utility is behind the best, [..., M] in units of the scale."""

    def _draw(self, utilities: Tensor, noise: NoiseSource, runs: int) -> Tensor:
        # a range is at most twice the sensitivity of each utility, so half of it requests the noise that it needs
        facts = self.epsilon, self.range_sensitivity / 2, self._noise
        return torch.tensor([noise.select(utilities, *facts) for _ in range(runs)], dtype=torch.int64)


class ExponentialMechanism(SelectionMechanism):
    r"""The exponential mechanism, drawn as the largest of utilities plus Gumbel noise (OpenDP's exact sampler).

    .. math:: P(i) \propto \exp(\epsilon U_i / \Delta_{BR})

    Source: McSherry & Talwar (2007); Durfee & Rogers (2019) for the Gumbel noise. In compositions it costs only
    epsilon^2 / 8 of zero-concentrated privacy.

    Example:
        >>> ExponentialMechanism(1.0, range_sensitivity=20.0).probabilities(torch.tensor([30.0, 20.0, 0.0]))
        tensor([0.5465, 0.3315, 0.1220], dtype=torch.float64)
    """

    name = "exponential"
    _noise = "gumbel"
    formula = "P(i) proportional to exp(epsilon U_i / spread)"

    @property
    def beside(self) -> PureEvent:
        """One of bounded range: losses of two outputs differ by at most epsilon (page private_choices)."""
        return BoundedRangeEvent(self.epsilon)

    def _law(self, gaps: Tensor) -> Tensor:
        return torch.softmax(-gaps, -1)


class PermuteAndFlip(SelectionMechanism):
    r"""Permute-and-flip: the largest of utilities plus exponential noise; its expected regret is never the larger.

    With p_j = exp(-(max U - U_j) / scale),

    .. math:: P(i) = p_i \int_0^1 \prod_{j \ne i} (1 - v p_j)\, dv .

    Source: McKenna & Sheldon (2020); Ding et al. (2021) for the exponential noise.

    Example:
        >>> mechanism, utilities = PermuteAndFlip(1.0, range_sensitivity=20.0), torch.tensor([30.0, 20.0, 0.0])
        >>> mechanism.probabilities(utilities)
        tensor([0.6303, 0.2807, 0.0890], dtype=torch.float64)
        >>> mechanism.select(1000 * utilities, NoiseSource.system(), runs=3)
        tensor([0, 0, 0])
    """

    name = "permute_and_flip"
    _noise = "exponential"
    formula = "the largest of U_i plus exponential noise of scale spread / epsilon"

    def _law(self, gaps: Tensor) -> Tensor:
        return exponential_law(gaps)


SELECTIONS = {kind.name: kind for kind in (ExponentialMechanism, PermuteAndFlip)}
"""Every mechanism of selection by name."""


def _finite(utilities: Tensor) -> Tensor:
    if utilities.ndim == 0 or utilities.shape[-1] == 0 or not bool(torch.isfinite(utilities).all()):
        raise InputError(f"utilities of shape {tuple(utilities.shape)}: give finite numbers, one a candidate")
    return utilities.detach().cpu().double()


def _game(mechanism: SelectionMechanism, candidates: int, behind: float = 0.0) -> Game:
    """Equal utilities before, but for how far the first is behind, in scales; after, it lies a range farther."""
    datasets = torch.zeros(2, candidates, dtype=torch.float64)
    datasets[:, 0] -= behind * mechanism.scale
    datasets[1] += mechanism.range_sensitivity / 2
    datasets[1, 0] -= mechanism.range_sensitivity

    budget = PrivacyBudget(mechanism.epsilon, 0.0)
    return choice_game(lambda dataset, noise: mechanism.select(datasets[dataset], noise).item(), budget)


@worst_case("permute_and_flip", PermuteAndFlip, pair="two equal utilities; one record moves them a full range apart")
def _permute_and_flip(budget: PrivacyBudget) -> Game:
    return _game(PermuteAndFlip(budget.epsilon, 1.0), 2)


@worst_case(
    "exponential_mechanism",
    ExponentialMechanism,
    attacks=[Charge(Purpose.RELEASE, ExponentialMechanism.name)],
    pair="two utilities, one of them 2.5 scales behind; one record moves it a full range farther",
)
def _exponential(budget: PrivacyBudget) -> Game:
    return _game(ExponentialMechanism(budget.epsilon, 1.0), 2, _BEHIND)
