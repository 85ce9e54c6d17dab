"""Treatment rules by weighted empirical risk minimisation."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "cross_validation": ("CrossValidatedRule",),
        "effect_rule": ("EffectRule",),
        "learner": ("RuleLearner",),
        "matching": ("AllPairs", "CellPairs", "GaussianPairs", "MATCHINGS", "Matching"),
        "mechanisms": ("ObjectiveRule", "OutputRule", "RuleMechanism"),
        "noise_report": ("NoiseReport", "explain_noise"),
        "outcome": ("PrivateResidual", "OUTCOMES", "Outcome", "Shifted", "SignedResidual"),
        "owl": ("OutcomeWeightedLearner",),
        "pairwise": ("PairwiseRule",),
        "public_tuning": ("RidgeChoice", "tune_on_public"),
        "ridge": ("default_ridge",),
        "tuning": ("PrivatelyTunedRule",),
        "two_stage": ("TwoStageRule",),
        "weighted_erm": ("WeightedERM",),
    },
)
