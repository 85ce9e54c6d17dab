"""Metrics and figures."""

from torchdpcate.evaluation.comparison import budget_figure, curves_figure
from torchdpcate.evaluation.curves import EffectCurves
from torchdpcate.evaluation.figures import effect_figure, rule_figure, save_figure
from torchdpcate.evaluation.metrics import PEHE, IntervalCoverage, MeanEffectBias, pehe
from torchdpcate.evaluation.policies import policy_figure
from torchdpcate.evaluation.rules import DecisionAccuracy, PolicyValue, decision_accuracy, policy_value

__all__ = [
    "PEHE",
    "DecisionAccuracy",
    "EffectCurves",
    "IntervalCoverage",
    "MeanEffectBias",
    "PolicyValue",
    "budget_figure",
    "curves_figure",
    "decision_accuracy",
    "effect_figure",
    "pehe",
    "policy_figure",
    "policy_value",
    "rule_figure",
    "save_figure",
]
