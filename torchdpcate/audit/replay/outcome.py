"""The outcome of a run, leaf by leaf: all that a reader gets or may infer, and the public facts of the learner."""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate.audit.replay.tape import Difference
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.release.release import Release
from torchdpcate.second_stage.linear import sensitivity
from torchdpcate.second_stage.stage import FittedStage, LinearStage

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

    Raises:
        InputError: Something else, which cannot be compared.

    Example:
        >>> leaves({"theta": [1.0, 2.0]}, "release")
        {'release.theta[0]': 1.0, 'release.theta[1]': 2.0}
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

    Args:
        result: A release; or an object with any of ``release``, ``learner`` and ``folder``; or plain data.

    Raises:
        InputError: A part that ``leaves`` cannot read.
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
    """The leaves that are not the same, bit for bit.

    Example:
        >>> compare({"ridge": 0.1}, {"ridge": 0.2}, "result")
        [Difference(kind='result', place='ridge', on_d='0.1', on_neighbour='0.2')]
    """
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
