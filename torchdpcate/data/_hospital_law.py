"""Who is treated, who does badly untreated and whom treatment helps, at a hospital of random constants."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.data._hospital_covariates import LEVELS, Patients, signs, uniform
from torchdpcate.data.split import public_generator

REACH = 2.5
"""Bound of the standardised baseline, to either side."""

_REFERENCE = 4_000  # patients by which a law is standardised
_AT_CLIP = 0.015  # share of reference patients with a propensity at its clip, at most
_STEPS = 40
_LEAST, _MOST = 0.65, 1.35  # of the noise's spread, before it is standardised


@dataclass(frozen=True, eq=False)
class Traits:
    """What a law says of n patients, [n] each.

    Attributes:
        propensity: P(A = 1) of a cohort.
        baseline: Standardised, within ``REACH``: large for those who do badly.
        shape: Of the effect, within the law's ``shape_bounds``.
        spread: Of the outcome's noise, of mean square 1.
    """

    propensity: Tensor
    baseline: Tensor
    shape: Tensor
    spread: Tensor


class Law:
    r"""A law of patients, treatment, baseline and effect.

    The terms :math:`t_j(x)` are vitals, logarithms of laboratory values, conditions and levels' scores, centred; vitals
    and laboratory values in standard deviations. With 5 to 20 confounders C and 3 to 8 other causes R

    .. math::
        \text{logit } e(x) = c + s \sum_{j \in C} w_j t_j, \quad
        b(x) \propto \sum_{j \in C} v_j w_j t_j + \omega \sum_{j \in R} u_j t_j, \quad v_j \in [0.5, 1.5],

    c and s are such that e has the mean ``treated`` and beyond the overlap for fewer than 1.5 % of 4,000 reference
    patients, whom the seed draws and who standardise b and the terms too; no record is looked at.

    Args:
        seed: Of the constants.
        treated: Mean propensity.
        overlap: Its clip.
        covariates: Number of covariates before encoding.
        effect: ``constant``, ``subgroup``, ``threshold`` or ``smooth``.

    Attributes:
        patients: Law of the covariates.
        reference: Traits of the reference patients.
        bias: What a difference of the arms' means has of the baseline, in its standard deviations.
        most_spread: Bound of the noise's spread.
        size: Of the effect, which is size times shape for the outcome ``score``.
        shape_bounds: Bounds of the shape, 0 among them.
    """

    def __init__(self, seed: int, treated: float, overlap: float, covariates: int, effect: str) -> None:
        generator = public_generator(seed, "hospital law")
        self.overlap = overlap
        self.patients = Patients(covariates, generator)
        x = self.patients.draw(_REFERENCE, public_generator(seed, "hospital reference"))
        raw = self.patients.raw_terms(x)
        self._centre, self._scale = raw.mean(0), raw.std(0)
        self._scale[self.patients.vitals + self.patients.labs :] = 1.0
        terms = self.terms(x)
        self._set_weights(generator)
        self._strength = float(uniform(1.0, 1.6, 1, generator))
        self._noisy = self.patients.vitals + int(torch.randint(self.patients.labs, (1,), generator=generator))
        self._shape = SHAPES[effect](self.patients, x, terms, public_generator(seed, "hospital effect"))
        self.size, self.shape_bounds = self._shape.size, self._shape.bounds
        self._set_logit(terms @ self._logit_weights, treated)
        untreated = terms @ self._baseline_weights
        self._baseline_centre, self._baseline_scale = untreated.mean(), untreated.std()
        self._spread_scale = torch.ones(())
        self._spread_scale = self._spread(terms).square().mean().sqrt()
        self.most_spread = _MOST / float(self._spread_scale)
        self.reference = self.traits(x)
        e, b = self.reference.propensity, self.reference.baseline
        self.bias = float(((e * b).mean() - e.mean() * b.mean()) / (e.mean() * (1.0 - e.mean())))

    def _set_weights(self, generator: torch.Generator) -> None:
        count = self.patients.count
        order = torch.randperm(count, generator=generator)
        most = min(20, count)
        confounders = int(torch.randint(5, most + 1, (1,), generator=generator))
        others = int(torch.randint(3, 9, (1,), generator=generator))
        weights = uniform(0.5, 1.5, count, generator) * signs(count, generator)
        chosen, rest = order[:confounders], order[confounders : confounders + others]
        self._logit_weights = torch.zeros(count, dtype=torch.float64)
        self._logit_weights[chosen] = weights[chosen]
        self._baseline_weights = self._logit_weights * uniform(0.5, 1.5, count, generator)
        self._baseline_weights[rest] = float(uniform(0.2, 0.6, 1, generator)) * weights[rest]

    def _set_logit(self, index: Tensor, treated: float) -> None:
        """Set intercept and slope of the logit in the confounders' index, [reference]."""

        def intercept(slope: float) -> float:
            return solve(lambda c: float(self._clipped(c + slope * index).mean()) - treated, -40.0, 40.0)

        def too_many(slope: float) -> float:
            e = torch.sigmoid(intercept(slope) + slope * index)
            return float(((e < self.overlap) | (e > 1.0 - self.overlap)).double().mean()) - _AT_CLIP

        most = self._strength / float(index.std())
        self._slope = most if too_many(most) <= 0.0 else solve(too_many, 0.0, most)
        self._intercept = intercept(self._slope)

    def _clipped(self, logit: Tensor) -> Tensor:
        return torch.sigmoid(logit).clamp(self.overlap, 1.0 - self.overlap)

    def _spread(self, terms: Tensor) -> Tensor:
        return (_LEAST + (_MOST - _LEAST) * torch.sigmoid(1.5 * terms[:, self._noisy])) / self._spread_scale

    def terms(self, x: Tensor) -> Tensor:
        """Return centred terms, [n, covariates], at encoded covariates [n, width]."""
        return (self.patients.raw_terms(x) - self._centre) / self._scale

    def traits(self, x: Tensor) -> Traits:
        """Return what the law says of patients, at encoded covariates [n, width]."""
        terms = self.terms(x)
        baseline = (terms @ self._baseline_weights - self._baseline_centre) / self._baseline_scale
        return Traits(
            self._clipped(self._intercept + self._slope * (terms @ self._logit_weights)),
            baseline.clamp(-REACH, REACH),
            self._shape.of(x, terms).clamp(*self.shape_bounds),
            self._spread(terms),
        )


class Shape(ABC):
    """Shape of an effect: how it depends on the covariates.

    Args:
        patients: Law of the covariates.
        x: Encoded covariates of the reference patients.
        terms: Their centred terms.
        generator: Draws the shape's constants.

    Attributes:
        sizes: Between which the size is drawn.
        bounds: Of the shape, and of 0.
    """

    sizes: ClassVar[tuple[float, float]] = (0.2, 0.4)
    bounds: ClassVar[tuple[float, float]] = (-2.0, 3.0)

    def __init__(self, patients: Patients, x: Tensor, terms: Tensor, generator: torch.Generator) -> None:
        self.size = float(uniform(*self.sizes, 1, generator))

    @abstractmethod
    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Return the shape, [n], at encoded covariates and their centred terms."""


class Constant(Shape):
    """1 for everybody."""

    sizes, bounds = (0.15, 0.4), (0.0, 1.0)

    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Return 1, [n]."""
        return torch.ones_like(x[:, 0])


class Subgroup(Shape):
    """1 for a tenth, 7 to 13 %: those above an age who have the first condition, or some levels of the first code."""

    sizes, bounds = (0.5, 1.0), (0.0, 1.0)

    def __init__(self, patients: Patients, x: Tensor, terms: Tensor, generator: torch.Generator) -> None:
        super().__init__(patients, x, terms, generator)
        self._columns = torch.tensor([patients.vitals + patients.labs])
        if torch.rand(1, generator=generator) < 0.5:
            levels = torch.randperm(LEVELS, generator=generator)
            enough = int((patients.frequency[0, levels].cumsum(0) < 0.2).sum()) + 1
            self._columns = patients.plain + levels[:enough]
        wanted = float(uniform(0.07, 0.13, 1, generator))
        ages = x[self._carriers(x), 0]
        above = 1.0 - wanted * len(x) / max(len(ages), 1)
        self._age = float(ages.quantile(above)) if above > 0.0 else 0.0

    def _carriers(self, x: Tensor) -> Tensor:
        return x[:, self._columns].sum(1) > 0.0

    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Return 1 within the subgroup and 0 outside, [n]."""
        return (self._carriers(x) & (x[:, 0] > self._age)).to(x.dtype)


class Threshold(Shape):
    """Age, in standard deviations from half of one below its mean, for those with a laboratory value above a bound."""

    def __init__(self, patients: Patients, x: Tensor, terms: Tensor, generator: torch.Generator) -> None:
        super().__init__(patients, x, terms, generator)
        self._lab = patients.vitals + int(torch.randint(patients.labs, (1,), generator=generator))
        self._bound = float(x[:, self._lab].quantile(float(uniform(0.3, 0.7, 1, generator))))

    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Return age above the bound and 0 below, [n]."""
        return (0.5 + terms[:, 0]) * (x[:, self._lab] > self._bound).to(x.dtype)


class Smooth(Shape):
    """A sum of functions of age, of two laboratory values and of a condition."""

    def __init__(self, patients: Patients, x: Tensor, terms: Tensor, generator: torch.Generator) -> None:
        super().__init__(patients, x, terms, generator)
        self._labs = (patients.vitals + torch.randperm(patients.labs, generator=generator)[:2]).tolist()
        first = patients.vitals + patients.labs
        self._condition = first + int(torch.randint(patients.conditions, (1,), generator=generator))

    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Return the sum, [n]."""
        first, second = terms[:, self._labs].unbind(1)
        waves = 0.7 * torch.tanh(first) + 0.5 * torch.sin(second)
        return 0.3 + 0.4 * terms[:, 0].clamp(-2.0, 2.0) + waves + 0.5 * x[:, self._condition]


SHAPES: dict[str, type[Shape]] = {
    "constant": Constant,
    "subgroup": Subgroup,
    "threshold": Threshold,
    "smooth": Smooth,
}
"""Effects by name."""


def solve(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function is 0 between low and high, from below.

    Args:
        increasing: The function.
        low: Where it is negative.
        high: Where it is positive.

    Example:
        >>> round(solve(lambda v: v**2 - 2.0, 0.0, 2.0), 6)
        1.414214
    """
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if increasing(middle) > 0.0 else (middle, high)
    return low
