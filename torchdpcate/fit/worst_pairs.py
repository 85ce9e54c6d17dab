"""Neighbouring weighted sums on which objective and output perturbation are attacked, with exact likelihood ratios."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchdpcate.fit.losses import HuberHinge, Loss, LossBounds
from torchdpcate.fit.minimise import PerturbedSum, minimise
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose, fits_by
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, k_norm_evidence, worst_case

_LOSS, _BOUNDS = HuberHinge(0.5), WeightBounds.per_record(2.0)
# of epsilon; a small one makes the objective noise's share of the claim large, and for Gaussian noise that of the curve
_JACOBIAN_SHARE = {"gamma": 0.05, "box": 0.05, "gaussian": 1e-4}
_OTHERS = 3
Data = tuple[Tensor, Tensor, Tensor]
"""psi [n, p], t [n] and w [n], or [runs, n] where it is another one in each run."""


def _sums(direction: Tensor) -> tuple[Data, ...]:
    """D and D': psi [n, p], t and w, of one heavy record along a direction, with either label, and featureless ones."""
    psi = torch.zeros(1 + _OTHERS, len(direction), dtype=torch.float64)
    psi[0] = direction
    weights, labels = torch.full((len(psi),), _BOUNDS.most).double(), torch.ones(2, len(psi), dtype=torch.float64)
    labels[1, 0] = -1.0
    return tuple((psi, label, weights) for label in labels)


def _fit(gamma: float, direction: Tensor) -> PrivateFit:
    return PrivateFit(LossBounds.of(_LOSS), _BOUNDS, gamma, len(direction), direction.abs().max().item())


def log_density(theta: Tensor, objective: ObjectiveNoise, loss: Loss, data: Data) -> Tensor:
    r"""Return the log density [runs] of exact perturbed minimisers at theta [runs, p], up to a constant.

    .. math:: \ln p_b(-F'(\theta)) + \ln\det F''(\theta)

    The minimiser is theta where the objective noise is -F'(theta); -F' maps one to one.

    Args:
        theta: Where.
        objective: The noise.
        loss: Of a record.
        data: psi, t and w.
    """
    problem = PerturbedSum(*data, loss, torch.full((len(theta),), objective.gamma).double(), torch.zeros_like(theta))
    _, gradient, second = problem.evaluate(theta)
    size = torch.linalg.vector_norm(gradient, objective.order, dim=1) / objective.scale
    return torch.logdet(problem.hessian(second)) - (size.square() / 2 if objective.kind == "gaussian" else size)


def objective_game(
    objective: ObjectiveNoise, loss: Loss, datasets: Sequence[Data], budget: PrivacyBudget, **settings: Any
) -> Game:
    """Return the game of an audit on the perturbed sums of two data sets, with their exact likelihood ratio.

    Args:
        objective: The noise, with the ridge of the sums.
        loss: Of a record.
        datasets: psi [n, p], t [n] and w [n] of either data set.
        budget: What is claimed.
        settings: Further fields of ``Game``.
    """

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        def perturbed(linear_terms: Tensor) -> Tensor:
            return minimise(*datasets[dataset], loss, objective.gamma, linear_terms, objective.tolerance)

        return objective.release(perturbed, noise, runs)

    def density(theta: Tensor, dataset: int) -> Tensor:
        return log_density(theta, objective, loss, datasets[dataset])

    return Game.of_densities(draw, objective.event, budget, density, **settings)


def _objective_game(budget: PrivacyBudget, kind: str, direction: Tensor) -> Game:
    gamma = _BOUNDS.most * _LOSS.curvature / math.expm1(_JACOBIAN_SHARE[kind] * budget.epsilon)
    fit, datasets = _fit(gamma, direction), _sums(direction)
    objective = fit.objective(budget, kind)
    if kind != "gaussian":
        return objective_game(objective, _LOSS, datasets, PrivacyBudget(budget.epsilon, 0.0))
    return objective_game(objective, _LOSS, datasets, budget, curve=objective.curve(fit.shift, fit.corners))


_LINE, _DIAGONAL = torch.ones(1, dtype=torch.float64), torch.full((2,), math.sqrt(0.5), dtype=torch.float64)


def _output_game(budget: PrivacyBudget, kind: str) -> Game:
    gamma = 2 * _BOUNDS.most  # which leaves either label's minimiser where its slope is still 1
    fit = _fit(gamma, _DIAGONAL)
    mechanism = fit.output(budget, kind)
    thetas = [minimise(*data, _LOSS, gamma, torch.zeros(1, 2), fit.stop)[0] for data in _sums(_DIAGONAL)]
    gaussian, shift = kind == "gaussian", thetas[1] - thetas[0]
    apart = (lambda moved: moved @ shift) if gaussian else k_norm_evidence(shift, mechanism.scale)
    return Game(
        draw=lambda dataset, runs, noise: mechanism.add_noise(thetas[dataset].expand(runs, -1), noise),
        event=mechanism.event,
        guarantee=Guarantee(Level.CERTIFIED, budget if gaussian else PrivacyBudget(budget.epsilon, 0.0)),
        evidence=lambda theta: apart(theta - thetas[0]),
    )


_APART = "a record of full weight apart from all others, with either label"
_BOTH = "a record of full weight, on both features alike and apart from all others, with either label"
_BOXES = [Charge(Purpose.RELEASE, "objective_box"), *fits_by("objective")]
for _kind, _along, _pair, _attacks in (
    ("gamma", _LINE, _APART, None),
    ("box", _DIAGONAL, _BOTH, _BOXES),
    ("gaussian", _LINE, _APART, None),
):
    worst_case(f"objective_{_kind}", PrivateFit.objective, attacks=_attacks, pair=_pair)(
        partial(_objective_game, kind=_kind, direction=_along)
    )
for _kind in ("gamma", "gaussian"):
    worst_case(f"output_{_kind}", PrivateFit.output, pair=_APART)(partial(_output_game, kind=_kind))
