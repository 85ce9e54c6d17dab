"""The public settings of nuisance training, and the DP-SGD plan that they and a budget give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import ENGINES, DPSGDPlan
from torchdpcate.fit.nuisance_kinds import MOMENTUM, Nuisances
from torchdpcate.fit.nuisances import NuisanceRecipe
from torchdpcate.fit.trainer import user_trainer
from torchdpcate.privacy.accounting import EventCount, dp_sgd_noise_multiplier
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Condition
from torchdpcate.privacy.session import FitSession
from torchdpcate.registry import refuse_strings

if TYPE_CHECKING:
    from torchdpcate.fit.trainable import TrainableNuisances
    from torchdpcate.fit.training import TrainerFactory

_BINARY_CLIP = 4.0  # clip norm that few gradients of a binary outcome exceed


@dataclass(frozen=True)
class NuisanceConfig(NuisanceRecipe):
    """Nuisance networks trained by DP-SGD.  All of it is public and chosen without looking at the records.

    Args:
        width: hidden units of each network; 0 is a linear model.
        learning_rate: step size of the optimizer.
        batch_size: expected batch size q n under privacy, the batch size otherwise.
        epochs: times each record is expected to be seen.
        max_grad_norm: clip norm of one record's gradient (privacy only); None works it out from `noise_walk`.
        optimizer: `adam`, or `sgd` (momentum 0.9).
        outcome_share: share of the outcome in the loss, see `Nuisances`.
        average: share of the last steps whose weights are averaged, in [0, 1]; 0 keeps the last weights.
        noise_walk: standard deviation of what noise alone adds to a weight over the whole run, above 0.
        engine: what clips, `opacus` or `chain`, see `DPSGD`.

    Raises:
        InputError: a value out of its range.

    Example:
        >>> plan = NuisanceConfig(batch_size=100, epochs=2).plan(1000, PrivacyBudget(1.0, 1e-5))
        >>> plan.steps, plan.sampling_rate
        (20, 0.1)
    """

    width: int = 32
    learning_rate: float = 0.2
    batch_size: int = 128
    epochs: int = 20
    max_grad_norm: float | None = None
    optimizer: str = "sgd"
    outcome_share: float = 0.95
    average: float = 0.5
    noise_walk: float = 0.1
    engine: str = "opacus"
    hours: ClassVar[bool] = False

    def __post_init__(self) -> None:
        refuse_strings(type(self), vars(self))
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise InputError(f"{name}={value!r} must be a whole number, at least 1")
        if not self.noise_walk > 0:
            raise InputError(f"noise_walk={self.noise_walk!r} must be above 0")
        if self.engine not in ENGINES:
            raise InputError(f"engine={self.engine!r} is unknown; choose one of {', '.join(ENGINES)}")
        if self.hours and self.engine == "chain":
            raise InputError("engine=chain is for networks of linear layers; nuisance=recurrent takes engine=opacus")
        if self.max_grad_norm is None and self.optimizer == "adam":
            raise InputError("max_grad_norm=None is worked out for sgd only; give a number with adam")
        if not 0 <= self.average <= 1:
            raise InputError(f"average={self.average!r} must be in [0, 1], the share of the steps to average")

    def module(self, domain: Domain) -> TrainableNuisances:
        """Untrained nuisances of `domain`, with weights from torch's global generator."""
        from torchdpcate.fit.trainable import TrainableNuisances  # Lightning, for those who train

        return TrainableNuisances(
            domain,
            width=self.width,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            outcome_share=self.outcome_share,
            hours=self.hours,
        )

    def steps(self, n: int) -> int:
        """Steps of a run on `n` records: epochs times the whole number of batches nearest to n / batch_size.

        Raises:
            InputError: `batch_size` exceeds the records of the block.
        """
        if self.batch_size > n:
            raise InputError(f"batch_size={self.batch_size} exceeds the block's n={n} records; lower it to {n} or less")
        return self.epochs * round(n / self.batch_size)

    def plan(self, n: int, budget: PrivacyBudget, also: Sequence[EventCount] = ()) -> DPSGDPlan:
        """The run on a block of `n` records that spends `budget`, with the least noise that allows.

        Args:
            n: records of the block, public.
            budget: what the block may spend.
            also: other charges on the same block, composed jointly with this run.

        Raises:
            InputError: `batch_size` exceeds `n`, or delta is 0 (Gaussian noise has no pure guarantee).
        """
        steps, rate = self.steps(n), self.batch_size / n
        noise = dp_sgd_noise_multiplier(budget.epsilon, budget.delta, rate, steps, also=also)
        clip = self._clip_norm(noise, steps) if self.max_grad_norm is None else self.max_grad_norm
        return DPSGDPlan(noise, clip, rate, steps)

    def conditions(self, trainer: TrainerFactory | None) -> tuple[Condition, ...]:
        """See ``NuisanceRecipe``: a Trainer of the user's is one."""
        return super().conditions(trainer) + user_trainer(trainer)

    def check(self, n: int, domain: Domain, budget: PrivacyBudget | None, also: Sequence[EventCount]) -> None:
        """Refuse settings that do not fit a block of `n` records; see `NuisanceRecipe.check`."""
        module = self._untrained(domain, seed=0)
        self.steps(n)
        if budget is not None:
            self.plan(n, budget, also).check_precision(sum(p.numel() for p in module.parameters()))

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        also: Sequence[EventCount] = (),
        session: FitSession,
        trainer: TrainerFactory,
        seed: int,
    ) -> Nuisances:
        """Return the networks, trained by DP-SGD or, without a budget, plainly; see `NuisanceRecipe.fit`."""
        from torchdpcate.fit.training import train

        plan = None if budget is None else self.plan(records.n, budget, also)
        settings, plan = (self, None) if plan is None else self._suited(plan, domain)
        trained = train(
            settings._untrained(domain, seed),
            records,
            trainer,
            batch_size=self.batch_size,
            epochs=self.epochs,
            average=self.average,
            seed=seed,
            plan=plan,
            noise=session.noise,
            ledger=session.ledger,
            block=session.block,
            engine=self.engine,
            conditional=session.conditional,
        )
        return trained.cpu().trained()

    def _untrained(self, domain: Domain, seed: int) -> TrainableNuisances:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.module(domain)

    def _suited(self, plan: DPSGDPlan, domain: Domain) -> tuple[NuisanceConfig, DPSGDPlan]:
        """Return the settings and the run for an outcome of this kind, of public facts alone.

        Where nearly all gradients are clipped, their sum is zero at the median of the outcome. That of a binary outcome
        is 0 or 1 and says nothing of its mean: its gradients stay below a wider clip norm, at a rate lower by as much
        and with half the walk.
        """
        if domain.outcome_kind != "binary" or self.max_grad_norm is not None:
            return self, plan
        rate = min(1.0, plan.max_grad_norm / (2 * _BINARY_CLIP)) * self.learning_rate
        return replace(self, learning_rate=rate), replace(plan, max_grad_norm=_BINARY_CLIP)

    def _clip_norm(self, noise_multiplier: float, steps: int) -> float:
        r"""Clip norm at which T steps of noise alone move each weight by `noise_walk`.

        SGD of rate r and momentum m moves a weight by :math:`r \sigma C / (q n (1 - m))` a step and by
        :math:`\sqrt{T}` times that in all.  Where nearly all records are clipped only r C matters, so the rate
        can stay where training without privacy likes it, and one number serves every n and epsilon.
        """
        step = self.learning_rate * noise_multiplier / (self.batch_size * (1 - MOMENTUM))
        return self.noise_walk / (step * math.sqrt(steps))


@dataclass(frozen=True)
class RecurrentConfig(NuisanceConfig):
    """The same with an LSTM over the columns of hours in place of the hidden layer, see ``HourLayer``.

    Example:
        >>> names = ["age", *(f"pulse_h{hour}" for hour in range(48))]
        >>> domain = Domain([0.0] * 49, [200.0] * 49, 0.0, 1.0, names=names)
        >>> RecurrentConfig(width=8).module(domain).outcome.net[0].outputs
        9
    """

    hours: ClassVar[bool] = True
