"""How one record moves the effects at the queries: Hessian, influence function, gross-error sensitivity."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "hessian": (
            "HessianVectorProduct",
            "StreamedHessian",
            "CholeskySolver",
            "ConjugateGradientSolver",
            "Solver",
            "solver_for",
        ),
        "influence": ("FeedForwardHessian", "FeedForwardModel", "InfluenceFunction"),
        "kernel": ("KernelInfluenceFunction",),
        "supremum": ("Maximum", "maximise_over_box", "Supremum", "gross_error_sensitivity", "operator_norm_bound"),
    },
)
