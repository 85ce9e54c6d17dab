"""Budgets, accounting, noise, mechanisms and the ledger; replace-one adjacency, n public."""

from torchdpcate.privacy.accounting import Cost, compose, dp_sgd_epsilon, dp_sgd_noise_multiplier, naive_sum
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
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import Entry
from torchdpcate.privacy.mechanisms import AdditiveMechanism, GaussianMechanism, LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.quantile import private_quantile

__all__ = [
    "AdditiveMechanism",
    "ApproximateEvent",
    "Condition",
    "Cost",
    "DPSGDEvent",
    "Entry",
    "Event",
    "GaussianEvent",
    "GaussianMechanism",
    "Guarantee",
    "LaplaceMechanism",
    "Ledger",
    "Level",
    "NoiseSource",
    "PrivacyBudget",
    "PureEvent",
    "analytic_gaussian_sigma",
    "classical_gaussian_sigma",
    "compose",
    "dp_sgd_epsilon",
    "dp_sgd_noise_multiplier",
    "event_from_dict",
    "gaussian_epsilon",
    "laplace_scale",
    "naive_sum",
    "private_quantile",
    "smooth_sensitivity_multiplier",
    "smoothness",
    "theorem1_multiplier",
]
