"""Learners of effects by their names."""

from torchdpcate.causal.score import RegressionScore
from torchdpcate.registry import Registry

LEARNERS = Registry("learner")
"""Learners of effects by the names that users give."""


def score_of(learner: str) -> RegressionScore:
    """Return the score of the learner that statements call so.

    Raises:
        LookupError: There is none.
    """
    score: RegressionScore = LEARNERS[LEARNERS.class_names()[learner]].regression_score
    return score


def is_learner(name: object) -> bool:
    """Whether statements may call a learner so."""
    return name in LEARNERS.class_names()
