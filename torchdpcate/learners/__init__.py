"""R- and DR-learner in scikit-learn's manners."""

from torchdpcate.learners.learner import CATELearner, DRLearner, RLearner
from torchdpcate.learners.mechanisms import MECHANISMS, make_mechanism
from torchdpcate.learners.splits import CrossFit, DisjointSplit, Split
from torchdpcate.learners.tuning import Tuning

__all__ = [
    "MECHANISMS",
    "CATELearner",
    "CrossFit",
    "DRLearner",
    "DisjointSplit",
    "RLearner",
    "Split",
    "Tuning",
    "make_mechanism",
]
