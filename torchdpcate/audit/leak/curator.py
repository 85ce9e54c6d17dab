"""What must not be released: the curator's numbers and the records, without the public facts among them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchdpcate.audit.leak.files import read_folder
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from torchdpcate.data.study import Study

# Settings, facts and private numbers that the curator's files hold besides; every other entry is a secret.
_PUBLIC = {
    "task", "data", "learner", "release", "mechanism", "level", "claim", "epsilon", "delta", "requested", "spent", "n",
    "blocks", "seed", "huber_threshold", "head_parameters", "public", "privacy", "schema", "facts", "nuisances",
    "noise", "ridge", "gamma", "hessian_bound", "rule_parameters", "range_sensitivity", "spread", "nuisance_guarantee",
    "effect", "estimand", "estimate",
    "low", "high", "width", "clipped", "generated", "plan", "shares", "residual_scale", "rung",
}  # fmt: skip
_SETTINGS = (
    "config.yaml",
    "noise.txt",
    "records.sha256",
    "ledger.json",
    "ledger.json.lock",
    "online/head.bin",
    "online/lock",
)
_SHORTEST_WORD = 4  # bytes: two Chinese letters are a word


@dataclass
class Curator:
    """The curator's side of a run.

    Attributes:
        scalars: Single numbers by name.
        vectors: Vectors by name, each [m].
        records: Columns of the records, encoded, as in their file and scaled by public bounds, each [n].
        public: Public numbers, any order.
        public_vectors: Public vectors by name.
        words: Texts of the records' table: identifiers, categories.
        public_text: Public text: schema, configuration and the package's own source.
        paths: Paths that the configuration names.
        sizes: Numbers of records, in all and per block, public.
        outcome_range: R, public; 1 where it is not known.
        rows: Encoded covariates of the records and, last, their outcome, [n, q + 1].
        notes: What could not be had.
    """

    scalars: dict[str, float] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    records: dict[str, np.ndarray] = field(default_factory=dict)
    public: list[np.ndarray] = field(default_factory=list)
    public_vectors: dict[str, np.ndarray] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    public_text: str = ""
    paths: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    outcome_range: float = 1.0
    rows: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)


def read_curator(run: Path) -> Curator:
    """Read ``curator/`` and ``summary.json`` of a run, and the records from where its configuration says.

    Args:
        run: Run folder.

    Raises:
        InputError: No run, or one without its curator's files.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    for name in ("release", "curator"):
        if not (run / name).is_dir():
            raise InputError(f"run = {run}: has no folder {name}; give a run's own, with release and curator")
    curator = Curator()
    _read_files(curator, run)
    config: dict[str, Any] = {}
    try:
        config = OmegaConf.to_container(OmegaConf.load(run / "curator" / "config.yaml"))  # type: ignore[assignment]
    except (OSError, ValueError, YAMLError) as error:
        curator.notes.append(f"curator/config.yaml cannot be read ({type(error).__name__}): records not compared")
    curator.public.append(_numbers_of(config))
    curator.paths = _paths(config)
    curator.public_text = "\n".join([*_texts_of(config), _package_text()])
    if "data" in config:
        _read_records(curator, config)
    return curator


def _read_files(curator: Curator, run: Path) -> None:
    """Sort the numbers of the curator's files into secret and public ones."""
    for folder, pattern in ((run / "curator", "**/*"), (run, "summary.json")):
        contents = read_folder(folder, pattern)
        for found in contents.numbers:
            values = found.values[np.isfinite(found.values)]
            if found.file in _SETTINGS or re.split(r"[.\[]", found.place)[0] in _PUBLIC:
                curator.public.append(values.ravel())
                curator.public_vectors[found.place] = values.ravel()
            elif values.size == 1:
                curator.scalars[found.place] = float(values.ravel()[0])
            elif found.values.size > 1:
                curator.vectors[found.place] = found.values.ravel()
        lost = [name for name in contents.unreadable if name not in _SETTINGS]
        curator.notes += [f"{folder.name}/{name}: {contents.unreadable[name]}; not compared" for name in lost]
    if not (run / "curator" / "numbers.safetensors").is_file():
        curator.notes.append("curator/numbers.safetensors is not there: effects without noise are not compared")
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        curator.sizes = tuple(sorted({int(summary["n"]), *map(int, summary["blocks"].values())}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        curator.notes.append("summary.json cannot be read: its figures are not compared")


def _paths(config: Mapping[str, Any]) -> list[str]:
    """Return the places on a machine that a configuration names."""
    data = config.get("data") or {}
    given = data.get("path")
    named = [*(given if isinstance(given, list) else [given]), data.get("domain"), data.get("queries_path")]
    return [path for path in [*named, config.get("run_dir")] if isinstance(path, str) and set(path) & set("/\\.")]


def _read_records(curator: Curator, config: Mapping[str, Any]) -> None:
    from hydra.utils import instantiate

    from torchdpcate.data._yaml import check_targets

    try:
        settings = {name: value for name, value in config["data"].items() if name != "stream"}  # here all at once
        check_targets(settings, "data")  # a run's files may come from anywhere, and a class is named by them
        study: Study = instantiate(settings).load()
        table = _raw_table(config["data"].get("path"))
    except Exception as error:  # moved files, changed tables, a class that is not there: the scan goes on without
        reason = " ".join(str(error.__cause__ or error).split())[:160]
        curator.notes.append(f"the records could not be loaded again and were not compared: {reason}")
        return
    domain, records = study.domain, study.records
    low, width = domain.covariate_low, domain.covariate_high - domain.covariate_low
    outcome = study.schema.outcome
    unit_outcome = (records.y - domain.outcome_low) / domain.outcome_range
    scaled = domain.scale(records.x)
    columns = {outcome: records.y, study.schema.treatment: records.a, f"{outcome} in [0, 1]": unit_outcome}
    for j, name in enumerate(domain.names):
        unit = (records.x[:, j] - low[j]) / width[j] if width[j] > 0 else records.x[:, j]
        columns |= {name: records.x[:, j], f"{name} in [0, 1]": unit, f"{name} in [-1, 1]": scaled[:, j]}
    curator.records = {f"record's {name}": column.numpy() for name, column in columns.items()}
    curator.rows = torch.cat([records.x, records.y[:, None]], dim=1).numpy()
    curator.outcome_range = domain.outcome_range
    schema = study.schema.to_dict()
    facts = [domain.covariate_low, domain.covariate_high, *([] if study.queries is None else [study.queries.ravel()])]
    curator.public += [fact.numpy() for fact in facts] + [_numbers_of(schema), np.array([domain.outcome_range])]
    curator.public_text = "\n".join([curator.public_text, *_texts_of(schema)])
    if table is not None:
        _add_table(curator, table)


def _numbers_of(value: Any) -> np.ndarray:
    """Return the numbers of a configuration or a schema in plain types."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return np.concatenate([np.zeros(0), *map(_numbers_of, value)])
    return np.array([value] if isinstance(value, int | float) else [], dtype=np.float64)


def _texts_of(value: Any) -> list[str]:
    """Return the words of a configuration or a schema in plain types, its keys among them, as they are."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        return [text for entry in value for text in _texts_of(entry)]
    return [str(value)]


def _raw_table(path: Any) -> "pd.DataFrame | None":
    """Return the table of the data file or files, columns that training never reads included."""
    import pandas as pd

    if path is None:
        return None
    files = [path] if isinstance(path, str) else list(path)
    frames = [pd.read_parquet(f) if str(f).endswith((".parquet", ".pq")) else pd.read_csv(f) for f in files]
    return pd.concat(frames, ignore_index=True)


def _add_table(curator: Curator, table: "pd.DataFrame") -> None:
    for name in table:
        column = table[name]
        if column.dtype.kind in "fiu":
            curator.records[f"table's {name}"] = column.to_numpy(np.float64)
        elif column.dtype.kind != "b":
            curator.words += [
                word for word in column.dropna().astype(str).unique() if len(word.encode()) >= _SHORTEST_WORD
            ]


@cache
def _package_text() -> str:
    """Return the package's own source: whatever word it holds may stand in a release."""
    root = Path(__file__).resolve().parents[1]
    return "".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))
