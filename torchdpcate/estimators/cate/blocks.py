"""Fitting by blocks: some records train the nuisances, others fit the second stage, and each block has its budget."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate._process import gpu_memory
from torchdpcate.causal.score import RegressionScore
from torchdpcate.data.records import CausalData, RecordStream
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.first_stage import FirstStage, TrainedFirstStage, on_device
from torchdpcate.estimators.cate.fitted_blocks import OBJECTIVE, FittedBlocks
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS, Mechanism
from torchdpcate.estimators.cate.planned import planned_head_noise
from torchdpcate.estimators.cate.planned_head import PlannedHead
from torchdpcate.estimators.cate.procedure import MakeStatement, Procedure
from torchdpcate.estimators.cate.splits import Split
from torchdpcate.estimators.cate.tuning import Tuning
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.features.maps import FeatureMap
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.nuisance.screening import Screening
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TUNING
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Condition, Level, own_code
from torchdpcate.privacy.session import FitSession
from torchdpcate.second_stage.recipes import SecondStage

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True, eq=False)
class Blocks(Procedure):
    """A learner's settings where records are split and each block has the whole budget.

    Attributes:
        score: The learner's score.
        schema: Of the records.
        budget: Of each block; None without privacy.
        nuisance: Settings of the nuisances.
        second_stage: Settings of the second stage.
        split: Which records train the nuisances.
        seed: Public seed of split, initial weights and (without privacy) batches.
        trainer: Makes a Lightning Trainer from keyword arguments.
        screen: Private choice of a few covariates; None keeps all.
        tune: Private choice of the second stage's features and ridge; None keeps those given.
        filter: How releases are counted; see ``CATELearner``.
        learner: Name of the learner's class.
        own: What the learner's guarantees rest on: a class, or a score, of the user's.
    """

    score: RegressionScore
    schema: TableSchema
    budget: PrivacyBudget | None
    nuisance: NuisanceRecipe
    second_stage: SecondStage
    split: Split
    seed: int
    trainer: "Callable[..., Trainer]"
    screen: Screening | None
    tune: Tuning | None
    filter: str
    learner: str
    own: tuple[Condition, ...]

    def blocks(self, n: int) -> dict[str, Tensor]:
        """See ``Procedure``; the blocks follow from n, split and seed."""
        self._check_budget()
        return dict(self.split.blocks(n, self.seed))

    def check(self, n: int, mechanism: "str | Mechanism | None") -> None:
        """Refuse a release that could not be made.

        Raises:
            InputError: delta = 0, too few records, or a mechanism without a guarantee for these settings.
        """
        if self.tune is not None:
            self.tune.candidates(self.second_stage)
        sizes = {name: len(index) for name, index in self.blocks(n).items()}
        self.trainer()
        self.first_stage.check(sizes)
        if self.budget is not None:
            chosen: Mechanism = MECHANISMS.make(mechanism or OBJECTIVE, Mechanism)
            chosen.check_attacked()
            weight = self.score.bounds(self.schema.domain).weight * FeatureMap.bound
            chosen.check(self.second_stage, weight, self.split.fitted(sizes), self.split.release_budget(self.budget))
            chosen.check_blocks(len(self.split.folds), self.schema.domain.known_propensity, self.filter)

    def check_stream(self, n: int) -> None:
        """Refuse; blocks are drawn from records in memory."""
        raise InputError("stream: blocks of records need them all at once; use second_stage=adaptive, or fit(X, A, Y)")

    def fit(self, records: CausalData | RecordStream, session: FitSession, statement: MakeStatement) -> FittedBlocks:
        """Train the nuisances, pay for the threshold and fit the second stage."""
        assert isinstance(records, CausalData)
        blocks = {name: records.subset(index) for name, index in self.blocks(records.n).items()}
        first = self.first_stage.fit(blocks, session)
        threshold = first.private_threshold(blocks, session)
        clip = math.inf if threshold is None else threshold
        chosen = self._tuned(blocks, first, clip, session)
        device = self.trainer().strategy.root_device
        with gpu_memory("second_stage", "lower its features, width or batch_size"):
            stage = chosen.fit(
                first.block(blocks, self.split.folds, device),
                on_device(first.nuisances, device),
                threshold=clip,
                budget=None if self.budget is None else self.split.release_budget(self.budget),
                trainer=self.trainer,
                seed=self.seed,
            )
        tried = () if self.tune is None else self.tune.conditions
        own = tried + self.nuisance.conditions(self.trainer) + own_code("second stage", chosen)
        return FittedBlocks(
            procedure=self,
            n=records.n,
            first=first,
            second_stage=chosen,
            threshold=threshold,
            stage=stage,
            schema=self.schema,
            session=session,
            pays=[fold.apply for fold in self.split.folds],
            budget=None if self.budget is None else self.split.release_budget(self.budget),
            public={"learner": self.learner, "split": self.split.fact, "seed": self.seed},
            own=own,
            statement=statement,
        )

    def expected_noise(
        self, n: int, mechanism: "str | Mechanism | None", queries: Tensor | None, residual_scale: float | None
    ) -> PlannedNoise:
        """Return the noise of the second stage alone, with a planned Huber threshold."""
        assert self.budget is not None
        if residual_scale is not None:
            raise InputError(f"residual_scale = {residual_scale}: is for second_stage=adaptive alone; leave it out")
        chosen: Mechanism = MECHANISMS.make(mechanism or OBJECTIVE, Mechanism)
        sizes = self.split.sizes(n)
        release, fitted = self.split.release_budget(self.budget), self.split.fitted(sizes)
        kept = self.first_stage.kept(sum(sizes[fold.train] for fold in self.split.folds))
        head = PlannedHead.of(self.second_stage, self.score, self.schema, kept, fitted, release, queries)
        user = own_code("mechanism", chosen) + self.nuisance.conditions(self.trainer)
        user += own_code("second stage", self.second_stage) + self.own
        level = Level.CONDITIONAL if user else chosen.level
        return planned_head_noise(chosen, head, release, self.schema.domain, n, self.budget, level)

    @property
    def first_stage(self) -> FirstStage:
        """Settings of everything that the nuisances' budget pays for."""
        tuning = self._tuning_event()
        return FirstStage(
            score=self.score,
            domain=self.schema.domain,
            split=self.split,
            recipe=self.nuisance,
            screening=self.screen,
            private_threshold=self.second_stage.private_threshold,
            also=() if tuning is None else ((tuning, 1),),
            budget=None if self.budget is None else self.split.nuisance_budget(self.budget),
            trainer=self.trainer,
            seed=self.seed,
        )

    def _check_budget(self) -> None:
        if self.budget is not None and self.budget.delta == 0:
            raise InputError(
                "delta = 0: the nuisance networks (DP-SGD) are only (epsilon, delta)-private; "
                "give privacy.delta above 0, for instance 1e-5, or leave second_stage=adaptive, which is pure then"
            )

    def _tuning_event(self) -> PureEvent | None:
        if self.tune is None or self.budget is None:
            return None
        return self.tune.event(self.split.nuisance_budget(self.budget))

    def _tuned(
        self, blocks: Mapping[str, CausalData], first: TrainedFirstStage, threshold: float, session: FitSession
    ) -> SecondStage:
        """Return the second stage's settings, chosen by the nuisances' budget where they are to be tuned."""
        event, folds = self._tuning_event(), self.split.choices
        if self.tune is None:
            return self.second_stage
        if event is not None:
            scope = session.scope([fold.apply for fold in folds], TUNING, conditional=bool(self.tune.conditions))
            scope.pay(event)
        return self.tune.choose(
            self.second_stage,
            first.block(blocks, folds, torch.device("cpu")),
            first.nuisances,
            threshold=threshold,
            n=self.split.fitted({name: block.n for name, block in blocks.items()}),
            budget=None if self.budget is None else self.split.release_budget(self.budget),
            epsilon=None if event is None else event.epsilon,
            noise=session.noise,
        )
