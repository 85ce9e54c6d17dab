"""Orthogonal scores with their worst-case bounds, and the weights of average effects."""

from torchdpcate.orthogonal.score import DRScore, OrthogonalScore, RegressionScore, RScore, ScoreBounds
from torchdpcate.orthogonal.weighting import ESTIMANDS, Weighting

__all__ = ["ESTIMANDS", "DRScore", "OrthogonalScore", "RScore", "RegressionScore", "ScoreBounds", "Weighting"]
