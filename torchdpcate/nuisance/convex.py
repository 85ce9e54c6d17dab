"""Convex nuisances: logistic propensity and Huber outcomes on public features, one jointly tilted objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.nuisance.joint_objective import JointObjective, joint_objective
from torchdpcate.nuisance.model import NuisanceModel, NuisanceValues
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


def additive_legendre(z: Tensor, degree: int) -> Tensor:
    """Intercept and Legendre polynomials P_1..P_degree of each coordinate, over sqrt(1 + q degree): norm at most 1.

    Args:
        z: scaled covariates `[B, q]` in [-1, 1].
        degree: highest degree; 0 is the intercept alone.

    Example:
        >>> additive_legendre(torch.tensor([[1.0]]), 3).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
    """
    polynomials = [z.new_ones(z.shape), z]
    for k in range(1, degree):
        polynomials.append(((2 * k + 1) * z * polynomials[-1] - k * polynomials[-2]) / (k + 1))
    features = torch.cat([z.new_ones(z.shape[0], 1), *polynomials[1 : degree + 1]], 1)
    return features / math.sqrt(features.shape[1])


class ConvexNuisances(NuisanceModel):
    r"""Additive nuisances: pi = sigmoid(psi'theta), mu_a = m + psi'theta_a, with `additive_legendre` features.

    Args:
        domain: public bounds.
        degree: of the outcomes' polynomials.
        propensity_degree: of the propensity's; 0 is one propensity for all.

    Example:
        >>> module = ConvexNuisances(Domain([0, 0], [1, 1], outcome_low=-3, outcome_high=3))
        >>> module.predict(torch.rand(5, 2)).pi.tolist()
        [0.5, 0.5, 0.5, 0.5, 0.5]
    """

    kind = "convex"
    propensity: Tensor
    outcomes: Tensor
    median: Tensor

    def __init__(self, domain: Domain, degree: int = 2, propensity_degree: int = 1) -> None:
        super().__init__()
        self.domain, self.degree, self.propensity_degree = domain, degree, propensity_degree
        sizes = [1 + domain.dimension * d for d in (propensity_degree, degree)]
        self.register_buffer("propensity", torch.zeros(sizes[0], dtype=torch.float64))
        self.register_buffer("outcomes", torch.zeros(2, sizes[1], dtype=torch.float64))
        self.register_buffer("median", torch.full((1,), (domain.outcome_low + domain.outcome_high) / 2).double())

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the propensity `[B, p]` and of the outcomes `[B, p']` at raw covariates `x` `[B, q]`."""
        z = self.domain.scale(x.to(self.outcomes.dtype))
        return additive_legendre(z, self.propensity_degree), additive_legendre(z, self.degree)

    def predict(self, x: Tensor) -> NuisanceValues:
        """Nuisances at raw covariates `x` `[B, q]`, clipped to the domain; differentiable."""
        treatment, outcome = self.features(x)
        overlap = self.domain.overlap
        pi = torch.sigmoid(treatment @ self.propensity).clamp(overlap, 1 - overlap)
        mean = (self.median + outcome @ self.outcomes.T).clamp(self.domain.outcome_low, self.domain.outcome_high)
        return NuisanceValues(pi, mean[:, 0], mean[:, 1])

    def config(self) -> dict[str, Any]:
        """Plain types from which `from_config` makes a module of the same shape (coefficients not included)."""
        settings = {"degree": self.degree, "propensity_degree": self.propensity_degree}
        return {"kind": self.kind, "domain": self.domain.to_dict(), **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ConvexNuisances:
        """Module of the shape that `config` describes, with coefficients of zero."""
        settings = {name: value for name, value in config.items() if name != "kind"}
        return cls(Domain.from_dict(settings.pop("domain")), **settings)

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the coefficients and of the median."""
        inputs = len(config["domain"]["covariate_low"])
        propensity, outcome = (1 + inputs * config[name] for name in ("propensity_degree", "degree"))
        return {"propensity": (propensity,), "outcomes": (2, outcome), "median": (1,)}


@dataclass(frozen=True)
class ConvexNuisanceConfig(NuisanceRecipe):
    """Convex nuisances by objective perturbation.  All of it is public and chosen without looking at the records.

    With few covariates they need far less noise than networks: their noise grows with the number of features.

    Guarantee:
        Certified (epsilon, delta): a pure share buys the median outcome (`outcome_median`), the rest pays one joint
        objective perturbation (`joint_objective`; docs/guarantees/convex_nuisances.md).

    Args:
        degree: of the outcomes' Legendre polynomials, at least 1.
        propensity_degree: of the propensity's, at least 0.
        threshold: Huber threshold in outcome units; None takes a sixteenth of the outcome range. An outcome of few
            values needs its whole range, for the Huber loss would aim at its mode.
        propensity_share: the propensity's share of the squared gradient bound, in (0, 1).
        jacobian_share: share of epsilon that pays for small ridges, in (0, 1).
        median_share: share of epsilon that buys the median, in (0, 1).

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
        size = len(model.propensity) + model.outcomes.numel()
        if budget is None:
            joint = self._objective(records.n, size, domain, None)
            median = records.y.median().item()
        else:
            first, second = self._prices(budget, also)
            joint = self._objective(records.n, size, domain, second)
            session.pay(PureEvent(first), charge=MEDIAN)
            session.pay(ApproximateEvent(second.epsilon, second.delta), charge=JOINT)
            median = outcome_median(records, domain, first, session.noise)
        draw = joint.draw(model.features(records.x), records.a, records.y - median, session.noise)
        theta = session.noise.paid(draw[0])
        model.median.fill_(median)
        model.propensity.copy_(theta[: len(model.propensity)])
        model.outcomes.copy_(theta[len(model.propensity) :].reshape(2, -1))
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
        shares = {"share": self.propensity_share, "jacobian_share": self.jacobian_share}
        return joint_objective(n, size, threshold, budget, **shares)


@worst_case(
    "convex_nuisances",
    ConvexNuisances,
    pair="one treated record apart from all others, its outcome at either end of the interval",
)
def _convex(budget: PrivacyBudget) -> Game:
    domain = Domain([0.0], [1.0], outcome_low=-0.5, outcome_high=0.5)
    model = ConvexNuisances(domain, degree=1)
    joint = joint_objective(100, 6, 0.01, budget, share=0.01, jacobian_share=0.05)
    x, a = torch.zeros(100, 1, dtype=torch.float64), torch.zeros(100, dtype=torch.float64)
    x[0], a[0] = 1.0, 1.0
    psi, outcomes = model.features(x), torch.zeros(2, 100, dtype=torch.float64)
    outcomes[:, 0] = torch.tensor([-0.5, 0.5])
    zero = torch.zeros(1, 6, dtype=torch.float64)
    direction = (joint.minimise(psi, a, outcomes[1], zero) - joint.minimise(psi, a, outcomes[0], zero))[0]

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return joint.draw(psi, a, outcomes[world], noise, runs)

    event = ApproximateEvent(budget.epsilon, budget.delta)
    guarantee = Guarantee(Level.CERTIFIED, budget)
    return Game(draw, event, guarantee, evidence=lambda theta: theta @ direction, most_runs=200_000)
