"""Effects by blocks: some records train the nuisances, others fit the second stage, and each block has its budget.

``Blocks`` are the public settings, ``FittedBlocks`` what they learnt and the releases that can be made of it.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdpcate._process import gpu_memory
from torchdpcate.causal.score import RegressionScore
from torchdpcate.composition.planned import effect_errors
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.records import CausalData, public_split, split_sizes
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.base import MakeStatement
from torchdpcate.estimators.cate.effect_plan import NUISANCE, SECOND_STAGE, EffectPlan
from torchdpcate.estimators.cate.head import ASSUMED, PlannedHead
from torchdpcate.estimators.cate.mechanisms.base import (
    MECHANISMS,
    FunctionMechanism,
    Mechanism,
    PlugIn,
    Prepared,
    QueryMechanism,
)
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.cate.online.state import head_of
from torchdpcate.estimators.planned_noise import OF_EFFECT, PlannedNoise, shown
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.nuisances import NetworkErrors, NuisanceModel, NuisanceRecipe, shrunk, smaller
from torchdpcate.heads.recipes import QUERIES, NeuralSecondStage, PlugInSecondStage, RidgeSecondStage, SecondStage
from torchdpcate.heads.stage import FittedStage, Regression, SecondStageBlock
from torchdpcate.privacy.accounting import EventCount
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import THRESHOLD, TRAINING, Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition, Level, user_code
from torchdpcate.privacy.selection import private_quantile
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.release import FunctionRelease, QueryRelease
from torchdpcate.release.statement import PrivacyStatement

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_GRID = 200  # points of the public geometric grid of a private threshold, from S / 1000 to S
_OF = "the second stage alone for an average person (errors of the nuisances come on top)"
_NUISANCES = "the noise in private nuisances, which is often the larger"


@dataclass(frozen=True, eq=False)
class Blocks:
    """A learner's settings where records are split and each block has the whole budget.

    Attributes:
        score: The learner's score.
        schema: Of the records.
        budget: Of each block; None without privacy.
        nuisance: Settings of the nuisances.
        second_stage: Settings of the second stage.
        seed: Public seed of the split, initial weights and (without privacy) batches.
        trainer: Makes a Lightning Trainer from keyword arguments.
        learner: Name of the learner's class.
        own: What the learner's guarantees rest on: a class, or a score, of the user's.
    """

    score: RegressionScore
    schema: TableSchema
    budget: PrivacyBudget | None
    nuisance: NuisanceRecipe
    second_stage: SecondStage
    seed: int
    trainer: "Callable[..., Trainer]"
    learner: str
    own: tuple[Condition, ...]

    takes_censored = False
    """See ``PrivateEstimator``."""
    needs_equal_records = "second stages on blocks of records take none; use second_stage=adaptive"
    """See ``PrivateEstimator``."""

    @property
    def needs_all_records(self) -> str | None:
        return "blocks of records are trained on all at once; use second_stage=adaptive"

    def blocks(self, n: int) -> dict[str, Tensor]:
        """Return the positions of the records of each block, which follow from n and seed.

        Raises:
            InputError: delta = 0, or too few records.
        """
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                "delta = 0: private nuisances (nuisance=mlp and others) are only (epsilon, delta)-private; "
                "give privacy.delta above 0, for instance 1e-5, or take second_stage=adaptive, which is pure then"
            )
        if self.split == 1:
            return {NUISANCE: torch.arange(n)}
        return dict(zip((NUISANCE, SECOND_STAGE), public_split(n, self.split, self.seed), strict=True))

    @property
    def split(self) -> float:
        """Share of the records that trains the nuisances: one half, or all where there is no second stage."""
        return 1.0 if isinstance(self.second_stage, PlugInSecondStage) else 0.5

    def sizes(self, n: int) -> tuple[int, int]:
        """Return the number of records that train the nuisances, and of those that fit the second stage."""
        return (n, n) if self.split == 1 else split_sizes(n, self.split)

    def check(self, n: int, mechanism: "str | Mechanism | None") -> None:
        """Refuse a release that could not be made, before anything is spent.

        Raises:
            InputError: delta = 0, too few records, or a mechanism without a guarantee for these settings.
        """
        self.blocks(n)
        trained, fitted = self.sizes(n)
        self.trainer()
        domain = self.schema.domain
        self.second_stage.check(domain)
        self.nuisance.check(trained, domain, self.budget, self.beside)
        if self.budget is not None:
            chosen: Mechanism = MECHANISMS.make(mechanism or self.mechanism, Mechanism)
            chosen.check_attacked()
            weight = self.score.bounds(self.schema.domain).weight * FeatureMap.bound
            chosen.check(self.second_stage, weight, fitted, self.budget)
            chosen.check_propensity(self.schema.domain.known_propensity)

    def fit(self, records: CausalData, session: FitSession, statement: MakeStatement) -> "FittedBlocks":
        """Train the nuisances, pay for the threshold and fit the second stage.

        Args:
            records: All records, within the domain.
            session: Pays, and draws the noise.
            statement: Makes the releases' privacy statements.

        Raises:
            InputError: Settings that do not fit the blocks.
            BudgetError: A block cannot pay.
        """
        blocks = {name: records.subset(index) for name, index in self.blocks(records.n).items()}
        self.second_stage.check(self.schema.domain)
        first, domain = blocks[NUISANCE], self.schema.domain
        nuisances = self.nuisance.fit(
            first,
            domain,
            budget=self.budget,
            also=self.beside,
            session=session.charging([NUISANCE], TRAINING),
            trainer=self.trainer,
            seed=self.seed,
        )
        threshold = self._threshold(first, nuisances, session)
        clip = math.inf if threshold is None else threshold
        device = self.trainer().strategy.root_device
        there, fitted = on_device(nuisances, device), blocks.get(SECOND_STAGE, first).to(device)
        s, w = self.regressed(fitted, there)
        block = SecondStageBlock(fitted.x, s, w, self.regression(there), domain, self.score.bounds(domain))
        with gpu_memory("second_stage", "lower its features, width or batch_size"):
            stage = self.second_stage.fit(
                block,
                there,
                threshold=clip,
                budget=self.budget,
                trainer=self.trainer,
                seed=self.seed,
            )
        own = self.nuisance.conditions(self.trainer) + user_code("second stage", self.second_stage)
        return FittedBlocks(self, records.n, nuisances, threshold, stage, session, own, statement)

    def expected_noise(self, n: int, mechanism: "str | Mechanism | None", queries: Tensor | None) -> PlannedNoise:
        """Return the noise of the second stage alone, with a planned Huber threshold."""
        assert self.budget is not None
        chosen: Mechanism = MECHANISMS.make(mechanism or self.mechanism, Mechanism)
        head = PlannedHead.of_recipe(self.second_stage, self.score, self.schema, self.sizes(n)[1], self.budget, queries)
        user = user_code("mechanism", chosen) + self.nuisance.conditions(self.trainer)
        user += user_code("second stage", self.second_stage) + self.own
        level = chosen.planned_level(self.second_stage)
        level = Level.CONDITIONAL if user and level is Level.CERTIFIED else level
        if isinstance(self.second_stage, NeuralSecondStage | PlugInSecondStage):
            return self._networks(n, level, QUERIES if queries is None else len(queries))
        value, remarks = math.nan if head is None else chosen.planned(head, self.budget), list[str]()
        if head is not None and head.retained is not None:
            remarks.append(f"the ridge of {head.ridge:.3g} leaves about {head.retained:.0%} of a correction as it is")
        return PlannedNoise(
            value,
            _OF,
            self.schema.domain.outcome_range,
            n,
            self.budget,
            {} if math.isnan(value) else {"second stage": value},
            level,
            assumes=() if math.isnan(value) else ASSUMED,
            left_out=(_NUISANCES, "sampling, and what the ridge shrinks"),
            remarks=tuple(remarks),
            alone=True,
        )

    def _networks(self, n: int, level: Level, queries: int) -> PlannedNoise:
        """Return the error of the nuisances' own effect, and a neural head's noise on it, beside a private constant."""
        assert self.budget is not None
        domain, recipe, fitted = self.schema.domain, self.second_stage, self.sizes(n)[1]
        errors = effect_errors(AdaptiveSecondStage(intervals=False, lines=False).plan(n, self.budget, domain), domain)
        constant, own = errors.total / (errors.relative or 1.0), self.network_errors(n, errors.deviation)
        parts = {"the networks' own effect": math.nan, "noise of the head": self.head_noise(n, queries)}
        remarks = list[str]()
        if own is not None:
            noise = math.hypot(own.noise, parts["noise of the head"])
            noise = smaller(noise, errors.deviation) if isinstance(recipe, NeuralSecondStage) else noise
            parts = {"their mean": own.mean, "their noise": noise, "what they do not learn": own.missed}
        if isinstance(recipe, NeuralSecondStage):
            ridge = recipe.ridge_for(fitted, self.budget, domain, self.score.bounds(domain))
            remarks += [f"the ridge is {ridge:.3g}: the larger it is, the nearer is the head to the nuisances' effect"]
            remarks += ["answers are shrunk toward their mean by the noise that is expected in them"] * (
                own is not None
            )
        return PlannedNoise.of_parts(
            parts,
            OF_EFFECT,
            domain.outcome_range,
            n,
            self.budget,
            level=level,
            assumes=(f"effects vary by {shown(errors.deviation)} over people",),
            left_out=(
                "confounding that the networks do not learn",
                *["that they learn medians of a skewed outcome"] * (domain.outcome_kind != "binary"),
            ),
            remarks=tuple(remarks),
            relative=None if own is None else math.hypot(*parts.values()) / constant,
        )

    def network_errors(self, n: int, deviation: float = math.inf) -> NetworkErrors | None:
        """Return the errors to expect of the effect of nuisance networks; None of other nuisances.

        Args:
            n: Number of records.
            deviation: Of effects over people.
        """
        if self.budget is None or not isinstance(self.nuisance, NuisanceConfig):
            return None
        return NetworkErrors.expected(self.sizes(n)[0], self.schema.domain, self.budget, deviation)

    def head_noise(self, n: int, queries: int) -> float:
        """Return the noise to expect of a neural head; zero of none."""
        recipe, fitted = self.second_stage, self.sizes(n)[1]
        if self.budget is None or not isinstance(recipe, NeuralSecondStage):
            return 0.0
        bounds = self.score.bounds(self.schema.domain)
        ridge = recipe.ridge_for(fitted, self.budget, self.schema.domain, bounds)
        return recipe.planned_noise(fitted, self.budget, bounds, ridge, queries)

    @property
    def mechanism(self) -> str:
        """The mechanism where the user names none: the one of least noise."""
        return PlugIn.name if isinstance(self.second_stage, PlugInSecondStage) else "objective"

    @property
    def beside(self) -> list[EventCount]:
        """What is paid from the same budget as the nuisances: a threshold."""
        return [] if self._threshold_event is None else [(self._threshold_event, 1)]

    @property
    def _threshold_event(self) -> PureEvent | None:
        recipe = self.second_stage
        if not isinstance(recipe, RidgeSecondStage) or not recipe.private_threshold or self.budget is None:
            return None
        return PureEvent(self.budget.epsilon * recipe.threshold_share)

    def _threshold(self, records: CausalData, nuisances: NuisanceModel, session: FitSession) -> float | None:
        """Return a private quantile of |s|, in outcome units; None where none is needed."""
        recipe, event = self.second_stage, self._threshold_event
        if not isinstance(recipe, RidgeSecondStage) or not recipe.private_threshold:
            return None
        s = self.regressed(records, nuisances)[0].abs()
        if event is None:
            return torch.quantile(s, recipe.quantile).item()
        session.charging([NUISANCE], THRESHOLD).pay(event)
        grid = torch.logspace(-3, 0, _GRID, dtype=torch.float64) * self.score.bounds(self.schema.domain).target
        return private_quantile(s, grid, recipe.quantile, event.epsilon, session.noise)

    def regressed(self, records: CausalData, nuisances: NuisanceModel) -> tuple[Tensor, Tensor]:
        """Return s and w of records."""
        with torch.no_grad():
            return self.regression(nuisances, records.propensity)(records.x, records.a, records.y)

    def regression(self, nuisances: NuisanceModel, known: Tensor | None = None) -> Regression:
        """Return the map from records to (s, w) by nuisances on the records' device.

        Args:
            nuisances: Their effect is the offset.
            known: The known propensity of the records that the map is for; None takes it from the covariates.
        """
        bound = self.score.bounds(self.schema.domain).target

        def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            values = nuisances.values(CausalData(x, a, y, known))
            s, w = self.score.regression(a, y, values, nuisances.effect(x))
            return s.clamp(-bound, bound), w  # within the public bound whatever is rounded

        return regression


def on_device(nuisances: NuisanceModel, device: torch.device) -> NuisanceModel:
    """Return the nuisances, or a copy of them on another device than the CPU."""
    if device.type == "cpu":
        return nuisances
    return deepcopy(nuisances).to(device)


@dataclass(frozen=True, eq=False)
class FittedBlocks:
    """Trained nuisances, a fitted second stage, and the session that pays for its releases; the curator's.

    Attributes:
        settings: What was fitted.
        n: Number of records.
        nuisances: Trained with privacy.
        threshold: Private Huber threshold, in outcome units; None if none was needed.
        stage: The fitted second stage.
        session: Of the fit.
        own: What guarantees rest on: code of the user's.
        statement: Makes privacy statements.
    """

    settings: Blocks
    n: int
    nuisances: NuisanceModel
    threshold: float | None
    stage: FittedStage
    session: FitSession
    own: tuple[Condition, ...]
    statement: MakeStatement

    @property
    def schema(self) -> TableSchema:
        """Columns and public bounds."""
        return self.settings.schema

    def release_function(self, mechanism: "str | Mechanism | None", budget: PrivacyBudget | None) -> FunctionRelease:
        """Release the function by a function mechanism; see ``CATELearner.release_function``."""
        chosen = self._able(mechanism)
        if not isinstance(chosen, FunctionMechanism):
            raise InputError(
                f"mechanism = {chosen.name}: answers finitely many queries; use release=queries (release_queries), "
                f"{'an online service (answer_online), ' if chosen.online else ''}or mechanism=objective"
            )
        private, own = self._spend(chosen, partial(chosen.privatize, self.stage), budget)
        return chosen.make_release(
            self.stage,
            private,
            features=chosen.features(self.stage).twin(self.nuisances),
            nuisances=self.nuisances,
            schema=self.schema,
            privacy=self._statement(chosen, private, own),
        )

    def release_queries(
        self,
        queries: Tensor,
        mechanism: "str | Mechanism | None",
        budget: PrivacyBudget | None,
        include_nuisances: bool,
    ) -> QueryRelease:
        """Release answers at encoded queries within the domain [d, q], by a query mechanism or a function's."""
        chosen = self._able(mechanism)
        if isinstance(chosen, FunctionMechanism):
            function = self.release_function(chosen, budget)
            answers = function.effect_tensor(queries)
            scales = None if function.noise_scale is None else function._noise_scale(queries)
            privacy = function.privacy
        elif isinstance(chosen, QueryMechanism):
            run = partial(chosen.answer, self.stage, queries)
            private, own = self._spend(chosen, run, budget)
            bound = self.schema.domain.outcome_range
            answers = (self.plug_in_effect(queries) + private.output).clamp(-bound, bound)
            scales, privacy = private.noise_scales, self._statement(chosen, private, own)
            errors = self.settings.network_errors(self.n)
            if errors is not None and isinstance(self.settings.second_stage, NeuralSecondStage):
                noise = math.hypot(errors.noise, self.settings.head_noise(self.n, len(queries)))
                answers = shrunk(answers, noise)
        nuisances = self.nuisances if include_nuisances else None
        head = head_of(self.stage)
        return QueryRelease(queries, answers, self.schema, privacy, scales, nuisances, head)

    def answer_online(
        self, folder: str | Path, mechanism: "str | Mechanism", budget: PrivacyBudget | None
    ) -> OnlineService:
        """Set up a service by a mechanism that can; see ``CATELearner.answer_online``."""
        chosen = self._able(mechanism)
        if not chosen.online:
            raise InputError(f"mechanism = {chosen.name}: does not answer online; use mechanism=gaussian_process")

        def create(budget: PrivacyBudget, session: FitSession) -> OnlineService:
            return OnlineService.create(
                folder,
                self.stage,
                self.nuisances,
                self.schema,
                budget=budget,
                session=session,
                statement=lambda terms: self._statement(chosen, terms, session.entries),
            )

        return self._spend(chosen, create, budget)[0]

    def effect(self, x: Tensor, stage: FittedStage | None = None) -> Tensor:
        """Return the effects before the noise of a release at encoded covariates, [m].

        Args:
            x: Encoded covariates.
            stage: The second stage; None takes the fitted one.
        """
        bound = self.schema.domain.outcome_range
        correction = (stage or self.stage).correction(x).cpu()
        return (self.plug_in_effect(x) + correction).clamp(-bound, bound)

    def plug_in_effect(self, x: Tensor) -> Tensor:
        """Return mu1 - mu0 of the nuisances at encoded covariates, [m]."""
        with torch.no_grad():
            return self.nuisances.effect(x)

    def _able(self, mechanism: "str | Mechanism | None") -> Mechanism:
        """Return the mechanism if this fit can release by it."""
        self.settings.check(self.n, mechanism)
        chosen: Mechanism = MECHANISMS.make(mechanism or self.settings.mechanism, Mechanism)
        return chosen

    def _spend(
        self, mechanism: Mechanism, run: Callable[..., Any], budget: PrivacyBudget | None
    ) -> tuple[Any, set[int]]:
        """Run a mechanism on what its blocks have left; return its result and ledger entries."""
        budget = self.session.budget if mechanism.free else budget
        charge = Charge(Purpose.RELEASE, mechanism.name)
        with gpu_memory(f"mechanism = {mechanism.name}", "lower queries.count or the second stage's features or width"):
            return self.session.spend(run, [list(self.session.sizes)[-1]], charge, budget, mechanism.gaussian)

    def _statement(self, mechanism: Mechanism, result: Prepared, own: set[int]) -> PrivacyStatement:
        plan = EffectPlan(
            mechanism=mechanism,
            law=result.law,
            head=result.head,
            budget=result.budget,
            learner=self.settings.learner,
            split=self.settings.split,
            seed=self.settings.seed,
            blocks=self.session.sizes,
        )
        return self.statement(mechanism, result.guarantee.resting_on(self.own), plan.public(), own)
