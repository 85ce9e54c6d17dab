"""The tasks ``owl``, ``two_stage_rule`` and ``pairwise``: from records to a released treatment rule."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate._files import PRIVATE, write_text
from torchdpcate.cli.curator import rule_facts, rule_numbers, write_curator
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
from torchdpcate.cli.settings import rule_choices, words
from torchdpcate.data.study import Study
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.rules.noise_report import NoiseReport
from torchdpcate.estimators.rules.tuning import PrivatelyTunedRule
from torchdpcate.evaluation.figures import rule_figure, save_figure
from torchdpcate.evaluation.rules import decision_accuracy, policy_value
from torchdpcate.features.maps import Identity, Representation
from torchdpcate.features.tangent import Tangent
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.rule import RuleRelease

_MEASURES = {
    "accuracy": "accuracy of the release",
    "accuracy_nonprivate": "accuracy non-private rule",
    "value": "value of the release",
    "value_nonprivate": "value non-private rule",
    "value_treat_all": "value treat all",
    "value_treat_none": "value treat none",
}


def train_rule(config: DictConfig, folder: Path, task: str) -> None:
    """Fit, release, measure, and write ``release/``, ``curator/`` and ``summary.json`` into ``folder``.

    Everything that can be refused without the records' privacy at stake is refused before the folder is made and
    before anything is spent.

    Args:
        config: The composed configuration.
        folder: Run folder, not there yet.
        task: ``owl``, ``two_stage_rule`` or ``pairwise``.

    Raises:
        InputError: A user's mistake.
    """
    start = time.perf_counter()
    budget = PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
    config = _checked(config, task)
    study: Study = instantiate(config.data).load()
    learner = _learner(
        config, study, budget, noise=noise_source(config), ledger_path=folder / "curator" / "ledger.json"
    )
    learner.check(study.records.n)
    if study.queries is not None:
        study.domain.check_covariates(study.queries, "query")
    warn(config, study)

    records = study.records
    with nothing_left_unpaid(folder), room_for_release(folder / "release", _numbers(config, study)):
        learner.fit(records.x, records.a, records.y)  # a tuned rule is paid for here
        release = told_of_sweep(learner.release())
    write_release(release, folder / "release")
    _draw(release, folder / "release")

    fitted = learner.learner_ if isinstance(learner, PrivatelyTunedRule) else learner
    nonprivate = _rule(config, study, None).fit(records.x, records.a, records.y)
    summary = summary_of(task, config, study, learner, release) | rule_choices(config)
    summary |= _accuracies(study, fitted, nonprivate, release) | _values(study, fitted, nonprivate, release)
    write_curator(config, rule_facts(fitted), rule_numbers(study, fitted), folder / "curator")
    noise = fitted.plan()
    write_text(folder / "curator" / "noise.txt", f"{noise}\n", PRIVATE)
    finish(summary, _MEASURES, release, folder, start)
    if release.privacy.claims:
        _show_noise(noise)


def _show_noise(noise: NoiseReport) -> None:
    """Print what the curator's report of the noise comes to."""
    print(
        f"noise: about {noise.accuracy:.0%} of the decisions agree with those of the rule without noise if the records "
        "speak as clearly as hoped (curator/noise.txt)"
    )
    for line in noise.advice[:1]:
        print(f"noise: {line}")


def _checked(config: DictConfig, task: str) -> DictConfig:
    """Return the settings; refuse those that no class below would ever see."""
    if "rule" in words():
        raise InputError(
            f"rule = {words()['rule']}: the task says which rule; use task=owl, two_stage_rule or pairwise"
        )
    if words().get("tune") == "private":
        raise InputError(f"tune = private: chooses the features of effects; with task={task} use tune=ridge")
    if config.queries.count < 1:
        raise InputError(f"queries.count = {config.queries.count}: ask for at least one query")
    if isinstance(instantiate(config.features), Representation | Tangent):
        raise InputError(
            f"features = {words().get('features')}: made of trained nuisances, and a rule has none; choose identity, "
            "legendre, fourier or nystrom"
        )
    config = _with_propensity(config, task)
    OmegaConf.resolve(config)
    return config


def _with_propensity(config: DictConfig, task: str) -> DictConfig:
    """Return the settings with the propensity of a generated trial; refuse to guess that of any other records."""
    config = config.copy()
    if OmegaConf.select(config, "weights.propensity", default="") is not None:
        return config
    known = getattr(instantiate(config.data), "trial_propensity", None)
    if known is None:
        raise InputError(
            f"weights.propensity: task={task} needs P(A = 1 | x) of these records; give weights.propensity=0.5 (a "
            "trial's), weights.propensity=COLUMN (the covariate that holds it), or weights=private (a private one)"
        )
    config.weights.propensity = known
    return config


def _learner(config: DictConfig, study: Study, budget: PrivacyBudget, **rest: Any) -> RuleLearner | PrivatelyTunedRule:
    """Return the rule's learner, or one that tries several and chooses privately."""
    rule = _rule(config, study, budget, **rest)
    return rule if config.tune is None else instantiate(config.tune, _convert_="all")(rule)


def _rule(config: DictConfig, study: Study, budget: PrivacyBudget | None, **rest: Any) -> RuleLearner:
    # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
    return instantiate(config.rule)(domain=study.schema, budget=budget, seed=config.seed, **rest)


def _numbers(config: DictConfig, study: Study) -> int:
    """Return more numbers than the release can hold: theta and its feature map."""
    return instantiate(config.features).setup(study.domain).dimension * (2 + study.domain.dimension)


def _decisions(learner: RuleLearner, x: Tensor) -> Tensor:
    """Return whom the rule without noise would treat."""
    return (torch.as_tensor(learner.nonprivate_score(x)) > 0).long()


def _accuracies(study: Study, learner: RuleLearner, nonprivate: RuleLearner, release: RuleRelease) -> dict[str, float]:
    """Return the shares of best decisions at the queries; nothing where the truth is unknown."""
    if study.effect is None or study.queries is None:
        return {}
    decisions = {
        "accuracy": release.answer(learner.view(study.queries)),
        "accuracy_nonprivate": _decisions(nonprivate, study.queries),
        "accuracy_treat_all": torch.ones_like(study.effect),
        "accuracy_treat_none": torch.zeros_like(study.effect),
    }
    return {name: decision_accuracy(decision, study.effect) for name, decision in decisions.items()}


def _values(
    study: Study, learner: RuleLearner, nonprivate: RuleLearner, release: RuleRelease
) -> dict[str, float | None]:
    """Return the values estimated on the records, by the propensity that is known or was paid for."""
    records = study.records
    decisions = {
        "value": release.answer(learner.view(records.x)),
        "value_nonprivate": _decisions(nonprivate, records.x),
        "value_treat_all": torch.ones_like(records.a),
        "value_treat_none": torch.zeros_like(records.a),
    }
    propensity = learner.weights_.propensity(records.x)
    if propensity is None:
        return dict.fromkeys(decisions)
    values = {name: policy_value(d, records.a, records.y, propensity) for name, d in decisions.items()}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _draw(release: RuleRelease, folder: Path) -> None:
    """Draw the coefficients of a rule that is linear in the covariates."""
    if not isinstance(release.features, Identity):
        return
    names = ["intercept", *release.features.domain.names]
    save_figure(rule_figure(names, np.asarray(release.theta), claim=release.privacy.claim), folder / "rule.png")
