"""Convex fits of a linear predictor, and the noise that makes them private, independent of the causal problem."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "bounds": ("WeightBounds",),
        "descent": ("newton",),
        "domains": ("Ball", "ConvexDomain", "L1Ball"),
        "loss_check": ("check_loss",),
        "losses": ("CrossEntropy", "Huber", "HuberHinge", "Logistic", "Loss", "Slopes", "Squared", "loss_conditions"),
        "normal_equations": ("NormalEquations",),
        "perturbation": (
            "PERTURBATIONS",
            "SOLVER_SHARE",
            "ObjectiveNoise",
            "calibrate_change",
            "calibrate_objective",
            "grid_move",
            "jacobian",
            "output_mechanism",
            "ridge_ratio",
        ),
        "solver": ("default_tolerance", "minimise"),
        "streaming": ("minimise_batches", "summed", "summed_gradient"),
        "gaussian_scale": ("gaussian_scale", "objective_delta", "objective_sigma"),
    },
)
