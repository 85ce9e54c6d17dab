"""The curator's folder of a run: settings, the fit, and every number that must not leave."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import plain
from torchdpcate.data.study import StreamedStudy, Study
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_MOST_BYTES, _LARGEST = 10_000_000, 1e100


def write_curator(config: DictConfig, facts: Mapping[str, Any], numbers: Mapping[str, Tensor], folder: Path) -> None:
    """Write ``config.yaml``, ``fit.json`` and ``numbers.safetensors`` into the curator's folder.

    Args:
        config: The composed configuration.
        facts: Of the fit, in plain types.
        numbers: What must never leave, by name, for ``torchdpcate audit leak`` to search the release for; names that
            begin with ``public.`` are of the release's own.
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
        if numbers[0] not in found or not len(table) or not (values.abs() < _LARGEST).all(axis=None):
            raise ValueError
        return values.assign(**{name: table[name].map(plain)})
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        raise InputError(f"{path}: no table of a run, or damaged; remove the run or run it again") from None


def record_numbers(study: Study | StreamedStudy) -> dict[str, Tensor]:
    """Return the arms' sizes and the means of outcome and covariates, which must not leave.

    Args:
        study: The data.
    """
    actions, domain, sums = study.schema.actions, study.domain, torch.zeros(())
    labels = torch.tensor(actions, dtype=torch.float64)[:, None]
    for batch in [study.records] if isinstance(study, Study) else study.records:
        arms = (batch.a == labels).double()
        rows = torch.cat([torch.ones_like(batch.y)[:, None], batch.y[:, None], batch.x], 1)
        sums = sums + arms @ rows  # of each arm: size, outcomes, covariates
    size, outcome = sums[:, 0], sums[:, 1]
    means = sums.sum(0)[1:] / size.sum()
    names = ("control", "treated") if actions == (0, 1) else tuple(map(str, actions))
    return {
        **{f"arm.{name}": count for name, count in zip(names, size, strict=True)},
        "mean.outcome": means[0],
        **{f"mean.outcome.{name}": mean for name, mean in zip(names, outcome / size, strict=True)},
        **{f"mean.covariate.{name}": mean for name, mean in zip(domain.names, means[1:], strict=True)},
    }
