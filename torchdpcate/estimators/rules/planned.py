"""The noise to expect in the score of a rule by weighted empirical risk minimisation."""

import math

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.noise_report import NoiseReport
from torchdpcate.estimators.rules.outcome import Outcome
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level


def score_noise(
    report: NoiseReport,
    outcome: Outcome,
    domain: Domain,
    n: int,
    budget: PrivacyBudget,
    level: Level,
    private_first: bool,
) -> PlannedNoise:
    r"""Return the noise of the score by which the rule decides, as an effect.

    .. math:: \frac{2 u \sqrt p}{n\, \bar\omega\, \zeta}\, \sqrt{E \|b\|^2}

    b is the noise on the summed pull of the records (in the scale of objective perturbation), zeta the loss's slope,
    omega the mean weight, and u the outcome units of a magnitude of one: a record that the treatment helps by tau has
    the mean pull omega zeta tau / (2 u) along its features, of which a direction holds the share 1/p.

    Args:
        report: What public facts say of the fit's noise.
        outcome: The outcome's map.
        domain: Public bounds.
        n: Number of records.
        budget: Of the fit.
        level: Of the release.
        private_first: Whether weights or the outcome's constants are private too.
    """
    value = 2 * outcome.unit(domain) * math.sqrt(report.size) * report.noise / report.typical_pull
    lost = (1 - report.accuracy) * domain.outcome_range
    return PlannedNoise(
        value,
        "the score by which the rule decides, as an effect",
        domain.outcome_range,
        n,
        budget,
        {"rule": value},
        level,
        assumes=(
            *outcome.assumes,
            "features spread over all directions; the noise is not shortened by the curvature of the records",
        ),
        left_out=("the noise in private weights and outcome constants",) if private_first else (),
        remarks=(
            f"about {report.accuracy:.0%} of the decisions agree with those of the rule without noise if the "
            f"records speak as clearly as hoped; the others lose at most {lost:.3g} of the mean outcome",
            *report.advice[:1],
        ),
    )
