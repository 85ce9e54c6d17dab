"""Nuisance models, trained by DP-SGD inside a Lightning Trainer."""

from torchdpcate.nuisance.averaged import AveragedNuisances, nuisances_from_config
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.nuisance.convex import ConvexNuisanceConfig, ConvexNuisances
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.model import NuisanceModel, NuisanceValues
from torchdpcate.nuisance.networks import Outcome, Propensity
from torchdpcate.nuisance.nuisances import Nuisances
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import PoissonSampler, poisson_loader
from torchdpcate.nuisance.ranges import nuisance_range
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.screening import Screening
from torchdpcate.nuisance.train import train
from torchdpcate.nuisance.trainer import default_trainer

__all__ = [
    "DPSGD",
    "AveragedNuisances",
    "ConvexNuisanceConfig",
    "ConvexNuisances",
    "DPSGDPlan",
    "NuisanceConfig",
    "NuisanceModel",
    "NuisanceRecipe",
    "NuisanceValues",
    "Nuisances",
    "Outcome",
    "PoissonSampler",
    "Propensity",
    "RecordLossModule",
    "Screening",
    "default_trainer",
    "nuisance_range",
    "nuisances_from_config",
    "poisson_loader",
    "train",
]
