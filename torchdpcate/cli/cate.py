"""The task ``cate``: from records to a released CATE, with what the curator wants to know about it."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from torchdpcate._files import PRIVATE
from torchdpcate.cli.curator import effect_facts, effect_numbers, write_curator
from torchdpcate.cli.run import (
    finish,
    noise_source,
    nothing_left_unpaid,
    room_for_release,
    summary_of,
    told_of_sweep,
    warn,
    write_release,
)
from torchdpcate.cli.settings import CURVES_FILE, choices, words
from torchdpcate.data.study import Study
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.base import FunctionMechanism, Mechanism
from torchdpcate.estimators.cate.mechanisms.smooth_sensitivity import SmoothSensitivity
from torchdpcate.evaluation.curves import EffectCurves
from torchdpcate.evaluation.figures import effect_figure, save_figure
from torchdpcate.evaluation.metrics import pehe
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.release import EffectRelease
from torchdpcate.release.views import noise_scales

_TASK = "cate"
_MEASURES = {
    "pehe": "PEHE of the release",
    "pehe_nonprivate": "PEHE non-private learner",
    "pehe_plug_in": "PEHE free plug-in",
    "pehe_constant": "PEHE constant effect",
}


def train_cate(config: DictConfig, folder: Path) -> None:
    """Fit, release, measure, and write ``release/``, ``curator/`` and ``summary.json`` into ``folder``.

    Everything that can be refused without the records' privacy at stake is refused before the folder is
    made and before anything is spent.

    Args:
        config: The composed configuration.
        folder: Run folder, not there yet.

    Raises:
        InputError: A user's mistake.
    """
    start = time.perf_counter()
    budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    _check_settings(config)
    mechanism = instantiate(config.mechanism)
    if not isinstance(mechanism, Mechanism):
        raise InputError(f"mechanism = {words().get('mechanism')}: chooses a policy; use it with task=policy_selection")
    config = _fitted_to(config, mechanism)
    study: Study = instantiate(config.data).load()
    learner = _learner(
        config,
        study,
        budget,
        noise=noise_source(config),
        ledger_path=folder / "curator" / "ledger.json",
        filter="gaussian" if mechanism.gaussian else "sums",
    )
    _check(config, study, learner, mechanism)

    records = study.records
    with nothing_left_unpaid(folder):
        learner.fit(records.x, records.a, records.y)
    points = _figure_points(config, study)
    with room_for_release(folder / "release", _numbers(study, learner)):
        release, curve = _release(config, study, learner, mechanism, points, folder)
    write_release(release, folder / "release")

    summary, nonprivate = _summary(config, study, learner, release), None
    if study.effect is not None:
        nonprivate = _learner(config, study, None).fit(records.x, records.a, records.y)
        summary |= _errors(study, learner, nonprivate, release)
    _draw(config, study, learner, nonprivate, curve, folder)
    facts, numbers = effect_facts(learner), effect_numbers(study, learner, mechanism, points)
    if curve is not None:
        numbers["public.effect_in_figure"] = curve.effect_tensor(points)
    write_curator(config, facts, numbers, folder / "curator")
    finish(summary, _MEASURES, release, folder, start)


def _learner(config: DictConfig, study: Study, budget: PrivacyBudget | None, **rest: Any) -> CATELearner:
    # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
    return instantiate(config.learner)(
        domain=study.schema,
        budget=budget,
        nuisance=instantiate(config.nuisance),
        second_stage=instantiate(config.second_stage),
        trainer=instantiate(config.trainer),
        seed=config.seed,
        **rest,
    )


def _fitted_to(config: DictConfig, mechanism: Mechanism) -> DictConfig:
    """Fill in what the user left to the mechanism: loss and noise, and that answers are published where they are."""
    left = {name: getattr(mechanism, name) for name in ("loss", "noise_ratio")}
    open_ = {k: v for k, v in left.items() if k in config.second_stage and config.second_stage[k] is None}
    settings: dict[str, Any] = {"second_stage": open_}
    if not isinstance(mechanism, FunctionMechanism):
        settings["release"] = {"public_queries": True}
    return OmegaConf.merge(config, settings)  # type: ignore[return-value]


def _check_settings(config: DictConfig) -> None:
    """Refuse what no class below would ever see."""
    if words().get("tune") == "ridge":
        raise InputError("tune = ridge: chooses the ridge of a rule; with task=cate use tune=private")
    if config.release.kind not in ("function", "queries"):
        raise InputError(f"release.kind = {config.release.kind}: choose release=function or release=queries")
    if not 0 < float(config.figure.level) < 1:
        raise InputError(f"figure.level = {config.figure.level}: give a probability strictly between 0 and 1")
    if config.queries.count < 1:
        raise InputError(f"queries.count = {config.queries.count}: ask for at least one query")


def _check(config: DictConfig, study: Study, learner: CATELearner, mechanism: Mechanism) -> None:
    if config.release.kind == "function" and not (isinstance(mechanism, FunctionMechanism) or mechanism.online):
        raise InputError(
            f"mechanism = {mechanism.name}: answers finitely many queries; use release=queries with it, "
            "or mechanism=objective"
        )
    learner.check(study.records.n, mechanism)
    _figure_covariate(config, study)
    if study.queries is not None:
        study.domain.check_covariates(study.queries, "query")
    warn(config, study)


def _release(
    config: DictConfig, study: Study, learner: CATELearner, mechanism: Mechanism, points: torch.Tensor, folder: Path
) -> tuple[EffectRelease, EffectRelease | None]:
    """Return the release, and what answers at the points of the figure; None if that would cost more."""
    curve: EffectRelease | None
    if config.release.kind == "queries":
        _offer(study, learner, mechanism)
        include = config.release.include_nuisances
        release: EffectRelease = learner.release_queries(_queries(study), mechanism, include_nuisances=include)
        curve = None
    elif isinstance(mechanism, FunctionMechanism):
        release = curve = learner.release_function(mechanism)
    else:
        service = learner.answer_online(folder / "curator" / "online", mechanism, counter=config.release.get("counter"))
        release, curve = service.release(_queries(study)), service.release(points)
    return told_of_sweep(release), curve


def _numbers(study: Study, learner: CATELearner) -> int:
    """Return more numbers than the release can hold: queries, nuisances, the head and its feature map."""
    queries = 0 if study.queries is None else study.queries.numel() + 2 * len(study.queries)
    weights = sum(tensor.numel() for tensor in learner.nuisances_.state_dict().values())
    return queries + weights + learner.stage_.coefficients.numel() * (1 + study.domain.dimension)


def _offer(study: Study, learner: CATELearner, mechanism: Mechanism) -> None:
    """Say so where the function's own noise, restricted to the queries, is certainly less."""
    if mechanism.name != SmoothSensitivity.name:
        return
    noise = learner.compare_noise(_queries(study))
    if noise["function"] < noise["smooth_sensitivity"]:
        print(
            f"torchdpcate: note: mechanism=gaussian_process needs noise {noise['function']:.3g} an answer at these "
            f"queries, {mechanism.name} at least {noise['smooth_sensitivity']:.3g}",
            file=sys.stderr,
        )


def _queries(study: Study) -> torch.Tensor:
    assert study.queries is not None
    return study.queries


def _summary(config: DictConfig, study: Study, learner: CATELearner, release: EffectRelease) -> dict[str, Any]:
    scales = None if study.queries is None else noise_scales(release, study.queries)
    noise = None if scales is None else scales.mean().item()
    return {**summary_of(_TASK, config, study, learner, release), "noise": noise, **choices(config)}


def _errors(study: Study, learner: CATELearner, nonprivate: CATELearner, release: EffectRelease) -> dict[str, float]:
    """Return the errors at the queries; the truth is known, so the data are generated."""
    assert study.effect is not None
    truth, queries = study.effect, _queries(study)
    estimates = {
        "pehe": release.effect_tensor(queries),
        "pehe_nonprivate": nonprivate.curator_effect(queries),
        "pehe_head_without_noise": learner.curator_effect(queries),
        "pehe_plug_in": learner.plug_in_effect(queries),
        "pehe_constant": truth.mean().expand_as(truth),
        "pehe_zero": torch.zeros_like(truth),
    }
    return {name: pehe(torch.as_tensor(effect), truth) for name, effect in estimates.items()}


def _figure_covariate(config: DictConfig, study: Study) -> str:
    names = study.domain.names
    name = config.figure.covariate or names[0]
    if name not in names:
        raise InputError(f"figure.covariate = {name}: not a covariate; choose one of {', '.join(names)}")
    return name


def _figure_points(config: DictConfig, study: Study) -> torch.Tensor:
    """Return the points of the figures, [101, q]: one covariate over its bounds, the others at mid-range."""
    low, high = study.domain.covariate_low, study.domain.covariate_high
    column = study.domain.names.index(_figure_covariate(config, study))
    x = ((low + high) / 2).repeat(101, 1)
    x[:, column] = low[column] + torch.linspace(0, 1, 101, dtype=torch.float64) * (high[column] - low[column])
    return x


def _draw(
    config: DictConfig,
    study: Study,
    learner: CATELearner,
    nonprivate: CATELearner | None,
    release: EffectRelease | None,
    folder: Path,
) -> None:
    """Draw the effect against one covariate: the reader's figure, and the curator's beside it with its numbers."""
    if release is None:
        return
    name, x = _figure_covariate(config, study), _figure_points(config, study)
    grid, level, claim = x[:, study.domain.names.index(name)].numpy(), float(config.figure.level), release.privacy.claim
    effect = release.effect(x)
    band = None if noise_scales(release, x) is None else release.interval(x, level)
    reader = effect_figure(grid, effect, band, covariate=name, level=level, claim=claim)
    save_figure(reader, folder / "release" / "effect.png")
    truth = None if study.truth is None else study.truth(x)
    others = {
        "truth": None if truth is None else truth.numpy(),
        "non-private": None if nonprivate is None else nonprivate.curator_effect(x),
        "head without noise": learner.curator_effect(x),
        "plug-in": learner.plug_in_effect(x),
    }
    known = {name: values for name, values in others.items() if values is not None}
    curator = effect_figure(grid, effect, None, covariate=name, others=known, claim=claim)
    save_figure(curator, folder / "curator" / "effect.png", PRIVATE)
    EffectCurves(name, grid, effect, band, level, known).save(folder / "curator" / CURVES_FILE)
