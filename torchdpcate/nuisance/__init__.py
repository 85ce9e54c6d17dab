"""Nuisance models, trained by DP-SGD inside a Lightning Trainer."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "config": ("NuisanceConfig",),
        "convex": ("ConvexNuisanceConfig",),
        "convex_model": ("ConvexNuisances",),
        "dp_sgd": ("DPSGD",),
        "kinds": ("AveragedNuisances", "nuisance_range", "nuisances_from_config"),
        "model": ("NuisanceModel", "NuisanceRecipe", "NuisanceValues"),
        "networks": ("Nuisances", "Outcome", "Propensity"),
        "plan": ("DPSGDPlan",),
        "poisson": ("PoissonSampler", "poisson_loader"),
        "screening": ("Screening",),
        "train": ("train",),
        "trainable": ("RecordLossModule", "TrainableNuisances"),
        "trainer": ("default_trainer",),
    },
)
