"""Everything that the nuisances' budget pays for: chosen columns, trained nuisances, the Huber threshold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdpcate.causal.score import RegressionScore
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.cate.splits import Fold, Split
from torchdpcate.nuisance.averaged import AveragedNuisances, nuisances_from_config
from torchdpcate.nuisance.model import NuisanceModel
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.nuisance.screening import Screening
from torchdpcate.privacy.accounting import EventCount
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import SCREENING, THRESHOLD, TRAINING
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.selection import private_quantile
from torchdpcate.privacy.session import FitSession
from torchdpcate.second_stage.recipes import PrivateThreshold
from torchdpcate.second_stage.stage import Regression, SecondStageBlock

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

BlockRecords = Mapping[str, CausalData]
"""Records by block."""


@dataclass(frozen=True, eq=False)
class FirstStage:
    """Public settings of the first stage, and who pays for it.

    Attributes:
        score: The learner's score.
        domain: Public bounds of all covariates.
        split: Which records train which nuisances.
        recipe: Settings of the nuisances.
        screening: Private choice of covariates; None keeps all.
        private_threshold: How the Huber threshold is found; None where none is needed.
        also: Further charges on the blocks that train, composed jointly.
        budget: What the first stage may spend of a block; None trains without privacy.
        trainer: Makes a Lightning Trainer from keyword arguments.
        seed: Public seed of initial weights and (without privacy) batches.
    """

    score: RegressionScore
    domain: Domain
    split: Split
    recipe: NuisanceRecipe
    screening: Screening | None
    private_threshold: PrivateThreshold | None
    also: Sequence[EventCount]
    budget: PrivacyBudget | None
    trainer: "Callable[..., Trainer]"
    seed: int

    @property
    def screening_event(self) -> PureEvent | None:
        """What the columns cost; None where all are kept, or nothing is paid."""
        if self.screening is None or self.budget is None:
            return None
        return self.screening.event(self.domain.dimension, self.budget)

    @property
    def threshold_event(self) -> PureEvent | None:
        """What the Huber threshold costs; None where none is needed, or nothing is paid."""
        if self.private_threshold is None or self.budget is None:
            return None
        return PureEvent(self.budget.epsilon * self.private_threshold.budget_fraction)

    @property
    def beside(self) -> list[EventCount]:
        """Everything that is paid from the same budget as the nuisances."""
        private = [event for event in (self.screening_event, self.threshold_event) if event is not None]
        return [*((event, 1) for event in private), *self.also]

    def kept(self, n: int) -> int:
        """Return how many covariates are kept where n records train nuisances."""
        every, event = self.domain.dimension, self.screening_event
        if self.screening is None or event is None:
            return every
        return self.screening.count(every, n, event.epsilon)

    def check(self, sizes: Mapping[str, int]) -> None:
        """Refuse, before anything is spent, what could not be trained on blocks of these sizes.

        Raises:
            InputError: Settings that do not fit.
        """
        # which columns makes no difference yet
        domain = self.domain.select(range(self.kept(sum(sizes[fold.train] for fold in self.split.folds))))
        for fold in self.split.folds:
            self.recipe.check(sizes[fold.train], domain, self.budget, self.beside)

    def fit(self, blocks: BlockRecords, session: FitSession) -> "TrainedFirstStage":
        """Choose the columns and train the nuisances of every fold.

        Args:
            blocks: All records, by block.
            session: Pays, and draws the noise.

        Raises:
            InputError: Settings that do not fit the blocks.
            BudgetError: A block cannot pay.
        """
        columns = self._screen(blocks, session)
        domain = self.domain if columns is None else self.domain.select(columns)
        models = {
            fold.train: self.recipe.fit(
                _seen(blocks[fold.train], columns),
                domain,
                budget=self.budget,
                also=self.beside,
                session=session.scope([fold.train], TRAINING),
                trainer=self.trainer,
                seed=self.seed,
            )
            for fold in self.split.folds
        }
        return TrainedFirstStage(self, domain, columns, models)

    def _screen(self, blocks: BlockRecords, session: FitSession) -> tuple[int, ...] | None:
        if self.screening is None or self.domain.dimension <= self.screening.most:
            return None
        trains = [fold.train for fold in self.split.folds]
        records, event = _joined([blocks[name] for name in trains]), self.screening_event
        if self.budget is None or event is None:
            return self.screening.choose_openly(records, self.domain)
        session.scope(trains, SCREENING).pay(event)
        return self.screening.choose(records, self.domain, event.epsilon, session.noise)


@dataclass(frozen=True, eq=False)
class TrainedFirstStage:
    """Trained nuisances, and the regression that they make of records.

    Attributes:
        settings: Where they come from.
        domain: Public bounds of the columns in use.
        columns: Chosen columns of the covariates, paid for; None for all.
        models: Nuisances by the block that trained them.
    """

    settings: FirstStage
    domain: Domain
    columns: tuple[int, ...] | None
    models: Mapping[str, NuisanceModel]

    @cached_property
    def nuisances(self) -> NuisanceModel:
        """All nuisances as one: their mean where there are several."""
        models = list(self.models.values())
        return models[0] if len(models) == 1 else AveragedNuisances(models).eval().requires_grad_(False)

    def view(self, x: Tensor) -> Tensor:
        """Return the columns in use, [m, k], of covariates x [m, q]."""
        return x if self.columns is None else x[:, list(self.columns)]

    def private_threshold(self, blocks: BlockRecords, session: FitSession) -> float | None:
        """Return a private quantile of |s|, in outcome units; None where none is needed."""
        settings, event = self.settings, self.settings.threshold_event
        if settings.private_threshold is None:
            return None
        folds = settings.split.choices
        s = torch.cat([self._pairs(blocks[fold.apply], fold)[1] for fold in folds]).abs()
        if settings.budget is None or event is None:
            return torch.quantile(s, settings.private_threshold.quantile).item()
        session.scope([fold.apply for fold in folds], THRESHOLD).pay(event)
        bound = settings.score.bounds(self.domain).target
        grid = torch.logspace(-3, 0, settings.private_threshold.points, dtype=torch.float64) * bound
        return private_quantile(s, grid, settings.private_threshold.quantile, event.epsilon, session.noise)

    def block(self, blocks: BlockRecords, folds: Sequence[Fold], device: torch.device) -> SecondStageBlock:
        """Return the regression of these folds' records; with several folds its map is the first one's.

        Args:
            blocks: All records, by block.
            folds: Nuisances and the records they are applied to.
            device: Where the second stage is fitted.
        """
        pairs = [self._pairs(blocks[fold.apply].to(device), fold) for fold in folds]
        x, s, w = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        regression, bounds = self._regression(folds[0], device), self.settings.score.bounds(self.domain)
        return SecondStageBlock(x, s, w, regression, self.domain, bounds)

    def _pairs(self, records: CausalData, fold: Fold) -> tuple[Tensor, Tensor, Tensor]:
        """Return the columns in use, and s and w by the fold's nuisances."""
        x = self.view(records.x)
        with torch.no_grad():
            return x, *self._regression(fold, x.device, records.propensity)(x, records.a, records.y)

    def _regression(self, fold: Fold, device: torch.device, known: Tensor | None = None) -> Regression:
        """Return the map from records to (s, w) by one fold's nuisances, and the offset of them all.

        Args:
            fold: Whose nuisances.
            device: Where they are asked.
            known: The known propensity of the records that the map is for; None takes it from the covariates.
        """
        own, every, score = on_device(self.models[fold.train], device), self.nuisances, self.settings.score
        every, bound = on_device(every, device), score.bounds(self.domain).target

        def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            values = own.values(CausalData(x, a, y, known))
            s, w = score.regression(a, y, values, every.effect(x))
            # binds only where the offset is not the fold's own effect: it keeps |s| within its public bound
            return s.clamp(-bound, bound), w

        return regression


def on_device(nuisances: NuisanceModel, device: torch.device) -> NuisanceModel:
    """Return the nuisances, or a copy of them on another device than the CPU."""
    if device.type == "cpu":
        return nuisances
    copy = nuisances_from_config(nuisances.config()).double()
    copy.load_state_dict(nuisances.state_dict())
    return copy.to(device).eval().requires_grad_(False)


def _seen(records: CausalData, columns: tuple[int, ...] | None) -> CausalData:
    return records if columns is None else replace(records, x=records.x[:, list(columns)])


def _joined(parts: Sequence[CausalData]) -> CausalData:
    x, a, y = (torch.cat(columns) for columns in zip(*((p.x, p.a, p.y) for p in parts), strict=True))
    return CausalData(x, a, y)
