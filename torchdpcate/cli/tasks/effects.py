"""The task ``cate``: from records to a released CATE, with what the curator wants to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from torchdpcate.cli.site_link import SocketLink
from torchdpcate.cli.sites import read_sizes
from torchdpcate.cli.task import Figures, Measure, TaskSpec, choices
from torchdpcate.cli.tasks.averages import budget_of, way_of_averages, write_arms
from torchdpcate.composition.settings import AdaptiveSecondStage, ComposedNuisance, WideAndDeep
from torchdpcate.composition.sites import Site
from torchdpcate.data.study import Study
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.base import Composed, FunctionMechanism, Mechanism, PlugIn
from torchdpcate.estimators.planned_noise import shown, worth_asking
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import PlugInSecondStage, RidgeSecondStage, SecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.file import RELEASE_FILE
from torchdpcate.release.release import EffectRelease

if TYPE_CHECKING:
    from torchdpcate.estimators.cate.learner import CATELearner
    from torchdpcate.estimators.planned_noise import PlannedNoise


class Effects(TaskSpec):
    """Effects, compared by their error."""

    heading = "Methods side by side"
    note = "Noise is the mean public scale of the answers; what is secret is a dash."
    settings = ("learner", "release", "second_stage", "features", "nuisance")
    measures = (
        Measure(
            key="pehe",
            title="PEHE",
            note="Mean ± standard error over runs.",
            references={"pehe_plug_in": "plug-in", "pehe_nonprivate": "non-private"},
        ),
    )
    numbers = ("effect_mean", "effect_least", "effect_most", "noise", "moved")
    also_shown: ClassVar = {"moved": "unreleased: difference from the fit without privacy, root mean square"}
    study: Study  # or a StreamedStudy, which has no records in memory
    learner: CATELearner
    release: EffectRelease
    mechanism: Mechanism

    def checked(self, config: DictConfig) -> DictConfig:
        """Fill in what the user left to the mechanism; see the class above."""
        if config.release not in ("function", "queries"):
            raise InputError(f"release = {config.release}: choose release=function or release=queries")
        self.mechanism = instantiate(config.mechanism)
        second = get_class(config.second_stage._target_)
        composed = isinstance(self.mechanism, Composed) == issubclass(second, AdaptiveSecondStage)
        if not composed or isinstance(self.mechanism, PlugIn) != issubclass(second, PlugInSecondStage):
            chosen = choices(config, ["mechanism", "second_stage"])
            raise InputError(
                f"mechanism = {chosen['mechanism']}: not for second_stage = {chosen['second_stage']}; composed is of "
                "second_stage=adaptive, plug_in of plug_in, others are of kernel_ridge, linear and neural"
            )
        if isinstance(self.mechanism, Composed):
            return config
        if "loss" in config.second_stage and config.second_stage.loss is None:
            config = OmegaConf.merge(config, {"second_stage": {"loss": self.mechanism.loss}})  # type: ignore[assignment]
        return config

    @property
    def publishes_queries(self) -> bool:
        """See ``TaskSpec``: where answers at the queries are published, so are their points."""
        return self._of_queries or not isinstance(self.mechanism, FunctionMechanism | Composed)

    def make(self, budget: PrivacyBudget | None, **rest: Any) -> CATELearner:
        """Return the learner of effects; see the class above."""
        config = self.config
        gaussian = self.mechanism.gaussian and budget is not None and not self._composed
        # A partial: as keywords of instantiate, our dataclasses would be taken for configuration.
        return instantiate(config.learner)(
            domain=self.study.schema,
            budget=budget,
            nuisance=None if self._composed else instantiate(config.nuisance),
            second_stage=self._second_stage(None if budget is None else self._site),
            trainer=self.trainer,
            seed=config.seed,
            filter="gaussian" if gaussian else "sums",
            **rest,
        )

    def check(self) -> None:
        """Refuse a mechanism that does not fit the release."""
        mechanism = self.mechanism
        if not self._of_queries and not (isinstance(mechanism, FunctionMechanism | Composed) or mechanism.online):
            raise InputError(
                f"mechanism = {mechanism.name}: answers finitely many queries; use release=queries with it, "
                "or mechanism=objective"
            )
        if self._of_queries:
            self.study.schema.two_arms("release=queries")
        self.learner.check(self.n, mechanism)

    @property
    def mechanism_name(self) -> str:
        return self.mechanism.name

    def noise_of(self, learner: CATELearner, n: int) -> PlannedNoise:
        """See ``TaskSpec``; some mechanisms answer at the queries alone."""
        requested = None if isinstance(self.mechanism, FunctionMechanism | Composed) else self.study.queries
        return learner.expected_noise(n, self.mechanism, requested)

    def certified_ways(self) -> list[str]:
        """See ``TaskSpec``: the networks' own effect, then what else plans know the error of, the least first."""
        planned = self.noise_of(self.learner, self.n)
        if planned.level is Level.CERTIFIED:
            return self._better(planned)
        from torchdpcate.estimators.cate.learner import RLearner  # which trains; a task is made for less

        make = partial(RLearner, self.study.schema, self.learner.budget)
        own = make(second_stage=PlugInSecondStage()).expected_noise(self.n)
        best = make().expected_noise(self.n)
        ways = [(best.value, "second_stage=adaptive (the default)")]
        if best.relative is not None:
            ways.append((best.value / best.relative, "second_stage.constant_only=true"))
        ranked = ", ".join(f"{way} {shown(value)}" for value, way in sorted(ways, key=lambda way: way[0]))
        return [
            f"{self.mechanism.name} is {planned.level.value} here; certified ways to the same question, with the error "
            f"to expect: second_stage=plug_in (networks of all records) {shown(own.value)}; {ranked}"
        ]

    def _better(self, planned: PlannedNoise) -> list[str]:
        """Return the way to one average of a trial, where plans do not call this effect worth asking for."""
        schema = self.study.schema
        asked = not worth_asking(planned.value, schema, planned.relative).startswith("no")
        alone = self._composed and self.config.sites.path is None
        if asked or len(schema.actions) > 2 or schema.assignment is not None or not alone:
            return []
        way, why = way_of_averages(schema, budget_of(self), self.n)
        less = bool(why) and way(schema, budget_of(self)).expected_noise(self.n).value < planned.value
        return [f"better: task=average_effect by {why}"] if less else []

    def size(self) -> int:
        """Return the numbers of queries, nuisances, the head and its feature map."""
        learner, queries = self.learner, self.study.queries
        requested = 0 if queries is None else queries.numel() + 2 * len(queries)
        if self._composed:
            return requested + super().size()
        if not hasattr(learner, "stage_"):
            return requested
        weights = sum(tensor.numel() for tensor in learner.nuisances_.state_dict().values())
        return requested + weights + learner.stage_.coefficients.numel() * (1 + self.study.domain.dimension)

    def released(self) -> EffectRelease:
        """Release the function, or answers at the queries."""
        learner, mechanism = self.learner, self.mechanism
        if self._of_queries:
            return learner.release_queries(self._queries, mechanism)
        if isinstance(mechanism, FunctionMechanism | Composed):
            return learner.release_function(mechanism)
        service = learner.answer_online(self.folder / "curator" / "online", mechanism)
        return service.release(self._queries)

    def results(self) -> dict[str, Any]:
        """Return effects and noise at the queries, and errors where the truth is known, as of generated data."""
        study, learner, release = self.study, self.learner, self.release
        scales = None if study.queries is None else release.known_noise(study.queries)
        noise: dict[str, Any] = {"noise": None if scales is None else scales.mean().item()}
        if study.queries is not None:
            at = release.effect_tensor(study.queries)
            mean = getattr(release, "average_effect", at.mean().item())  # the number that finding and page have
            noise |= {"effect_mean": mean, "effect_least": at.min().item(), "effect_most": at.max().item()}
        if self._composed:
            noise |= {"form": learner.plan_.form, "planned_error": learner.planned_error()}
        if self.nonprivate is not None:
            x = study.records.x if study.queries is None else study.queries
            noise["moved"] = pehe(torch.as_tensor(self.nonprivate.nonprivate_effect(x)), release.effect_tensor(x))
        if study.effect is None:
            return noise
        truth, queries = study.effect, self._queries
        estimates: dict[str, Any] = {"pehe": release.effect_tensor(queries)}
        if self.nonprivate is not None:
            estimates["pehe_nonprivate"] = self.nonprivate.nonprivate_effect(queries)
        if not self._composed:
            estimates["pehe_plug_in"] = learner.plug_in_effect(queries)
        return noise | {name: pehe(torch.as_tensor(effect), truth) for name, effect in estimates.items()}

    def exact(self) -> dict[str, Tensor]:
        """Return the head without noise, in outcome and covariate units, of a second stage of its own."""
        if self._composed:
            return {}
        stage = self.learner.stage_
        bound = 2 * len(stage.block.s) * (1 + stage.ridge)  # features and weights are at most 1
        return {"theta_without_noise": stage.coefficients, "hessian_bound": torch.tensor(float(bound))}

    def share(self) -> None:
        """Send the release to the coordinator, where there are several sites."""
        if self._site is not None:
            self._site.link.finish(self.folder / "release" / RELEASE_FILE)

    def write(self, summary: Mapping[str, Any]) -> Figures:
        """Write how treated and controls compare, and return those figures."""
        return write_arms(self)

    def _second_stage(self, site: Site | None) -> SecondStage | AdaptiveSecondStage:
        """Return the second stage; that of a composition has nuisances of its own kind, and may be one of a site."""
        nuisance, second_stage = instantiate(self.config.nuisance), instantiate(self.config.second_stage)
        if isinstance(second_stage, AdaptiveSecondStage) and type(nuisance) is NuisanceConfig:
            nuisance = WideAndDeep.alone(nuisance)
        if isinstance(second_stage, AdaptiveSecondStage) != isinstance(nuisance, ComposedNuisance):
            chosen = choices(self.config, ["nuisance", "second_stage"])
            raise InputError(
                f"nuisance = {chosen['nuisance']}: not for second_stage = {chosen['second_stage']}; adaptive takes "
                "nuisance=auto, additive or mlp, others mlp or recurrent"
            )
        if isinstance(second_stage, RidgeSecondStage):
            return replace(second_stage, noise_ratio=self.mechanism.noise_ratio)
        if not isinstance(nuisance, ComposedNuisance):
            return second_stage
        return replace(second_stage, nuisance=nuisance, site=site)

    @cached_property
    def _site(self) -> Site | None:
        """This site, where there are several."""
        given = self.config.sites
        if given.path is None:
            return None
        for name in ("name", "socket"):
            if given[name] is None:
                raise InputError(f"sites.{name}: has no default; give sites.{name}=VALUE beside sites.path")
        if not self._composed:
            raise InputError("sites.path: sites add up the sums of one composition; use second_stage=adaptive")
        return Site(str(given.name), read_sizes(given.path), SocketLink(str(given.name), given.socket, given.wait))

    @property
    def _composed(self) -> bool:
        """Whether all is one composition."""
        return isinstance(self.mechanism, Composed)

    @property
    def _of_queries(self) -> bool:
        """Whether answers at the queries are released, and nothing else."""
        return bool(self.config.release == "queries")

    @property
    def _queries(self) -> Tensor:
        assert self.study.queries is not None
        return self.study.queries
