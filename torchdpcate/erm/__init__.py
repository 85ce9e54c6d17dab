"""Convex fits of a linear predictor, and the noise that makes them private, independent of the causal problem."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "descent": ("newton", "Ball", "ConvexDomain", "L1Ball"),
        "gaussian_scale": ("gaussian_scale", "objective_delta", "objective_sigma"),
        "losses": (
            "CrossEntropy",
            "Huber",
            "HuberHinge",
            "Logistic",
            "Loss",
            "LossBounds",
            "Slopes",
            "Squared",
            "check_loss",
            "loss_conditions",
        ),
        "normal_equations": ("NormalEquations",),
        "private_fit": (
            "PERTURBATIONS",
            "SOLVER_SHARE",
            "ObjectiveNoise",
            "PrivateFit",
            "WeightBounds",
            "calibrate_change",
            "grid_move",
            "ridge_ratio",
        ),
        "solver": ("default_tolerance", "minimise", "minimise_batches", "summed", "summed_gradient"),
    },
)
