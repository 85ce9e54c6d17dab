"""What an effect and its interval rest on beside the numbers: which models must follow the truth.

Mechanisms say it of their own releases; here stand the words that several kinds of release share.
"""

STATED_AS = "holds_if"
"""The statement's name for it."""

ESTIMATED = (
    "nothing but the covariates confounds, and the log-odds of treatment are a combination of the features of the "
    "propensity's regression; where they are not, the interval may never hold its target, and where the mean outcome "
    "is none of its features it is somewhat too narrow (a stated bias widens it)"
)
"""When intervals of a composed effect hold whose propensity was estimated."""
RANDOMISED = (
    "treatment was randomised person by person with the propensity that the domain states; where it was not, the "
    "estimate is biased and the interval may never hold the effect; where whole schools or wards were treated at once, "
    "it is too narrow"
)
"""When those hold whose propensity is known."""
UNSTATED = (
    "the log-odds of treatment and the mean outcomes of both arms are all combinations of the covariates (its "
    "estimator does not state which of these models must follow the truth); where one is not, the estimate may be "
    "biased and the interval may never hold the effect"
)
"""Of a release that does not state it, and of a mechanism that does not say it."""
LIKE_PRIOR = (
    "and what effects have beyond the released features is to these as in the random laws by which the plan was made "
    "(docs/intervals.md)"
)
"""What intervals for a person rest on beside the rest."""
SAME_RESIDUALS = (
    "and what outcomes differ by from their mean has one law, whatever the covariates and the arm; where its size or "
    "skewness follows them, intervals at points and of contrasts may be too narrow or miss their target"
)
"""What the intervals of both assume besides, of the residuals that the effect's regression clips."""
