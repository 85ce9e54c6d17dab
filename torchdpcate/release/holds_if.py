"""What an average effect and its interval rest on beside the numbers: which models must follow the truth."""

from collections.abc import Mapping
from typing import Any

HOLDS_IF = "holds_if"
"""The statement's name for it."""

ESTIMATED = (
    "nothing but the covariates confounds, and the log-odds of treatment are a combination of the features of the "
    "propensity's regression; where they are not, the interval may never hold its target, and where the mean outcome "
    "is none of its features it is somewhat too narrow (a stated bias widens it)"
)
"""When intervals of a composed effect hold whose propensity was estimated."""
RANDOMISED = (
    "treatment was randomised with the propensity that the domain states; where it was not, the estimate is biased and "
    "the interval may never hold the effect"
)
"""When those hold whose propensity is known."""
SAME_RESIDUALS = (
    "and what outcomes differ by from their mean has one law, whatever the covariates and the arm; where its size or "
    "skewness follows them, intervals at points and of contrasts may be too narrow or miss their target"
)
"""What the intervals of both assume besides, of the residuals that the effect's regression clips."""

_PROPENSITY = "the log-odds of treatment are linear in the basis"
_EITHER = (
    f"{_PROPENSITY}, or the mean outcomes of both arms are; where neither holds, the estimate is biased and the "
    "interval may never hold the effect"
)
_ALONE = f"{_PROPENSITY}; where they are not, the estimate is biased and the interval may never hold the effect"
_FIXED = {
    "difference_in_means": (
        "treatment was randomised with one probability for everybody; where it was not, the estimate is biased and the "
        "interval may never hold the effect"
    ),
    "known_propensity": RANDOMISED,
    "horvitz_thompson": (
        "the log-odds of treatment are linear in the covariates; where they are not, the estimate is biased"
    ),
    "subsample_aggregate": (
        "the log-odds of treatment are linear in the covariates, and groups are so large that their bias is small; the "
        "interval counts neither"
    ),
    "clipped_scores": (
        "the log-odds of treatment, or the mean outcomes, are combinations of the features that n and epsilon could "
        "pay for, or the domain states the propensity; and scores beyond the clip cancel; where not, the estimate is "
        "biased and the interval may never hold the effect"
    ),
    "aipw": (
        "the released propensity or the released outcome models follow the truth; where neither does, the estimate is "
        "biased and the interval may never hold the effect"
    ),
}


def holds_if(mechanism: str, public: Mapping[str, Any]) -> str | None:
    """Return when an average effect is unbiased, up to noise and sampling; None for mechanisms that say so themselves.

    That nothing else confounds, and that treated and controls overlap, is needed by all of them.

    Args:
        mechanism: What released it.
        public: Public constants of its statement: the loss of its weights, and whether there is an outcome model.

    Example:
        >>> holds_if("outcome_table", {"loss": "logistic"})[:49]
        'the log-odds of treatment are linear in the basis'
    """
    if mechanism in ("balanced_difference", "outcome_table"):
        # weights that balance the basis, or residuals of an outcome model in it, take away what is linear in it
        return _EITHER if public.get("loss") == "balancing" or "outcome_bounds" in public else _ALONE
    return _FIXED.get(mechanism)
