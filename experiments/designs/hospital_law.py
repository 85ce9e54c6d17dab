"""Patients of a random law like a hospital's: who is treated, who does badly untreated, whom treatment helps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.records import public_generator

LEVELS = 12
"""Levels of a code."""

_FACTORS = 2  # latent severities that all covariates share
_UPPER = 1.2815515655446004  # the standard normal's .9 quantile
REACH = 2.5
"""Bound of the standardised baseline, to either side."""
_REFERENCE = 4_000  # patients by which a law is standardised
_AT_CLIP = 0.015  # share of reference patients with a propensity at its clip, at most
_STEPS = 40
_LEAST, _MOST = 0.65, 1.35  # of the noise's spread, before it is standardised


class Patients:
    r"""Covariates of a law: vitals (the first is age), laboratory values, conditions (0 or 1) and codes of 12 levels.

    Each covariate is a function of its own standard normal variable :math:`z_j`, which shares a part of its variance
    with one of two latent severities:

    ========== ==========================================================================================
    vitals     :math:`m + s z`, within 4 to 10 s; age within 18 and 100
    laboratory :math:`m e^{s z}` or :math:`m (1 + s z)_+^3` (a gamma variable but for little), within 0 and 2 to 40
               times the .9 quantile, evenly in the logarithm
    conditions :math:`1\{z > t\}`, of prevalence 2 to 10 %, every fourth one 10 to 30 %
    codes      level k for z between the (k-1)-th and k-th cut, frequencies falling by a factor of .6 to .85
    ========== ==========================================================================================

    Args:
        count: Number of covariates before codes are encoded, 5 or more.
        generator: Draws the law's constants.

    Attributes:
        vitals: Number of vitals.
        labs: Number of laboratory values.
        conditions: Number of conditions.
        codes: Number of codes.
        scores: What each level of each code adds, [codes, 12].

    Example:
        >>> patients = Patients(40, torch.Generator().manual_seed(0))
        >>> patients.vitals, patients.labs, patients.conditions, patients.codes, patients.width
        (5, 20, 9, 6, 106)
    """

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count = count
        self.codes = min(6, max(1, round(0.15 * count)))
        self.labs, self.vitals = count // 2, max(1, count // 8)
        self.conditions = count - self.codes - self.labs - self.vitals
        self._factor = torch.randint(_FACTORS, (count,), generator=generator)
        self._loading = uniform(0.2, 0.8, count, generator) * signs(count, generator)
        self._set_vitals(generator)
        self._set_labs(generator)
        self.prevalence = uniform(0.02, 0.1, self.conditions, generator)
        self.prevalence[::4] = uniform(0.1, 0.3, len(self.prevalence[::4]), generator)
        falling = uniform(0.6, 0.85, self.codes, generator)[:, None] ** torch.arange(LEVELS)
        shares = falling / falling.sum(1, keepdim=True)
        order = torch.rand(self.codes, LEVELS, generator=generator).argsort(1)
        self.frequency = shares.gather(1, order)
        self._cuts = torch.special.ndtri(self.frequency.cumsum(1)[:, :-1])
        self.scores = torch.randn(self.codes, LEVELS, generator=generator, dtype=torch.float64)

    def _set_vitals(self, generator: torch.Generator) -> None:
        sd = _rounded(10.0 ** uniform(0.3, 1.5, self.vitals, generator))
        self._vital_mean = _rounded(sd * uniform(4.0, 12.0, self.vitals, generator))
        half_widths = uniform(4.0, 10.0, self.vitals, generator)
        self._vital_sd, low, high = sd, self._vital_mean - half_widths * sd, self._vital_mean + half_widths * sd
        self._vital_low, self._vital_high = _rounded(low.clamp(min=0.0)), _rounded(high)
        self._vital_mean[0], self._vital_sd[0] = torch.cat([uniform(*b, 1, generator) for b in ((45, 70), (12, 18))])
        self._vital_low[0], self._vital_high[0] = 18.0, 100.0

    def _set_labs(self, generator: torch.Generator) -> None:
        self._lab_middle = _rounded(10.0 ** uniform(-1.0, 2.5, self.labs, generator))
        self._lognormal = torch.rand(self.labs, generator=generator) < 0.5
        self._lab_sd = torch.where(
            self._lognormal, uniform(0.4, 1.1, self.labs, generator), uniform(0.15, 0.3, self.labs, generator)
        )
        times = torch.exp(uniform(math.log(2.0), math.log(40.0), self.labs, generator))
        self.lab_upper = self._lab(torch.full((1, self.labs), _UPPER, dtype=torch.float64))[0]
        self.lab_high = _rounded(times * self.lab_upper)

    def _lab(self, z: Tensor) -> Tensor:
        """Return laboratory values [n, labs] of standard normal ones."""
        step = self._lab_sd * z
        return self._lab_middle * torch.where(self._lognormal, step.exp(), (1.0 + step).clamp(min=0.0) ** 3)

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return self.count + (LEVELS - 1) * self.codes

    @property
    def plain(self) -> int:
        """Number of columns before those of codes."""
        return self.count - self.codes

    def entries(self) -> dict[str, Any]:
        """Return the covariates' entries of a domain file."""
        numbers = [
            *zip(_names("vital", self.vitals), self._vital_low.tolist(), self._vital_high.tolist(), strict=True),
            *((name, 0.0, high) for name, high in zip(_names("lab", self.labs), self.lab_high.tolist(), strict=True)),
        ]
        levels = [f"L{k + 1}" for k in range(LEVELS)]
        return {
            **{"age" if name == "vital1" else name: {"low": low, "high": high} for name, low, high in numbers},
            **{name: {"categories": [0, 1]} for name in _names("condition", self.conditions)},
            **{name: {"categories": levels} for name in _names("code", self.codes)},
        }

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return encoded covariates of n patients, [n, width], within their bounds.

        Args:
            n: How many.
            generator: What they are drawn with.
        """
        factors = torch.randn(n, _FACTORS, generator=generator, dtype=torch.float64)
        own = torch.randn(n, self.count, generator=generator, dtype=torch.float64)
        z = self._loading * factors[:, self._factor] + (1.0 - self._loading**2).sqrt() * own
        vital, lab, condition, code = z.split([self.vitals, self.labs, self.conditions, self.codes], 1)
        levels = torch.stack([torch.bucketize(c, cut) for c, cut in zip(code.T.contiguous(), self._cuts, strict=True)])
        hot = torch.zeros(n, self.codes, LEVELS, dtype=torch.float64).scatter_(2, levels.T[:, :, None], 1.0)
        return torch.cat(
            [
                torch.clamp(self._vital_mean + self._vital_sd * vital, self._vital_low, self._vital_high),
                torch.minimum(self._lab(lab), self.lab_high),
                (condition > torch.special.ndtri(1.0 - self.prevalence)).to(torch.float64),
                hot.flatten(1),
            ],
            1,
        )

    def raw_terms(self, x: Tensor) -> Tensor:
        """Return what linear indices are made of, [n, count], at encoded covariates x [n, width].

        Vitals and conditions as they are, the logarithm of a laboratory value, its middle's tenth added, and the score
        of a code's level.
        """
        vital, lab, condition, code = x.split([self.vitals, self.labs, self.conditions, LEVELS * self.codes], 1)
        score = (code.reshape(len(x), self.codes, LEVELS) * self.scores).sum(2)
        return torch.cat([vital, torch.log(0.1 + lab / self._lab_middle), condition, score], 1)


def uniform(low: float, high: float, size: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers between low and high, [size]."""
    return low + (high - low) * torch.rand(size, generator=generator, dtype=torch.float64)


def signs(size: int, generator: torch.Generator) -> Tensor:
    """Return -1 or 1, [size]."""
    return 2.0 * torch.randint(2, (size,), generator=generator).to(torch.float64) - 1.0


def _names(kind: str, count: int) -> Sequence[str]:
    return [f"{kind}{i + 1}" for i in range(count)]


def _rounded(values: Tensor) -> Tensor:
    """Return values [k] with two digits, as public bounds have them."""
    return torch.tensor([float(f"{value:.2g}") for value in values.tolist()], dtype=torch.float64)


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


class PatientLaw:
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
        effect: ``constant``, ``subgroup``, ``threshold``, ``older`` or ``smooth``.

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


class Older(Shape):
    """The logarithm of a laboratory value, in standard deviations, for the oldest 12 to 22 %."""

    sizes = (0.5, 1.0)

    def __init__(self, patients: Patients, x: Tensor, terms: Tensor, generator: torch.Generator) -> None:
        super().__init__(patients, x, terms, generator)
        self._lab = patients.vitals + int(torch.randint(patients.labs, (1,), generator=generator))
        self._age = float(x[:, 0].quantile(float(uniform(0.78, 0.88, 1, generator))))

    def of(self, x: Tensor, terms: Tensor) -> Tensor:
        """Return that logarithm beyond the age and 0 below, [n]."""
        return terms[:, self._lab] * (x[:, 0] > self._age).to(x.dtype)


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
    "older": Older,
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
