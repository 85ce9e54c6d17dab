"""Patients of a random law like a hospital's: skewed laboratory values, rare conditions, codes of many levels."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LEVELS = 12
"""Levels of a code."""

_FACTORS = 2  # latent severities that all covariates share
_UPPER = 1.2815515655446004  # the standard normal's .9 quantile


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
        reach = uniform(4.0, 10.0, self.vitals, generator)
        self._vital_sd, low, high = sd, self._vital_mean - reach * sd, self._vital_mean + reach * sd
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
