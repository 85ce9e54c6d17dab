"""One composition of Gaussian events on all records: the public plan, its private steps, and what follows for free."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "constants": ["PlanConstants", "RuleConstants"],
        "linear_fit": ["NoisyNewton"],
        "plan": ["ComposedPlan"],
        "priors": ["EmpiricalBayes"],
        "settings": ["AdaptiveSecondStage", "Additive", "Auto", "LightningFit", "WideAndDeep"],
        "sites": ["Meeting", "Site"],
        "steps": ["Shares", "total_mu"],
    },
)
