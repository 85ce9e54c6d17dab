"""Metrics and figures."""

from torchdpcate.evaluation.balance_figure import IntervalRow, balance_figure, interval_figure
from torchdpcate.evaluation.balance_table import BalanceTable
from torchdpcate.evaluation.comparison import budget_figure, curves_figure
from torchdpcate.evaluation.curves import EffectCurves
from torchdpcate.evaluation.figures import effect_figure, rule_figure, save_figure
from torchdpcate.evaluation.metrics import PEHE, IntervalCoverage, MeanEffectBias, pehe
from torchdpcate.evaluation.policies import policy_figure
from torchdpcate.evaluation.rules import DecisionAccuracy, PolicyValue, decision_accuracy, policy_value

__all__ = [
    "PEHE",
    "BalanceTable",
    "DecisionAccuracy",
    "EffectCurves",
    "IntervalCoverage",
    "IntervalRow",
    "MeanEffectBias",
    "PolicyValue",
    "balance_figure",
    "budget_figure",
    "curves_figure",
    "decision_accuracy",
    "effect_figure",
    "interval_figure",
    "pehe",
    "policy_figure",
    "policy_value",
    "rule_figure",
    "save_figure",
]
