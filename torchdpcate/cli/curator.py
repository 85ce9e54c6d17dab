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
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.release.balance_table import BalanceTable
from torchdpcate.release.estimate import Estimate
from torchdpcate.second_stage.stage import RKHSStage


def write_curator(config: DictConfig, facts: Mapping[str, Any], numbers: Mapping[str, Tensor], folder: Path) -> None:
    """Write ``config.yaml``, ``fit.json`` and ``numbers.safetensors`` into the curator's folder.

    Args:
        config: The composed configuration.
        facts: What is said of the fit, in plain types.
        numbers: What must never leave, by name, for ``torchdpcate audit leak`` to search the release for; names that
            begin with ``public.`` are of the release's own.
        folder: The curator's folder, which is there.
    """
    from safetensors.torch import save_file

    write_text(folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True), PRIVATE)
    write_text(folder / "fit.json", json.dumps(facts, indent=2) + "\n", PRIVATE)
    with atomic_path(folder / "numbers.safetensors", PRIVATE) as temporary:
        save_file({name: tensor.detach().cpu().double().clone() for name, tensor in numbers.items()}, temporary)


def effect_facts(learner: CATELearner) -> dict[str, Any]:
    """Return what the curator's folder says of the fit of a CATE."""
    return {
        "head_gradient_norm": learner.stage_.gradient_norm,
        "huber_threshold": learner.threshold_,
        "head_parameters": learner.stage_.coefficients.numel(),
    }


def rule_facts(learner: RuleLearner) -> dict[str, Any]:
    """Return what the curator's folder says of the fit of a rule."""
    problem = learner.problem_
    bound = problem.ridge + problem.loss.curvature * problem.n * problem.bounds.most
    return {
        "ridge": problem.ridge,
        "hessian_bound": bound if problem.domain is None else None,  # no less noise, unless a set confines the rule
        "rule_parameters": problem.size,
    }


def effect_numbers(study: Study, learner: CATELearner, mechanism: Mechanism, points: Tensor) -> dict[str, Tensor]:
    """Return the secrets of a CATE: the records', the regression pairs (s, w) in summary, the head without noise.

    In outcome and covariate units.

    Args:
        study: The data.
        learner: The fitted learner.
        mechanism: The mechanism of the release.
        points: Points of the figures, [m, q].
    """
    block, stage = learner.stage_.block, learner.stage_
    if mechanism.loss == "squared" and isinstance(stage, RKHSStage):
        stage = stage.squared()  # the head that such a mechanism answers from

    def effect(x: Tensor) -> Tensor:
        return torch.from_numpy(learner.curator_effect(x, stage))

    queries = {} if study.queries is None else {"effect_at_queries_without_noise": effect(study.queries)}
    return {
        **_record_numbers(study),
        **_summary("regression_s", block.s),
        **_summary("regression_w", block.w),
        "theta_without_noise": stage.coefficients,
        "effect_in_figure_without_noise": effect(points),
        **queries,
    }


def rule_numbers(study: Study, learner: RuleLearner) -> dict[str, Tensor]:
    """Return the secrets of a rule: the records', the weights in summary, the rule and its scores without noise.

    Args:
        study: The data.
        learner: The fitted learner.
    """
    problem = learner.problem_
    scores = torch.from_numpy(learner.nonprivate_score(study.queries)) if study.queries is not None else None
    return {
        **_record_numbers(study),
        "weight.mean": problem.weights.mean(),  # the largest is often the public bound
        "weight.sd": problem.weights.std(),
        "theta_without_noise": problem.minimiser,
        **({} if scores is None else {"score_at_queries_without_noise": scores}),
    }


def selection_facts(selector: PolicySelector) -> dict[str, Any]:
    """Return what the curator's folder says of a choice among policies."""
    return {
        "spread": selector.spread_,
        "certificate": selector.nuisances().certificate,
        "public": dict(selector.certified_.public),
    }


def selection_numbers(study: Study, selector: PolicySelector) -> dict[str, Tensor]:
    """Return the secrets of a choice among policies: the records', utilities, law of the choice, nuisances unpaid for.

    Args:
        study: The data.
        selector: The fitted selector.
    """
    assert selector.mechanism_ is not None
    x, nuisances = study.queries, selector.certified_.nuisances
    mark = "" if selector.certified_.spill_blocks else "public."
    fitted = {} if x is None else {"propensity": nuisances.propensity(x), "outcome": nuisances.outcome(x)}
    cuts = _numbers_of([family.config() for family in selector.library_.families])
    return {
        **_record_numbers(study),
        "utility": selector.utilities_,
        "probability": selector.mechanism_.probabilities(selector.utilities_),
        **{f"{mark}{name}_at_queries": values.flatten() for name, values in fitted.items()},
        **({"public.policies": torch.tensor(cuts, dtype=torch.float64)} if cuts else {}),
    }


def average_facts(learner: AverageEffectLearner) -> dict[str, Any]:
    """Return what the curator's folder says of the fit of an average effect."""
    return {"public": dict(learner.settings_)}


def average_numbers(
    study: Study | StreamedStudy, others: Mapping[str, Estimate], balance: BalanceTable | None
) -> dict[str, Tensor]:
    """Return the secrets of an average effect: the records', estimates that are not released, the balance.

    Args:
        study: The data.
        others: Estimates that are not released, by name.
        balance: Imbalance before and after weighting, without noise; None where it is not known.
    """
    numbers: dict[str, Any] = {f"unreleased.{name}": estimate.value for name, estimate in others.items()}
    if balance is not None:
        numbers |= {f"balance.{name}": column for name, column in balance.columns().items()}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    return {**_record_numbers(study), **tensors}


def _numbers_of(value: Any) -> list[float]:
    """Return the numbers of plain types, in any depth."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return [number for entry in value for number in _numbers_of(entry)]
    return [float(value)] if isinstance(value, int | float) else []


def _record_numbers(study: Study | StreamedStudy) -> dict[str, Tensor]:
    """Return the arms' sizes and the means of outcome and covariates."""
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


def _summary(name: str, values: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}.mean": values.mean(),
        f"{name}.sd": values.std(),
        f"{name}.smallest": values.min(),
        f"{name}.largest": values.max(),
    }
