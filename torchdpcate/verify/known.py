"""What statements may say: mechanisms, each of which says what its own releases state, and words common to all.

Verification refuses whatever else a file says.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdpcate.erm.perturbation import PERTURBATIONS
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS
from torchdpcate.estimators.mechanism import ReleaseMechanism, Stated
from torchdpcate.privacy.charge import SCREENING
from torchdpcate.privacy.guarantee import Level, is_library_class
from torchdpcate.privacy.selection_mechanisms import SELECTIONS
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.policy import PolicyRelease
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.rule import RuleRelease
from torchdpcate.release.statement import TUNING
from torchdpcate.release.statistics import StatisticsRelease
from torchdpcate.verify.average_law import READOUTS

CANDIDATE = "candidate"
"""First word of what one of several candidates is charged."""

_RULE = ("learner", "weights", "outcome", "loss", "ridge")
_RULE_MAY = frozenset(
    (
        *("radius", "split", "seed", "outcome_low", "outcome_high", "outcome_centre", "outcome_clip"),
        *("propensity", "propensity_ridge", "propensity_perturbation", "propensity_tilt_scale"),
        *("propensity_epsilon_jacobian", "indirect_sensitivity", "weights_ridge", "weights_cap", "weights_alpha"),
        *("weights_bandwidth", "matching", "bandwidth", "columns", "gap", "residual_model"),
        *("candidates", "selection_fraction"),
    )
)
_TILT = ("perturbation", "tilt_scale", "epsilon_jacobian", "solver_scale")
_RULES = {
    f"{way}_{kind}": Stated(Level.CERTIFIED, (RuleRelease.kind,), frozenset((*_RULE, *own)), _RULE_MAY)
    for way, own in (("objective", _TILT), ("output", ("noise_scale",)))
    for kind in PERTURBATIONS
}

_CHOICE = ("learner", "certificate", "policies", "actions", "floor", "spread")
_CHOICE_MAY = frozenset(
    (
        *("split", "seed", "guess", "guess_propensity", "guess_outcome", "ridge", "propensity_ridge", "constants"),
        *("beta_mu", "beta_e", "score_spread", "spill", "nuisance", "propensity", "outcome"),
    )
)
_CHOICES = {
    name: Stated(
        Level.CERTIFIED,
        (PolicyRelease.kind,),
        frozenset(_CHOICE),
        _CHOICE_MAY,
        ("row by row", "public nuisances"),
        mechanism.formula,
    )
    for name, mechanism in SELECTIONS.items()
}

_PAID = (
    *("score", "size", "spread", "difference", "table", "variance", "sum", "weights"),
    *("stage_one", "outcome_model", "balance", "difference_in_means"),
)
_FIT = (
    *("fitter", "share", "ridge", "perturbation", "tilt_scale", "epsilon_jacobian", "solver_scale"),
    *("steps", "length", "momentum", "gradient_scale"),
    *("order", "gamma", "radius", "gradient_sensitivity", "dry_run_acceptance"),
)
_FITTED = ("weights", "outcome_model")
_FITTERS = ("objective", "noisy_gradient", "k_norm_gradient")
_AVERAGE_MAY = frozenset(
    (
        *("holds_if", "loss", "basis", "noise_per_record", "outcome_bounds", "slope_bound"),
        *("nuisance", "split", "seed", "size_range", "groups", "ridge", "floor_treated", "floor_control"),
        *(f"epsilon_{part}" for part in _PAID),
        *(f"scale_{part}" for part in _PAID),
        *(f"{part}_scale" for part in _PAID),
        *(f"{fitted}_{name}" for fitted in _FITTED for name in _FIT),
    )
)
_AVERAGES = {
    name: Stated(
        Level.CERTIFIED,
        (AverageEffectRelease.kind,),
        frozenset(("learner", "estimand", "eta")),
        _AVERAGE_MAY,
        conditions=None,
    )
    for name in READOUTS
}

FAMILIES: tuple[Mapping[str, ReleaseMechanism], ...] = (MECHANISMS,)
"""Mechanisms by the names that statements give them, family by family."""

_OTHERS: dict[str, Stated] = {**_RULES, **_CHOICES, **_AVERAGES}  # of families that are not listed above


def mechanism_of(name: str) -> ReleaseMechanism | None:
    """Return the mechanism that statements call so; None if there is none."""
    return next((family[name] for family in FAMILIES if name in family), None)


def is_known(name: str) -> bool:
    """Whether statements may call a mechanism so; nothing is imported to answer."""
    return name in _OTHERS or any(name in family for family in FAMILIES)


def stated(name: str) -> Stated | None:
    """Return what releases by the mechanism of this name may state; None if there is none: it may claim nothing.

    A mechanism that is no class of the library, which somebody registered, is conditional at most.
    """
    mechanism = mechanism_of(name)
    if mechanism is None:
        return _OTHERS.get(name)
    states = mechanism.states
    own = is_library_class(mechanism if isinstance(mechanism, type) else type(mechanism))
    return states if own or states.highest == Level.HEURISTIC else replace(states, highest=Level.CONDITIONAL)


COMMON_CONDITIONS = (
    "mechanism",
    "learner",
    "score",
    "feature map",
    "loss",
    "outcome",
    "matching",
    "residual model",
    "weights",
    "nuisances",
    "second stage",
)
"""Names of conditions that any release may rest on: what a user brought in place of the library's."""

LABELS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (FunctionRelease.kind, QueryRelease.kind, StatisticsRelease.kind),
        ("DP-SGD", "nuisances: ", "Huber threshold: ", SCREENING.words, "second stage: ", "release by "),
    ),
    RuleRelease.kind: ("weights: ", "outcome: ", "release by ", f"{CANDIDATE} ", "choice among candidates", "rule, "),
    PolicyRelease.kind: ("DP-SGD", "nuisances: ", "release by "),
    AverageEffectRelease.kind: ("DP-SGD", "nuisances: ", "weights: ", "outcome model: ", "release by "),
}
"""How the labels of charges begin, by kind of release."""

CHARGE_KEYS = frozenset(("label", "level", "event", "count", "later"))
"""What a charge may say; ``later`` is what a filter of charges counts."""

BLOCK_KEYS = frozenset(("name", "n", "charges", "epsilon", "delta", "naive_epsilon", "level"))
"""What a block of records may say."""

CONDITION_KEYS = frozenset(("name", "text", "holds"))
"""What a condition says."""


_SWEEP = (
    r"run [0-9]{1,9} \(counted from 0\) of a sweep over the same records: each run spends a budget of its own, what is "
    r"published of them adds up, and a choice among them by what they showed of these records is paid for nowhere"
)
_CANDIDATES = (
    r"([0-9]{1,9}) candidates were trained on disjoint parts of the records and one was chosen privately on another "
    r"part; all of it is in this ledger"
)
_CROSS_VALIDATION = "the ridge was chosen by cross-validation on the same records, which nothing paid for"


def is_tuning(tuning: Mapping[str, Any]) -> bool:
    """Whether the library says this of tuning."""
    runs, text = tuning.get("runs"), str(tuning.get("text"))
    if tuning.keys() != {"runs", "text"}:
        return False
    if runs is None:
        return re.fullmatch(_SWEEP, text) is not None
    if type(runs) is not int or runs < 1:
        return False
    found = re.fullmatch(_CANDIDATES, text)
    return tuning == TUNING or text == _CROSS_VALIDATION or (found is not None and int(found[1]) == runs)


def constants_problem(public: Mapping[str, Any], known: Stated) -> str | None:
    """Return what is wrong with the names of a mechanism's public constants; None if nothing is."""
    missing = known.needs - public.keys()
    if missing:
        return f"its public constants lack {', '.join(sorted(missing))}"
    # a fitter of another maker tells what it likes
    own = tuple(f"{name}_" for name in _FITTED if public.get(f"{name}_fitter", _FITTERS[0]) not in _FITTERS)
    strange = {name for name in public.keys() - known.needs - known.may if not name.startswith((*own, *known.prefixes))}
    return f"its public constants hold {', '.join(map(repr, sorted(strange)))}, which none tells" if strange else None
