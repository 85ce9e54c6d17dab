"""Treatment rules by weighted empirical risk minimisation."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "effect_rule": ("EffectRule",),
        "learner": (
            "OutcomeWeightedLearner",
            "RuleLearner",
            "TwoStageRule",
        ),
        "plan": ("NoiseReport",),
        "outcome": (
            "OUTCOMES",
            "Outcome",
            "PrivateResidual",
            "Shifted",
            "SignedResidual",
        ),
        "weighted_erm": (
            "ObjectiveRule",
            "OutputRule",
            "RuleMechanism",
            "WeightedERM",
            "default_ridge",
        ),
    },
)
