"""What every estimator does."""

from typing import Any


def forget(learner: Any) -> None:
    """Remove what an earlier fit left, its session included: a fit that is refused must leave nothing to release.

    Args:
        learner: An estimator; all that its constructor does not take is of an earlier fit.
    """
    for name in vars(learner).keys() - learner.get_params(deep=False).keys():
        delattr(learner, name)
