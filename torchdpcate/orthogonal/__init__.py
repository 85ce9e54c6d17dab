"""Orthogonal scores: weight rho, pseudo-outcome phi and their worst-case bounds."""

from torchdpcate.orthogonal.score import DRScore, OrthogonalScore, RegressionScore, RScore, ScoreBounds

__all__ = ["DRScore", "OrthogonalScore", "RScore", "RegressionScore", "ScoreBounds"]
