"""Designs, data sets and cohorts of papers and peers, by which methods are compared: one module a source."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "confounded": ("Confounded",),
        "expression": (
            "Expression",
            "SumOfGenes",
        ),
        "mimic": (
            "IntensiveCare",
            "MimicExtract",
            "MimicTables",
        ),
        "oprescu": (
            "Dataset1",
            "Dataset2",
            "OprescuGenerator",
        ),
        "rules": (
            "GaussianRuleStudy",
            "ITR",
            "OWL",
            "RareRegion",
        ),
        "semi_synthetic": (
            "GeneratedSurface",
            "SemiSynthetic",
            "Surface",
        ),
    },
)
