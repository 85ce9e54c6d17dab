"""Second stages: feature maps, linear and neural heads, and how one record moves them."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "kernel": ("KernelSecondStage", "KernelStage"),
        "linear": (
            "LinearFit",
            "LinearProblem",
            "huber_sensitivity",
            "sensitivity",
            "solve",
            "solve_perturbed",
            "squared_sensitivity",
        ),
        "neural": ("NeuralFit", "NeuralHead", "fit_neural_head"),
        "recipes": (
            "LinearSecondStage",
            "NeuralSecondStage",
            "RidgeSecondStage",
            "SecondStage",
            "PrivateThreshold",
            "TangentSecondStage",
        ),
        "stage": (
            "FittedStage",
            "LinearStage",
            "NeuralStage",
            "ParametricStage",
            "RKHSStage",
            "Regression",
            "SecondStageBlock",
        ),
    },
)
