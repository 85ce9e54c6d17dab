"""Convex fits of a linear predictor, and the noise that makes them private; knows no records and no causality."""

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
            "Tilt",
            "calibrate_tilt",
            "grid_move",
            "jacobian",
            "make_tilt",
            "output_mechanism",
            "ridge_ratio",
        ),
        "solver": ("default_tolerance", "minimise"),
        "streaming": ("minimise_batches", "summed", "summed_gradient"),
        "tilt_scale": ("gaussian_tilt", "tilt_delta", "tilt_sigma"),
    },
)
