"""The tasks of treatment rules: ``rule``, ``owl`` and ``two_stage_rule``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from torchdpcate.cli.task import Measure, TaskSpec, tasks_of, words
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage, ComposedNuisance, WideAndDeep
from torchdpcate.data._csv import CsvForm
from torchdpcate.data.study import Study, read_queries
from torchdpcate.errors import InputError
from torchdpcate.evaluation.comparison import decision_accuracy, policy_value
from torchdpcate.fit.feature_maps import Representation
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRule
from torchdpcate.release.rule import DecisionRelease

if TYPE_CHECKING:
    from torchdpcate.estimators.rules.effect_rule import EffectRule
    from torchdpcate.estimators.rules.learner import RuleLearner


def check_rule(config: DictConfig) -> None:
    """Refuse a rule that is named: the task says which.

    Raises:
        InputError: ``rule`` is a word.
    """
    if not isinstance(config.rule, DictConfig):
        tasks = ", ".join(tasks_of(Rules))
        raise InputError(f"rule = {config.rule}: the task says which rule; choose a task of {tasks}")


class Rules(TaskSpec):
    """Rules, compared by their decisions and by their value."""

    heading = "Rules side by side"
    note = "Value is estimated on the records, by a propensity that is known or was paid for; without one it is a dash."
    settings: ClassVar[tuple[str, ...]] = ("learner", "features", "weights", "outcome")
    measures = (
        Measure(
            key="accuracy",
            title="accuracy",
            note="Share of decisions that are those of the best rule: mean ± standard error over runs.",
            references={
                "accuracy_nonprivate": "non-private",
                "accuracy_treat_all": "treat all",
                "accuracy_treat_none": "treat none",
            },
        ),
        Measure(
            key="value",
            title="value",
            note="Mean outcome if the rule decided, estimated by self-normalised inverse-propensity weights: mean ± "
            "standard error over runs.",
            references={
                "value_nonprivate": "non-private",
                "value_treat_all": "treat all",
                "value_treat_none": "treat none",
            },
        ),
    )
    numbers = ("regret", "regret_constant", "share_treated")
    also_shown: ClassVar = {"regret": "unreleased: regret", "regret_constant": "unreleased: regret, best constant rule"}
    study: Study
    learner: RuleLearner
    release: DecisionRelease

    def checked(self, config: DictConfig) -> DictConfig:
        """Refuse what no learner would ever see."""
        check_rule(config)
        if isinstance(instantiate(config.features), Representation):
            raise InputError(
                f"features = {words().get('features')}: made of trained nuisances, and a rule has none; choose "
                "identity, legendre or fourier"
            )
        return config

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> RuleLearner:
        """Return the rule's learner; see the class above."""
        config = self.config
        # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
        return instantiate(config.rule)(
            domain=self.study.schema,
            budget=budget,
            weights=instantiate(config.weights),
            outcome=instantiate(config.outcome),
            features=instantiate(config.features),
            **rest,
        )

    @property
    def mechanism_name(self) -> str:
        return str(self.learner.mechanism)

    def size(self) -> int:
        """Return the numbers of theta and its feature map."""
        domain = self.study.domain
        return instantiate(self.config.features).setup(domain).dimension * (2 + domain.dimension)

    def results(self) -> dict[str, Any]:
        """Return the share of treated, best decisions and regrets where the truth is known, and values on records."""
        study, queries, found = self.study, self.study.queries, dict[str, Any]()
        if queries is not None:
            found["share_treated"] = self._decided(queries).double().mean().item()
        if queries is not None and study.effect is not None:
            gain, decisions = self._gain(study.effect), self._decisions(queries)
            found |= {f"accuracy{name}": decision_accuracy(chosen, gain) for name, chosen in decisions.items()}
            best = gain.clamp_min(0).mean()
            found["regret"] = float(best - (gain * decisions[""]).mean())
            found["regret_constant"] = float(best - gain.mean().clamp_min(0))
        return found | self._values()

    def exact(self) -> dict[str, Tensor]:
        """Return the rule without noise; its curvature has a bound unless a set confines the rule."""
        problem = self.learner.problem_
        bound = problem.ridge + problem.loss.curvature * problem.n * problem.bounds.most
        return {"theta_without_noise": problem.minimiser, "hessian_bound": torch.tensor(float(bound))}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return what the report of the noise comes to."""
        if not self.release.privacy.claims:
            return []
        noise = self.learner.plan()
        return [
            f"noise: about {noise.accuracy:.0%} of the decisions agree with those of the rule without noise if the "
            f"records speak as clearly as hoped; {noise.records_needed:,} records would make it 90 %"
        ]

    def _decided(self, x: Tensor) -> Tensor:
        return self.release.answer(x)

    def _decisions(self, x: Tensor) -> dict[str, Tensor]:
        """Return whom the release would treat, everybody, nobody, and whom the rule without privacy where it is known.

        The names are the ends of their keys in a summary.
        """
        everybody = torch.ones(len(x), dtype=torch.int64)
        found = {"": self._decided(x), "_treat_all": everybody, "_treat_none": torch.zeros_like(everybody)}
        if self.nonprivate is not None:
            found["_nonprivate"] = self._without_privacy(x).long()
        return found

    def _without_privacy(self, x: Tensor) -> Tensor:
        """Return whom the rule without privacy would treat, bool [m]; it is there."""
        return torch.as_tensor(self.nonprivate.nonprivate_score(x)) > 0

    def _gain(self, effect: Tensor) -> Tensor:
        """Return what a treatment gains where its effect is this, [m]."""
        return self.study.domain.direction * effect

    def _values(self) -> dict[str, float | None]:
        """Return the values estimated on the records, where the propensity is known or was paid for."""
        if self.streams or self.study.domain.censoring is not None:  # outcomes beyond the follow-up are not known
            return {}
        records = self.study.records
        propensity, decisions = self.learner.propensity_of(records), self._decisions(records.x)
        if propensity is None:
            return {}
        facts = records.a, records.y, propensity, records.weight
        values = {name: policy_value(d, *facts) for name, d in decisions.items()}
        return {f"value{name}": value if math.isfinite(value) else None for name, value in values.items()}


class EffectRules(Rules):
    """Rules by the sign of an effect, compared by their decisions, their value and what they lose."""

    settings = (*Rules.settings, "nuisance")
    comparable = Rules

    learner: EffectRule  # type: ignore[assignment]
    release: ComposedRule

    def checked(self, config: DictConfig) -> DictConfig:
        """Refuse nuisances of two blocks, and another rule."""
        check_rule(config)
        if not isinstance(self._nuisance(config), ComposedNuisance):
            raise InputError("nuisance: a rule by an effect takes auto, additive or mlp")
        return config

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> EffectRule:  # type: ignore[override]
        """Return the rule's learner."""
        config, path = self.config, self.config.rule.population
        stage = AdaptiveSecondStage(
            constants=RuleConstants(),
            intervals=False,
            nuisance=self._nuisance(config),  # type: ignore[arg-type]
        )
        return instantiate(config.rule)(
            domain=self.study.schema,
            budget=budget,
            second_stage=stage,
            trainer=self.trainer,
            seed=config.seed,
            population=None if path is None else read_queries(path, self.study.schema, CsvForm.of(config.data)),
            **rest,
        )

    @property
    def mechanism_name(self) -> str:
        return "composed"

    def size(self) -> int:
        """See ``TaskSpec``: the numbers of a composed effect."""
        return TaskSpec.size(self)

    def results(self) -> dict[str, Any]:
        """Return what the plan requested, shares of best decisions, values, and regrets where the truth is known."""
        values = {} if self.release.named is None else {"values": self.release.named.rows()}
        return {"form": self.release.effect.form, **super().results(), **values}

    def exact(self) -> dict[str, Tensor]:
        """Return nothing: sums and solved systems have no coefficients of their own."""
        return {}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return which rule was taken, and why; and what it does where it is a constant one."""
        constant = self.release.constant
        if constant is None:
            kind = "linear" if self.release.effect.form == "linear" else "with squares, products and waves"
            return [f"rule: sign of a composed effect, {kind}, of least planned regret at this n and budget"]
        everybody = "everybody" if constant else "nobody"
        return [f"rule: treats {everybody}; nothing about covariates can be learnt at this n and budget (see plan)"]

    def _without_privacy(self, x: Tensor) -> Tensor:
        effect = torch.as_tensor(self.nonprivate.nonprivate_effect(x))
        return self.study.domain.direction * effect > self.release.cost + self.release.cutoff

    def _gain(self, effect: Tensor) -> Tensor:
        return super()._gain(effect) - self.release.cost - self.release.threshold

    @staticmethod
    def _nuisance(config: DictConfig) -> Any:
        nuisance = instantiate(config.nuisance)
        return WideAndDeep.alone(nuisance) if type(nuisance) is NuisanceConfig else nuisance
