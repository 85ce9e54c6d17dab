"""The curator's folder of a run: settings, the fit, and every number that must not leave."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate.data.study import StreamedStudy, Study


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
