"""Nuisance models, trained by DP-SGD inside a Lightning Trainer."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "averaged": ("AveragedNuisances", "nuisances_from_config"),
        "config": ("NuisanceConfig",),
        "convex": ("ConvexNuisanceConfig",),
        "convex_model": ("ConvexNuisances",),
        "dp_sgd": ("DPSGD",),
        "model": ("NuisanceModel", "NuisanceValues"),
        "networks": ("Outcome", "Propensity"),
        "nuisances": ("Nuisances",),
        "plan": ("DPSGDPlan",),
        "poisson": ("PoissonSampler", "poisson_loader"),
        "ranges": ("nuisance_range",),
        "recipe": ("NuisanceRecipe",),
        "record_loss": ("RecordLossModule",),
        "screening": ("Screening",),
        "train": ("train",),
        "trainable": ("TrainableNuisances",),
        "trainer": ("default_trainer",),
    },
)
