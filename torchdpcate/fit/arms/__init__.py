"""Propensity and outcome models of K arms for policy selection, with guarantees."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "base": (
            "FittedNuisances",
            "GUARANTEES",
            "GuaranteedNuisances",
            "ScoreNuisances",
            "SelectionFacts",
            "make_nuisances",
        ),
        "fixed": ("FixedNuisances",),
        "private": ("CentredNuisances",),
    },
)
