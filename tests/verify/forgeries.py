"""Forgeries of releases with knowledge of the format, which redo every sum, and makes the costs fit what was edited."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.verify.forgery import write_file
from torchdpcate.cli.run import write_release, write_statement
from torchdpcate.errors import VerificationError
from torchdpcate.privacy.accounting import compose, naive_sum
from torchdpcate.privacy.events import event_from_dict
from torchdpcate.privacy.filters import cost_from, stated_cost
from torchdpcate.privacy.unit import PrivacyUnit
from torchdpcate.release.file import Release, release_digest
from torchdpcate.release.statement import claim_sentence
from torchdpcate.verify.file import verify_release


@dataclass
class Draft:
    """What a release file holds, to be edited.

    Attributes:
        privacy: The statement.
        facts: Public facts.
        tensors: Tensors by name.
        metadata: Further metadata.
        schema: Columns and bounds.
    """

    privacy: dict[str, Any]
    facts: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]
    schema: dict[str, Any]

    @property
    def charges(self) -> list[dict[str, Any]]:
        """All charges of all blocks."""
        return [charge for block in self.privacy["blocks"] for charge in block["charges"]]

    def block(self, name: str) -> dict[str, Any]:
        """A block by its name."""
        return next(block for block in self.privacy["blocks"] if block["name"] == name)


Edit = Callable[[Draft], None]


def written(makers: Mapping[str, Callable[[], Release]], folder: Path) -> Callable[[str], Path]:
    """Return what gives the path of a release of a kind, in a folder as a run writes it; each is made once."""
    paths: dict[str, Path] = {}

    def path(kind: str) -> Path:
        if kind not in paths:
            paths[kind] = folder / kind / "release.safetensors"
            release = makers[kind]()
            write_release(release, folder / kind)
            write_statement(release, folder / kind)
        return paths[kind]

    return path


def opened(path: Path) -> Draft:
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    privacy, facts, schema = (json.loads(metadata[name]) for name in ("privacy", "facts", "schema"))
    return Draft(privacy, facts, tensors, metadata, schema)


def forged(path: Path, edit: Edit, target: Path) -> Path:
    """Write an edited copy of a release, with the statement's files and all sums made to fit."""
    draft = opened(path)
    edit(draft)
    texts = {name: json.dumps(getattr(draft, name)) for name in ("privacy", "facts", "schema")}
    metadata = {**draft.metadata, **texts}
    metadata["sha256"] = release_digest(metadata, draft.tensors)
    return write_file(draft.tensors, target, metadata)


def recost(draft: Draft) -> None:
    """Make costs, totals, sentence and n fit the events."""
    privacy = draft.privacy
    for block in privacy["blocks"]:
        charges = [(event_from_dict(charge["event"]), charge["count"]) for charge in block["charges"]]
        delta = 0.0 if compose(charges, 0.0) < math.inf else block.get("delta") or 1e-5
        costs = {"epsilon": compose(charges, delta), "delta": delta, "naive_epsilon": naive_sum(charges, delta).epsilon}
        block |= {"level": "certified"} | block | costs
    for name in ("epsilon", "delta"):
        privacy[name] = max(block[name] for block in privacy["blocks"])
    privacy["n"] = sum(block["n"] for block in privacy["blocks"])
    privacy["claim"] = claim_sentence(privacy["epsilon"], privacy["delta"], privacy["level"])


def refusal(release: Release, folder: Path) -> str:
    with pytest.raises(VerificationError) as problem:
        verify_release(release.save(folder / "release.safetensors", overwrite=True))
    return str(problem.value)


def with_public(release: Release, **public: Any) -> Any:
    return replace(release, privacy=replace(release.privacy, public={**release.privacy.public, **public}))


def renamed(name: str) -> Edit:

    def edit(draft: Draft) -> None:
        old, draft.privacy["mechanism"] = draft.privacy["mechanism"], name
        for charge in draft.charges:
            if charge["purpose"] == "release" and charge["mechanism"] == old:
                charge["mechanism"] = name

    return edit


def certified(draft: Draft) -> None:
    """Events, costs and levels of a certified release, whatever it was."""
    privacy = draft.privacy
    privacy |= {"level": "certified", "private_noise": True, "conditions": []}
    for block in privacy["blocks"]:
        block["delta"] = 1e-5
        for charge in block["charges"]:
            charge |= {
                "level": "certified",
                "count": 1,
                "event": {"kind": "approximate", "epsilon": 0.5, "delta": 1e-6},
            }
            if charge.get("mechanism") == "dp_sgd":
                charge |= {"count": 20, "event": {"kind": "dp_sgd", "noise_multiplier": 3.0, "sampling_rate": 0.1}}
    recost(draft)


def nothing_assumed(draft: Draft) -> None:
    draft.privacy |= {"assumptions": [], "not_protected": [], "tuning": {}, "versions": {}, "accountant": {}}
    draft.privacy["bounds_origin"] = "audited by the ministry"


def free_nuisances(draft: Draft) -> None:
    draft.block("nuisance")["charges"] = []
    recost(draft)


def one_step(draft: Draft) -> None:
    for charge in draft.charges:
        if charge["event"]["kind"] == "dp_sgd":
            charge["count"] = 1
    recost(draft)


def tensor(draft: Draft) -> None:
    draft.tensors["records"] = torch.arange(2400, dtype=torch.float64).reshape(600, 4)


def metadata(draft: Draft) -> None:
    draft.metadata["note"] = "records"


def fact(draft: Draft) -> None:
    draft.facts["also"] = [1, 2, 3]


def copied(path: Path, folder: Path) -> Path:
    shutil.copytree(path.parent, folder)
    return folder / path.name


class DoesNotApplyError(Exception):
    """There is nothing in this kind of release that the forgery could change."""


def claimed(edit: Edit) -> Edit:
    """A forgery of a claim, whose costs, totals and sentence are made to fit."""

    def whole(draft: Draft) -> None:
        privacy = draft.privacy
        if privacy["epsilon"] is None:
            raise DoesNotApplyError
        edit(draft)
        unit = PrivacyUnit.from_dict(privacy.get("person", {}))
        for block in privacy["blocks"]:
            charges = [
                (event_from_dict(c["event"]), c["count"], cost_from(c["later"]) if "later" in c else None)
                for c in block["charges"]
            ]
            if stated_cost(charges, 0.0)[0] < math.inf:
                block["delta"] = 0.0
            block["epsilon"], block["naive_epsilon"] = stated_cost(charges, block["delta"])
        costs = (max(block[name] for block in privacy["blocks"]) for name in ("epsilon", "delta"))
        privacy["epsilon"], privacy["delta"] = unit.cost(*costs)
        privacy["n"] = sum(block["n"] for block in privacy["blocks"])
        privacy["claim"] = claim_sentence(privacy["epsilon"], privacy["delta"], privacy["level"], unit)

    return whole


@claimed
def conditional_without_a_condition(draft: Draft) -> None:
    """A certified release called conditional, charges and all."""
    if draft.privacy["level"] != "certified":
        raise DoesNotApplyError
    draft.privacy["level"] = "conditional"
    for block in draft.privacy["blocks"]:
        block["level"] = "conditional" if block["charges"] else "certified"
        for charge in block["charges"]:
            charge["level"] = "conditional"


def certified_with_a_condition(draft: Draft) -> None:
    """A certified release that states a condition."""
    if draft.privacy["level"] != "certified":
        raise DoesNotApplyError
    draft.privacy["conditions"] = [{"name": "learner", "text": "mine", "holds": None}]


@claimed
def events_without_delta(draft: Draft) -> None:
    events = [charge["event"] for charge in draft.charges if charge["event"].get("delta")]
    if not events:
        raise DoesNotApplyError
    for event in events:
        event["delta"] = 0.0


def narrower_outcome(draft: Draft) -> None:
    outcome = draft.schema["outcome"]
    if "horizon" in outcome:
        outcome["horizon"] /= 10
        return
    middle, half = (outcome["low"] + outcome["high"]) / 2, (outcome["high"] - outcome["low"]) / 20
    outcome["low"], outcome["high"] = middle - half, middle + half


def without_what_it_rests_on(draft: Draft) -> None:
    """Without the models that an estimate rests on."""
    if draft.privacy["public"].pop("assumptions", None) is None:
        raise DoesNotApplyError


def less_by_another_accountant(draft: Draft) -> None:
    """Claims half a thousandth less, as another version of the accountant might."""
    privacy = draft.privacy
    if privacy["epsilon"] is None:
        raise DoesNotApplyError
    privacy["versions"]["dp-accounting"] = privacy["accountant"]["version"] = "0.1"
    for costs in (privacy, *privacy["blocks"]):
        costs["epsilon"] *= 1 - 5e-4
    unit = PrivacyUnit.from_dict(privacy.get("person", {}))
    privacy["claim"] = claim_sentence(privacy["epsilon"], privacy["delta"], privacy["level"], unit)


EVERY: dict[str, Edit] = {
    "conditional without a condition": conditional_without_a_condition,
    "certified with a condition": certified_with_a_condition,
    "events without delta": events_without_delta,
    "an outcome ten times narrower": narrower_outcome,
    "without assumptions": without_what_it_rests_on,
    "less by another accountant": less_by_another_accountant,
}
"""Forgeries of any kind of release that do not agree with themselves."""
