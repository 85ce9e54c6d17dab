"""The steps of a composition: their names and shares, what each is charged, and the noise that it adds."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from torchdpcate._process import BATCH
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.events import DPSGDEvent, Event, GaussianEvent, PureEvent
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, KNormMechanism, LaplaceMechanism
from torchdpcate.privacy.session import FitSession


def added(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of parts, one after the other, of which there is at least one."""
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total + part
    assert total is not None
    return total


def summed(terms: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """Return the sum over records of what ``terms`` sums over some, of ``BATCH`` of them at once.

    Args:
        terms: Of rows of the columns.
        columns: [n, ...] each.

    Example:
        >>> import torch
        >>> summed(lambda x: x.sum(0), torch.ones(10_000, 2)).tolist()
        [10000.0, 10000.0]
    """
    return added(terms(*rows) for rows in zip(*(column.split(BATCH) for column in columns), strict=True))


def most_additions(n: int, batch: int | None) -> int:
    """Return how many additions a number goes through at most until it is part of a sum of n.

    Args:
        n: Numbers.
        batch: How many are summed at once, in any order; the sums of batches are added one by one. None: nothing is
            known of the order.

    Example:
        >>> most_additions(10_000_000, BATCH), most_additions(1_000, None)
        (6538, 1000)
    """
    return n if batch is None else min(batch, n) + math.ceil(n / batch)


StepEvent = GaussianEvent | PureEvent
"""What a step of a composition may be."""

_INWARDS = 1e-9  # of the shares: the accountant's rounding never exceeds the budget that they divide


def total_mu(budget: PrivacyBudget | None) -> float:
    r"""Return mu of the Gaussian that costs all of a budget; infinite without privacy.

    .. math:: \delta = \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon\,\Phi(-\mu/2 - \epsilon/\mu)

    Args:
        budget: (epsilon, delta) with delta > 0.

    Raises:
        InputError: delta = 0, which no Gaussian keeps.

    Example:
        >>> round(total_mu(PrivacyBudget(1.0, 1e-5)), 10)
        0.2680511232
    """
    return math.inf if budget is None else 1 / analytic_gaussian_sigma(budget.epsilon, budget.delta)


def squared_mu(event: Event) -> float:
    """Return mu^2 of a Gaussian event.

    Raises:
        TypeError: It is none.

    Example:
        >>> squared_mu(GaussianEvent(4.0))
        0.0625
    """
    if isinstance(event, DPSGDEvent) and event.sampling_rate == 1:
        return (2 / event.noise_multiplier) ** 2
    if not isinstance(event, GaussianEvent):
        raise TypeError(f"{event} is no Gaussian")
    return 1 / event.noise_multiplier**2


@dataclass(frozen=True)
class Shares:
    r"""Shares of mu^2, one a step: Gaussian events on the same records cost :math:`\mu^2 = \sum_k \mu_k^2`.

    The shares are fixed before any output; the steps may look at the outputs before them (Dong, Roth & Su 2022,
    corollary 3.3).

    Of K sites, each of which adds the whole noise of its own charges, mu is that of the noise in their total, and what
    a site is charged has :math:`\sqrt K` times as much.

    Attributes:
        total: mu of all steps together; infinite without privacy.
        shares: Share of each step, positive, together at most one.
        sites: K; 1 where all records are in one place.

    Raises:
        InputError: Shares that are not positive, or add up to more than one.

    Example:
        >>> shares = Shares(0.5, {"moments": 0.36, "head": 0.64})
        >>> round(shares.of("moments"), 6), round(shares.event("head").noise_multiplier, 6)
        (0.3, 2.5)
    """

    total: float
    shares: Mapping[str, float] = field(default_factory=dict)
    sites: int = 1

    def __post_init__(self) -> None:
        total = math.fsum(self.shares.values())
        if not all(share > 0 for share in self.shares.values()) or total > 1 + 1e-9:
            raise InputError(f"shares = {dict(self.shares)}: give positive shares of at most 1 together")

    def of(self, step: str) -> float:
        """Return mu of a step."""
        return self.total * math.sqrt(self.shares[step])

    def deviation(self, step: str, size: int = 1) -> float:
        """Return the standard deviation of a number's noise over the sensitivity, if a step is one event.

        Args:
            step: The step.
            size: How many numbers the event releases.
        """
        return 1 / self.of(step)

    def cost(self, event: Event) -> float:
        """Return what an event takes of what the steps divide: its mu^2.

        Raises:
            TypeError: It is no Gaussian.
        """
        return squared_mu(event)

    def due(self, step: str) -> float:
        """Return what all events of a step cost together, each site."""
        return self.sites * self.of(step) ** 2

    def event(self, step: str, part: float = 1.0, count: int = 1) -> StepEvent:
        """Return one of ``count`` equal events that share ``part`` of a step.

        Args:
            step: The step.
            part: Share of the step.
            count: Number of events.
        """
        return GaussianEvent(math.sqrt(count / (part * self.sites * (1 - _INWARDS))) / self.of(step))


@dataclass(frozen=True)
class EpsilonShares(Shares):
    r"""Shares of epsilon, one a step: pure events on the same records cost :math:`\epsilon = \sum_k \epsilon_k`.

    Attributes:
        total: epsilon of all steps together.
        shares: Share of each step, positive, together at most one.

    Example:
        >>> shares = EpsilonShares(2.0, {"moments": 0.25, "head": 0.75})
        >>> shares.of("head"), round(shares.event("moments", count=2).epsilon, 6)
        (1.5, 0.25)
    """

    def of(self, step: str) -> float:
        """Return epsilon of a step."""
        return self.total * self.shares[step]

    def deviation(self, step: str, size: int = 1) -> float:
        """See ``Shares``: K-norm noise in the Euclidean norm, which is Laplace noise for one number."""
        return math.sqrt(size + 1) / self.of(step)

    def cost(self, event: Event) -> float:
        """See ``Shares``: its epsilon."""
        if not isinstance(event, PureEvent):
            raise TypeError(f"{event} is not pure")
        return event.epsilon

    def due(self, step: str) -> float:
        return self.of(step)

    def event(self, step: str, part: float = 1.0, count: int = 1) -> PureEvent:
        return PureEvent(self.of(step) * part * (1 - _INWARDS) / count)


CENSORING = "censoring"
"""The step that releases how long records were followed, where outcomes may be censored."""
WEIGHTS = "weights"
"""The step that releases the sum of the records' weights, where they have some."""
QUANTILES = ("centre", "outcome scale", "residual scale")
"""Steps that find a private quantile."""
INTERVALS = tuple(f"interval {name}" for name in ("matrix", "counts", "correction", "average"))
"""Steps that intervals take."""
MATRIX, COUNTS, CORRECTION, AVERAGE = INTERVALS
LINES = ("line squares", "line sums")
"""Steps that lines take: squares of scores, then sums of them."""
LINE_SQUARES, LINE_SUMS = LINES
REMAINDERS = "remainders"
"""The step that looks for what both nuisances left over of squares and products."""
LOOKED_FOR = "2x"
"""Kinds of features that it looks for."""
SCREENING, PROGNOSTIC, MODIFIERS = "screening", "prognostic covariates", "effect modifiers"
PAIRS = "effect pairs"
"""The step that chooses products of a covariate's slope with others."""
EFFECT_UNITS = "effect units"
"""The step that trains hidden units for the effect."""
CHOICES = (SCREENING, PROGNOSTIC, MODIFIERS)
"""Steps that choose covariates."""
WINDOWS = "windows"
"""The step that finds windows about most values of each covariate."""
HALVINGS = 8
"""Noisy counts by which each of their quantiles is found."""
COUNT_VARIANCE = 4 / 3
"""Of the noise of each of a covariate's two counts, per unit of that of ``turned`` ones."""
ORDER = (
    *(
        CENSORING,
        WEIGHTS,
        "centre",
        "outcome scale",
        SCREENING,
        WINDOWS,
        "moments",
        PROGNOSTIC,
        "outcome curvatures",
        "outcome",
    ),
    *("propensity curvatures", "propensity", REMAINDERS, MODIFIERS, PAIRS, EFFECT_UNITS, "effect curvatures", "effect"),
    *INTERVALS,
    *LINES,
)
"""Steps in the order in which they are paid; a residual scale may follow any of the outcome's."""


_FINE = 2.0**-39  # of a noise scale: twice the fine grid's step
_ROUNDING = 2.0**-52  # of a float64, twice what one operation errs by


def summation_error(n: int, bound: float, batch: int | None = None) -> float:
    r"""Return how far two floating-point sums of n numbers within [-bound, bound] are off together.

    .. math:: 2 \gamma_k\, n B, \quad \gamma_k \le k\, 2^{-52}

    Higham (2002), sections 3.1 and 4.2; twice what sums alone need, for the products that are summed. It is added to
    what one record moves a sum.

    Args:
        n: Numbers.
        bound: B, of each.
        batch: How many are summed at once, see ``most_additions``, which k is; None: any order, so that k is n.

    Example:
        >>> summation_error(2**26, 1.0), summation_error(2**26, 1.0, batch=2**12)
        (2.0, 0.0006103515625)
    """
    return 2 * most_additions(n, batch) * n * _ROUNDING * bound


class Statistic(ABC):
    r"""A sum over records, as data: a pure function of a batch and of released numbers, which knows its bound.

    It knows nothing of session, ledger or noise, and can be pickled. Where records have weights v in [0, 1], what a
    record adds is v times its term t; the sensitivity is then :math:`\max\{\mathrm{diam}\,T, \sup_T \|t\|\}`
    (``RecordWeights``), and ``moved`` is at least that: no term's norm is more than the distance of two.
    """

    @abstractmethod
    def moved(self) -> tuple[float, float, float]:
        """Return how far one record that is replaced moves it, in the l2 norm, and what rounding adds to that.

        Returns:
            That distance; how often ``summation_error`` is added to it; and the bound of the numbers that are summed.
        """

    @abstractmethod
    def __call__(self, batch: CausalData) -> Tensor:
        """Return the sum over a batch of records."""


def propensity_of(batch: CausalData) -> Tensor:
    """Return the propensities that a batch has, [n]."""
    assert batch.propensity is not None
    return batch.propensity


class Summed(Protocol):
    """Records of which totals are requested; see ``Rows``."""

    @property
    def n(self) -> int:
        """Number of records."""

    def total(self, terms: Callable[[CausalData], Tensor]) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over a batch."""


@dataclass(frozen=True, eq=False)
class NoisySteps:
    """The steps of a composition: each is charged to the session before its noise is drawn.

    Attributes:
        session: Scope of the records' block, and of what is charged for. Without a budget nothing is charged and
            no noise is added.
        shares: Share of each step.
        batch: How many records a sum over all of them takes at once, public; None: they are added in any order.
        weight: Mean weight of the records, released; None where all count alike.
    """

    session: FitSession
    shares: Shares
    batch: int | None = BATCH
    weight: float | None = None

    @property
    def private(self) -> bool:
        """Whether there is any noise."""
        return math.isfinite(self.shares.total)

    @property
    def pure(self) -> bool:
        """Whether all events are pure."""
        return isinstance(self.shares, EpsilonShares)

    def rounding(self, n: int, bound: float) -> float:
        """Return ``summation_error`` of this composition's sums of n numbers within [-bound, bound]."""
        return summation_error(n, bound, self.batch)

    def mass(self, n: int) -> float:
        """Return what sums over n records are divided by: n, or the released sum of their weights."""
        return n if self.weight is None else n * self.weight

    def pay(self, step: str, part: float = 1.0, count: int = 1) -> StepEvent:
        """Charge ``count`` equal events that share ``part`` of a step, and return one; not without privacy."""
        event = self.shares.event(step, part, count)
        self.session.pay(event, count=count, part=step)
        return event

    def noisy(self, values: Tensor, sensitivity: float, event: StepEvent) -> Tensor:
        """Return values [p] with the noise of an event that was charged, float64 on the CPU.

        Args:
            values: What is requested of the records.
            sensitivity: How far one record moves them, in the l2 norm.
            event: As ``pay`` returned it.
        """
        mechanism = mechanism_of(event, sensitivity, values.numel())
        return self.session.noise.released(mechanism.add_noise(values.detach()[None], self.session.noise)[0])

    def noisy_gradient(self, values: Tensor, sensitivity: float, event: StepEvent) -> Tensor:
        """Return values [p] with noise on a grid 2^20 times finer, as DP-SGD has it: fast for thousands of numbers.

        Arguments are those of ``noisy``, or values of independent runs, [runs, p]; the grid's rounding is part of the
        sensitivity.
        """
        if isinstance(event, PureEvent):
            return self.noisy(values, sensitivity, event)
        values, noise = values.detach().cpu().double(), self.session.noise
        rounding = gradient_rounding(event, values.shape[-1])
        scale = event.noise_multiplier * sensitivity * (1 + rounding)
        step = noise.fine_grid(scale)
        return noise.released(
            torch.round(values / step) * step + noise.fine_gaussian(values.numel(), scale).view_as(values)
        )

    def total(self, step: str, rows: Summed, statistic: Statistic, part: float = 1.0) -> Tensor:
        """Charge a step's event, and return the total of a statistic with its noise, [p], float64 on the CPU.

        Args:
            step: The step.
            rows: The records, which are looked at once it is paid for.
            statistic: What is summed over them.
            part: Share of the step that pays.
        """
        if not self.private:
            return rows.total(statistic).detach().cpu().double()
        event = self.pay(step, part)
        return self.noisy(rows.total(statistic), self.sensitivity(statistic, rows.n), event)

    def sensitivity(self, statistic: Statistic, n: int) -> float:
        """Return how far one record of n moves a statistic, the rounding of its sum included."""
        moved, times, bound = statistic.moved()
        return moved + times * self.rounding(n, bound)

    def scale(self, step: str, sensitivity: float, size: int = 1) -> float:
        """Return the standard deviation of each number's noise if a step is one event; zero without privacy.

        Args:
            step: The step.
            sensitivity: Of the numbers, in the l2 norm.
            size: How many numbers there are.
        """
        return sensitivity * self.shares.deviation(step, size) if self.private else 0.0


def gradient_rounding(event: StepEvent, size: int) -> float:
    """Return how far rounding to their noise's grid moves ``size`` numbers at most, over their sensitivity.

    Raises:
        InputError: So far that it would matter.
    """
    assert isinstance(event, GaussianEvent)
    found = math.sqrt(size) * event.noise_multiplier * _FINE
    if found > 1:
        raise InputError(f"size = {size}: too many numbers for noise of {event.noise_multiplier:g}")
    return found


def mechanism_of(event: StepEvent, sensitivity: float, size: int) -> AdditiveMechanism:
    """Return what adds an event's noise to ``size`` numbers that one record moves so far in the l2 norm."""
    if isinstance(event, GaussianEvent):
        return GaussianMechanism.of_event(event, sensitivity)
    return LaplaceMechanism(event.epsilon, sensitivity) if size == 1 else KNormMechanism(event.epsilon, sensitivity)
