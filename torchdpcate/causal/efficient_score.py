"""Records with nuisances at hand, and public ranges of their doubly robust scores by intervals of the nuisances."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand


class Scored(NamedTuple):
    """Records with nuisances at their covariates, the outcome's scaled to [0, 1] like the outcome itself.

    Attributes:
        z: Treatment in {0, 1}, [runs, b].
        y: Outcome, [runs, b].
        e: Propensity in [eta, 1 - eta], [runs, b].
        mu0: Mean outcome of controls, [runs, b].
        mu1: Mean outcome of the treated, [runs, b].
    """

    z: Tensor
    y: Tensor
    e: Tensor
    mu0: Tensor
    mu1: Tensor


@dataclass(frozen=True, eq=False)
class ScoreRanges:
    """Ranges of the terms a and b (``Estimand.score``) of controls and treated, each [runs, 2].

    Attributes:
        low: Least a.
        high: Largest a.
        least: Least b, not negative.
        most: Largest b.
    """

    low: Tensor
    high: Tensor
    least: Tensor
    most: Tensor

    @classmethod
    def of(cls, estimand: Estimand, e: Tensor, mu: Tensor) -> "ScoreRanges":
        """Return the ranges over outcomes in [0, 1] and nuisances in their intervals.

        Each term is linear in y and each mean, and monotone in e, so the corners are enough. Where the means enter
        through one of both alone (``pooled_means``), that is once it is given: it lies in the hull of their intervals.

        Args:
            estimand: The estimand.
            e: Least and largest propensity, [runs, 2].
            mu: Least and largest mean outcome of controls and treated, [runs, 2, 2].

        Example:
            >>> from torchdpcate.causal.estimand import ATE
            >>> half, middle = torch.full((1, 2), 0.5).double(), torch.full((1, 2, 2), 0.5).double()
            >>> ScoreRanges.of(ATE(0.1), half, middle).change.tolist()
            [2.0]
        """
        mu0, mu1 = mu[:, 0], mu[:, 1]
        corners = torch.cartesian_prod(*[torch.arange(2)] * 5).T
        if estimand.pooled_means:
            mu0 = mu1 = torch.stack([mu[:, :, 0].amin(1), mu[:, :, 1].amax(1)], 1)
            corners = corners[:, corners[3] == corners[4]]
        z, y = (corners[k].to(e).expand(len(e), -1) for k in (0, 1))
        ends = estimand.score(z, y, e[:, corners[2]], mu0[:, corners[3]], mu1[:, corners[4]])
        arms = [corners[0] == arm for arm in (0, 1)]
        low, least = (torch.stack([part[:, arm].amin(1) for arm in arms], 1) for part in ends)
        high, most = (torch.stack([part[:, arm].amax(1) for arm in arms], 1) for part in ends)
        return cls(low, high, least, most)

    @classmethod
    def widest(cls, estimand: Estimand) -> "ScoreRanges":
        """Return what outcomes and clip alone allow, [1, 2] each: public before any nuisance is."""
        e = torch.tensor([[estimand.overlap, 1 - estimand.overlap]], dtype=torch.float64)
        return cls.of(estimand, e, torch.tensor([0.0, 1.0], dtype=torch.float64).expand(1, 2, 2))

    def repeated(self, runs: int) -> "ScoreRanges":
        """Return those of one run, for that many."""
        return ScoreRanges(*(part.expand(runs, -1) for part in (self.low, self.high, self.least, self.most)))

    def clip(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return terms within these ranges, both [runs, n]: as computed they may be off by a last place."""
        low, high, least, most = (
            part[:, None] for part in (self.low.amin(1), self.high.amax(1), self.least.amin(1), self.most.amax(1))
        )
        return a.clamp(low, high), b.clamp(least, most)

    @property
    def largest(self) -> float:
        """Largest |a| of any run."""
        return torch.maximum(self.high.abs(), self.low.abs()).amax().item()

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Least and largest a of either arm, [runs] each."""
        return self.low.amin(1), self.high.amax(1)

    @property
    def change(self) -> Tensor:
        """Most by which one record moves sum a, [runs]."""
        low, high = self.ends
        return high - low

    @property
    def size_change(self) -> Tensor:
        """Most by which one record moves sum b, [runs]; 0 where b is a constant."""
        return self.most.amax(1) - self.least.amin(1)

    def reach(self, tau: Tensor) -> Tensor:
        """Return the largest |a - tau b|, [runs], for effects tau [runs]."""
        ends = torch.stack([tau[:, None] * self.least, tau[:, None] * self.most])
        return torch.maximum((self.high - ends.amin(0)).abs(), (self.low - ends.amax(0)).abs()).amax(1)
