"""The randomised trial of Giddens et al. (2023), many data sets at once, and the forms its outcome is given."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from experiments.dp_werm.batch import Batch
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.rules.outcome import Outcome, PrivateResidual, SignedResidual
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.papers.rules import OWL
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

LAW = OWL()
DOMAIN = LAW.domain()
MOST = 15.0  # C_B, the paper's bound of a shifted outcome


@dataclass(frozen=True, eq=False)
class Trials:
    """Data sets of one size, side by side; outcomes not clipped yet.

    Attributes:
        x: Covariates [runs, n, 4], or more, of which the outcome depends on the first four.
        a: Treatments [runs, n], 0 or 1.
        y: Outcomes [runs, n].
    """

    x: Tensor
    a: Tensor
    y: Tensor

    @classmethod
    def draw(cls, runs: int, n: int, generator: torch.Generator, covariates: int = LAW.dimension) -> "Trials":
        """Draw from the law of `OWL`, whose outcomes it clips and this does not."""
        u = torch.rand(runs, n, covariates + 1, generator=generator, dtype=torch.float64)
        x, a = u[..., :-1], (u[..., -1] < 0.5).double()
        noise = LAW.noise_sd * torch.randn(runs, n, generator=generator, dtype=torch.float64)
        return cls(x, a, LAW.baseline(x) + (a - 0.5) * LAW.effect(x) + noise)

    def features(self, centred: bool) -> Tensor:
        """Intercept and covariates over sqrt 5, [runs, n, 5]: covariates in [-1, 1] if centred, else in [0, 1]."""
        features = Identity(centred).setup(DOMAIN)
        return features(self.x.flatten(0, 1)).reshape(*self.y.shape, -1)

    def problem(self, outcome: Outcome | None, centred: bool) -> Batch:
        """Weighted problems, weights 2 times the shifted or signed outcome over its bound: W = 1 in these units.

        Args:
            outcome: Public form of the outcome. None is the paper's, shifted by the least outcome of each sample plus
                0.001 and clipped to 15, over 15: it leaks.
            centred: See `features`.
        """
        if outcome is None:
            magnitude, sign = (shifted(self.y) / MOST).clamp(max=1), torch.ones_like(self.y)
        else:
            magnitude, sign = outcome.transform(self.y, DOMAIN)
        features = Identity(centred).setup(DOMAIN)
        target = (2 * self.a - 1) * sign
        return Batch(self.features(centred), target, magnitude, WeightBounds.per_record(1.0), features.largest_entry)

    def private(self, outcome: PrivateResidual, epsilon: float, noise: NoiseSource) -> Batch:
        """Weighted problems whose centre and clip are private quantiles of each data set, for a fraction of epsilon.

        Args:
            outcome: The quantiles, and their fraction of the budget.
            epsilon: Budget in all; infinity takes the exact quantiles.
            noise: Where the noise comes from.
        """
        spent = None if math.isinf(epsilon) else outcome.budget_fraction * epsilon
        clipped = self.y.clamp(DOMAIN.outcome_low, DOMAIN.outcome_high)
        settled = [
            outcome.settle(CausalData(x, a, y), DOMAIN, spent, FitSession(noise))
            for x, a, y in zip(self.x, self.a, clipped, strict=True)
        ]
        centre, clip = torch.tensor([[s.centre, s.clip] for s in settled], dtype=torch.float64).T[:, :, None]
        problem = self.problem(SignedResidual(), centred=True)
        residual = clipped - centre
        target = (2 * self.a - 1) * torch.where(residual >= 0, 1.0, -1.0)
        return replace(problem, target=target, weights=(residual.abs() / clip).clamp(max=1))

    def value(self, decided: Tensor) -> Tensor:
        """Empirical value (23), [runs]: mean shifted outcome of those whom the coin treated as decided, [runs, n]."""
        return value(decided, self.a, shifted(self.y))

    def correct(self, decided: Tensor) -> Tensor:
        """Share of decisions [runs] that are the best rule's, in per cent."""
        return 100 * (decided == (self.effect > 0)).double().mean(1)

    @property
    def effect(self) -> Tensor:
        """True effects [runs, n]; the best rule treats where they are positive."""
        return LAW.effect(self.x)


def shifted(y: Tensor) -> Tensor:
    """Outcomes [runs, n] as the paper makes them positive: by each sample's least, plus 0.001, if one is negative."""
    least = y.amin(1, keepdim=True)
    return torch.where(least < 0, y - least + 0.001, y)


def value(decided: Tensor, a: Tensor, y: Tensor) -> Tensor:
    """Mean outcome [runs] of the records [runs, n] whose treatment is the one decided; nan where there is none."""
    followed = (decided == (a > 0)).double()
    return (followed * y).sum(1) / followed.sum(1)
