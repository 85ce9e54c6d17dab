"""What plans expect of records, whatever they are: public numbers, none of them found on data."""

RESIDUAL_SCALE = 1 / 14
"""Residual scale, in outcome ranges."""
SAMPLING, SAMPLING_BINARY = 0.6, 0.2
"""Variance of a record's clipped residual, in squared scales."""
INSIDE = 0.04
"""Residuals within the clip beyond its quantile, which is that of the residuals before."""
EFFECT_CURVATURE = 0.3
"""Mean curvature of the effect's features, over their energies: the mean of min(pi, 1 - pi)."""
PROPENSITY_CURVATURE = 0.2
"""That of a logit's."""
NUISANCES = 1.3
"""Noise of the effect over that of its own steps."""
LOGIT_PRIOR, LOGIT_CONSTANT = 3.0, 4.0
"""Prior variance of a logit's features over the planned one, by their weak ridge, and that of its constant."""
LOGIT_SIZE = 1.5
"""Scale by which parts of a logit are drawn to zero."""
OUTCOME_PRIOR = 2.0
"""That of the outcome regression's features, by its weak ridge."""
WANDERING = 1.1
"""Variance of what is released over that of the late steps' noise: the warm steps' share is lost."""
