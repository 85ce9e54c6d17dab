"""Second stages: linear, kernel and neural heads, and how far one record moves them."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "influence": (
            "CholeskySolver",
            "ConjugateGradientSolver",
            "HessianSolver",
            "HessianVectorProduct",
            "InfluenceFunction",
            "StreamedHessian",
            "solver_for",
        ),
        "kernel": (
            "KernelInfluenceFunction",
            "KernelSecondStage",
            "KernelStage",
        ),
        "linear": (
            "LinearProblem",
            "Minimiser",
            "huber_sensitivity",
            "sensitivity",
            "solve",
            "solve_perturbed",
            "squared_sensitivity",
        ),
        "neural": (
            "NeuralFit",
            "NeuralHead",
            "fit_neural_head",
        ),
        "recipes": (
            "LinearSecondStage",
            "NeuralSecondStage",
            "RidgeSecondStage",
            "SecondStage",
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
        "supremum": (
            "Maximum",
            "Supremum",
            "gross_error_sensitivity",
            "maximise_over_box",
        ),
    },
)
