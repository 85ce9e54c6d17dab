"""Metrics and figures."""

from torchdpcate.evaluation.figures import budget_figure, effect_figure, save_figure
from torchdpcate.evaluation.metrics import PEHE, IntervalCoverage, MeanEffectBias, pehe

__all__ = [
    "PEHE",
    "IntervalCoverage",
    "MeanEffectBias",
    "budget_figure",
    "effect_figure",
    "pehe",
    "save_figure",
]
