"""Budgets, accounting, noise, mechanisms and the ledger; replace-one adjacency, n public."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "accounting": ("dp_sgd_epsilon", "dp_sgd_noise_multiplier"),
        "calibration": ("analytic_gaussian_sigma",),
    },
)
