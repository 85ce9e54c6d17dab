"""The task ``cate``: from records to a released CATE, with what the curator wants to know about it."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from torchdpcate._files import write_text
from torchdpcate.cli.curator import write_curator
from torchdpcate.cli.settings import CURVES_FILE, choices, settings
from torchdpcate.data import Study
from torchdpcate.errors import InputError
from torchdpcate.evaluation import EffectCurves, effect_figure, pehe, save_figure
from torchdpcate.learners import CATELearner
from torchdpcate.privacy import NoiseSource, PrivacyBudget
from torchdpcate.release import EffectRelease, FunctionMechanism, Mechanism, SmoothSensitivity, write_sums
from torchdpcate.release.post_processing import noise_scales

RELEASE_FILE = "release.safetensors"


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
    mechanism: Mechanism = instantiate(config.mechanism)
    config = _fitted_to(config, mechanism)
    study: Study = instantiate(config.data).load()
    noise = NoiseSource.system() if config.privacy.noise_seed is None else NoiseSource.fixed(config.privacy.noise_seed)
    learner = _learner(config, study, budget, noise=noise, ledger_path=folder / "curator" / "ledger.json")
    _check(config, study, learner, mechanism)

    records = study.records
    learner.fit(records.x, records.a, records.y)
    points = _figure_points(config, study)
    release, curve = _release(config, study, learner, mechanism, points, folder)
    _write_release(release, folder / "release")

    summary, nonprivate = _summary(config, study, learner, release), None
    if study.effect is not None:
        nonprivate = _learner(config, study, None).fit(records.x, records.a, records.y)
        summary |= _errors(study, learner, nonprivate, release)
    _draw(config, study, learner, nonprivate, curve, folder)
    write_sums(folder / "release")
    write_curator(config, study, learner, mechanism, curve, points, folder / "curator")
    summary["seconds"] = round(time.perf_counter() - start, 3)
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    _show(summary, release, folder)


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
    if config.release.kind not in ("function", "queries"):
        raise InputError(f"release.kind = {config.release.kind}: choose release=function or release=queries")
    if not 0 < float(config.figure.level) < 1:
        raise InputError(f"figure.level = {config.figure.level}: give a probability strictly between 0 and 1")
    if config.queries.count < 1:
        raise InputError(f"queries.count = {config.queries.count}: ask for at least one query")
    given = HydraConfig.initialized() and any(word.startswith("features") for word in HydraConfig.get().overrides.task)
    if given and "features" not in config.second_stage:
        raise InputError("features: this second stage has its own; leave features out or use second_stage=linear")


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
    delta, n = float(config.privacy.delta), study.records.n
    if delta > 1 / n:
        warning = f"privacy.delta = {delta:g} is above 1/n = {1 / n:.2g}: it would allow publishing a whole record"
        print(f"torchdpcate: warning: {warning}", file=sys.stderr)
    if _sweeps() and study.effect is None:
        warning = "each run of a sweep spends a budget of its own on the same records; what you publish adds up"
        print(f"torchdpcate: warning: {warning}", file=sys.stderr)


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
        service = learner.answer_online(folder / "curator" / "online", mechanism)
        release, curve = service.release(_queries(study)), service.release(points)
    if not _sweeps():
        return release, curve
    tuning = {
        "runs": None,
        "text": f"run {HydraConfig.get().job.num} (counted from 0) of a sweep over the same records: each run spends a "
        "budget of its own, what is published of them adds up, and a choice among them by what they showed of these "
        "records is paid for nowhere",
    }
    return replace(release, privacy=replace(release.privacy, tuning=tuning)), curve  # type: ignore[type-var]


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


def _sweeps() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _queries(study: Study) -> torch.Tensor:
    assert study.queries is not None
    return study.queries


def _write_release(release: EffectRelease, folder: Path) -> None:
    folder.mkdir(parents=True)
    release.save(folder / RELEASE_FILE)
    write_text(folder / "privacy.json", release.privacy.to_json() + "\n")
    write_text(folder / "privacy.md", release.privacy.to_markdown())


def _summary(config: DictConfig, study: Study, learner: CATELearner, release: EffectRelease) -> dict[str, Any]:
    assert learner.ledger_ is not None
    scales = None if study.queries is None else noise_scales(release, study.queries)
    return {
        "task": "cate",
        "data": study.name,
        "learner": type(learner).__name__,
        "release": release.kind,
        "mechanism": release.privacy.mechanism,
        "level": release.privacy.level,
        "claim": release.privacy.claim,
        "epsilon": release.privacy.epsilon,
        "delta": release.privacy.delta,
        "requested": {
            "epsilon": float(config.privacy.epsilon),
            "delta": float(config.privacy.delta),
            "settings": settings(),
        },
        "spent": learner.ledger_.spent(),
        "n": study.records.n,
        "blocks": learner.sizes_,
        "seed": config.seed,
        "noise": None if scales is None else scales.mean().item(),
        **choices(config),
    }


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
    save_figure(curator, folder / "curator" / "effect.png")
    EffectCurves(name, grid, effect, band, level, known).save(folder / "curator" / CURVES_FILE)


def _show(summary: dict[str, Any], release: EffectRelease, folder: Path) -> None:
    table = Table(show_header=False, title="torchdpcate: released", title_justify="left")
    table.add_row("what", f"{release.kind} by {release.privacy.mechanism}, {summary['learner']} on {summary['data']}")
    table.add_row("guarantee", summary["level"])
    table.add_row("claim", summary["claim"])
    for block, spent in summary["spent"].items() if summary["epsilon"] is not None else ():
        size = summary["n"] if block == "total" else summary["blocks"][block]
        table.add_row(f"spent, {block}", _spent(spent, size))
    for name, text in {
        "pehe": "PEHE of the release",
        "pehe_nonprivate": "PEHE non-private learner",
        "pehe_plug_in": "PEHE free plug-in",
        "pehe_constant": "PEHE constant effect",
    }.items():
        if name in summary:
            table.add_row(text, f"{summary[name]:.4g}")
    table.add_row("release", str(folder / "release" / RELEASE_FILE))
    table.add_row("curator's files", str(folder / "curator"))
    table.add_row("seconds", f"{summary['seconds']:.1f}")
    Console(markup=False, emoji=False).print(table)  # brackets in a folder's name are no markup


def _spent(spent: dict[str, Any], size: int) -> str:
    return (
        f"epsilon {spent['epsilon']:.4g}, delta {spent['delta']:.3g} ({size:,} records); "
        f"{spent['naive_epsilon']:.4g} if epsilons were added"
    )
