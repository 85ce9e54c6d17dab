"""A deterministic learner of means in two cells of x, for the constructions of the spillover theory."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.causal.score import project_to_floor
from torchdpcate.data.records import CausalData
from torchdpcate.fit.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances
from torchdpcate.privacy.guarantee import Level

EDGE = 0.9
"""Records beyond it, in the first covariate, are in the rare region."""


@dataclass(frozen=True, eq=False)
class CellFunctions(FittedNuisances):
    """One number a cell, [2, K]."""

    e: Tensor
    mu: Tensor

    def propensity(self, x: Tensor) -> Tensor:
        return self.e[(x[:, 0] > EDGE).long()]

    def outcome(self, x: Tensor) -> Tensor:
        return self.mu[(x[:, 0] > EDGE).long()]


@dataclass(frozen=True)
class CellMeans(ScoreNuisances):
    """Means of the training records per cell; what is given is exact and not learned.

    A cell without a record of an arm gets the middle of the outcome's bounds, one without any propensities of 1 / K.
    """

    guarantee = "none"
    trains = moves_all_scores = True
    level = Level.HEURISTIC
    e: Tensor | None = None
    mu: Tensor | None = None

    def fit(self, train: CausalData, facts, *, session=None) -> GuaranteedNuisances:
        cell, arm = (train.x[:, 0] > EDGE).long(), train.a.long()
        counts, sums = torch.zeros(2, facts.arms, dtype=torch.float64), torch.zeros(2, facts.arms, dtype=torch.float64)
        counts.index_put_((cell, arm), torch.ones(train.n, dtype=torch.float64), accumulate=True)
        sums.index_put_((cell, arm), train.y, accumulate=True)
        middle = (facts.domain.outcome_low + facts.domain.outcome_high) / 2
        mu = torch.where(counts > 0, sums / counts.clamp(min=1), torch.tensor(middle, dtype=torch.float64))
        shares = torch.where(counts.sum(1, keepdim=True) > 0, counts / counts.sum(1, keepdim=True), 1 / facts.arms)
        e = project_to_floor(shares, facts.overlap)
        functions = CellFunctions(e if self.e is None else self.e, mu if self.mu is None else self.mu)
        return GuaranteedNuisances(functions, math.inf, {})
