"""Many DP-SGD runs of one small architecture at once: their steps as products of stacked matrices."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchdpcate._process import threads_for
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.nuisance.checks import check_weights
from torchdpcate.nuisance.engines import check_layers, side_by_side
from torchdpcate.nuisance.linear_taps import LinearTaps, Trained, Use, linear_layers, sum_type
from torchdpcate.nuisance.optimizers import OPTIMIZERS
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import PoissonSampler
from torchdpcate.nuisance.record_loss import RecordLossModule, check_shape
from torchdpcate.nuisance.step_account import StepAccount
from torchdpcate.privacy.charge import DP_SGD
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

Module = TypeVar("Module", bound=RecordLossModule)

_NUMBERS = 2**14  # of noise at once, of one run
_FREE = ("learning_rate", "training")  # in what modules may differ


def train_side_by_side(
    modules: Sequence[Module],
    records: CausalData,
    *,
    plans: Sequence[DPSGDPlan],
    noise: NoiseSource,
    ledgers: Sequence[Ledger] | None = None,
    block: str = "nuisance",
    average: float = 0.5,
) -> list[Module]:
    """Train modules of one architecture by DP-SGD at once: for studies over seeds, clip norms, noise, learning rates.

    Each run is the one that `train` would make alone: its own Poisson samples, its own noise, its own charge on its
    ledger. Where networks are small the time of a step hardly depends on the number of runs, and what is left is
    drawing the noise. Nothing is shown and no checkpoint is written.

    All runs see the same records. Who publishes more than one of them pays for each: give them one ledger, once for
    each run, or one each where only one is published.

    Args:
        modules: Start weights and learning rates; alike in all else. What is trained lies in linear layers that see
            one row a record.
        records: The block that trains.
        plans: One a module, of equally many steps.
        noise: Of all runs.
        ledgers: Where each run is charged, one a module; None counts without charging.
        block: The ledgers' block.
        average: Share of the last steps whose weights are averaged, see `TailAverage`; 0 keeps the last.

    Returns:
        The modules, trained, in eval mode.

    Raises:
        InputError: The modules differ, their number is not that of plans or ledgers, steps differ, a private ledger is
            paired with a fixed source, or learning rates differ under Adam.
        BudgetError: A ledger cannot pay its plan; all runs end.
        NumericalError: Training diverged.

    Guarantee:
        That of `DPSGD`, of each run, if `records` are the ledgers' block.

    Example:
        >>> import torch
        >>> from torchdpcate.data import Domain
        >>> from torchdpcate.nuisance import TrainableNuisances
        >>> records = CausalData(torch.rand(50, 2), torch.ones(50), torch.rand(50))
        >>> nets = [TrainableNuisances(Domain([0, 0], [1, 1], 0, 1), width=4) for _ in range(3)]
        >>> plan = DPSGDPlan(noise_multiplier=2.0, max_grad_norm=0.3, sampling_rate=0.1, steps=5)
        >>> len(train_side_by_side(nets, records, plans=[plan] * 3, noise=NoiseSource.fixed(0)))
        3
    """
    _check(modules, plans, ledgers, noise)
    data = [torch.cat([part.float(), torch.zeros_like(part[:1]).float()]) for part in (records.x, records.a, records.y)]
    accounts = [
        StepAccount(plan, None if ledgers is None else ledgers[i], block, DP_SGD) for i, plan in enumerate(plans)
    ]
    stack = _Stack(modules, plans, noise, records.n)
    first = min(round(plans[0].steps * (1 - average)), plans[0].steps - 1) if average else plans[0].steps
    samples = zip(*(PoissonSampler(records.n, p.sampling_rate, p.steps, noise) for p in plans), strict=True)
    with ExitStack() as undo, threads_for(len(modules) * stack.size):
        undo.callback(stack.taps.cleanup)
        for account in accounts:
            undo.callback(account.close)
            account.open()
        for step, chosen in enumerate(samples):
            index, real = _padded(chosen, records.n)
            sums = stack.clipped_sums([part.index_select(0, index.to(part.device)) for part in data], real)
            for account in accounts:
                account.count()
            stack.step(sums, [account.ahead for account in accounts])
            if step >= first:
                stack.average(step - first)
    stack.unstack(modules, averaged=bool(average))
    for module in modules:
        check_weights(module)
    return [module.eval() for module in modules]


class _Stack:
    """The runs' weights, one behind the other in each row of `weights` [R, p], and the step that moves them all."""

    def __init__(
        self, modules: Sequence[RecordLossModule], plans: Sequence[DPSGDPlan], noise: NoiseSource, n: int
    ) -> None:
        self.module = copy.deepcopy(modules[0]).train()
        trained = [p for p in self.module.parameters() if p.requires_grad]
        rows = [torch.cat([p.detach().flatten() for p in m.parameters() if p.requires_grad]) for m in modules]
        self.weights = nn.Parameter(torch.stack(rows))
        self.size, self.noise, self.plans = self.weights.shape[1], noise, plans
        parts = self.weights.detach().split([p.numel() for p in trained], 1)
        # views, which the optimizer's changes reach
        self.own = {p: part.view(-1, *p.shape) for p, part in zip(trained, parts, strict=True)}
        self.taps = LinearTaps(self.module, lambda layer, taps: _StackedPass(layer, taps, self.own))
        self.mean = torch.zeros_like(self.weights)

        def column(numbers: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(numbers, dtype=dtype, device=self.weights.device)[:, None]

        dtype = self.weights.dtype
        self.scales = [plan.noise_multiplier * plan.max_grad_norm for plan in plans]
        self.grids = column([noise.fine_grid(scale) for scale in self.scales], torch.float64)
        self.clips = column([plan.clip_norm for plan in plans], dtype)
        rates = [module.learning_rate for module in modules]
        sgd = modules[0].optimizer == "sgd"
        # sgd is linear in the gradients, so that a rate of one's own is a factor of them
        self.factors = column(
            [(r if sgd else 1.0) / (p.sampling_rate * n) for r, p in zip(rates, plans, strict=True)], dtype
        )
        self.optimizer = OPTIMIZERS[modules[0].optimizer]([self.weights], lr=1.0 if sgd else rates[0])
        self.rows: list[Iterator[Tensor]] = [iter(()) for _ in plans]

    def clipped_sums(self, batch: list[Tensor], real: Tensor) -> Tensor:
        """Sums of clipped gradients [R, p] of batches one behind the other, [R B, ...]; `real` [R, B] says of what."""
        losses = self.module.record_loss(batch)
        check_shape(losses)
        uses = self.taps.uses(losses)
        if {p for use in uses for p in use.layer.parameters} != set(self.own):
            raise InputError("modules: a trained parameter has no part in the loss; set requires_grad=False")
        sums = torch.empty_like(self.weights, dtype=sum_type(self.weights))
        parts = sums.split([p.numel() for p in self.own], 1)
        into: dict[Tensor, Tensor] = {p: part.view(-1, *p.shape) for p, part in zip(self.own, parts, strict=True)}
        with torch.no_grad():
            norms = torch.stack([use.squared_norms() for use in uses]).sum(0).sqrt_().add_(1e-6).view_as(real)
            factors = torch.where(real, (self.clips / norms).clamp_(max=1.0), 0.0)[:, :, None]
            for use in uses:
                gradients = (use.gradients.unflatten(0, real.shape) * factors).to(sums.dtype)
                targets = [into[p] for p in use.layer.parameters]
                if use.layer.trained[0]:
                    targets[0].copy_(gradients.mT @ use.inputs.unflatten(0, real.shape).to(sums.dtype))
                if use.layer.trained[1]:
                    targets[-1].copy_(gradients.sum(1))
        return sums

    def step(self, sums: Tensor, ahead: list[int]) -> None:
        """Add each run's own noise on its own grid, and move the weights; the steps are paid for."""
        drawn = torch.stack([self._drawn(run, paid) for run, paid in enumerate(ahead)]).to(sums.device)
        noisy = torch.round(sums.double() / self.grids) * self.grids + drawn
        self.weights.grad = self.noise.released(noisy.to(self.weights.dtype) * self.factors)
        self.optimizer.step()

    def _drawn(self, run: int, paid: int) -> Tensor:
        found = next(self.rows[run], None)
        if found is None:
            rows = max(1, min(paid, _NUMBERS // self.size))
            self.rows[run] = self.noise.fine_gaussian_rows(rows, self.size, self.scales[run])
            found = next(self.rows[run])
        return found

    def average(self, taken: int) -> None:
        """Take the present weights into the mean of `taken` earlier ones."""
        self.mean.lerp_(self.weights.detach(), 1 / (taken + 1))

    def unstack(self, modules: Sequence[RecordLossModule], *, averaged: bool) -> None:
        """Give each module its own weights."""
        with torch.no_grad():
            for module, row in zip(modules, self.mean if averaged else self.weights, strict=True):
                trained = [p for p in module.parameters() if p.requires_grad]
                for p, part in zip(trained, side_by_side(row, trained), strict=True):
                    p.copy_(part)


class _StackedPass:
    """The pass of one layer of all runs: records [R B, inputs] by the weights [R, outputs, inputs] of their runs."""

    def __init__(self, layer: nn.Linear, taps: LinearTaps, own: dict[Any, Tensor]) -> None:
        self.known, self.taps, self.own = Trained(layer), taps, own

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise InputError("modules: a trained layer sees several rows a record; train them one by one")
        self.taps.check_input(x)
        runs = len(next(iter(self.own.values())))
        weight, bias = (
            None if p is None else self.own.get(p, p.detach().expand(runs, *p.shape))
            for p in (self.known.weight, self.known.bias)
        )
        assert weight is not None, "a linear layer has a weight"
        rows = x.unflatten(0, (runs, len(x) // runs))
        output = rows @ weight.mT if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        output, inputs = output.flatten(0, 1), x.detach()
        self.taps.hear(inputs, output, lambda gradient: [Use(self.known, inputs, gradient)])
        return output


def _padded(chosen: Sequence[Tensor | slice], n: int) -> tuple[Tensor, Tensor]:
    """Return indices [R B] of batches filled up to the same length with n, and which are records, [R, B]."""
    drawn = [torch.arange(n) if isinstance(index, slice) else index for index in chosen]
    index = nn.utils.rnn.pad_sequence(drawn, batch_first=True, padding_value=n)
    return index.flatten(), index < n


def _check(
    modules: Sequence[RecordLossModule],
    plans: Sequence[DPSGDPlan],
    ledgers: Sequence[Ledger] | None,
    noise: NoiseSource,
) -> None:
    if not modules or len(plans) != len(modules) or (ledgers is not None and len(ledgers) != len(modules)):
        raise InputError(f"plans: {len(plans)} for {len(modules)} modules; give one plan, and one ledger, for each")
    if any(ledger.private for ledger in ledgers or ()) and not noise.private:
        raise InputError("noise is a fixed source, for tests only; use NoiseSource.system() with these ledgers")
    if len({plan.steps for plan in plans}) > 1:
        raise InputError("plans: numbers of steps differ; give plans of one length")
    first = _facts(modules[0])
    for i, module in enumerate(modules):
        check_layers(module.train())
        if linear_layers(module) is None:
            raise InputError(f"modules[{i}]: something trained lies in no nn.Linear of its own; train them one by one")
        if _facts(module) != first or any(
            not torch.equal(p, q) for p, q in zip(_fixed(module), _fixed(modules[0]), strict=True)
        ):
            raise InputError(f"modules[{i}] differs from the first in more than start weights and learning rate")
    if modules[0].optimizer != "sgd" and len({module.learning_rate for module in modules}) > 1:
        raise InputError("modules: learning rates differ under adam; use sgd, or one rate")
    for plan in plans:
        plan.check_precision(sum(p.numel() for p in modules[0].parameters() if p.requires_grad))


def _facts(module: RecordLossModule) -> Any:
    """What modules of one architecture have in common."""
    settings = {k: v for k, v in vars(module).items() if isinstance(v, int | float | str) and k not in _FREE}
    parts = [(name, type(part), part.extra_repr()) for name, part in module.named_modules()]
    return type(module), settings, parts, [(p.shape, p.requires_grad) for p in module.parameters()]


def _fixed(module: RecordLossModule) -> list[Tensor]:
    return [p for p in module.parameters() if not p.requires_grad] + list(module.buffers())
