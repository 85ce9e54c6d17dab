"""The designs of Lee & Chen (2026), section 7: three scenarios of Figure 2, and the twins with a synthetic outcome."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.dp_2erm.sample import Sample
from experiments.frame.study import seed_of
from torchdpcate.data.domain import Domain

SCENARIOS = ("linear", "tree", "nonlinear")
P = 10
BOUNDS = {"linear": (-12.0, 12.0), "tree": (-16.0, 18.0), "nonlinear": (-8.0, 12.0)}
"""Public bounds of outcomes, which are normal and hence clipped; the paper does not clip them."""
OVERLAP = 0.29  # the logit lies within -0.75 and 0.85


def covariates(n: int, generator: torch.Generator) -> Tensor:
    """Draw independent standard normals truncated to [-1, 1], [n, 10]."""
    low = torch.special.ndtr(torch.tensor(-1.0, dtype=torch.float64))
    return torch.special.ndtri(low + (1 - 2 * low) * torch.rand(n, P, generator=generator, dtype=torch.float64))


def propensity(x: Tensor) -> Tensor:
    """P(A = 1 | x)."""
    return torch.sigmoid(0.3 * x[..., 0] - 0.5 * x[..., 1] + 0.05)


def best(scenario: str, x: Tensor) -> Tensor:
    """f_opt, whose sign is the best rule: the whole effect, for Y = mu + (A / 2) f_opt with A = 1 or -1."""
    if scenario == "linear":
        return 8 * x[..., 0] - 8 * x[..., 1] + 4 * x[..., 2] + 8 * x[..., 3]
    if scenario == "tree":
        first = 6 * (x[..., 0] > -0.5) * (x[..., 0] - 0.5).sign()
        return first + 5 * (2 * x[..., 0] < -0.5) * (x[..., 3] + 0.5).sign() + 1
    return -0.5 - 2 * x[..., 3] + x[..., 3].square() + 2.5 * x[..., 4].square()


def main_effect(scenario: str, x: Tensor) -> Tensor:
    """The outcome's mean over both treatments."""
    if scenario != "nonlinear":
        five = x[..., :5]
        scale = -0.1 if scenario == "linear" else -3.0
        return scale * (five + (2 / 3) * (2 * five.square() - 1)).sum(-1)
    one, two, three, four, five = (x[..., k] for k in range(5))
    smooth = 2 + 3 * one + 2 * two + 3 * four - 2.5 * four.square() - 1.5 * five.square()
    return smooth + 2 * one * two + 2 * torch.exp(-one * two) + three.sin()


def noise_variance(scenario: str, x: Tensor, a: Tensor) -> Tensor:
    """The outcome's variance around its mean."""
    if scenario != "nonlinear":
        return torch.full_like(x[..., 0], 2.0)
    positive = x.clamp_min(0)
    return 0.25 + 2 * positive[..., 1] + torch.where(a == 1, positive[..., 2], positive[..., 3])


def draw(scenario: str, n: int, generator: torch.Generator) -> Sample:
    """Draw n records, as a sample of one run; the noise is normal, which the paper does not say."""
    x = covariates(n, generator)
    pi = propensity(x)
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < pi).double()
    noise = torch.randn(n, generator=generator, dtype=torch.float64) * noise_variance(scenario, x, a).sqrt()
    y = main_effect(scenario, x) + (a - 0.5) * best(scenario, x) + noise
    return Sample(x[None], a[None], y[None], pi[None])


def domain(scenario: str) -> Domain:
    """Public facts."""
    return Domain([-1.0] * P, [1.0] * P, *BOUNDS[scenario], OVERLAP, better="higher")


COLUMNS = {"gestat": (17, 47), "wtgain": (0, 98), "nprevist": (0, 49), "dmage": (12, 50)}
NOISE = 0.1


@dataclass(frozen=True, eq=False)
class Twins:
    """Pairs with a synthetic treatment and outcome, after algorithm 1 of Crabbe et al. (2022).

    Four continuous covariates over [0, 1], in a random order: one is prognostic, one moves each arm's outcome, and the
    fourth is noise; coefficients are U[-1, 1]. The propensity is the logistic of the standardised effect, so that
    those who gain are treated more often, kept within 0.1 and 0.9.

    Attributes:
        x: Covariates [pairs, 4].
        effect: Known effects [pairs].
        mean: Mean outcome over both treatments [pairs].
        propensity: [pairs].
    """

    x: Tensor
    effect: Tensor
    mean: Tensor
    propensity: Tensor

    def draw(self, n: int, repeat: int) -> tuple[Sample, Tensor, Tensor]:
        """Return n records, and covariates and effects of all other pairs."""
        generator = torch.Generator().manual_seed(seed_of("twins", repeat))
        order = torch.randperm(len(self.x), generator=generator)
        train, test = order[:n], order[n:]
        a = (torch.rand(n, generator=generator, dtype=torch.float64) < self.propensity[train]).double()
        noise = NOISE * torch.randn(n, generator=generator, dtype=torch.float64)
        y = self.mean[train] + (a - 0.5) * self.effect[train] + noise
        sample = Sample(self.x[train][None], a[None], y[None], self.propensity[train][None])
        return sample, self.x[test], self.effect[test]

    @staticmethod
    def domain() -> Domain:
        """Public facts: coefficients are at most one, so outcomes lie within 2 but for noise."""
        return Domain([0.0] * 4, [1.0] * 4, -2.5, 2.5, 0.1, better="higher")


@cache
def _covariates(folder: Path) -> Tensor:
    frame = pd.read_csv(folder / "twins" / "Twin_data.csv")
    scaled = [(frame[c].clip(low, high) - low) / (high - low) for c, (low, high) in COLUMNS.items()]
    return torch.tensor(pd.concat(scaled, axis=1).to_numpy(float))


def twins(folder: Path, repeat: int) -> Twins:
    """Read Twin_data.csv and draw the synthetic law of a repeat: one law for all would be a matter of its seed."""
    x = _covariates(folder)
    generator = torch.Generator().manual_seed(seed_of("twins, synthetic law", repeat))
    order = torch.randperm(4, generator=generator)
    prognostic, control, treated = 2 * torch.rand(3, generator=generator, dtype=torch.float64) - 1
    low, high = control * x[:, order[1]], treated * x[:, order[2]]
    effect = high - low
    pi = torch.sigmoid((effect - effect.mean()) / effect.std()).clamp(0.1, 0.9)
    return Twins(x, effect, prognostic * x[:, order[0]] + (low + high) / 2, pi)


def slope_radius(scenario: str) -> tuple[float, float]:
    """M_y and s of the printed rows: the bound of outcomes, and the l1 norm of 2 f at the linear optimum."""
    if scenario == "twins":
        return 2.5, 2.0
    return max(map(math.fabs, BOUNDS[scenario])), 28.0
