"""Convex fits of a linear predictor, and the noise that makes them private; knows no records and no causality."""

from torchdpcate.erm import worst_pairs as worst_pairs  # which declares them
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.descent import newton
from torchdpcate.erm.domains import Ball, ConvexDomain, L1Ball
from torchdpcate.erm.loss_check import check_loss
from torchdpcate.erm.losses import CrossEntropy, Huber, HuberHinge, Logistic, Loss, Slopes, Squared, loss_conditions
from torchdpcate.erm.perturbation import (
    PERTURBATIONS,
    SOLVER_SHARE,
    Tilt,
    calibrate_tilt,
    grid_move,
    jacobian,
    make_tilt,
    output_mechanism,
    ridge_ratio,
)
from torchdpcate.erm.solver import default_tolerance, minimise
from torchdpcate.erm.streaming import minimise_batches, summed, summed_gradient
from torchdpcate.erm.tilt_scale import gaussian_tilt, tilt_delta, tilt_sigma

__all__ = [
    "PERTURBATIONS",
    "SOLVER_SHARE",
    "Ball",
    "ConvexDomain",
    "CrossEntropy",
    "Huber",
    "HuberHinge",
    "L1Ball",
    "Logistic",
    "Loss",
    "Slopes",
    "Squared",
    "Tilt",
    "WeightBounds",
    "calibrate_tilt",
    "check_loss",
    "default_tolerance",
    "gaussian_tilt",
    "grid_move",
    "jacobian",
    "loss_conditions",
    "make_tilt",
    "minimise",
    "minimise_batches",
    "newton",
    "output_mechanism",
    "ridge_ratio",
    "summed",
    "summed_gradient",
    "tilt_delta",
    "tilt_sigma",
]
