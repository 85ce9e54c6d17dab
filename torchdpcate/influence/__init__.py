"""How one record moves the effects at the queries: Hessian, influence function, gross-error sensitivity."""

from torchdpcate.influence.box import Maximum, maximise_over_box
from torchdpcate.influence.feed_forward import FeedForwardHessian, FeedForwardModel
from torchdpcate.influence.hessian import HessianVectorProduct
from torchdpcate.influence.influence import InfluenceFunction
from torchdpcate.influence.kernel import KernelInfluenceFunction
from torchdpcate.influence.solve import CholeskySolver, ConjugateGradientSolver, Solver, solver_for
from torchdpcate.influence.supremum import Supremum, gross_error_sensitivity, operator_norm_bound

__all__ = [
    "CholeskySolver",
    "ConjugateGradientSolver",
    "FeedForwardHessian",
    "FeedForwardModel",
    "HessianVectorProduct",
    "InfluenceFunction",
    "KernelInfluenceFunction",
    "Maximum",
    "Solver",
    "Supremum",
    "gross_error_sensitivity",
    "maximise_over_box",
    "operator_norm_bound",
    "solver_for",
]
