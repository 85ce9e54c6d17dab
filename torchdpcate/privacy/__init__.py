"""Budgets, accounting, noise, mechanisms and the ledger; replace-one adjacency, n public."""

from torchdpcate.privacy.accounting import (
    Cost,
    compose,
    dp_sgd_epsilon,
    dp_sgd_noise_multiplier,
    naive_sum,
    privacy_curve,
)
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import (
    analytic_gaussian_sigma,
    classical_gaussian_sigma,
    gaussian_epsilon,
    laplace_scale,
    smooth_sensitivity_multiplier,
    smoothness,
    theorem1_multiplier,
)
from torchdpcate.privacy.events import (
    ApproximateEvent,
    DPSGDEvent,
    Event,
    GaussianEvent,
    PureEvent,
    event_from_dict,
)
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level, of_library, own_code
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import Entry
from torchdpcate.privacy.mechanisms import (
    AdditiveMechanism,
    GaussianMechanism,
    KNormMechanism,
    LaplaceMechanism,
    k_norm_deviation,
)
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.polytope import root_norm, root_simplices
from torchdpcate.privacy.quantile import private_quantile
from torchdpcate.privacy.root_polytope import RootPolytopeMechanism
from torchdpcate.privacy.selection_mechanisms import (
    SELECTIONS,
    ExponentialMechanism,
    PermuteAndFlip,
    ReportNoisyMax,
    SelectionMechanism,
    expected_regret,
    make_selection,
)
from torchdpcate.privacy.worst_case import (
    WORST_CASES,
    Game,
    WorstCase,
    function_evidence,
    gaussian_evidence,
    k_norm_evidence,
    worst_case,
)

__all__ = [
    "SELECTIONS",
    "WORST_CASES",
    "AdditiveMechanism",
    "ApproximateEvent",
    "Condition",
    "Cost",
    "DPSGDEvent",
    "Entry",
    "Event",
    "ExponentialMechanism",
    "Game",
    "GaussianEvent",
    "GaussianMechanism",
    "Guarantee",
    "KNormMechanism",
    "LaplaceMechanism",
    "Ledger",
    "Level",
    "NoiseSource",
    "PermuteAndFlip",
    "PrivacyBudget",
    "PureEvent",
    "ReportNoisyMax",
    "RootPolytopeMechanism",
    "SelectionMechanism",
    "WorstCase",
    "analytic_gaussian_sigma",
    "classical_gaussian_sigma",
    "compose",
    "dp_sgd_epsilon",
    "dp_sgd_noise_multiplier",
    "event_from_dict",
    "exact_sum",
    "expected_regret",
    "function_evidence",
    "gaussian_epsilon",
    "gaussian_evidence",
    "k_norm_deviation",
    "k_norm_evidence",
    "laplace_scale",
    "make_selection",
    "naive_sum",
    "of_library",
    "own_code",
    "privacy_curve",
    "private_quantile",
    "root_norm",
    "root_simplices",
    "smooth_sensitivity_multiplier",
    "smoothness",
    "sum_grid",
    "theorem1_multiplier",
    "worst_case",
]
