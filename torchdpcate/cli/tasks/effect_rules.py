"""The task ``rule``: the treatment rule of least planned regret."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from torchdpcate.cli.tasks.rules import Rules, check_rule
from torchdpcate.composition.constants import RuleConstants
from torchdpcate.composition.settings import AdaptiveSecondStage, ComposedNuisance, WideAndDeep
from torchdpcate.data.study import read_queries
from torchdpcate.drawing.releases import coefficients
from torchdpcate.errors import InputError
from torchdpcate.evaluation.figures import save_figure
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRule

if TYPE_CHECKING:
    from torchdpcate.estimators.planned_noise import PlannedNoise
    from torchdpcate.estimators.rules.effect_rule import EffectRule

_NUMBERS = 1000  # of a composed release, a covariate: far more than its plan asks for


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
            trainer=instantiate(config.trainer),
            seed=config.seed,
            population=None if path is None else read_queries(path, self.study.schema),
            **rest,
        )

    @property
    def mechanism_name(self) -> str:
        """See ``TaskSpec``."""
        return "composed"

    def noise_of(self, learner: Any, n: int) -> PlannedNoise:
        """See ``TaskSpec``."""
        return learner.expected_noise(n, residual_scale=self.residual_scale)

    def size(self) -> int:
        """Return the numbers of a composed effect."""
        return _NUMBERS * (1 + self.study.domain.dimension)

    def results(self) -> dict[str, Any]:
        """Return what the plan asked for, shares of best decisions, values, and regrets where the truth is known."""
        return {"rung": self.release.effect.rung, **super().results()}

    def facts(self) -> dict[str, Any]:
        """Return the plan."""
        plan = self.learner.plan_
        return {"plan": plan.facts(), "shares": dict(plan.shares.shares), "residual_scale": self.release.effect.scale}

    def secrets(self) -> dict[str, Tensor]:
        """Return the nuisances of the records in summary."""
        if self.streams:
            return {}
        fit, y = self.learner.composed_, self.study.records.y
        return {
            f"{name}.{what}": value
            for name, values in (("outcome_model", fit.outcome), ("propensity", fit.propensity), ("y", y))
            for what, value in (("mean", values.mean()), ("sd", values.std()))
        }

    def write(self, summary: Mapping[str, Any]) -> None:
        """Draw the coefficients of a rule that is linear in the standardised covariates."""
        if coefficients(self.release) is not None:
            save_figure(self.release.plot(), self.folder / "release" / "rule.png")

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return which rule was taken, and why; and what it does where it is a constant one."""
        constant = self.release.constant
        if constant is None:
            kind = "linear" if self.release.effect.rung == "linear" else "with squares, products and waves"
            return [f"rule: sign of a composed effect, {kind}, of least planned regret at this n and budget"]
        everybody = "everybody" if constant else "nobody"
        return [f"rule: treats {everybody}; nothing about covariates can be learnt at this n and budget (see plan)"]

    @cached_property
    def _nonprivate(self) -> EffectRule:  # type: ignore[override]
        records = self.study.records
        return self.make(None).fit(records.x, records.a, records.y, self.study.own_propensity)

    def _decisions(self, x: Tensor) -> dict[str, Tensor]:
        everybody, gain = torch.ones(len(x), dtype=torch.int64), self.release.cost + self.release.cutoff
        return {
            "": self.release.answer(x),
            "_nonprivate": (torch.as_tensor(self._nonprivate.nonprivate_effect(x)) > gain).long(),
            "_treat_all": everybody,
            "_treat_none": torch.zeros_like(everybody),
        }

    def _gain(self, effect: Tensor) -> Tensor:
        return effect - self.release.cost - self.release.threshold

    @property
    def _fitted(self) -> Any:
        return self.learner

    @staticmethod
    def _nuisance(config: DictConfig) -> Any:
        nuisance = instantiate(config.nuisance)
        return WideAndDeep.alone(nuisance) if isinstance(nuisance, NuisanceConfig) else nuisance
