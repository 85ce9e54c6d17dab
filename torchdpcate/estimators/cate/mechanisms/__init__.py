"""Mechanisms that release a fitted second stage."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "base": ("FunctionMechanism", "Mechanism", "QueryMechanism"),
        "dp_sgd_head": ("DPSGDHead",),
        "gaussian_process": ("GaussianProcess",),
        "influence": ("InfluencePerturbation", "minimum_records"),
        "objective": ("ObjectivePerturbation", "perturbed_head"),
        "offer": ("noise_at_queries",),
        "output": ("OutputPerturbation",),
        "plug_in": ("PlugIn",),
        "smooth_sensitivity": ("SmoothSensitivity", "local_sensitivity", "smooth_bound"),
        "statistics": ("SufficientStatistics",),
    },
)
