"""Budgets, accounting, noise, mechanisms and the ledger; replace-one adjacency, n public."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "accounting": ("Cost", "compose", "dp_sgd_epsilon", "dp_sgd_noise_multiplier", "naive_sum", "privacy_curve"),
        "budget": ("PrivacyBudget",),
        "calibration": (
            "analytic_gaussian_sigma",
            "classical_gaussian_sigma",
            "gaussian_epsilon",
            "laplace_scale",
            "smooth_sensitivity_multiplier",
            "smoothness",
            "theorem1_multiplier",
        ),
        "events": (
            "ApproximateEvent",
            "BoundedRangeEvent",
            "DPSGDEvent",
            "Event",
            "GaussianEvent",
            "PureEvent",
            "event_from_dict",
        ),
        "exact_sums": ("TwoGrids", "exact_sum", "sum_grid"),
        "guarantee": ("Condition", "Guarantee", "Level", "of_library", "own_code"),
        "ledger": ("Ledger",),
        "ledger_file": ("Entry",),
        "mechanisms": (
            "AdditiveMechanism",
            "GaussianMechanism",
            "KNormMechanism",
            "LaplaceMechanism",
            "k_norm_deviation",
        ),
        "noise": ("NoiseSource",),
        "polytope": ("root_norm", "root_simplices"),
        "quantile": ("private_quantile",),
        "root_polytope": ("RootPolytopeMechanism",),
        "selection_mechanisms": (
            "ExponentialMechanism",
            "PermuteAndFlip",
            "ReportNoisyMax",
            "SELECTIONS",
            "SelectionMechanism",
            "expected_regret",
        ),
        "shared_ledger": ("RunLedger", "SharedLedger"),
        "unit": ("PrivacyUnit",),
        "worst_case": (
            "Game",
            "WORST_CASES",
            "WorstCase",
            "function_evidence",
            "gaussian_evidence",
            "k_norm_evidence",
            "worst_case",
        ),
    },
)
