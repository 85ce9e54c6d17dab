"""Releases with statements that agree with themselves, and edits of their files with knowledge of the format."""

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open

from tests.release.helpers import DOMAIN, QUERIES, SCHEMA
from torchdpcate._templates import render
from torchdpcate.causal.score import RScore
from torchdpcate.estimators.cate.effect_plan import EffectPlan
from torchdpcate.estimators.cate.head import Head
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation
from torchdpcate.estimators.cate.mechanisms.perturbation import ObjectivePerturbation, OutputPerturbation
from torchdpcate.estimators.cate.mechanisms.worst_pairs import given_stage
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.heads.linear import LinearProblem
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import DP_SGD, Charge, Purpose
from torchdpcate.privacy.charge import THRESHOLD as HUBER
from torchdpcate.privacy.events import DPSGDEvent, PureEvent
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.file import Release, ReleaseFile, release_digest
from torchdpcate.release.release import QueryRelease
from torchdpcate.release.statement import PrivacyStatement, bounds_of, make_statement
from torchdpcate.verify.card import card_values

BUDGET = PrivacyBudget(2.0, 1e-5)
SIZES = {"nuisance": 500, "second_stage": 501}
RIDGE, THRESHOLD = 1.0, 0.5
FEATURES = Legendre(2).setup(DOMAIN)
HEAD = {"features": {"name": "legendre", "degree": 2}}
C2 = "smooth scale: needs n >= 9,000 records"


def card_html(made: Release, path: Path | None = None) -> str:
    """Return the card of a release, which its page ends with."""
    return render("card_parts.html", **card_values(made, path))


def problem(threshold: float) -> LinearProblem:
    """The public facts of the second stage."""
    n, bounds, zero = SIZES["second_stage"], RScore().bounds(DOMAIN), torch.zeros(1, dtype=torch.float64)
    psi = zero[None].expand(n, FEATURES.dimension)
    return LinearProblem(psi, zero.expand(n), zero.expand(n), RIDGE, bounds.weight, bounds.target, threshold)


def guarantee(level: Level, holds: bool | None = None) -> Guarantee:
    """A guarantee of the level; a conditional one on the mechanism's conditions, or on one that is known to fail."""
    if level is Level.CONDITIONAL and holds is None:
        return InfluencePerturbation().guarantee(given_stage(problem(math.inf)), BUDGET, len(QUERIES))
    conditions = {
        Level.CERTIFIED: (),
        Level.CONDITIONAL: (Condition("C1", "local sensitivity", True), Condition("C2", C2, holds)),
        Level.HEURISTIC: (Condition("unique minimiser", "a neural head has several", False),),
    }[level]
    return Guarantee(level, BUDGET, conditions, "a source")


def effect_plan(level: Level, gaussian: bool) -> EffectPlan:
    """The plan of a mechanism of the level."""
    chosen: Mechanism = InfluencePerturbation()
    if level is Level.CERTIFIED:
        chosen = OutputPerturbation() if gaussian else ObjectivePerturbation()
    given, threshold = problem(THRESHOLD), THRESHOLD if level is Level.CERTIFIED else math.inf
    head = Head(
        n=given.n,
        ridge=RIDGE,
        weight_bound=given.weight_bound,
        target_bound=given.target_bound,
        threshold=threshold,
        domain=SCHEMA.domain,
        size=FEATURES.dimension,
        answers=len(QUERIES),
    )
    return EffectPlan(chosen, chosen.law(head, BUDGET), head, BUDGET, "RLearner", 0.5, 7, SIZES)


def statement(
    level: Level = Level.CERTIFIED, holds: bool | None = None, private: bool = True, gaussian: bool = False
) -> PrivacyStatement:
    """The statement of a learner's first release, as a ledger gives it."""
    ledger = Ledger({"nuisance": BUDGET, "second_stage": BUDGET}, private=private)
    ledger.open_plan()
    ledger.charge("nuisance", DP_SGD, DPSGDEvent(2.04, 0.05), 100)
    ledger.charge("nuisance", HUBER, PureEvent(0.1))
    planned = effect_plan(level, gaussian)
    name = planned.mechanism.name
    ledger.close_plan()
    own = ledger.charge("second_stage", Charge(Purpose.RELEASE, name), planned.law.event, level=level)
    noise = NoiseSource.system() if private else NoiseSource.fixed(0)
    return make_statement(
        FitSession(noise, BUDGET, ledger, SIZES),
        guarantee(level, holds),
        own={own},
        mechanism=name,
        formula=planned.formula,
        public=planned.public(),
        bounds_origin=SCHEMA.domain.origin,
        bounds=bounds_of(SCHEMA.domain),
    )


def release(privacy: PrivacyStatement) -> QueryRelease:
    """A release of answers with this statement, and the noise scales of its mechanism."""
    scale = None
    if "threshold" in privacy.public:
        planned = effect_plan(Level.CERTIFIED, "noise_scale" in privacy.public)
        scale = planned.mechanism.band(planned.law)
    answers = torch.linspace(-1, 1, len(QUERIES), dtype=torch.float64)
    scales = None if scale is None else scale * FEATURES.norm(QUERIES)
    return QueryRelease(QUERIES, answers, SCHEMA, privacy, scales, head=HEAD)


def write_file(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> Path:
    """Write a release file of these contents, whatever they are, as the library writes its own."""
    path.write_bytes(ReleaseFile(path, metadata, tensors).to_bytes())
    return path


def write_anew(path: Path, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> Path:
    """Write a release file of these contents with a checksum that fits."""
    return write_file(tensors, path, {**metadata, "sha256": release_digest(metadata, tensors)})


def rewritten(path: Path, **changes: str | None) -> Path:
    """Change metadata of a release file (None takes an entry out), with a checksum that fits unless given."""
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    metadata = {key: text for key, text in (metadata | changes).items() if text is not None}
    if "sha256" not in changes:
        metadata["sha256"] = release_digest(metadata, tensors)
    return write_file(tensors, path, metadata)


def restated(path: Path, edit, checksum: bool = True) -> Path:
    """Edit the privacy statement of a release file in place; with ``checksum`` the editor writes a new one."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    privacy = json.loads(metadata["privacy"])
    edit(privacy)
    kept = {} if checksum else {"sha256": metadata["sha256"]}
    return rewritten(path, privacy=json.dumps(privacy), **kept)
