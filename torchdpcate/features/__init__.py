"""Feature maps and public kernels."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "maps": (
            "FEATURE_MAPS",
            "FeatureMap",
            "Fourier",
            "Identity",
            "Legendre",
            "Products",
            "Representation",
            "conditions_of",
        ),
        "kernels": ("Nystrom",),
        "tangent": ("Tangent",),
        "user_maps": ("UserFeatures", "from_config", "on_domain", "to_config"),
    },
)
