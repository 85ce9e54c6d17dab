"""Releases: mechanisms, files, the privacy statement."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "average_effect": (
            "AverageEffectRelease",
            "BalanceTable",
            "ReleasedWeights",
        ),
        "combination": ("combine",),
        "combined": ("CombinedEffect",),
        "combined_lines": (
            "CombinedAverage",
            "CombinedSubgroups",
        ),
        "composed": (
            "ComposedRelease",
            "ComposedRule",
        ),
        "estimate": (
            "Estimate",
            "IntervalLaw",
            "half_width",
        ),
        "file": (
            "FORMAT_VERSION",
            "Release",
            "check_sums",
            "load_release",
            "save_release",
            "write_sums",
        ),
        "release": (
            "EffectRelease",
            "FunctionRelease",
            "QueryRelease",
        ),
        "rule": (
            "PolicyRelease",
            "RuleRelease",
        ),
        "signature": (
            "Signature",
            "read_private_key",
            "read_public_key",
            "read_signature",
            "write_key",
        ),
        "statement": (
            "PrivacyStatement",
            "make_statement",
        ),
        "subgroups": ("SubgroupRelease",),
    },
)
