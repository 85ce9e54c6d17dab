"""Neighbouring weighted sums on which objective and output perturbation are attacked, with exact likelihood ratios."""

import math

import torch
from torch import Tensor

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.gaussian_scale import TRIANGLE
from torchdpcate.erm.losses import HuberHinge
from torchdpcate.erm.perturbation import ObjectiveNoise, calibrate_objective, output_mechanism
from torchdpcate.erm.solver import PerturbedSum, default_tolerance, minimise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose, fits_by
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, k_norm_evidence, worst_case

_LOSS, _BOUNDS = HuberHinge(0.5), WeightBounds.per_record(2.0)
# of epsilon; a small one makes the objective noise's share of the claim large, and for Gaussian noise that of the curve
_JACOBIAN_SHARE = {"gamma": 0.05, "box": 0.05, "gaussian": 1e-4}
_OTHERS = 3


def _sums(direction: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """D and D': psi [n, p], t and w, of one heavy record along a direction, with either label, and featureless ones."""
    psi = torch.zeros(1 + _OTHERS, len(direction), dtype=torch.float64)
    psi[0] = direction
    weights, labels = torch.full((len(psi),), _BOUNDS.most).double(), torch.ones(2, len(psi), dtype=torch.float64)
    labels[1, 0] = -1.0
    return tuple((psi, label, weights) for label in labels)


def _log_density(theta: Tensor, objective: ObjectiveNoise, gamma: float, data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Of the exact perturbed minimiser at theta [runs, p], up to a constant: ln f(b(theta)) + ln det."""
    problem = PerturbedSum(*data, _LOSS, torch.full((len(theta),), gamma).double(), torch.zeros_like(theta))
    _, b, second = problem.evaluate(theta)  # the gradient without objective noise is -b
    order = math.inf if objective.kind == "box" else 2.0
    size = torch.linalg.vector_norm(b, order, dim=1) / objective.scale
    return torch.logdet(problem.hessian(second)) - (size.square() / 2 if objective.kind == "gaussian" else size)


def _objective_game(budget: PrivacyBudget, kind: str, direction: Tensor) -> Game:
    gamma = _BOUNDS.most * _LOSS.curvature / math.expm1(_JACOBIAN_SHARE[kind] * budget.epsilon)
    objective = calibrate_objective(
        budget,
        kind=kind,
        slope=_LOSS.slope,
        bounds=_BOUNDS,
        curvature=_LOSS.curvature,
        gamma=gamma,
        size=len(direction),
        largest_entry=direction.abs().max().item(),
        monotone=_LOSS.monotone,
    )
    worlds = _sums(direction)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        def fit(linear_terms: Tensor) -> Tensor:
            return minimise(*worlds[world], _LOSS, gamma, linear_terms, objective.tolerance)

        return objective.release(fit, noise, runs)

    def evidence(theta: Tensor) -> Tensor:
        return _log_density(theta, objective, gamma, worlds[1]) - _log_density(theta, objective, gamma, worlds[0])

    if kind != "gaussian":
        claim = PrivacyBudget(budget.epsilon, 0.0)
        return Game(draw, objective.event, Guarantee(Level.CERTIFIED, claim), evidence)
    curve = objective.curve(_LOSS.slope * _BOUNDS.first, TRIANGLE)  # the hinge's slope never changes its sign
    return Game(draw, objective.event, Guarantee(Level.CERTIFIED, budget), evidence, curve=curve)


_LINE, _DIAGONAL = torch.ones(1, dtype=torch.float64), torch.full((2,), math.sqrt(0.5), dtype=torch.float64)


@worst_case(
    "objective_gamma",
    calibrate_objective,
    pair="a record of full weight apart from all others, with either label",
)
def _gamma(budget: PrivacyBudget) -> Game:
    return _objective_game(budget, "gamma", _LINE)


@worst_case(
    "objective_box",
    calibrate_objective,
    attacks=[Charge(Purpose.RELEASE, "objective_box"), *fits_by("objective")],
    pair="a record of full weight, on both features alike and apart from all others, with either label",
)
def _box(budget: PrivacyBudget) -> Game:
    return _objective_game(budget, "box", _DIAGONAL)


@worst_case(
    "objective_gaussian", calibrate_objective, pair="a record of full weight apart from all others, with either label"
)
def _gaussian(budget: PrivacyBudget) -> Game:
    return _objective_game(budget, "gaussian", _LINE)


def _output_game(budget: PrivacyBudget, kind: str) -> Game:
    gamma = 2 * _BOUNDS.most  # which leaves either label's minimiser where its slope is still 1
    stop = default_tolerance(_LOSS.slope, _BOUNDS.most)
    mechanism = output_mechanism(budget, kind=kind, slope=_LOSS.slope, bounds=_BOUNDS, gamma=gamma, tolerance=stop)
    thetas = [minimise(*data, _LOSS, gamma, torch.zeros(1, 2), stop)[0] for data in _sums(_DIAGONAL)]
    gaussian, shift = kind == "gaussian", thetas[1] - thetas[0]
    apart = (lambda moved: moved @ shift) if gaussian else k_norm_evidence(shift, mechanism.scale)
    return Game(
        draw=lambda world, runs, noise: mechanism.add_noise(thetas[world].expand(runs, -1), noise),
        event=mechanism.event,
        guarantee=Guarantee(Level.CERTIFIED, budget if gaussian else PrivacyBudget(budget.epsilon, 0.0)),
        evidence=lambda theta: apart(theta - thetas[0]),
    )


@worst_case("output_gamma", output_mechanism, pair="a record of full weight apart from all others, with either label")
def _output_gamma(budget: PrivacyBudget) -> Game:
    return _output_game(budget, "gamma")


@worst_case(
    "output_gaussian", output_mechanism, pair="a record of full weight apart from all others, with either label"
)
def _output_gaussian(budget: PrivacyBudget) -> Game:
    return _output_game(budget, "gaussian")
