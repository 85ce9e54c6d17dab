"""One composition of Gaussian events on all records: the public plan, its private steps, and what follows for free."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "constants": ["PlanConstants", "RuleConstants"],
        "settings": ["AdaptiveSecondStage"],
        "lightning_fit": ["LightningFit"],
        "noisy_newton": ["NoisyNewton"],
        "nuisances": ["Additive", "Auto", "WideAndDeep"],
        "plan": ["ComposedPlan"],
        "shares": ["Shares", "total_mu"],
        "shrinkage": ["EmpiricalBayes"],
    },
)
