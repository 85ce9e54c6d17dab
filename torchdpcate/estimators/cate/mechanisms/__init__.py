"""Mechanisms that release a fitted second stage."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "base": ("FunctionMechanism", "Mechanism", "QueryMechanism", "PlugIn"),
        "dp_sgd_head": ("DPSGDHead",),
        "gaussian_process": ("GaussianProcess",),
        "influence": ("InfluencePerturbation", "minimum_records"),
        "perturbation": ("ObjectivePerturbation", "perturbed_head", "OutputPerturbation"),
        "smooth_sensitivity": ("noise_at_queries", "SmoothSensitivity", "local_sensitivity", "smooth_bound"),
        "statistics": ("SufficientStatistics",),
    },
)
