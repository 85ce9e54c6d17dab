"""Treatment rules by weighted empirical risk minimisation."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "effect_rule": ("EffectRule",),
        "learner": ("RuleLearner", "OutcomeWeightedLearner", "TwoStageRule"),
        "mechanisms": ("ObjectiveRule", "OutputRule", "RuleMechanism"),
        "noise_report": ("NoiseReport",),
        "outcome": ("PrivateResidual", "OUTCOMES", "Outcome", "Shifted", "SignedResidual"),
        "pairwise": ("AllPairs", "CellPairs", "GaussianPairs", "MATCHINGS", "Matching", "PairwiseRule"),
        "public_tuning": ("RidgeChoice", "tune_on_public"),
        "tuning": ("CrossValidatedRule", "PrivatelyTunedRule"),
        "weighted_erm": ("default_ridge", "WeightedERM"),
    },
)
