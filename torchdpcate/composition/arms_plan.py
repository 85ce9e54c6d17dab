"""The public plan of one composition for more than two arms."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.composition.expectations import EFFECT_CURVATURE
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.steps import Shares
from torchdpcate.errors import InputError

_WEIGHT = 2 * EFFECT_CURVATURE  # of the mean curvature where all arms are alike, planned as that of two is


@dataclass(frozen=True)
class ArmsPlan(ComposedPlan):
    r"""Everything public about one composition for K arms: a ``ComposedPlan`` but for treatment and effect.

    The arms are the vertices :math:`v_1, .., v_K` of a simplex with edges of length one (``simplex``), so that K - 1
    functions b of the covariates say how the arms differ, :math:`\mu_a - \mu_b = (v_a - v_b)^\top b(x)`, and none of
    the arms is another's reference. For two arms they are -1/2 and 1/2, and b is the effect. Each arm's propensity is a
    logistic regression against all others, at an equal share of what the propensity has.

    Attributes:
        arms: K, at least three.

    Raises:
        InputError: As ``ComposedPlan``; fewer than three arms, or intervals.

    Example:
        >>> from torchdpcate.privacy.budget import PrivacyBudget
        >>> plan = ArmsPlan(16_000, PrivacyBudget(1.0, 1e-5), 6, overlap=0.1, arms=3)
        >>> plan.kept, plan.rung, sorted(step for step in plan.shares.shares if step.startswith("propensity"))
        (6, 'additive', ['propensity 1', 'propensity 2', 'propensity 3', 'propensity curvatures'])
    """

    has_intervals: ClassVar[bool] = False
    has_lean: ClassVar[bool] = False
    has_windows: ClassVar[bool] = False
    has_pairs: ClassVar[bool] = False

    arms: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arms < 3 or self.intervals:
            raise InputError(f"arms = {self.arms}, intervals = {self.intervals}: give three arms or more, no intervals")

    @property
    def propensity_steps(self) -> tuple[str, ...]:
        """See ``ComposedPlan``: one for each arm."""
        return tuple(f"propensity {arm}" for arm in range(1, self.arms + 1))

    @cached_property
    def shares(self) -> Shares:
        """Share of each step."""
        shares = dict(super().shares.shares)
        if "propensity" in shares:
            shares |= dict.fromkeys(self.propensity_steps, shares.pop("propensity") / self.arms)
        return Shares(self.mu, shares)

    @property
    def simplex(self) -> Tensor:
        """The arms v, float64 [K, K - 1]."""
        return simplex(self.arms)

    @property
    def effect_weight(self) -> float:
        """See ``ComposedPlan``; of each of the K - 1 functions."""
        return _WEIGHT / math.sqrt(2 * self.arms * (self.arms - 1))

    @property
    def curvature_norm(self) -> float:
        """Clip of a record's matrix of the effect: the norm of an arm, one half of two arms."""
        return math.sqrt((self.arms - 1) / (2 * self.arms))


def simplex(arms: int) -> Tensor:
    """Return K points at distance one from each other, of mean zero, float64 [K, K - 1].

    Example:
        >>> simplex(2).round(decimals=9).tolist()
        [[-0.5], [0.5]]
        >>> [round(value, 6) for value in torch.pdist(simplex(4)).tolist()]
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    points = torch.zeros(arms, arms - 1, dtype=torch.float64)
    for column in range(arms - 1):
        # Helmert's contrast of arm column + 1 and the mean of all before it
        points[: column + 1, column] = -1 / (column + 1)
        points[column + 1, column] = 1
    return points / (points.norm(dim=0) * math.sqrt(2))
