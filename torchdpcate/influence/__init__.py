"""How one record moves the effects at the queries: Hessian, influence function, gross-error sensitivity."""

from torchdpcate._lazy import exports

__getattr__, __dir__, __all__ = exports(
    __name__,
    {
        "box": ("Maximum", "maximise_over_box"),
        "feed_forward": ("FeedForwardHessian", "FeedForwardModel"),
        "hessian": ("HessianVectorProduct", "StreamedHessian"),
        "influence": ("InfluenceFunction",),
        "kernel": ("KernelInfluenceFunction",),
        "solve": ("CholeskySolver", "ConjugateGradientSolver", "Solver", "solver_for"),
        "supremum": ("Supremum", "gross_error_sensitivity", "operator_norm_bound"),
    },
)
