"""From outcomes to how much a decision matters: a magnitude in [0, 1] and a sign, by public constants alone."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import Parameters
from torchdpcate.estimators.planned_noise import TYPICAL_RESIDUAL
from torchdpcate.laws import CentreAndWidth
from torchdpcate.plan import Query
from torchdpcate.privacy.charge import OUTCOME
from torchdpcate.privacy.session import FitSession
from torchdpcate.registry import Registry

_NORMAL = 1.645  # standard deviations at the .9 quantile of normal outcomes' distances
_POINTS, _DECADES = 500, 4  # of the public grids of the private quantiles
RESIDUAL = ("outcome_centre", "outcome_clip")
"""Constants of residuals, by their names in statements."""
_TRIED = 65  # public outcomes at which a map is tried


class Outcome(Parameters, ABC):
    """A map of the outcome whose constants are public or private quantiles, written as if large outcomes were good.

    Where small ones are (``better="lower"`` of the domain), ``magnitudes`` turns every sign; magnitudes, which all
    sensitivities rest on, stay.

    Attributes:
        name: The name users give.
        budget_fraction: Fraction of the budget that pays for the constants.
    """

    name: ClassVar[str]
    budget_fraction: float = 0.0
    assumes: ClassVar[tuple[str, ...]] = ()
    """What plans assume of the constants, in words."""
    states: ClassVar[tuple[str, ...]] = ()
    """Public constants that statements have of them."""

    def unit(self, domain: Domain) -> float:
        """Return the outcome units of a magnitude of one, as far as plans know them.

        Args:
            domain: Public bounds.
        """
        return domain.outcome_range

    def query(self, domain: Domain, epsilon: float) -> Query | None:
        """Return what learns the constants; None where they are public.

        Args:
            domain: Public bounds.
            epsilon: What they may cost.
        """
        return None

    def settle(self, records: CausalData, domain: Domain, epsilon: float | None, session: FitSession) -> "Outcome":
        """Return the map with its constants known: itself, where they are public.

        Args:
            records: The rule's records.
            domain: Public bounds.
            epsilon: What the constants may cost; None takes the exact quantiles, for a rule without privacy.
            session: Pays before any noise is drawn, and draws it.
        """
        return self

    @abstractmethod
    def transform(self, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """Return magnitudes [n] in [0, 1] and signs [n] of 1 and -1.

        A sign of 1 says that what was done was right, one of -1 that the other arm would have been.

        Args:
            y: Outcomes [n] within the domain.
            domain: Public bounds.

        Raises:
            InputError: Constants that make every magnitude zero, or the same.
        """

    @abstractmethod
    def public(self, domain: Domain) -> dict[str, Any]:
        """Return the public constants by name, in outcome units."""


class Shifted(Outcome):
    r"""Outcome weighted learning's positive outcome, :math:`m = (y - low) / (high - low)`, sign always 1.

    The shift is public: the paper's shift by the sample's minimum leaks through every weight (Giddens et al. 2023;
    theory note ``policy_learning``, section 7).

    Args:
        low: Outcome of weight zero; None takes the domain's lower bound.
        high: Outcome of weight one; None takes the domain's upper bound. Outcomes beyond are clipped.

    Example:
        >>> y, domain = torch.tensor([0.0, 3.0]), Domain([0.0], [1.0], outcome_low=0.0, outcome_high=4.0)
        >>> [part.tolist() for part in Shifted().transform(y, domain)]
        [[0.0, 0.75], [1.0, 1.0]]
    """

    name = "shifted"
    states = ("outcome_low", "outcome_high")

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.low = low
        self.high = high

    def transform(self, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        low, high = self._bounds(domain)
        return ((y - low) / (high - low)).clamp(0, 1), torch.ones_like(y)

    def public(self, domain: Domain) -> dict[str, Any]:
        """Return the bounds of the shifted outcome."""
        low, high = self._bounds(domain)
        return {"outcome_low": low, "outcome_high": high}

    def unit(self, domain: Domain) -> float:
        """Return the width of the bounds."""
        low, high = self._bounds(domain)
        return high - low

    def _bounds(self, domain: Domain) -> tuple[float, float]:
        low = domain.outcome_low if self.low is None else self.low
        high = domain.outcome_high if self.high is None else self.high
        if not -math.inf < low < high < math.inf:
            raise InputError(f"outcome.low, outcome.high = {low}, {high}: give two numbers, the smaller one first")
        if low >= domain.outcome_high or high <= domain.outcome_low:
            raise InputError(
                f"outcome.low, outcome.high = {low}, {high}: every outcome in [{domain.outcome_low:g}, "
                f"{domain.outcome_high:g}] gets the same weight; give bounds that overlap the domain's"
            )
        return low, high


class SignedResidual(Outcome):
    r"""Distance from a public centre and its sign: :math:`r = clip(y - c, -K, K)`, :math:`m = |r| / K`.

    Rules do not change when a constant is taken from all outcomes, but the bound of the weights halves, and with it
    the noise (Liu et al. 2018; theory note ``policy_learning``, section 5.3). A tight K and a c near the mean gain
    most; both must be known without the records.

    Args:
        centre: c; None takes the middle of the outcome's bounds.
        clip: K; None takes the largest distance of a bound from c.

    Example:
        >>> y, domain = torch.tensor([0.0, 3.0]), Domain([0.0], [1.0], outcome_low=0.0, outcome_high=4.0)
        >>> [part.tolist() for part in SignedResidual().transform(y, domain)]
        [[1.0, 0.5], [-1.0, 1.0]]
    """

    name = "signed_residual"
    states = RESIDUAL

    def __init__(self, centre: float | None = None, clip: float | None = None) -> None:
        self.centre = centre
        self.clip = clip

    def transform(self, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        centre, clip = self._constants(domain)
        residual = (y - centre).clamp(-clip, clip)
        return residual.abs() / clip, torch.where(residual >= 0, 1.0, -1.0).to(y)

    def public(self, domain: Domain) -> dict[str, Any]:
        """Return centre and clip."""
        centre, clip = self._constants(domain)
        return {"outcome_centre": centre, "outcome_clip": clip}

    def unit(self, domain: Domain) -> float:
        """Return K."""
        return self._constants(domain)[1]

    def _constants(self, domain: Domain) -> tuple[float, float]:
        low, high = domain.outcome_low, domain.outcome_high
        centre = (low + high) / 2 if self.centre is None else self.centre
        clip = max(high - centre, centre - low) if self.clip is None else self.clip
        if not math.isfinite(centre):
            raise InputError(f"outcome.centre = {centre}: give a finite number")
        if not 0 < clip < math.inf:
            raise InputError(f"outcome.clip = {clip}: makes every weight zero; give a number above 0")
        if centre - clip >= high or centre + clip <= low:
            raise InputError(
                f"outcome.centre, outcome.clip = {centre}, {clip}: every outcome in [{low:g}, {high:g}] is clipped to "
                "the same weight; give a centre nearer to it"
            )
        return centre, clip


class PrivateResidual(Outcome):
    r"""A ``SignedResidual`` by private quantiles: the median outcome, and a quantile of the distances to it.

    For outcomes whose bounds say little of where most of them lie, such as earnings: a public centre far from them
    gives nearly all records the same sign, and then a wrong propensity decides for everybody.

    Guarantee:
        Certified, pure: each is a private quantile (docs/guarantees/noise.md) for half of the fraction; then
        the map is a public one.

    Args:
        budget_fraction: Fraction of the budget that pays for both, in (0, 1).
        quantile: Fraction of the distances that the clip leaves as they are, in (0, 1).

    Raises:
        InputError: A fraction or a quantile outside (0, 1).

    Example:
        >>> from torchdpcate.privacy.noise import NoiseSource
        >>> y, domain = torch.linspace(0, 1, 2000).double(), Domain([0.0], [1.0], outcome_low=0.0, outcome_high=10.0)
        >>> records, session = CausalData(y[:, None], y.round(), y), FitSession(NoiseSource.system())
        >>> residual = PrivateResidual().settle(records, domain, 20.0, session)
        >>> round(residual.centre, 1), round(residual.clip, 1)
        (0.5, 0.5)
    """

    name = "private_residual"
    states = RESIDUAL
    budget_fraction = 0.1
    assumes = (
        "the private clip of the outcome is a quarter of its range, or 1.6 standard deviations where one is stated",
    )

    def __init__(self, budget_fraction: float = 0.1, quantile: float = 0.9) -> None:
        self.budget_fraction = budget_fraction
        self.quantile = quantile

    def query(self, domain: Domain, epsilon: float) -> Query:
        grid = torch.linspace(domain.outcome_low, domain.outcome_high, _POINTS, dtype=torch.float64)
        widths = torch.logspace(-_DECADES, 0, _POINTS, dtype=torch.float64) * domain.outcome_range
        return Query(OUTCOME, CentreAndWidth(epsilon, grid, widths, (0.5, self.quantile)))

    def settle(
        self, records: CausalData, domain: Domain, epsilon: float | None, session: FitSession
    ) -> "SignedResidual":
        """Return the map with the private constants; see ``Outcome.settle``."""
        if epsilon is None:
            centre = records.y.median().item()
            distances = (records.y - centre).abs()
            return SignedResidual(centre, torch.quantile(distances, self.quantile).item() or domain.outcome_range)
        return SignedResidual(*self.query(domain, epsilon).ask(session, records.y).tolist())

    def unit(self, domain: Domain) -> float:
        """Return the clip that plans expect."""
        if domain.outcome_sd is not None:
            return min(_NORMAL * domain.outcome_sd, domain.outcome_range)
        return TYPICAL_RESIDUAL * domain.outcome_range

    def transform(self, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """Refuse: the constants are not there before ``settle``."""
        raise InputError("outcome = private_residual: its constants are not known yet; call fit first")

    def public(self, domain: Domain) -> dict[str, Any]:
        """Return no constants, for none is known yet; refuse settings out of range."""
        for name in ("budget_fraction", "quantile"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"outcome.{name} = {getattr(self, name)}: give a number strictly between 0 and 1")
        return {}


OUTCOMES = Registry("outcome")
"""Outcome maps by their names."""


def magnitudes(outcome: Outcome, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
    """Return magnitudes [n] and signs [n] of outcomes y [n], moved into the ranges that the guarantee rests on.

    A map that keeps its contract is not changed; what another one says of a record neither breaks the bound nor stops
    the fit, which would reveal that the record is there. Signs are those of large outcomes being good, or turned where
    the domain says that small ones are.

    Args:
        outcome: The map, settled.
        y: Outcomes.
        domain: Public bounds, and which outcomes are good.

    Raises:
        InputError: The domain does not say which.

    Example:
        >>> domain = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=4.0, better="lower")
        >>> [part.tolist() for part in magnitudes(SignedResidual(), torch.tensor([0.0, 3.0]), domain)]
        [[1.0, 0.5], [1.0, -1.0]]
    """
    magnitude, sign = outcome.transform(y, domain)
    return torch.nan_to_num(magnitude, nan=0.0).clamp(0, 1), domain.direction * torch.where(sign > 0, 1.0, -1.0).to(y)


def try_outcome(outcome: Outcome, domain: Domain) -> None:
    """Refuse a map by what it does at public outcomes: all of the interval, turned round, and one by one.

    Args:
        outcome: The map, settled.
        domain: Public bounds.

    Raises:
        InputError: A magnitude outside [0, 1] or a sign other than 1 and -1; magnitudes that are zero everywhere; or a
            map that does not look at one outcome at a time.
    """
    y = torch.linspace(domain.outcome_low, domain.outcome_high, _TRIED, dtype=torch.float64)
    magnitude, sign = together = outcome.transform(y, domain)
    if not bool(((magnitude >= 0) & (magnitude <= 1)).all() & (sign.abs() == 1).all()):
        raise InputError(f"outcome = {outcome}: give magnitudes in [0, 1] and signs of 1 and -1")
    if not bool((magnitude > 0).any()):
        raise InputError("outcome: every weight is zero; give bounds or a centre that distinguish the outcomes")
    turned = [part.flip(0) for part in outcome.transform(y.flip(0), domain)]
    alone = [torch.cat(parts) for parts in zip(*(outcome.transform(one, domain) for one in y.split(1)), strict=True)]
    if not all(torch.allclose(a, b) for other in (turned, alone) for a, b in zip(together, other, strict=True)):
        raise InputError(
            f"outcome = {outcome}: its value for one outcome changes with the outcomes beside it, so that one record "
            "would move the weights of others; write a map of one outcome at a time"
        )
