"""Mechanisms that release a fitted second stage."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "base": ("FunctionMechanism", "Mechanism", "QueryMechanism", "PlugIn"),
        "local_sensitivity": (
            "InfluencePerturbation",
            "SmoothSensitivity",
            "minimum_records",
            "smooth_bound",
        ),
        "perturbation": (
            "GaussianProcess",
            "ObjectivePerturbation",
            "OutputPerturbation",
            "perturbed_head",
        ),
    },
)
