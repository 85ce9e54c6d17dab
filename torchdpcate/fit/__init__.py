"""Fits: features, losses, convex minimisers and their noise, nuisance networks by DP-SGD, weights."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "convex": ("ConvexNuisanceConfig",),
        "convex_model": ("ConvexNuisances",),
        "descent": (
            "Ball",
            "ConvexDomain",
            "L1Ball",
            "newton",
        ),
        "dp_sgd": ("DPSGD",),
        "dp_sgd_plan": (
            "DPSGDPlan",
            "PoissonSampler",
            "poisson_loader",
        ),
        "feature_maps": (
            "FEATURE_MAPS",
            "FeatureMap",
            "Fourier",
            "Identity",
            "Legendre",
            "Products",
            "Representation",
            "conditions_of",
        ),
        "gaussian_scale": (
            "gaussian_scale",
            "objective_delta",
            "objective_sigma",
        ),
        "kernels": ("Nystrom",),
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
        "minimise": (
            "NormalEquations",
            "default_tolerance",
            "minimise",
            "minimise_batches",
            "summed",
            "summed_gradient",
        ),
        "networks": (
            "Nuisances",
            "OutcomeNetwork",
            "PropensityNetwork",
        ),
        "nuisance_config": ("NuisanceConfig",),
        "nuisance_kinds": (
            "AveragedNuisances",
            "nuisance_range",
            "nuisances_from_config",
        ),
        "nuisances": (
            "NuisanceModel",
            "NuisanceRecipe",
            "NuisanceValues",
        ),
        "private_fit": (
            "ObjectiveNoise",
            "PERTURBATIONS",
            "PrivateFit",
            "SOLVER_SHARE",
            "WeightBounds",
            "calibrate_change",
            "grid_move",
            "ridge_ratio",
        ),
        "screening": ("Screening",),
        "tangent_features": ("Tangent",),
        "trainable": (
            "RecordLossModule",
            "TrainableNuisances",
        ),
        "trainer": ("default_trainer",),
        "training": ("train",),
        "user_maps": (
            "UserFeatures",
            "from_config",
            "on_domain",
            "to_config",
        ),
    },
)
