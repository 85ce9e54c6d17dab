"""The nuisance networks' worst case: a training in which every record is a gradient canary."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from scipy.linalg import hadamard
from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.nuisance.config import NuisanceConfig
from torchdpcate.nuisance.nuisances import Nuisances
from torchdpcate.nuisance.plan import DPSGDPlan
from torchdpcate.nuisance.train import train
from torchdpcate.nuisance.trainer import default_trainer
from torchdpcate.nuisance.worst_case import log_ratio
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import DP_SGD
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game, worst_case

CANARIES = 256
"""Records of one training, each with a direction of its own: a power of two, and the number of covariates."""

_CONFIG = NuisanceConfig(width=0, batch_size=51, epochs=2, noise_walk=1e-6)  # ten steps at a rate of 0.2
_DOMAIN = Domain([-1.0] * CANARIES, [1.0] * CANARIES, outcome_low=0.0, outcome_high=1.0)


def canaries(world: int) -> CausalData:
    r"""Return the records of a world: corners x of the domain, or -x, with the highest outcome, in alternating arms.

    Corners are rows of a Hadamard matrix. At weights of zero the gradient of a record is :math:`c\,(x, 1)` in the
    propensity and in its arm's outcome, so -x turns it over but for the bias. All corners of a world are at right
    angles.

    Args:
        world: 0 for -x, 1 for x.

    Example:
        >>> x = canaries(1).x
        >>> bool((x @ x.T == CANARIES * torch.eye(CANARIES)).all())
        True
    """
    x = torch.from_numpy(hadamard(CANARIES)).double() * (2 * world - 1)
    return CausalData(x, (torch.arange(CANARIES) % 2).double(), torch.ones(CANARIES, dtype=torch.float64))


class _Steps(Callback):
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


def noisy_sums(plan: DPSGDPlan, world: int, noise: NoiseSource) -> Tensor:
    """Return the noisy clipped sums of one training of nuisances along each canary, in clip norms, [CANARIES, steps].

    Args:
        plan: The DP-SGD run.
        world: 0 or 1, see ``canaries``.
        noise: Where noise and sampling come from.
    """
    module = _CONFIG.module(_DOMAIN)
    for weight in module.parameters():
        nn.init.zeros_(weight)
    seen = _Steps(module)

    def trainer(*, callbacks: list[Callback], **limits: Any) -> Trainer:
        return default_trainer(accelerator="cpu", callbacks=[*callbacks, seen], **limits)

    settings: dict[str, Any] = {"batch_size": _CONFIG.batch_size, "epochs": _CONFIG.epochs, "average": _CONFIG.average}
    train(module, canaries(world), trainer, seed=0, plan=plan, noise=noise, **settings)
    return torch.stack(seen.along, 1) * (plan.sampling_rate * CANARIES / plan.max_grad_norm)


@worst_case(
    "nuisances",
    Nuisances,
    attacks=[DP_SGD],
    pair="canaries at corners of the domain, each with a gradient at right angles to all others', or at the corners "
    "opposite; every noisy step is seen",
)
def _nuisances(budget: PrivacyBudget) -> Game:
    plan = _CONFIG.plan(CANARIES, budget)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.cat([noisy_sums(plan, world, noise) for _ in range(-(-runs // CANARIES))])[:runs]

    return Game(
        draw=draw,
        event=plan.event,
        count=plan.steps,
        guarantee=Guarantee(Level.CERTIFIED, budget),
        evidence=lambda sums: log_ratio(sums, plan.noise_multiplier, plan.sampling_rate),
        most_runs=100_000,
    )
