"""The curator's folder of a run: settings, the fit, and every number that must not leave."""

import json
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import atomic_path, write_text
from torchdpcate.data import Study
from torchdpcate.learners import CATELearner
from torchdpcate.release import EffectRelease, Mechanism
from torchdpcate.second_stage import RKHSStage


def write_curator(
    config: DictConfig,
    study: Study,
    learner: CATELearner,
    mechanism: Mechanism,
    curve: EffectRelease | None,
    points: Tensor,
    folder: Path,
) -> None:
    """Write ``config.yaml``, ``fit.json`` and ``numbers.safetensors`` into the curator's folder.

    Args:
        config: The composed configuration.
        study: The data.
        learner: The fitted learner.
        mechanism: The mechanism of the release.
        curve: What answers at the points; None if nothing does.
        points: Points of the figures, [m, q].
        folder: The curator's folder, which is there.
    """
    from safetensors.torch import save_file

    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    facts = {
        "head_gradient_norm": learner.stage_.gradient_norm,
        "huber_threshold": learner.threshold_,
        "head_parameters": learner.stage_.coefficients.numel(),
    }
    write_text(folder / "fit.json", json.dumps(facts, indent=2) + "\n")
    numbers = secret_numbers(study, learner, mechanism, points)
    if curve is not None:
        numbers["public.effect_in_figure"] = curve.effect_tensor(points)
    with atomic_path(folder / "numbers.safetensors") as temporary:
        save_file({name: tensor.detach().cpu().double().clone() for name, tensor in numbers.items()}, temporary)


def secret_numbers(study: Study, learner: CATELearner, mechanism: Mechanism, points: Tensor) -> dict[str, Tensor]:
    """Return what must never leave, by name, for ``torchdpcate audit leak`` to search the release for.

    Arm sizes, means, the regression pairs (s, w) in summary, the head and its effects without noise; in outcome
    and covariate units.

    Args:
        study: The data.
        learner: The fitted learner.
        mechanism: The mechanism of the release.
        points: Points of the figures, [m, q].
    """
    records, block, stage = study.records, learner.stage_.block, learner.stage_
    if mechanism.loss == "squared" and isinstance(stage, RKHSStage):
        stage = stage.squared()  # the head that such a mechanism answers from
    treated = records.a == 1

    def effect(x: Tensor) -> Tensor:
        return torch.from_numpy(learner.curator_effect(x, stage))

    means = {f"mean.covariate.{name}": x.mean() for name, x in zip(study.domain.names, records.x.T, strict=True)}
    queries = {} if study.queries is None else {"effect_at_queries_without_noise": effect(study.queries)}
    return {
        "arm.treated": treated.sum(),
        "arm.control": (~treated).sum(),
        "mean.outcome": records.y.mean(),
        "mean.outcome.treated": records.y[treated].mean(),
        "mean.outcome.control": records.y[~treated].mean(),
        **means,
        **_summary("regression_s", block.s),
        **_summary("regression_w", block.w),
        "theta_without_noise": stage.coefficients,
        "effect_in_figure_without_noise": effect(points),
        **queries,
    }


def _summary(name: str, values: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}.mean": values.mean(),
        f"{name}.sd": values.std(),
        f"{name}.smallest": values.min(),
        f"{name}.largest": values.max(),
    }
