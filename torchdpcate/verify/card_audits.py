"""Which audits attacked what a release was charged for, by their names in ``docs/guarantees/audit.json``."""

from collections.abc import Iterator
from dataclasses import replace

from torchdpcate.composition.steps import CHOICES
from torchdpcate.estimators.cate.mechanisms.composed import Composed
from torchdpcate.privacy.charge import (
    ARMS,
    CHOICE,
    COMPOSED_SCORES,
    DP_SGD,
    JOINT,
    MEDIAN,
    OUTCOME,
    SCREENING,
    THRESHOLD,
    TUNING,
    Charge,
    Purpose,
    propensity_by,
)
from torchdpcate.release.statement import PrivacyStatement

_COMPOSED = {
    "DRLearner": ("composed_dr_effect", "composed_dr_effect"),
    "EffectRule": ("effect_rule", "pure_effect_rule"),
}
_ANY_COMPOSED = ("composed_effect", "composed_pure_effect")
"""Of one composition by learner: with Gaussian events, and with pure ones."""
_CURVATURES = Charge(Purpose.RELEASE, Composed.name, "effect curvatures")
"""What a rule's effect that may be found by one event of sums does not ask for."""

_MECHANISMS: dict[str, tuple[str, ...]] = {
    "difference_in_means": ("outcome_table",),
    "exponential": ("exponential_mechanism",),
    "influence": ("influence", "influence_below_n_min"),
}
"""Of the release itself, where their names are not the mechanism's."""
_CHARGES: dict[Charge, tuple[str, ...]] = {
    DP_SGD: ("dp_sgd", "nuisances"),
    JOINT: ("convex_nuisances",),
    MEDIAN: ("quantile",),
    ARMS: ("root_polytope", "laplace"),
    THRESHOLD: ("quantile",),
    SCREENING: ("screening",),
    TUNING: ("generalised_selection",),
    Charge(Purpose.WEIGHTS, "private"): ("private_propensity",),
    OUTCOME: ("quantile",),
    CHOICE: ("rule_tuning",),
    propensity_by("objective"): ("balancing_objective", "objective_box"),
    propensity_by("noisy_gradient"): ("noisy_gradient",),
    propensity_by("k_norm_gradient"): ("k_norm_gradient",),
    Charge(Purpose.OUTCOME_MODEL, "objective"): ("objective_box",),
    Charge(Purpose.OUTCOME_MODEL, "noisy_gradient"): ("noisy_gradient",),
    Charge(Purpose.OUTCOME_MODEL, "k_norm_gradient"): ("k_norm_gradient",),
    Charge(Purpose.RELEASE, "balanced_difference", "sums"): ("covariate_balancing_effect",),
    Charge(Purpose.RELEASE, "balanced_difference", "balance"): ("balance_statistics",),
    Charge(Purpose.RELEASE, "balanced_difference", "difference_in_means"): ("outcome_table",),
    Charge(Purpose.RELEASE, "outcome_table", "balance"): ("balance_statistics",),
    **{Charge(Purpose.RELEASE, Composed.name, choice): ("gumbel_top_k",) for choice in CHOICES},
    **{COMPOSED_SCORES.with_part(choice): ("gumbel_top_k",) for choice in CHOICES},
}
"""Of what else was charged."""


def audits_of(privacy: PrivacyStatement) -> tuple[str, ...]:
    """Return the names of the audits of all that was charged, those of the release's own mechanism first.

    Args:
        privacy: The statement of a release.
    """
    return tuple(dict.fromkeys(_names(privacy)))


def _names(privacy: PrivacyStatement) -> Iterator[str]:
    yield from mechanism_audits(privacy)
    for charge in dict.fromkeys(replace(paid.charge, piece="") for paid in privacy.charges):
        yield from charge_audits(charge)
        if charge.mechanism == Composed.name and charge.purpose is Purpose.NUISANCES:
            yield _ANY_COMPOSED[not privacy.delta]
            yield from ("composed_selection",) if "policies" in privacy.public else ()
    if privacy.person:
        yield "person"


def mechanism_audits(privacy: PrivacyStatement) -> tuple[str, ...]:
    """Return the names of the audits of a release's own mechanism."""
    name, public = privacy.mechanism, privacy.public
    if name == Composed.name:
        learner = str(public.get("learner"))
        by_sums = learner == "EffectRule" and _CURVATURES not in (charge.charge for charge in privacy.charges)
        own = _COMPOSED.get(learner, _ANY_COMPOSED)[not privacy.delta]
        return (own, "effect_sums") if by_sums and not privacy.delta else (own,)
    if name == "output" and public.get("threshold") == "squared loss":
        return ("output_squared",)
    if name == "subgroups" and public.get("law") == "gaussian":
        return ("subgroups_gaussian",)
    if name == "gaussian_process" and public.get("answers") == "online":
        return ("online",)
    return _MECHANISMS.get(name, (name,))


def charge_audits(charge: Charge) -> tuple[str, ...]:
    """Return the names of the audits of a charge beside the release's own."""
    return _CHARGES.get(charge, ())
