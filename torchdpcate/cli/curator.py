"""The curator's folder of a run: settings, the fit, and every number that must not leave."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import is_plain, plain
from torchdpcate.cli.task import TaskSpec, family_of
from torchdpcate.data.records import CausalData
from torchdpcate.data.study import StreamedStudy, Study
from torchdpcate.errors import InputError
from torchdpcate.release.file import RELEASE_FILE, Release, load_release

if TYPE_CHECKING:
    import pandas as pd


Any_Release = TypeVar("Any_Release", bound=Release)
WORDS, COUNTS = ("mechanism", "level"), ("seed", "n")
SUMMARY_FILE = "summary.json"
"""What a run came to, unreleased numbers included, in the curator's folder."""
_LARGEST = 1e100  # beyond it, no number of a run


def summary_path(run: Path) -> Path:
    """Return where the summary of a run is.

    Args:
        run: The run's folder.
    """
    return run / "curator" / SUMMARY_FILE


def read_summary(path: Path) -> dict[str, Any]:
    """Return what is shown of a run, as a row of a table.

    Args:
        path: A run's ``curator/summary.json``.

    Raises:
        InputError: Not a summary of a run, or damaged.
    """
    try:
        if not os.path.isfile(path):  # reading a pipe would wait for ever
            raise OSError
        summary = json.loads(path.read_text(encoding="utf-8"))
        family = family_of(summary["task"])
        spent = summary["spent"]["total"]["epsilon"]
        settings = {_text(key): _text(value) for key, value in summary["requested"]["settings"].items()}
        names, run = ("data", *family.settings), path.parent.parent  # a run has some of the names
        return {
            "folder": run,
            "run": _folder_name(run),
            "task": summary["task"],
            **{name: "-" if (value := summary.get(name)) is None else _word(value) for name in names},
            **{name: _word(summary[name]) for name in WORDS},
            "settings": settings,
            **{name: _whole(summary[name]) for name in COUNTS},
            "requested_epsilon": _positive(summary["requested"]["epsilon"]),
            "spent_epsilon": None if spent is None else _positive(spent),
            "spent_delta": _number(summary["spent"]["total"]["delta"]),
            "generated": _flag(summary["generated"]),
            **{name: _number(summary[name]) for name in _numbers_of(family) if name in summary},
            "seconds": _positive(summary["seconds"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
        raise InputError(f"{path}: not a summary of a run, or damaged; remove it or run again") from None


def released_by(run: Path, kind: type[Any_Release]) -> Any_Release | None:
    """Return a run's release; None where it is of another kind, has been moved away or is damaged.

    Args:
        run: The run's folder.
        kind: Class of the release.
    """
    try:
        found = load_release(run / "release" / RELEASE_FILE)
    except (InputError, OSError):
        return None
    return found if isinstance(found, kind) else None


def _numbers_of(family: type[TaskSpec]) -> list[str]:
    """Return the keys of a family's numbers, each once."""
    return list(dict.fromkeys((*family.summary_keys(), *family.planned_keys())))


def _number(value: Any) -> float:
    """Return a number; one that a run could not know is not a number."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise ValueError
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value)
    if not number >= 0:
        raise ValueError
    return number


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _word(value: Any) -> str:
    if not (isinstance(value, str) and is_plain(value) and len(value) < 100):
        raise ValueError
    return value


def _text(value: Any) -> str:
    """Return what a user may have written, fit for a terminal."""
    if not isinstance(value, str):
        raise ValueError
    return plain(value[:1000])


def _folder_name(folder: Path) -> str:
    """Return the folder's name as text, whatever its bytes and the locale."""
    return plain(os.fsencode(folder.absolute().name).decode("utf-8", "backslashreplace"))


_MOST_BYTES, _LARGEST_NUMBER = 10_000_000, 1e100


def write_curator(config: DictConfig, facts: Mapping[str, Any], numbers: Mapping[str, Tensor], folder: Path) -> None:
    """Write ``config.yaml``, ``fit.json`` and ``numbers.safetensors`` into the curator's folder.

    Args:
        config: The composed configuration.
        facts: Of the fit, in plain types.
        numbers: What must never leave, by name; with coefficients without noise, from which released ones must be as
            far as they state. Names that begin with ``public.`` are of the release's own.
        folder: The curator's folder, which is there.
    """
    from safetensors.torch import save_file

    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True), PRIVATE)
    write_text(folder / "fit.json", json.dumps(facts, indent=2) + "\n", PRIVATE)
    with atomic_path(folder / "numbers.safetensors", PRIVATE) as temporary:
        save_file({name: tensor.detach().cpu().double().clone() for name, tensor in numbers.items()}, temporary)


def read_table(path: Path, name: str, numbers: Sequence[str]) -> "pd.DataFrame | None":
    """Return a csv table of the curator's folder; None where a run wrote none.

    Args:
        path: Its file.
        name: Its column of words.
        numbers: Columns of finite numbers, of which those that it has are returned beside the words; it must have the
            first.

    Raises:
        InputError: A damaged table.
    """
    import pandas as pd

    if not path.exists():
        return None
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # a pipe would never end
            raise ValueError
        table = pd.read_csv(path, dtype={name: str}, keep_default_na=False)
        found = [column for column in numbers if column in table]
        values = table[found].astype(float)
        if numbers[0] not in found or not len(table) or not (values.abs() < _LARGEST_NUMBER).all(axis=None):
            raise ValueError
        return values.assign(**{name: table[name].map(plain)})
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        raise InputError(f"{path}: no table of a run, or damaged; remove the run or run it again") from None


def record_numbers(study: Study | StreamedStudy) -> dict[str, Tensor]:
    """Return the arms' sizes and the means of outcome and covariates, which must not leave.

    Args:
        study: The data.
    """
    actions, domain = study.schema.actions, study.domain
    requested = partial(_arm_sums, torch.tensor(actions, dtype=torch.float64)[:, None])
    found = [requested([study.records])] if isinstance(study, Study) else study.records.ask(requested)
    sums = torch.stack(found).sum(0)
    size, outcome = sums[:, 0], sums[:, 1]
    means = sums.sum(0)[1:] / size.sum()
    names = ("control", "treated") if actions == (0, 1) else tuple(map(str, actions))
    return {
        **{f"arm.{name}": count for name, count in zip(names, size, strict=True)},
        "mean.outcome": means[0],
        **{f"mean.outcome.{name}": mean for name, mean in zip(names, outcome / size, strict=True)},
        **{f"mean.covariate.{name}": mean for name, mean in zip(domain.names, means[1:], strict=True)},
    }


def _arm_sums(labels: Tensor, batches: Iterable[CausalData]) -> Tensor:
    """Return the sums of ones, outcomes and covariates in each arm, [K, 2 + q]."""
    sums = torch.zeros(())
    for batch in batches:
        arms = (batch.a == labels).double()
        rows = torch.cat([torch.ones_like(batch.y)[:, None], batch.y[:, None], batch.x], 1)
        sums = sums + arms @ rows
    return sums
