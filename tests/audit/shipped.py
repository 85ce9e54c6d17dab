"""The results of the guarantees page, and which of them attack what a release was charged for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.worst_case import Target
from torchdpcate.release.statement import PrivacyStatement

ROOT = Path(__file__).parents[2]
PAGE, TRUTH = ROOT / "docs" / "guarantees" / "audit.json", ROOT / "experiments" / "audit" / "influence_truth.json"


def shipped_results() -> dict[str, dict[str, Any]]:
    """Return what audits found on the worst-case pairs of the registry, by name."""
    return {result["mechanism"]: result for result in json.loads(PAGE.read_text(encoding="utf-8"))["results"]}


def audits_of(privacy: PrivacyStatement, results: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which audits attacked what a release was charged for, those of its own mechanism first.

    Of the audits of one charge, one of any release gives way to those of releases with its constants.
    """
    own = Charge(Purpose.RELEASE, privacy.mechanism)
    targets = [(name, Target.from_dict(target)) for name, result in results.items() for target in result["attacks"]]
    terms = {"pure": not privacy.delta, "person": bool(privacy.person)}
    names: list[str] = []
    for charge in [own, *(paid.charge for paid in privacy.charges)]:
        fitting = [(name, target) for name, target in targets if target.fits(charge, privacy.public, **terms)]
        names += [
            name
            for name, target in fitting
            if not any(
                other.charge == target.charge and other.public.keys() > target.public.keys() for _, other in fitting
            )
        ]
    return tuple(dict.fromkeys(names))
