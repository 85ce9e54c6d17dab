"""The task ``policy_selection``: from records to a released policy of a public library."""

import importlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path, write_text
from torchdpcate._text import spreadsheet_cell
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.cli.curator import selection_facts, selection_numbers, write_curator
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
from torchdpcate.cli.settings import selection_choices, words
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import Study
from torchdpcate.errors import InputError
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.estimators.selection.utilities import utilities
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.evaluation.policies import policy_figure
from torchdpcate.nuisance.arms.base import ScoreNuisances
from torchdpcate.nuisance.arms.frozen import FrozenNuisances
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.selection_mechanisms import SELECTIONS, SelectionMechanism
from torchdpcate.release.policy import SCORING, PolicyRelease

TASK = "policy_selection"
_MEASURES = {
    "value": "value of the policy, estimated",
    "value_expected": "value expected of the choice",
    "value_uniform": "value of a uniform choice",
    "value_nonprivate": "value of the best estimate",
    "regret": "regret of the policy",
    "regret_expected": "regret expected of the choice",
    "regret_uniform": "regret of a uniform choice",
    "regret_nonprivate": "regret of the best estimate",
}


def select_policy(config: DictConfig, folder: Path) -> None:
    """Score, choose, release, measure, and write ``release/``, ``curator/`` and ``summary.json`` into ``folder``.

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
    config = _checked(config)
    study: Study = instantiate(config.data).load()
    selector = make_selector(
        config, study, budget, noise=noise_source(config), ledger_path=folder / "curator" / "ledger.json"
    )
    selector.check(study.records.n)
    plan = selector.plan(study.records.n)
    warn(config, study)

    records = study.records
    with nothing_left_unpaid(folder):
        selector.fit(records.x, records.a, records.y)
    with room_for_release(folder / "release", len(json.dumps(selector.library_.config()))):
        release = told_of_sweep(selector.release())
    write_release(release, folder / "release")

    table = _policies(study, selector)
    chosen = selector.library_.names.index(release.name)
    summary = summary_of(TASK, config, study, selector, release) | selection_choices(config)
    summary |= {"policy": release.name, "spread": selector.spread_, **_measures(table, chosen)}
    write_curator(config, selection_facts(selector), selection_numbers(study, selector), folder / "curator")
    with atomic_path(folder / "curator" / "policies.csv", PRIVATE) as temporary:
        table.assign(policy=table["policy"].map(spreadsheet_cell)).to_csv(temporary, index=False)
    _draw(table, chosen, release, folder / "curator")
    write_text(folder / "curator" / "plan.txt", f"{plan}\n", PRIVATE)
    finish(summary, _MEASURES, release, folder, start)
    print(f"policy: {release.name}")


def make_selector(config: DictConfig, study: Study, budget: PrivacyBudget | None, **rest: Any) -> PolicySelector:
    """Return the selector of a configuration.

    Args:
        config: The composed configuration.
        study: The data.
        budget: Privacy budget; None fits without privacy.
        rest: Further arguments of ``PolicySelector``.

    Raises:
        InputError: Settings that make no library, nuisances or mechanism.
    """
    # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
    return instantiate(config.selection)(
        domain=study.schema,
        budget=budget,
        policies=make_library(config, study.schema),
        nuisance=make_nuisances(config),
        mechanism=_mechanism(config).name,
        seed=config.seed,
        **rest,
    )


def make_library(config: DictConfig, schema: TableSchema) -> PolicyLibrary:
    """Return the policies of a configuration: those of ``policies.path``, or what the group makes of public facts.

    Raises:
        InputError: No such file, or no library.
    """
    if config.policies.path is not None:
        return PolicyLibrary.of(Path(str(config.policies.path)), _modules(config.policies.allow))
    return PolicyLibrary.of(instantiate(config.policies.make)(schema))


def _modules(allow: Any) -> list[str]:
    """Return the modules whose functions a policies file may name."""
    if not OmegaConf.is_list(allow) or not all(isinstance(name, str) for name in allow):
        raise InputError(f"policies.allow = {allow}: give a list of names of modules, as policies.allow=[guidelines]")
    return list(allow)


def make_nuisances(config: DictConfig) -> ScoreNuisances:
    """Return where the nuisances of a configuration come from; functions are given by import path.

    Raises:
        InputError: A path that cannot be imported.
    """
    made = instantiate(config.certificate)
    if isinstance(made, FrozenNuisances):
        return replace(made, **{name: _imported(name, getattr(made, name)) for name in ("propensity", "outcome")})
    return made


def _imported(name: str, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    module, _, function = given.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"certificate.{name} = {given}: cannot be imported ({error}); give package.module:function, of a module on "
            "Python's path"
        ) from None


def _mechanism(config: DictConfig) -> type[SelectionMechanism]:
    kind = getattr(instantiate(config.mechanism), "func", None)
    if not (isinstance(kind, type) and issubclass(kind, SelectionMechanism)):
        given = words().get("mechanism", "of an effect")
        raise InputError(f"mechanism = {given}: releases effects; with task={TASK} choose {', '.join(SELECTIONS)}")
    return kind


def _checked(config: DictConfig) -> DictConfig:
    """Return the settings; refuse those that no class below would ever see."""
    if config.queries.count < 1:
        raise InputError(f"queries.count = {config.queries.count}: ask for at least one query")
    _mechanism(config)
    config = config.copy()
    OmegaConf.resolve(config)
    return config


def _policies(study: Study, selector: PolicySelector) -> pd.DataFrame:
    """Return what the curator knows of each policy: U, estimated value, chance, and the true regret where known."""
    assert selector.mechanism_ is not None
    scores = selector.utilities_
    table = {
        "policy": list(selector.library_.names),
        "utility": scores.numpy(),
        "value": (scores / selector.sizes_[SCORING] + study.domain.outcome_middle).numpy(),
        "probability": selector.mechanism_.probabilities(scores).numpy(),
    }
    gains = _true_gains(study, selector)
    return pd.DataFrame(table if gains is None else {**table, "regret": (gains.max() - gains).numpy()})


def _true_gains(study: Study, selector: PolicySelector) -> Tensor | None:
    """Return the true mean outcome of each policy above that of treating nobody, [M]; None where it is not known.

    At the records' covariates, or, where the truth is known at the queries alone, there.
    """
    if len(selector.library_.families[0].actions) > 2:
        return None
    x, effect = study.records.x, None if study.truth is None else study.truth(study.records.x)
    if effect is None and study.queries is not None:
        x, effect = study.queries, study.effect
    if effect is None:
        return None
    return utilities(torch.stack([torch.zeros_like(effect), effect], dim=1), selector.library_, x) / len(x)


def _measures(table: pd.DataFrame, chosen: int) -> dict[str, float]:
    """Return value, and regret where it is known, of the release, its expectation, a uniform and the best choice."""
    best = table["utility"].argmax()
    return {
        name: float(value)
        for column in ("value", "regret")
        if column in table
        for name, value in {
            column: table[column][chosen],
            f"{column}_expected": table["probability"] @ table[column],
            f"{column}_uniform": table[column].mean(),
            f"{column}_nonprivate": table[column][best],
        }.items()
    } | {"estimated_regret": float(table["value"][best] - table["probability"] @ table["value"])}


def _draw(table: pd.DataFrame, chosen: int, release: PolicyRelease, folder: Path) -> None:
    figure = policy_figure(
        table["policy"].tolist(),
        table["value"].to_numpy(),
        table["probability"].to_numpy(),
        chosen,
        regrets=table["regret"].to_numpy() if "regret" in table else None,
        claim=release.privacy.claim,
    )
    save_figure(figure, folder / "policies.png", PRIVATE)
