"""Words of statements that earlier versions wrote, in those of this one, so that one set of checks reads both."""

from dataclasses import replace

from torchdpcate.release.policy import PolicyRelease
from torchdpcate.release.release import Release
from torchdpcate.release.rule import RuleRelease

_NAMES = {
    PolicyRelease.kind: {
        "certificate": "nuisance_guarantee",
        "floor": "overlap",
        "spread": "range_sensitivity",
        "spill": "indirect_sensitivity",
        "guess": "target",
        "guess_propensity": "target_propensity",
        "guess_outcome": "target_outcome",
    },
    RuleRelease.kind: {"gamma": "ridge", "spill": "indirect_sensitivity", "selection_block": "selection_fraction"},
}
"""New names of public constants by the old ones, by kind of release."""

_VALUES = {
    (PolicyRelease.kind, "target"): {"bought": "private"},
    (RuleRelease.kind, "outcome"): {"bought_residual": "private_residual"},
}
"""New words by the old ones, by kind of release and new name of the public constant."""


def in_present_words(release: Release) -> Release:
    """Return a release whose statement calls its public constants as this version does; nothing else changes.

    Args:
        release: As read from its file.
    """
    stated, public, names = release.privacy.public, {}, _NAMES.get(release.kind, {})
    for old, value in stated.items():
        name = old if names.get(old) in stated else names.get(old, old)  # both at once are none of any version's
        words = _VALUES.get((release.kind, name), {})
        public[name] = words.get(value, value) if isinstance(value, str) else value
    if public == release.privacy.public:
        return release
    return replace(release, privacy=replace(release.privacy, public=public))  # type: ignore[type-var]
