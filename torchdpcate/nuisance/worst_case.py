"""DP-SGD's worst case: every record a canary with a gradient direction of its own."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.poisson import poisson_loader
from torchdpcate.nuisance.record_loss import RecordLossModule
from torchdpcate.nuisance.trainer import default_trainer, quiet_lightning
from torchdpcate.privacy.accounting import dp_sgd_noise_multiplier
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import DP_SGD
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case

_RATE, _STEPS = 0.2, 10
_CANARIES = 256  # of one fit; more make the backward pass slower a canary
_STRETCH = 8.0  # gradient norm of a canary over the clip norm


class Canaries(RecordLossModule):
    """A linear model in which record i pulls coordinate i alone, by its sign: m replace-one games in one fit.

    Each coordinate sees the dominating pair of replace-one DP-SGD: N(0, sigma^2), or with the sampling probability
    N(+1, sigma^2) against N(-1, sigma^2), in units of the clip norm (theory note ``dp_cate``, section 3.1).

    Args:
        size: Canaries m.
        norm: Gradient norm of each.
    """

    def __init__(self, size: int, norm: float) -> None:
        super().__init__(learning_rate=1.0)
        self.linear = nn.Linear(size, 1, bias=False)
        self.norm = norm
        nn.init.zeros_(self.linear.weight)

    def record_loss(self, batch: Any) -> Tensor:
        """Minus sign times the record's own weight, [B]; batch is (index [B], sign [B])."""
        index, sign = batch
        x = nn.functional.one_hot(index, self.linear.in_features).to(sign) * self.norm
        return -sign * self.linear(x)[:, 0]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD of rate one: a step is minus the noisy gradient."""
        return torch.optim.SGD(self.parameters(), lr=1.0)


class _Steps(Callback):
    """Keeps what each step did to the weights, as the adversary of DP-SGD sees it."""

    def __init__(self) -> None:
        self.weights = [torch.zeros(())]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Append the weights, [m]."""
        (weight,) = pl_module.parameters()
        self.weights.append(weight.detach()[0].double().clone())

    @property
    def steps(self) -> Tensor:
        """Changes of the weights, [m, T]."""
        return torch.stack(self.weights[1:]).diff(dim=0, prepend=torch.zeros_like(self.weights[1])[None]).T


def noisy_sums(plan: DPSGDPlan, world: int, noise: NoiseSource, size: int = _CANARIES, mode: str = "auto") -> Tensor:
    """Return the noisy clipped sums of one DP-SGD fit along each canary, in clip norms, [size, steps].

    Args:
        plan: The DP-SGD run.
        world: 0 or 1: the sign of every canary.
        noise: Where noise and sampling come from.
        size: Canaries.
        mode: How gradients are clipped, see `DPSGD`.
    """
    sign = torch.full((size,), 2.0 * world - 1.0)
    loader = poisson_loader(TensorDataset(torch.arange(size), sign), plan.sampling_rate, plan.steps, noise)
    seen = _Steps()
    module = Canaries(size, _STRETCH * plan.max_grad_norm)
    limits: dict[str, Any] = {"max_epochs": 1, "max_steps": plan.steps}
    with quiet_lightning():
        default_trainer(accelerator="cpu", callbacks=[DPSGD(plan, noise, mode=mode), seen], **limits).fit(
            module, loader
        )
    return seen.steps * (plan.sampling_rate * size / plan.max_grad_norm)


def log_ratio(sums: Tensor, noise_multiplier: float, rate: float) -> Tensor:
    r"""Return the log-likelihood ratio of the worlds +1 and -1, [runs], from noisy sums [runs, T].

    .. math:: \sum_t \ln\frac{1 - q + q e^{(2y_t - 1)/(2\sigma^2)}}{1 - q + q e^{(-2y_t - 1)/(2\sigma^2)}}
    """
    rate = min(rate, 1 - 1e-12)
    odds = torch.tensor(rate / (1 - rate), dtype=torch.float64).log()
    terms = [nn.functional.softplus(odds + (sign * 2 * sums - 1) / (2 * noise_multiplier**2)) for sign in (1, -1)]
    return (terms[0] - terms[1]).sum(1)


@worst_case(
    "dp_sgd",
    DPSGD,
    attacks=[DP_SGD],
    pair="a canary with its gradient along an axis of its own, of either sign; every noisy step is seen",
)
def _dp_sgd(budget: PrivacyBudget) -> Game:
    multiplier = dp_sgd_noise_multiplier(budget.epsilon, budget.delta, _RATE, _STEPS)
    plan = DPSGDPlan(multiplier, max_grad_norm=1.0, sampling_rate=_RATE, steps=_STEPS)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        fits = -(-runs // _CANARIES)
        return torch.cat([noisy_sums(plan, world, noise) for _ in range(fits)])[:runs]

    return Game(
        draw=draw,
        event=plan.event,
        count=plan.steps,
        guarantee=Guarantee(Level.CERTIFIED, budget),
        evidence=lambda sums: log_ratio(sums, multiplier, _RATE),
        most_runs=100_000,
    )
