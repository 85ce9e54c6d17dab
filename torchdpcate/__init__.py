"""Private treatment effects: from a table of records to a release that is safe to publish.

Names are imported when they are first used, so that ``import torchdpcate`` costs little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdpcate.data import CausalData, Dataset1, Dataset2, Domain, SemiSynthetic, Table, TableSchema
    from torchdpcate.evaluation import PEHE
    from torchdpcate.learners import DRLearner, RLearner
    from torchdpcate.nuisance import DPSGD, NuisanceConfig
    from torchdpcate.privacy import Ledger, NoiseSource, PrivacyBudget
    from torchdpcate.release import FunctionRelease, QueryRelease, load_release
    from torchdpcate.second_stage import LinearSecondStage, NeuralSecondStage

__version__ = "0.1.0"

_ROOMS = {
    "data": ("CausalData", "Dataset1", "Dataset2", "Domain", "SemiSynthetic", "Table", "TableSchema"),
    "evaluation": ("PEHE",),
    "learners": ("DRLearner", "RLearner"),
    "nuisance": ("DPSGD", "NuisanceConfig"),
    "privacy": ("Ledger", "NoiseSource", "PrivacyBudget"),
    "release": ("FunctionRelease", "QueryRelease", "load_release"),
    "second_stage": ("LinearSecondStage", "NeuralSecondStage"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "DPSGD",
    "PEHE",
    "CausalData",
    "DRLearner",
    "Dataset1",
    "Dataset2",
    "Domain",
    "FunctionRelease",
    "Ledger",
    "LinearSecondStage",
    "NeuralSecondStage",
    "NoiseSource",
    "NuisanceConfig",
    "PrivacyBudget",
    "QueryRelease",
    "RLearner",
    "SemiSynthetic",
    "Table",
    "TableSchema",
    "load_release",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchdpcate' has no attribute {name!r}")
    return getattr(import_module(f"torchdpcate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
