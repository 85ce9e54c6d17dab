"""R- and DR-learner in scikit-learn's manners."""

from torchdpcate.learners.learner import MECHANISMS, CATELearner, DRLearner, RLearner

__all__ = ["MECHANISMS", "CATELearner", "DRLearner", "RLearner"]
