"""The task ``average_effect``: from records to a released average effect with its interval."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate.cli.average_figures import draw_curator
from torchdpcate.cli.average_measures import fit_study, measures, unreleased, write_tables
from torchdpcate.cli.curator import average_facts, average_numbers, write_curator
from torchdpcate.cli.run import (
    finish,
    noise_source,
    nothing_left_unpaid,
    room_for_release,
    say_warning,
    summary_of,
    told_of_sweep,
    warn,
    warnings_said,
    write_release,
)
from torchdpcate.cli.settings import average_choices, words
from torchdpcate.data.queries import read_queries
from torchdpcate.data.study import StreamedStudy, Study
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.nuisance.convex import ConvexNuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.average_effect import AverageEffectRelease

TASK = "average_effect"
_SAMPLE = "public_sample"
_MEASURES = {
    "estimate": "estimate",
    "low": "95 % interval from",
    "high": "95 % interval to",
    "truth": "truth",
    "estimate_nonprivate": "unreleased: estimate without noise",
    "difference_in_means": "unreleased: difference in means at the whole budget",
    "difference_in_means_nonprivate": "unreleased: difference in means without noise",
    "clipped": "clipped share of the public sample",
}


def estimate_average(config: DictConfig, folder: Path) -> None:
    """Estimate, release, measure, and write ``release/``, ``curator/`` and ``summary.json`` into ``folder``.

    Everything that can be refused without the records' privacy at stake is refused before the folder is made and
    before anything is spent.

    Args:
        config: The composed configuration.
        folder: Run folder, not there yet.

    Raises:
        InputError: A user's mistake.
    """
    start = time.perf_counter()
    budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    config = config.copy()
    OmegaConf.resolve(config)
    study = _load(config)
    sample = _public_sample(config, study)
    ledger = folder / "curator" / "ledger.json"
    learner = make_learner(config, study, budget, sample, noise=noise_source(config), ledger_path=ledger)
    learner.check(study.records.n)
    warn(config, study)

    with nothing_left_unpaid(folder), warnings_said(), room_for_release(folder / "release"):
        fit_study(learner, study)  # pays
        release = told_of_sweep(learner.release())
    write_release(release, folder / "release")

    others = unreleased(config, study, learner, budget)
    balance = learner.curator_balance() if hasattr(learner, "curator_balance") else None
    summary = summary_of(TASK, config, study, learner, release) | average_choices(config)
    summary |= measures(study, release, others)
    if sample is not None and release.weights is not None:
        summary["clipped"] = release.weights.clipped_share(sample)
    write_curator(config, average_facts(learner), average_numbers(study, others, balance), folder / "curator")
    write_tables(others, balance, study.domain.outcome_range, folder / "curator")
    draw_curator(release, others, balance, summary["truth"], folder / "curator")
    finish(summary, _MEASURES, release, folder, start)
    _say_interval(release, summary)


def make_learner(
    config: DictConfig, study: Study | StreamedStudy, budget: PrivacyBudget | None, sample: Tensor | None, **rest: Any
) -> AverageEffectLearner:
    """Return the learner of a configuration.

    Args:
        config: The configuration, resolved.
        study: The data.
        budget: Privacy budget; None estimates without privacy.
        sample: Covariates of a public sample, [m, q]; None where there is none.
        rest: Further arguments of the learner.

    Raises:
        InputError: Settings that make no learner.
    """
    settings: dict[str, Any] = {} if sample is None else {_SAMPLE: sample}
    make = instantiate(OmegaConf.masked_copy(config.effect, [str(name) for name in config.effect if name != _SAMPLE]))
    recipe = make.keywords.get("nuisance")
    if isinstance(recipe, ConvexNuisanceConfig) and recipe.threshold is None:
        # an average effect is one of means, and a smaller threshold pulls outcomes of two values to the more frequent
        settings["nuisance"] = replace(recipe, threshold=study.domain.outcome_range)
    # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
    return make(domain=study.schema, budget=budget, **settings, **rest)


def _load(config: DictConfig) -> Study | StreamedStudy:
    """Return the records, or where they are read batch by batch."""
    source = instantiate(config.data)
    if not getattr(source, "stream", False):
        return source.load()
    learner = instantiate(config.effect).func
    if not learner.streams:
        given = words().get("effect", learner.__name__)
        raise InputError(f"data.stream = true: effect = {given} needs all records at once; leave data.stream out")
    return source.open()


def _public_sample(config: DictConfig, study: Study | StreamedStudy) -> Tensor | None:
    """Return the covariates of the public sample, [m, q].

    Raises:
        InputError: It cannot be read, or is the records themselves.
    """
    given = config.effect.get(_SAMPLE)
    if given is None:
        return None
    paths = config.data.get("path") or []
    for path in [paths] if isinstance(paths, str) else paths:
        if os.path.exists(given) and os.path.exists(path) and os.path.samefile(given, path):
            raise InputError(
                f"effect.{_SAMPLE} = {given}: holds the records, which are not public; give a sample of other people, "
                "or leave it out"
            )
    return read_queries(str(given), study.schema)


def _say_interval(release: AverageEffectRelease, summary: Mapping[str, Any]) -> None:
    """Print the estimate and its interval as one line, and a warning where the interval says nothing."""
    if release.main.swamped:
        say_warning(
            "the privacy noise swamps the denominator of the estimate, so that any effect is possible; the interval is "
            "the whole range. More records, a larger privacy.epsilon or a larger effect.overlap would help"
        )
    interval = (
        "no interval" if summary["low"] is None else f"95 % interval [{summary['low']:.4g}, {summary['high']:.4g}]"
    )
    print(f"{release.estimand}: {release.estimate:.4g}, {interval}")
