"""A new private linear fit: objective perturbation with Euclidean noise, and half of epsilon for the curvature."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchdpcate.fit.linear_fits import ObjectiveFit
from torchdpcate.fit.losses import Logistic, LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.worst_pairs import objective_game
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import fits_by
from torchdpcate.privacy.worst_case import Game, worst_case


@dataclass(frozen=True)
class RoundFit(ObjectiveFit):
    """Objective perturbation by ``gamma`` noise at a share of one half; see ``ObjectiveFit``.

    Guarantee:
        Certified, pure epsilon, as objective perturbation.
    """

    name: ClassVar[str] = "round_objective"

    perturbation: str = "gamma"
    share: float | None = 0.5

    @worst_case("round_objective", attacks=fits_by("round_objective"), pair="one record apart, with either label")
    @staticmethod
    def worst_neighbours(budget: PrivacyBudget) -> Game:
        """Return the attack on them."""
        pure, loss = PrivacyBudget(budget.epsilon, 0.0), Logistic()
        ridge = loss.curvature / math.expm1(0.05 * budget.epsilon)
        fit = PrivateFit(LossBounds.of(loss), WeightBounds.per_record(1.0), ridge, 1)
        psi, w = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        datasets = [(psi, label * w, w) for label in (1.0, -1.0)]
        return objective_game(fit.objective(pure, "gamma"), loss, datasets, pure)
