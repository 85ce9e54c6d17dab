"""The replay check: run a pipeline again with one record replaced and every charged output kept as it was."""

import dataclasses
import hashlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn

from tests.tools.replay.tape import Difference, RecordingNoise, ReplayingNoise, innermost, unpaid, watched
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData, public_split
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.heads.linear import sensitivity
from torchdpcate.heads.stage import FittedStage, LinearStage
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import Release

_PLAIN = (str, bytes, int, float, type(None))
_PROBLEM = ("n", "ridge", "threshold", "weight_bound", "target_bound", "tolerance", "condition")
SECOND_STAGE_RECORDS = "learner.stage_.block"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def leaves(value: Any, path: str = "result") -> dict[str, Any]:
    """Every tensor and plain value inside ``value``, by a dotted path.

    Modules give their state, objects with ``to_dict`` that dictionary, dataclasses their fields, functions and classes
    their names.
    """
    if isinstance(value, Enum):
        return {path: value.value}
    if isinstance(value, _PLAIN):
        return {path: value}
    if isinstance(value, np.generic):
        return {path: value.item()}
    if isinstance(value, Tensor | np.ndarray):
        return {path: torch.as_tensor(value).detach().cpu()}
    if isinstance(value, nn.Module):
        return {path: type(value).__name__} | leaves(value.state_dict(), path)
    if isinstance(value, Mapping):
        return {k: v for name, part in value.items() for k, v in leaves(part, f"{path}.{name}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, part in enumerate(value) for k, v in leaves(part, f"{path}[{i}]").items()}
    if hasattr(value, "to_dict") and not isinstance(value, type):
        return {path: type(value).__name__} | leaves(value.to_dict(), path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {path: type(value).__name__} | leaves(fields, path)
    if callable(value):
        return {path: getattr(value, "__qualname__", type(value).__qualname__)}
    raise InputError(
        f"{path} is a {type(value).__name__}: return releases, learners, folders, tensors and plain values"
    )


def outcome(result: Any) -> dict[str, Any]:
    """The leaves of what a pipeline returned.

    A release is read back from a file of its own, so that nothing in the file is overlooked. A ``folder`` is read
    file by file, names included. Of a learner the public facts are taken: settings, ledger, blocks of records, paid
    numbers, declared bounds and sensitivities; not its private fit.
    """
    if isinstance(result, Release):
        return _release(result)
    release, learner, folder = (getattr(result, name, None) for name in ("release", "learner", "folder"))
    if release is None and learner is None and folder is None:
        return leaves(result)
    found = _release(release) if isinstance(release, Release) else leaves(release, "release")
    found |= {} if learner is None else _learner(learner)
    return found | ({} if folder is None else _folder(Path(folder), "folder"))


def compare(on_d: Mapping[str, Any], on_neighbour: Mapping[str, Any], kind: str) -> list[Difference]:
    """The leaves that are not the same, bit for bit."""
    found = []
    for path in dict.fromkeys([*on_d, *on_neighbour]):
        before, after = on_d.get(path, _ABSENT), on_neighbour.get(path, _ABSENT)
        if not _same(before, after):
            found.append(Difference(kind, path, *_shown(before, after)))
    return found


def records_of(result: Any) -> dict[str, tuple[Tensor, ...]]:
    """The records of the second-stage block as the fit saw them, row by row; empty if there is no learner."""
    stage = getattr(getattr(result, "learner", None), "stage_", None)
    if not isinstance(stage, FittedStage):
        return {}
    return {SECOND_STAGE_RECORDS: (stage.block.x.cpu(), stage.block.s.cpu(), stage.block.w.cpu())}


def rows_moved(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> int:
    """How many rows are not the same in all parts; all of them if the shapes differ."""
    if [part.shape for part in before] != [part.shape for part in after]:
        return max(len(before[0]), len(after[0]))
    changed = [(one != other).reshape(len(one), -1).any(1) for one, other in zip(before, after, strict=True)]
    return int(torch.stack(changed).any(0).sum())


def _release(release: Release) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        release.save(Path(folder) / "release.safetensors")
        return _folder(Path(folder), "release")


def _folder(folder: Path, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        name = file.relative_to(folder).as_posix()
        inside = path if name == "release.safetensors" else f"{path}/{name}"
        found |= {f"{path}/{name}": "a file"} | leaves(_contents(file), inside)
    return found


def _contents(file: Path) -> Any:
    """What a file says: the order of a safetensors file's metadata, for one, means nothing."""
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(file, "pt") as opened:
            metadata = {name: _parsed(text) for name, text in (opened.metadata() or {}).items()}
            return metadata | {"tensors": {name: opened.get_tensor(name) for name in opened.keys()}}  # noqa: SIM118
    if file.suffix == ".json":
        return _parsed(file.read_text())
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _learner(learner: CATELearner) -> dict[str, Any]:
    settings = {k: v for k, v in learner.get_params(deep=False).items() if k not in ("noise", "ledger_path")}
    ledger = getattr(learner, "ledger_", None)
    facts = {
        "settings": settings,
        "schema_": getattr(learner, "schema_", None),
        "blocks_": getattr(learner, "blocks_", None),
        "plan_": learner.plan_.facts() if hasattr(learner, "plan_") else None,
        "nuisances_": getattr(learner, "nuisances_", None),
        "threshold_": getattr(learner, "threshold_", None),
        "stage_": _stage(getattr(learner, "stage_", None)),
        "ledger_": None if ledger is None else {"entries": ledger.entries, "spent": ledger.spent()},
    }
    return leaves(facts, "learner")


def _stage(stage: FittedStage | None) -> dict[str, Any]:
    """The public facts of a fitted stage, which the certificate's constants are made of."""
    if stage is None:
        return {}
    facts = {"class": type(stage).__name__, "ridge": stage.ridge, "unit": stage.unit}
    facts |= {"domain": stage.block.domain, "bounds": stage.block.bounds}
    if isinstance(stage, LinearStage):
        problem = stage.problem
        facts |= {"features": stage.features, "sensitivity": sensitivity(problem)}
        facts["problem"] = {name: getattr(problem, name) for name in _PROBLEM}
    return facts


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        alike = before.shape == after.shape and before.dtype == after.dtype
        return alike and bool(torch.equal(_bits(before), _bits(after)))
    return type(before) is type(after) and (before == after or repr(before) == repr(after))


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: nan equals nan, and 0 is not -0."""
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor


def _shown(before: Any, after: Any) -> tuple[str, str]:
    if isinstance(before, Tensor) and isinstance(after, Tensor) and before.shape == after.shape:
        changed = before != after
        where = int(changed.flatten().to(torch.uint8).argmax())
        count = f"{int(changed.sum())} of {changed.numel()} numbers"
        return f"{before.flatten()[where].item()!r}, the first of {count}", repr(after.flatten()[where].item())
    return _brief(before), _brief(after)


def _brief(value: Any) -> str:
    text = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


Pipeline = Callable[[CausalData, NoiseSource], Any]
"""Runs on records with a noise source; returns what ``outcome`` can read, such as a ``Run``."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a learner's pipeline returns."""

    release: Release
    learner: CATELearner


@dataclass(frozen=True)
class ReplayReport:
    """What one record changed besides the charged outputs. Not private: the differences may quote records."""

    differences: list[Difference]
    neighbours: int
    outputs: int

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def __str__(self) -> str:
        """One line for each difference."""
        head = f"neighbours replayed: {self.neighbours}, charged outputs kept: {self.outputs}, "
        lines = [f"  {d.kind} at {d.place}: {d.on_d} on D, {d.on_neighbour} on a neighbour" for d in self.differences]
        return "\n".join([f"{head}differences: {len(lines)}", *lines])


def replay(
    pipeline: Pipeline, records: CausalData, *neighbours: CausalData, noise: NoiseSource | None = None
) -> ReplayReport:
    """Report what a pipeline shows of one record beyond the outputs that were charged.

    The pipeline runs on D, where its noise and charged outputs are recorded; again on D, which finds what does not
    repeat by itself; then on each neighbour. Noise and charged outputs are those of the first run throughout, so
    that all else a reader gets has to be the same: order, places, sizes and scales of the draws, ledger, release,
    public facts, blocks, exceptions, warnings and printed text. A scale drawn with a step of its own may be secret.
    The records keep their order: neighbours as lists that differ in one place are what a random order makes of tables.
    On any data set each output needs a charge and a draw before it (``unpaid``). The blocks that train may differ in
    one record.

    What passes is no proof: scales that are wrong on every data set alike are the attacks' business, and another
    neighbour may show more. A record that no batch of DP-SGD drew shows nothing there.
    """
    _check(records, neighbours)
    recording = RecordingNoise(noise, keep_order=True)
    _run(pipeline, records, recording)
    found = unpaid(recording.tape)
    on_d, again = _run_again(pipeline, records, recording)
    found += [dataclasses.replace(d, kind=f"not repeatable: {d.kind}") for d in again.differences]
    for neighbour in neighbours:
        seen, again = _run_again(pipeline, neighbour, recording)
        found += [*again.differences, *unpaid(again.tape), *_compare(on_d, seen)]
    if on_d.error is not None and not found:
        raise on_d.error
    once = {(d.kind, d.place): d for d in reversed(found)}
    outputs = sum(call.kind == "released" for call in recording.tape)
    return ReplayReport(list(reversed(once.values())), len(neighbours), outputs)


def learner_pipeline(
    learner: CATELearner,
    release: str = "function",
    mechanism: "str | Mechanism" = "objective",
    queries: Tensor | None = None,
) -> Pipeline:
    """Return the pipeline that fits a copy of a learner and releases from it."""
    if release not in ("function", "queries"):
        raise InputError(f"release = {release}: choose function or queries")
    points = TableSchema.of(learner.domain).grid(16) if queries is None else queries

    def pipeline(records: CausalData, noise: NoiseSource) -> Run:
        fresh = clone(learner).set_params(noise=noise, ledger_path=None)
        schema = TableSchema.of(learner.domain)
        fresh.fit(records.x, records.a, schema.outcome_of(records), **schema.own(records))
        if release == "function":
            return Run(fresh.release_function(mechanism), fresh)
        return Run(fresh.release_queries(points, mechanism), fresh)

    return pipeline


def neighbours_for_replay(
    records: CausalData, domain: Domain | TableSchema, split: float = 0.5, seed: int = 0
) -> list[CausalData]:
    """Return a few extreme neighbours of the records.

    Replaced are the first and the last record and the first one of each block; each by the lowest and the highest
    corner of the domain, with another arm and the outcome at the same bound.
    """
    schema = TableSchema.of(domain)
    ends = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    inside = torch.cat([covariate.decode_unit(ends) for covariate in schema.covariates], dim=1)
    low, high = schema.domain.covariate_low, schema.domain.covariate_high
    corners = torch.where(inside > (low + high) / 2, high, low)  # without the rounding of the last covariate value
    outcomes = (schema.domain.outcome_low, schema.domain.outcome_high)
    first, second = public_split(records.n, split, seed)
    arms = sorted({*schema.actions, *map(int, records.a.unique().tolist())})  # a learner may name more than its domain
    arms = arms if schema.pairs is None else [1]  # records treated of each pair
    following = dict(zip(arms, (*arms[1:], arms[0]), strict=True))
    made = []
    for index in dict.fromkeys([0, records.n - 1, int(first[0]), int(second[0])]):
        for corner, y in zip(corners, outcomes, strict=True):
            x, a, outcome_ = records.x.clone(), records.a.clone(), records.y.clone()
            x[index], a[index], outcome_[index] = corner, following[int(a[index])], y
            known = None if records.propensity is None else records.propensity.clone()
            if known is not None and schema.propensity_column is not None:
                known[index] = 1 - known[index]  # within bounds that lie evenly about a half
            weight = None if records.weight is None else records.weight.clone()
            if weight is not None:
                weight[index] = 1 - weight[index].round()  # from one end to the other
            follow_up, censoring = records.follow_up, schema.domain.censoring
            if follow_up is not None and censoring is not None:
                follow_up = follow_up.clone()
                follow_up[index] = torch.tensor([0.0 if y == outcomes[0] else censoring.horizon, float(corner[0] > 0)])
                outcome_[index] = censoring.outcome(follow_up[index][None])[0]
            if follow_up is not None and schema.pairs is not None:
                follow_up = follow_up.clone()
                follow_up[index] = torch.tensor([*outcomes] if y == outcomes[0] else [*outcomes][::-1])
            made.append(CausalData(x, a, outcome_, known, weight=weight, follow_up=follow_up))
    return made


@dataclass
class _Seen:
    """What is seen of one run from outside."""

    leaves: dict[str, Any] = field(default_factory=dict)
    records: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    printed: str = ""
    error: Exception | None = None


def _run_again(pipeline: Pipeline, records: CausalData, recording: RecordingNoise) -> tuple[_Seen, ReplayingNoise]:
    replaying = ReplayingNoise(recording.tape, recording.inner)
    seen = _run(pipeline, records, replaying)
    if seen.error is None:
        replaying.finish()
    return seen, replaying


def _run(pipeline: Pipeline, records: CausalData, noise: RecordingNoise) -> _Seen:
    """Run the pipeline from the same global seeds each time; nothing that it prints gets through."""
    from lightning.pytorch.utilities.seed import isolate_rng

    seen, printed = _Seen(), io.StringIO()
    quietly = redirect_stdout(printed), redirect_stderr(printed)
    with isolate_rng(), warnings.catch_warnings(record=True) as caught, watched(noise), quietly[0], quietly[1]:
        try:
            result = pipeline(records, noise)
        except Exception as error:
            seen.error = error
    if seen.error is None:
        seen.leaves, seen.records = outcome(result), records_of(result)
    trained = [call for call in noise.tape if call.kind == "dp_sgd" and call.output is not None]
    seen.records |= {f"DP-SGD run {i} at {call.place}": tuple(call.output) for i, call in enumerate(trained)}
    seen.warnings = [f"{w.category.__name__}: {w.message}" for w in caught]
    seen.printed = printed.getvalue()
    return seen


def _compare(on_d: _Seen, on_neighbour: _Seen) -> list[Difference]:
    found = []
    raised = [_raised(seen.error) for seen in (on_d, on_neighbour)]
    if raised[0] != raised[1]:
        error = on_neighbour.error or on_d.error
        assert error is not None
        found.append(Difference("exception", innermost(error.__traceback__), *raised))
    if on_d.error is None and on_neighbour.error is None:
        found += compare(on_d.leaves, on_neighbour.leaves, "result")
    found += compare(leaves(on_d.warnings, "warnings"), leaves(on_neighbour.warnings, "warnings"), "warning")
    found += compare({"text": on_d.printed}, {"text": on_neighbour.printed}, "printed")
    return found + _moved(on_d.records, on_neighbour.records)


def _raised(error: Exception | None) -> str:
    return "no exception" if error is None else f"{type(error).__name__}: {error}"


def _moved(on_d: Mapping[str, tuple[Tensor, ...]], on_neighbour: Mapping[str, tuple[Tensor, ...]]) -> list[Difference]:
    """Blocks that differ in more than the one record, which lies in one of them (DP-SGD may train on it twice)."""
    moved = {name: rows_moved(rows, on_neighbour[name]) for name, rows in on_d.items() if name in on_neighbour}
    trained = max((count for name, count in moved.items() if name != SECOND_STAGE_RECORDS), default=0)
    if trained + moved.get(SECOND_STAGE_RECORDS, 0) <= 1:
        return []
    return [Difference("records", name, "one replaced", f"{count} differ") for name, count in moved.items() if count]


def _check(records: CausalData, neighbours: Sequence[CausalData]) -> None:
    if not neighbours:
        raise InputError("neighbours: give at least one; see neighbours_for_replay")
    before = (records.x, records.a, records.y)
    for number, neighbour in enumerate(neighbours):
        moved = rows_moved(before, (neighbour.x, neighbour.a, neighbour.y))
        if moved != 1:
            raise InputError(f"neighbours[{number}] differs from the records in {moved} of them; replace exactly one")
