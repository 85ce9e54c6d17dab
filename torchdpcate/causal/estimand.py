"""Weights of the four average effects: the Beta family of covariate balancing, with a public clip of the propensity."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import number

ESTIMANDS = {"ATE": (-1, -1), "ATC": (-1, 0), "ATT": (0, -1), "ATO": (0, 0)}
"""Powers (alpha, beta) of the Beta family by estimand: everybody, the controls, the treated, the overlap."""

_LEAST = 1e-9  # of eta: below it float64 cannot tell 1 - eta from one well enough


@dataclass(frozen=True)
class Weighting:
    r"""Weights of one estimand at the clipped propensity e.

    .. math:: w_1 = e^\alpha (1-e)^{\beta+1}, \quad w_0 = e^{\alpha+1} (1-e)^\beta, \quad
        e = \sigma(\mathrm{clip}(g, -L, L)), \quad L = \mathrm{logit}(1 - \eta)

    so that w_1 is 1/e (ATE), (1-e)/e (ATC), 1 (ATT), 1-e (ATO), and w_0 is 1/(1-e), 1, e/(1-e), e. Both are monotone in
    e, so their suprema are those at eta and 1 - eta. For ATT and ATC g is clipped on the one side alone where a weight
    could grow: above for ATT, below for ATC. On the other side weights fall to 0, and must: where few are treated, a
    floor under the controls' e/(1-e) would outweigh all the treated.

    Source: Zhao (2019), table 1; theory note ``covariate_balancing``, section 1, which clips both sides for all.

    Args:
        estimand: One of `ESTIMANDS`.
        eta: Public clip of the propensity, in (0, 0.5]; at 0.5 all records weigh the same for ATE and ATO.

    Raises:
        InputError: If an argument is outside its range.

    Example:
        >>> ate = Weighting("ATE", 0.1)
        >>> round(ate.largest, 6), round(ate.smallest, 6), round(ate.curvature, 6)
        (10.0, 1.111111, 9.0)
    """

    estimand: str
    eta: float

    def __post_init__(self) -> None:
        """Refuse an estimand that there is not, and a clip out of range."""
        if self.estimand not in ESTIMANDS:
            raise InputError(f"estimand = {self.estimand!r}: choose one of {', '.join(ESTIMANDS)}")
        object.__setattr__(self, "eta", number("eta", self.eta))
        if not _LEAST <= self.eta <= 0.5:
            raise InputError(
                f"eta = {self.eta:g}: the clip of the propensity must lie in (0, 0.5]; 0.1 keeps weights to 10"
            )

    @property
    def powers(self) -> tuple[int, int]:
        """(alpha, beta)."""
        return ESTIMANDS[self.estimand]

    @property
    def symmetric(self) -> bool:
        """Whether both arms weigh alike, so that W_1 = W_0: for ATE and ATO."""
        return self.powers[0] == self.powers[1]

    @property
    def reach(self) -> float:
        """L, the largest |logit| that is not clipped on a side that is."""
        return math.log1p(-self.eta) - math.log(self.eta)

    @property
    def most_treated(self) -> float:
        """W_1, the largest weight of a treated record."""
        return self._ends[1].amax().item()

    @property
    def most_control(self) -> float:
        """W_0, the largest weight of a control."""
        return self._ends[0].amax().item()

    @property
    def largest(self) -> float:
        """W, the larger of the two."""
        return self._ends.amax().item()

    @property
    def smallest(self) -> float:
        """w_min, the smallest weight of either arm; 0 for ATT and ATC."""
        return self._ends.amin().item() if self.symmetric else 0.0

    @property
    def curvature(self) -> float:
        """kappa, the largest second derivative of the balancing loss in g: (1-eta)/eta, and 1/4 for the ATO."""
        return 0.25 if self.estimand == "ATO" else (1 - self.eta) / self.eta

    @property
    def _ends(self) -> Tensor:
        """Weights of controls and treated at either clip, as records have them, [2, 2]."""
        e = self.propensity(torch.tensor([-self.reach, self.reach], dtype=torch.float64))
        return torch.stack([self.at(e, torch.zeros_like(e)), self.at(e, torch.ones_like(e))])

    @property
    def limits(self) -> tuple[float, float]:
        """Least and largest linear predictor that is not clipped."""
        low, high = -self.reach, self.reach
        return (-math.inf if self.estimand == "ATT" else low), (math.inf if self.estimand == "ATC" else high)

    def propensity(self, g: Tensor) -> Tensor:
        """Return the clipped propensity e at linear predictors g, of g's shape."""
        return torch.sigmoid(g.clamp(*self.limits))

    def clipped(self, g: Tensor) -> Tensor:
        """Return which linear predictors g are clipped, of g's shape."""
        low, high = self.limits
        return (g < low) | (g > high)

    def weights(self, g: Tensor, z: Tensor) -> Tensor:
        """Return the weights of records with linear predictors g [..., n] and treatments z [..., n] in {0, 1}."""
        return self.at(self.propensity(g), z)

    def at(self, e: Tensor, z: Tensor) -> Tensor:
        """Return the weights at clipped propensities e, with z as for ``weights``."""
        alpha, beta = self.powers
        return torch.where(z > 0.5, e**alpha * (1 - e) ** (beta + 1), e ** (alpha + 1) * (1 - e) ** beta)
