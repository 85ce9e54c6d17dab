"""Average effects: whom each is an average of, and its weights at a clipped propensity."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import number

_LEAST = 1e-9  # overlap below which float64 does not resolve 1 - overlap well enough


@dataclass(frozen=True)
class Estimand:
    r"""A weighted average effect, and its weights at the clipped propensity e.

    .. math:: \tau_h = \frac{E[h(\pi) (\mu_1 - \mu_0)]}{E[h(\pi)]}, \quad
        w_1 = \frac{h(e)}{e}, \quad w_0 = \frac{h(e)}{1 - e}, \quad h(e) = e^{\alpha + 1} (1 - e)^{\beta + 1}, \quad
        e = \sigma(\mathrm{clip}(g, -L, L)), \quad L = \mathrm{logit}(1 - \eta)

    with eta the overlap bound. For alpha and beta in [-1, 0] (the Beta family) both weights are monotone in e, so their
    suprema are those at eta and 1 - eta. One without a scoring
    rule has its propensity fitted by logistic regression.

    Source: Zhao (2019), table 1; theory note ``covariate_balancing``, section 1, which clips both sides for all.

    Args:
        overlap: eta, public clip of the propensity, in (0, 0.5]; at 0.5 all records weigh the same for ATE and ATO.

    Raises:
        InputError: An overlap outside its range.

    Example:
        >>> ate = ATE(0.1)
        >>> round(ate.largest, 6), round(ate.smallest, 6), ate.amplification
        (10.0, 1.111111, 4.0)
    """

    overlap: float

    name: ClassVar[str]
    """What users, statements and files call it."""
    powers: ClassVar[tuple[float, float]]
    """(alpha, beta)."""
    clips: ClassVar[tuple[bool, bool]] = (True, True)
    """Whether the propensity is clipped below, and above."""
    scoring_rule: ClassVar[Literal["exponential", "logistic"] | None] = None
    """The covariate balancing loss of its weights (``BalancingLoss``); None where there is none."""
    counted: ClassVar[tuple[float, float] | None] = None
    """Terms of the denominator of a treated record and of a control, where it counts an arm; None: half the weights."""

    def __post_init__(self) -> None:
        """Refuse an overlap out of range."""
        object.__setattr__(self, "overlap", number("overlap", self.overlap))
        if not _LEAST <= self.overlap <= 0.5:
            raise InputError(
                f"overlap = {self.overlap:g}: the clip of the propensity must lie in (0, 0.5]; 0.1 keeps weights to 10"
            )

    def tilt(self, propensity: Tensor) -> Tensor:
        """Return h, of the propensity's shape."""
        alpha, beta = self.powers
        return propensity ** (alpha + 1) * (1 - propensity) ** (beta + 1)

    def members(self, z: Tensor) -> Tensor | None:
        """Return of whom it is the plain average, by treatments z [n]; None where that is no set of records."""
        return None

    @property
    def symmetric(self) -> bool:
        """Whether both arms weigh alike, so that W_1 = W_0."""
        return self.powers[0] == self.powers[1]

    @property
    def score_bound(self) -> float:
        """L, the largest |logit| that is not clipped on a side that is."""
        return math.log1p(-self.overlap) - math.log(self.overlap)

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
        """w_min, the smallest weight of either arm; 0 where the propensity is clipped on one side alone."""
        return self._ends.amin().item() if all(self.clips) else 0.0

    @property
    def size_range(self) -> tuple[float, float]:
        """Least and largest term of the denominator."""
        return (self.smallest / 2, self.largest / 2) if self.counted is None else (min(self.counted), max(self.counted))

    @property
    def amplification(self) -> float:
        """How much noise in the logistic score shows in the balance of the weights, at propensities of 1/2.

        It is the mean slope of both arms' weights over e (1 - e).
        """
        alpha, beta = self.powers
        return (abs(alpha - beta - 1) + abs(alpha - beta + 1)) * 2.0 ** -(alpha + beta + 1)

    @property
    def limits(self) -> tuple[float, float]:
        """Least and largest linear predictor that is not clipped."""
        low, high = self.clips
        return (-self.score_bound if low else -math.inf), (self.score_bound if high else math.inf)

    def propensity(self, g: Tensor) -> Tensor:
        """Return the clipped propensity e at linear predictors g, of g's shape."""
        return torch.sigmoid(g.clamp(*self.limits))

    def weights(self, g: Tensor, z: Tensor) -> Tensor:
        """Return the weights of records with linear predictors g [..., n] and treatments z [..., n] in {0, 1}."""
        return self.at(self.propensity(g), z)

    def at(self, e: Tensor, z: Tensor) -> Tensor:
        """Return the weights at clipped propensities e, with z as for ``weights``."""
        alpha, beta = self.powers
        return torch.where(z > 0.5, e**alpha * (1 - e) ** (beta + 1), e ** (alpha + 1) * (1 - e) ** beta)

    @final
    def size(self, w: Tensor, z: Tensor) -> Tensor:
        """Return the terms of the denominator N of records with weights w and treatments z, of their shape."""
        if self.counted is None:
            return w / 2
        treated, control = self.counted
        return torch.where(z > 0.5, torch.full_like(w, treated), control)

    @cached_property
    def _ends(self) -> Tensor:
        """Weights of controls and treated at either clip, as records have them, [2, 2]."""
        e = self.propensity(torch.tensor([-self.score_bound, self.score_bound], dtype=torch.float64))
        return torch.stack([self.at(e, torch.zeros_like(e)), self.at(e, torch.ones_like(e))])


class ATE(Estimand):
    """The effect on everybody: weights 1/e and 1/(1 - e)."""

    name = "ATE"
    powers = (-1, -1)
    scoring_rule = "exponential"

    def members(self, z: Tensor) -> Tensor:
        return z >= 0


class ATC(Estimand):
    """The effect on the controls: weights (1 - e)/e and 1.

    The propensity is clipped below alone, where a weight could grow. Above it weights fall to 0, and must: where few
    are untreated, a floor under the weights of the treated would dominate all the controls.
    """

    name = "ATC"
    powers = (-1, 0)
    clips = (True, False)
    scoring_rule = "exponential"
    counted = (0.0, 1.0)

    def members(self, z: Tensor) -> Tensor:
        return z < 0.5


class ATT(Estimand):
    """The effect on the treated: weights 1 and e/(1 - e); the propensity is clipped above alone."""

    name = "ATT"
    powers = (0, -1)
    clips = (False, True)
    scoring_rule = "exponential"
    counted = (1.0, 0.0)

    def members(self, z: Tensor) -> Tensor:
        return z > 0.5


class ATO(Estimand):
    """The effect on the overlap population: weights 1 - e and e."""

    name = "ATO"
    powers = (0, 0)
    scoring_rule = "logistic"


ESTIMANDS: dict[str, type[Estimand]] = {cls.name: cls for cls in (ATE, ATC, ATT, ATO)}
"""Estimands by name. To add one: a subclass of ``Estimand``, and its entry here."""


def make_estimand(name: str, overlap: float) -> Estimand:
    """Return the estimand of this name, one of ``ESTIMANDS``, with this clip of the propensity.

    Raises:
        InputError: No such estimand, or an overlap outside (0, 0.5].

    Example:
        >>> make_estimand("ATT", 0.2)
        ATT(overlap=0.2)
    """
    if name not in ESTIMANDS:
        raise InputError(f"estimand = {name!r}: choose one of {', '.join(ESTIMANDS)}")
    return ESTIMANDS[name](overlap)
