"""The tasks of treatment rules: ``rule``, ``owl`` and ``two_stage_rule``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from torchdpcate._files import PRIVATE, write_text
from torchdpcate.cli.task import Measure, TaskSpec, tasks_of, words
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage, ComposedNuisance, WideAndDeep
from torchdpcate.data._csv import CsvForm
from torchdpcate.data.study import Study, read_queries
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import Representation
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.tangent_features import Tangent
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRule
from torchdpcate.release.rule import DecisionRelease

if TYPE_CHECKING:
    from torchdpcate.estimators.rules.effect_rule import EffectRule
    from torchdpcate.estimators.rules.learner import RuleLearner
    from torchdpcate.estimators.rules.noise_report import NoiseReport


def check_rule(config: DictConfig) -> None:
    """Refuse a rule that is named: the task says which.

    Raises:
        InputError: ``rule`` is a word.
    """
    if not isinstance(config.rule, DictConfig):
        tasks = ", ".join(tasks_of(Rules))
        raise InputError(f"rule = {config.rule}: the task says which rule; choose a task of {tasks}")


_DECISIONS = ("", "_nonprivate", "_treat_all", "_treat_none")
"""Of the release, the rule without privacy, everybody and nobody, by the ends of their keys in a summary."""


class Rules(TaskSpec):
    """Rules, compared by their decisions and by their value."""

    heading = "Rules side by side"
    note = "Value is estimated on the records, by a propensity that is known or was paid for; without one it is a dash."
    settings: ClassVar[tuple[str, ...]] = ("learner", "features", "weights", "outcome", "loss")
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
        if isinstance(instantiate(config.features), Representation | Tangent):
            raise InputError(
                f"features = {words().get('features')}: made of trained nuisances, and a rule has none; choose "
                "identity, legendre, fourier or nystrom"
            )
        return config

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> RuleLearner:
        """Return the rule's learner; see the class above."""
        # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
        return instantiate(self.config.rule)(domain=self.study.schema, budget=budget, seed=self.config.seed, **rest)

    @property
    def mechanism_name(self) -> str:
        """See ``TaskSpec``."""
        return str(self.learner.mechanism)

    def size(self) -> int:
        """Return the numbers of theta and its feature map."""
        domain = self.study.domain
        return instantiate(self.config.features).setup(domain).dimension * (2 + domain.dimension)

    def results(self) -> dict[str, Any]:
        """Return the shares of treated, of best decisions and the regret at the queries, and values on the records."""
        queries = self.study.queries
        treated = {} if queries is None else {"share_treated": self._decided(queries).double().mean().item()}
        return {**treated, **self._accuracies(), **self._regrets(), **self._values()}

    def exact(self) -> dict[str, Tensor]:
        """Return the rule without noise; its curvature has a bound unless a set confines the rule."""
        problem = self.learner.problem_
        bound = problem.ridge + problem.loss.curvature * problem.n * problem.bounds.most
        known = {} if problem.domain is not None else {"hessian_bound": torch.tensor(float(bound))}
        return {"theta_without_noise": problem.minimiser, **known}

    def write(self, summary: Mapping[str, Any]) -> None:
        """Report the noise to the curator."""
        with self.attempt("curator/noise.txt"):
            write_text(self.folder / "curator" / "noise.txt", f"{self._noise}\n", PRIVATE)

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return what the report of the noise comes to."""
        if not self.release.privacy.claims:
            return []
        agreement = (
            f"about {self._noise.accuracy:.0%} of the decisions agree with those of the rule without noise if the "
            "records speak as clearly as hoped (curator/noise.txt)"
        )
        return [f"noise: {line}" for line in (agreement, *self._noise.advice[:1])]

    @cached_property
    def _nonprivate(self) -> RuleLearner:
        records = self.study.records
        learner: Any = self.make(None)
        return learner.fit(records.x, records.a, self.study.outcomes, **self.study.own)

    @cached_property
    def _noise(self) -> NoiseReport:
        return self.learner.plan()

    def _decided(self, x: Tensor) -> Tensor:
        return self.release.answer(self.learner.view(x))

    def _decisions(self, x: Tensor) -> dict[str, Tensor]:
        """Return whom the release would treat, whom the rule without privacy, everybody and nobody."""
        everybody = torch.ones(len(x), dtype=torch.int64)
        return {
            "": self._decided(x),
            "_nonprivate": (torch.as_tensor(self._nonprivate.nonprivate_score(x)) > 0).long(),
            "_treat_all": everybody,
            "_treat_none": torch.zeros_like(everybody),
        }

    def _accuracies(self) -> dict[str, float]:
        """Return the shares of best decisions at the queries; nothing where the truth is unknown."""
        from torchdpcate.evaluation.metrics import decision_accuracy

        study = self.study
        if study.effect is None or study.queries is None:
            return {}
        decisions = self._decisions(study.queries)
        return {
            f"accuracy{name}": decision_accuracy(chosen, self._gain(study.effect)) for name, chosen in decisions.items()
        }

    def _regrets(self) -> dict[str, float]:
        """Return what the release and the best constant rule lose of the mean gain; nothing where truth is unknown."""
        study = self.study
        if study.effect is None or study.queries is None:
            return {}
        gain = self._gain(study.effect)
        best = gain.clamp_min(0).mean()
        decided = (gain * self._decisions(study.queries)[""]).mean()
        return {"regret": float(best - decided), "regret_constant": float(best - gain.mean().clamp_min(0))}

    def _gain(self, effect: Tensor) -> Tensor:
        """Return what a treatment gains where its effect is this, [m]."""
        return self.study.domain.direction * effect

    def _values(self) -> dict[str, float | None]:
        """Return the values estimated on the records, by the propensity that is known or was paid for."""
        from torchdpcate.evaluation.metrics import policy_value

        # a rule without privacy takes all passes of a stream again; outcomes beyond the end of follow-up are not known
        if self.streams or self.study.domain.censoring is not None:
            return dict.fromkeys(f"value{name}" for name in _DECISIONS)
        records = self.study.records
        propensity, decisions = self.learner.propensity_of(records), self._decisions(records.x)
        if propensity is None:
            return dict.fromkeys(f"value{name}" for name in decisions)
        facts = records.a, records.y, propensity, records.weight
        values = {name: policy_value(d, *facts) for name, d in decisions.items()}
        return {f"value{name}": value if math.isfinite(value) else None for name, value in values.items()}


_NUMBERS = 1000  # of a composed release, a covariate: far more than its plan requests


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
            raise InputError("nuisance: a rule by an effect takes auto, additive, wide_and_deep or mlp")
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
        """See ``TaskSpec``."""
        return "composed"

    def size(self) -> int:
        """Return the numbers of a composed effect."""
        return _NUMBERS * (1 + self.study.domain.dimension)

    def results(self) -> dict[str, Any]:
        """Return what the plan requested, shares of best decisions, values, and regrets where the truth is known."""
        return {"form": self.release.effect.form, **super().results()}

    def exact(self) -> dict[str, Tensor]:
        """Return nothing: sums and solved systems have no coefficients of their own."""
        return {}

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write nothing: the curator has no more than the release."""

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return which rule was taken, and why; and what it does where it is a constant one."""
        constant = self.release.constant
        if constant is None:
            kind = "linear" if self.release.effect.form == "linear" else "with squares, products and waves"
            return [f"rule: sign of a composed effect, {kind}, of least planned regret at this n and budget"]
        everybody = "everybody" if constant else "nobody"
        return [f"rule: treats {everybody}; nothing about covariates can be learnt at this n and budget (see plan)"]

    @cached_property
    def _nonprivate(self) -> EffectRule:  # type: ignore[override]
        records = self.study.records
        return self.make(None).fit(records.x, records.a, self.study.outcomes, **self.study.own)

    def _decided(self, x: Tensor) -> Tensor:
        return self.release.answer(x)

    def _decisions(self, x: Tensor) -> dict[str, Tensor]:
        everybody, least = torch.ones(len(x), dtype=torch.int64), self.release.cost + self.release.cutoff
        effect = torch.as_tensor(self._nonprivate.nonprivate_effect(x))
        return {
            "": self._decided(x),
            "_nonprivate": (self.study.domain.direction * effect > least).long(),
            "_treat_all": everybody,
            "_treat_none": torch.zeros_like(everybody),
        }

    def _gain(self, effect: Tensor) -> Tensor:
        return super()._gain(effect) - self.release.cost - self.release.threshold

    @staticmethod
    def _nuisance(config: DictConfig) -> Any:
        nuisance = instantiate(config.nuisance)
        return WideAndDeep.alone(nuisance) if isinstance(nuisance, NuisanceConfig) else nuisance
