"""Metrics and figures."""

from torchdpcate.evaluation.comparison import budget_figure, curves_figure
from torchdpcate.evaluation.curves import EffectCurves
from torchdpcate.evaluation.figures import effect_figure, save_figure
from torchdpcate.evaluation.metrics import PEHE, IntervalCoverage, MeanEffectBias, pehe

__all__ = [
    "PEHE",
    "EffectCurves",
    "IntervalCoverage",
    "MeanEffectBias",
    "budget_figure",
    "curves_figure",
    "effect_figure",
    "pehe",
    "save_figure",
]
