"""Releases with statements that agree with themselves, and edits of their files by somebody who knows the format."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.release.helpers import QUERIES, SCHEMA
from torchdpcate.privacy import (
    ApproximateEvent,
    Condition,
    DPSGDEvent,
    GaussianEvent,
    Guarantee,
    Ledger,
    Level,
    PrivacyBudget,
    PureEvent,
)
from torchdpcate.release import PrivacyStatement, QueryRelease, make_statement
from torchdpcate.release.digest import release_digest

BUDGET = PrivacyBudget(2.0, 1e-5)
SIZES = {"nuisance": 500, "second_stage": 501}
PUBLIC = {"learner": "RLearner", "split": 0.5, "seed": 7, "ridge": 0.01, "epsilon_jacobian": 0.12}
C2 = "smooth scale: needs n >= 9,000 records"


def guarantee(level: Level, holds: bool | None = None) -> Guarantee:
    """A guarantee of the level; a conditional one on a condition that holds as given."""
    conditions = {
        Level.CERTIFIED: (),
        Level.CONDITIONAL: (Condition("C1", "local sensitivity", True), Condition("C2", C2, holds)),
        Level.HEURISTIC: (Condition("unique minimiser", "a neural head has several", False),),
    }[level]
    return Guarantee(level, BUDGET, conditions, "a source")


def statement(
    level: Level = Level.CERTIFIED, holds: bool | None = None, private: bool = True, gaussian: bool = False
) -> PrivacyStatement:
    """The statement of a learner's first release, as a ledger gives it."""
    ledger = Ledger({"nuisance": BUDGET, "second_stage": BUDGET}, private=private)
    ledger.charge("nuisance", "DP-SGD", DPSGDEvent(2.5, 0.05), 100)
    ledger.charge("nuisance", "Huber threshold: private quantile of |s|", PureEvent(0.1))
    event = GaussianEvent(2.5) if gaussian else ApproximateEvent(2.0, 1e-5)
    mechanism = "influence" if level is not Level.CERTIFIED else "output"
    own = ledger.charge("second_stage", f"release by {mechanism}", event, level=level)
    return make_statement(
        guarantee(level, holds),
        ledger,
        SIZES,
        own={own},
        mechanism=mechanism,
        formula="sd = gamma 5 sqrt(2 ln n ln(2/delta)) / (epsilon n)",
        public=PUBLIC,
        private_noise=private,
        bounds_origin=SCHEMA.domain.origin,
    )


def release(privacy: PrivacyStatement) -> QueryRelease:
    return QueryRelease(QUERIES, torch.linspace(-1, 1, 8, dtype=torch.float64), SCHEMA, privacy)


def rewritten(path: Path, **changes: str | None) -> Path:
    """Change metadata of a release file (None takes an entry out), with a checksum that fits unless given."""
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    metadata = {key: text for key, text in (metadata | changes).items() if text is not None}
    if "sha256" not in changes:
        metadata["sha256"] = release_digest(metadata, tensors)
    save_file(tensors, path, metadata=metadata)
    return path


def restated(path: Path, edit, checksum: bool = True) -> Path:
    """Edit the privacy statement of a release file in place; with ``checksum`` the editor writes a new one."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    privacy = json.loads(metadata["privacy"])
    edit(privacy)
    kept = {} if checksum else {"sha256": metadata["sha256"]}
    return rewritten(path, privacy=json.dumps(privacy), **kept)
