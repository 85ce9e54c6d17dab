"""Convex nuisances are fitted: logistic propensity and Huber outcomes in one jointly perturbed objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.nuisance.convex_model import ConvexNuisances
from torchdpcate.nuisance.joint_objective import JointObjective, joint_corners, joint_objective
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.nuisance.screening import outcome_median
from torchdpcate.privacy.accounting import EventCount
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import JOINT, MEDIAN
from torchdpcate.privacy.events import ApproximateEvent, PureEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_THRESHOLD = 16  # outcome ranges in one default threshold, turned over
_ROUNDING = 1e-9  # of what is left, so that sums of shares never exceed the budget


_ATTACKED_SHARE = 0.01  # propensity_share of the audited objective


@dataclass(frozen=True)
class ConvexNuisanceConfig(NuisanceRecipe):
    """Convex nuisances by objective perturbation.  All of it is public and chosen without looking at the records.

    With few covariates they need far less noise than networks: their noise grows with the number of features.

    Guarantee:
        Certified (epsilon, delta): a pure share releases the median outcome (`outcome_median`), the rest pays one joint
        objective perturbation (`joint_objective`; docs/guarantees/convex_nuisances.md).

    Args:
        degree: of the outcomes' Legendre polynomials, at least 1.
        propensity_degree: of the propensity's, at least 0.
        threshold: Huber threshold in outcome units; None takes a sixteenth of the outcome range. An outcome of few
            values needs its whole range, for the Huber loss would aim at its mode.
        propensity_share: the propensity's share of the squared gradient bound, in (0, 1).
        jacobian_share: share of epsilon that pays for small ridges, in (0, 1).
        median_share: share of epsilon that releases the median, in (0, 1).

    Raises:
        InputError: a value out of its range.
    """

    degree: int = 2
    propensity_degree: int = 1
    threshold: float | None = None
    propensity_share: float = 0.2
    jacobian_share: float = 0.3
    median_share: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("degree", 1), ("propensity_degree", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                raise InputError(f"nuisance.{name}={value!r} must be a whole number, at least {least}")
        for name in ("propensity_share", "jacobian_share", "median_share"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"nuisance.{name}={value!r} must lie strictly between 0 and 1")
        if self.threshold is not None and not 0 < self.threshold < math.inf:
            raise InputError(f"nuisance.threshold={self.threshold!r} must be above 0 and finite, or null")

    def check(self, n: int, domain: Domain, budget: PrivacyBudget | None, also: Sequence[EventCount]) -> None:
        """Refuse a budget that other charges use up; see `NuisanceRecipe.check`."""
        if budget is not None:
            self._prices(budget, also)

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        also: Sequence[EventCount] = (),
        session: FitSession,
        trainer: Callable[..., Trainer] | None = None,
        seed: int = 0,
    ) -> ConvexNuisances:
        """Return fitted nuisances; see `NuisanceRecipe.fit`. No trainer and no seed are needed."""
        model = ConvexNuisances(domain, self.degree, self.propensity_degree)
        known = domain.known_propensity is not None
        fitted = 0 if known else len(model.propensity)
        size = fitted + model.outcomes.numel()
        if budget is None:
            joint = self._objective(records.n, size, domain, None)
            median = records.y.median().item()
        else:
            first, second = self._prices(budget, also)
            joint = self._objective(records.n, size, domain, second)
            session.pay(PureEvent(first), charge=MEDIAN)
            session.pay(ApproximateEvent(second.epsilon, second.delta), charge=JOINT)
            median = outcome_median(records, domain, first, session.noise)
        treatment, outcome = model.features(records.x)
        draw = joint.draw((treatment[:, :fitted], outcome), records.a, records.y - median, session.noise)
        theta = session.noise.released(draw[0])
        model.median.fill_(median)
        model.propensity[:fitted] = theta[:fitted]
        model.outcomes.copy_(theta[fitted:].reshape(2, -1))
        return model.eval()

    def _prices(self, budget: PrivacyBudget, also: Sequence[EventCount]) -> tuple[float, PrivacyBudget]:
        """Return the median's epsilon and the joint objective's budget: what other charges leave."""
        if not all(isinstance(event, PureEvent) for event, _ in also):
            raise InputError("nuisance=convex: shares its budget with pure events alone; use nuisance=mlp")
        pure = sum(event.epsilon * count for event, count in also if isinstance(event, PureEvent))
        left = (budget.epsilon - pure) * (1 - _ROUNDING)
        if left <= 0:
            raise InputError(
                f"epsilon = {budget.epsilon:g}: other charges on the nuisances' block take {pure:g} of it; lower their "
                "shares"
            )
        return left * self.median_share, PrivacyBudget(left * (1 - self.median_share), budget.delta)

    def _objective(self, n: int, size: int, domain: Domain, budget: PrivacyBudget | None) -> JointObjective:
        threshold = self.threshold or domain.outcome_range / _THRESHOLD
        share = 0.0 if domain.known_propensity is not None else self.propensity_share
        return joint_objective(n, size, threshold, budget, share=share, jacobian_share=self.jacobian_share)


@worst_case(
    "convex_nuisances",
    ConvexNuisances,
    attacks=[JOINT],
    pair="one treated record apart from all others, its outcome at either end of the interval",
)
def _convex(budget: PrivacyBudget) -> Game:
    domain = Domain([0.0], [1.0], outcome_low=-0.5, outcome_high=0.5)
    model = ConvexNuisances(domain, degree=1)
    # little of the claim goes to the propensity, which this pair leaves alone, and to determinants
    joint = joint_objective(2, 6, 0.01, budget, share=_ATTACKED_SHARE, jacobian_share=1e-3)
    x = a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    psi, outcomes = model.features(x[:, None]), torch.zeros(2, 2, dtype=torch.float64)
    outcomes[:, 0] = torch.tensor([-0.5, 0.5])
    zero = torch.zeros(1, 6, dtype=torch.float64)
    direction = (joint.minimise(psi, a, outcomes[1], zero) - joint.minimise(psi, a, outcomes[0], zero))[0]

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return joint.draw(psi, a, outcomes[world], noise, runs)

    event = ApproximateEvent(budget.epsilon, budget.delta)
    guarantee = Guarantee(Level.CERTIFIED, budget)
    assert joint.objective_noise is not None
    curve = joint.objective_noise.curve(2 * joint.gradient_bound, joint_corners(_ATTACKED_SHARE))
    return Game(draw, event, guarantee, evidence=lambda theta: theta @ direction, most_runs=400_000, curve=curve)
