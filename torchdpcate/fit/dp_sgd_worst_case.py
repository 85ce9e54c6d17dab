"""DP-SGD's worst cases, of a linear model and of the nuisances: every record a canary with a direction of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from scipy.linalg import hadamard
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan, poisson_loader
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.fit.trainable import RecordLossModule
from torchdpcate.fit.trainer import default_trainer, quiet_lightning
from torchdpcate.fit.training import train
from torchdpcate.privacy.accounting import dp_sgd_noise_multiplier
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import DP_SGD
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case

_RATE, _STEPS = 0.2, 10
CANARIES = 256
"""Records of one training, each with a direction of its own: a power of two, and the nuisances' covariates."""
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


def noisy_sums(plan: DPSGDPlan, dataset: int, noise: NoiseSource, size: int = CANARIES) -> Tensor:
    """Return the noisy clipped sums of one DP-SGD fit along each canary, in clip norms, [size, steps].

    Args:
        plan: The DP-SGD run.
        dataset: 0 or 1: the sign of every canary.
        noise: Where noise and sampling come from.
        size: Canaries.
    """
    sign = torch.full((size,), 2.0 * dataset - 1.0, dtype=torch.float64)
    loader = poisson_loader(TensorDataset(torch.arange(size), sign), plan.sampling_rate, plan.steps, noise)
    seen = _Steps()
    module = Canaries(size, _STRETCH * plan.max_grad_norm)
    limits: dict[str, Any] = {"max_epochs": 1, "max_steps": plan.steps, "precision": "64-true"}
    with quiet_lightning():
        default_trainer(accelerator="cpu", callbacks=[DPSGD(plan, noise), seen], **limits).fit(module, loader)
    return seen.steps * (plan.sampling_rate * size / plan.max_grad_norm)


def log_ratio(sums: Tensor, noise_multiplier: float, rate: float) -> Tensor:
    r"""Return the log-likelihood ratio of the datasets +1 and -1, [runs], from noisy sums [runs, T].

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
    return _game(plan, budget, lambda *given: noisy_sums(*given))


_CONFIG = NuisanceConfig(width=0, batch_size=51, epochs=2, noise_walk=1e-6)  # ten steps at a rate of 0.2
_DOMAIN = Domain([-1.0] * CANARIES, [1.0] * CANARIES, outcome_low=0.0, outcome_high=1.0)


def canaries(dataset: int) -> CausalData:
    r"""Return the records of a dataset: corners x of the domain, or -x, with the highest outcome, in alternating arms.

    Corners are rows of a Hadamard matrix. At weights of zero the gradient of a record is :math:`c\,(x, 1)` in the
    propensity and in its arm's outcome, so -x turns it over but for the bias. All corners of a dataset are at right
    angles.

    Args:
        dataset: 0 for -x, 1 for x.

    Example:
        >>> x = canaries(1).x
        >>> bool((x @ x.T == CANARIES * torch.eye(CANARIES)).all())
        True
    """
    x = torch.from_numpy(hadamard(CANARIES)).double() * (2 * dataset - 1)
    return CausalData(x, (torch.arange(CANARIES) % 2).double(), torch.ones(CANARIES, dtype=torch.float64))


class _NuisanceSteps(Callback):
    """Keeps the noisy gradient of each step along each canary's direction, as the adversary of DP-SGD sees it.

    Attributes:
        along: One step after the other, each [m].
    """

    def __init__(self, module: Nuisances) -> None:
        self.along: list[Tensor] = []
        records = canaries(1)
        batch = records.x.float(), records.a.float(), records.y.float()
        stated = module.loss_slopes(batch)
        assert stated is not None
        slopes = torch.cat([slope for _, slope in stated[1]], dim=1).double()  # [m, 3]: propensity, both outcomes
        self._corners, self._shares = records.x, slopes / slopes.norm(dim=1, keepdim=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Append the step."""
        weights = [p.grad for p in pl_module.parameters() if p.grad is not None and p.ndim == 2]
        released = torch.cat(weights).double()  # [3, q]
        self.along.append(((self._corners @ released.T) * self._shares).sum(1) / CANARIES**0.5)


def nuisance_sums(plan: DPSGDPlan, dataset: int, noise: NoiseSource) -> Tensor:
    """Return the noisy clipped sums of one training of nuisances along each canary, in clip norms, [CANARIES, steps].

    Args:
        plan: The DP-SGD run.
        dataset: 0 or 1, see ``canaries``.
        noise: Where noise and sampling come from.
    """
    module = _CONFIG.module(_DOMAIN)
    for weight in module.parameters():
        nn.init.zeros_(weight)
    seen = _NuisanceSteps(module)

    def trainer(*, callbacks: list[Callback], **limits: Any) -> Trainer:
        return default_trainer(accelerator="cpu", callbacks=[*callbacks, seen], **limits)

    settings: dict[str, Any] = {"batch_size": _CONFIG.batch_size, "epochs": _CONFIG.epochs, "average": _CONFIG.average}
    train(module, canaries(dataset), trainer, seed=0, plan=plan, noise=noise, **settings)
    return torch.stack(seen.along, 1) * (plan.sampling_rate * CANARIES / plan.max_grad_norm)


@worst_case(
    "nuisances",
    Nuisances,
    attacks=[DP_SGD],
    pair="canaries at corners of the domain, each with a gradient at right angles to all others', or at the corners "
    "opposite; every noisy step is seen",
)
def _nuisances(budget: PrivacyBudget) -> Game:
    return _game(_CONFIG.plan(CANARIES, budget), budget, lambda *given: nuisance_sums(*given))


def _game(plan: DPSGDPlan, budget: PrivacyBudget, sums: Callable[[DPSGDPlan, int, NoiseSource], Tensor]) -> Game:
    """Return the game of trainings whose noisy sums along each canary are seen, [CANARIES, steps] each."""

    def draw(dataset: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.cat([sums(plan, dataset, noise) for _ in range(-(-runs // CANARIES))])[:runs]

    return Game(
        draw=draw,
        event=plan.event,
        count=plan.steps,
        guarantee=Guarantee(Level.CERTIFIED, budget),
        evidence=lambda noisy: log_ratio(noisy, plan.noise_multiplier, plan.sampling_rate),
        most_runs=100_000,
    )
