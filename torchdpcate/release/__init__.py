"""Releases: mechanisms, files, the privacy statement."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "average_effect": ("AverageEffectRelease",),
        "balance_table": ("BalanceTable",),
        "composed": ("ComposedRelease",),
        "composed_rule": ("ComposedRule",),
        "digest": ("check_sums", "write_sums"),
        "estimate": ("Estimate",),
        "file": ("FORMAT_VERSION", "load_release", "save_release"),
        "interval_law": ("IntervalLaw", "half_width"),
        "policy": ("PolicyRelease",),
        "post_processing": ("mean_effect", "rank"),
        "population": ("reference_population",),
        "release": ("EffectRelease", "FunctionRelease", "QueryRelease", "Release"),
        "released_weights": ("ReleasedWeights",),
        "rule": ("RuleRelease",),
        "signature": ("Signature", "read_private_key", "read_public_key", "read_signature", "write_key"),
        "statement": ("PrivacyStatement", "make_statement"),
        "statistics": ("StatisticsRelease",),
        "subgroups": ("SubgroupRelease",),
        "views": ("clipped", "monotone"),
    },
)
