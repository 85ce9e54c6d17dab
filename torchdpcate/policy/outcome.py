"""From outcomes to how much a decision matters: a magnitude in [0, 1] and a sign, by public constants alone."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from torchdpcate.data import Domain
from torchdpcate.errors import InputError


class Outcome(BaseEstimator, ABC):
    """A public map of the outcome: large outcomes are good, whatever the map."""

    name: ClassVar[str]

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

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.low = low
        self.high = high

    def transform(self, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """Return magnitudes and signs; see ``Outcome.transform``."""
        low, high = self._bounds(domain)
        return ((y - low) / (high - low)).clamp(0, 1), torch.ones_like(y)

    def public(self, domain: Domain) -> dict[str, Any]:
        """Return the bounds of the shifted outcome."""
        low, high = self._bounds(domain)
        return {"outcome_low": low, "outcome_high": high}

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

    def __init__(self, centre: float | None = None, clip: float | None = None) -> None:
        self.centre = centre
        self.clip = clip

    def transform(self, y: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """Return magnitudes and signs; see ``Outcome.transform``."""
        centre, clip = self._constants(domain)
        residual = (y - centre).clamp(-clip, clip)
        return residual.abs() / clip, torch.where(residual >= 0, 1.0, -1.0).to(y)

    def public(self, domain: Domain) -> dict[str, Any]:
        """Return centre and clip."""
        centre, clip = self._constants(domain)
        return {"outcome_centre": centre, "outcome_clip": clip}

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


OUTCOMES: dict[str, type[Outcome]] = {cls.name: cls for cls in (Shifted, SignedResidual)}
"""Outcome maps by their names."""


def make_outcome(outcome: "str | Outcome") -> Outcome:
    """Return the outcome map of this name, or the map itself.

    Raises:
        InputError: No map of this name.
    """
    if isinstance(outcome, Outcome):
        return outcome
    if outcome not in OUTCOMES:
        raise InputError(f"outcome = {outcome}: choose one of {', '.join(sorted(OUTCOMES))}")
    return OUTCOMES[outcome]()
