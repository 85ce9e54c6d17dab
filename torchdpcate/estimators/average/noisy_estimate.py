"""An estimate of an average effect and the law of its error, for outcomes in [0, 1] or in their own units."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdpcate.release.estimate import Estimate, IntervalLaw, noise_deviation


@dataclass(frozen=True, eq=False)
class NoisyEstimate:
    """An estimate and the law of its error, for outcomes in [0, 1], one entry a run.

    Attributes:
        estimate: In [-1, 1], [runs].
        gaussian: Standard deviation of the Gaussian part of its error, an upper bound, [runs].
        laplace: Scales of independent Laplace parts, [runs, k].
        polytope: What a draw of root-polytope noise with W/epsilon = 1 is multiplied by and summed, [runs, 4]; None
            where there is none.
        noise_dominated: Whether noise dominates a denominator, so that the interval must be the full range, [runs].
        size: N, what imbalances are divided by, [runs].
        released: Released sums by name, [runs] each.
    """

    estimate: Tensor
    gaussian: Tensor
    laplace: Tensor
    polytope: Tensor | None
    noise_dominated: Tensor
    size: Tensor
    released: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_mean(
        cls, total: Tensor, count: int, gaussian: Tensor, scale: float | Tensor, released: Mapping[str, Tensor]
    ) -> "NoisyEstimate":
        """Return the mean of a public number of terms, of their sum [runs] with Laplace noise of a scale, or scales."""
        every = torch.ones_like(total)
        laplace, dominated = (every * scale / count)[:, None], torch.zeros_like(total, dtype=torch.bool)
        return cls((total / count).clamp(-1, 1), gaussian, laplace, None, dominated, every * count, released)

    @property
    def noise(self) -> Tensor:
        """Standard deviation of what noise adds to the estimate, [runs]; sampling is not in it."""
        return noise_deviation(self.laplace, self.polytope)

    def in_units(self, unit: float, interval: bool = True) -> Estimate:
        """Return the first run in outcome units.

        Args:
            unit: Range of the outcome.
            interval: Whether the law of its error counts sampling, so that an interval is known.
        """
        polytope = () if self.polytope is None else tuple((unit * self.polytope[0]).tolist())
        law = IntervalLaw(unit * self.gaussian[0].item(), tuple((unit * self.laplace[0]).tolist()), polytope)
        return Estimate(unit * self.estimate[0].item(), law if interval else None, bool(self.noise_dominated[0]))
