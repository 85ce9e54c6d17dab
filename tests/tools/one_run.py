"""Canary records hidden in the data of a real nuisance training, and how much of them its output betrays."""

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from scipy.linalg import hadamard
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tests.tools.one_run_bounds import (
    TradeOff,
    best_guesses,
    check_counts,
    confidence_of_each,
    dp_sgd_trade_off,
    gaussian_trade_off,
    one_run_epsilon,
    one_run_fdp,
)
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan
from torchdpcate.fit.networks import Nuisances
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.fit.trainer import default_trainer
from torchdpcate.fit.training import train
from torchdpcate.privacy.accounting import dp_sgd_epsilon
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

ATTACKS = ("white_box", "black_box")
CANARY_CONFIG = NuisanceConfig(width=0, batch_size=500, epochs=10, noise_walk=1e-3)
"""Linear nuisances that barely move, so that every canary is clipped in every step and keeps its direction."""

_SHUFFLE = 0  # seed of the public order of the corners' signs
_CHUNK = 128  # records whose gradients are held at once


@dataclass(frozen=True)
class CanaryPairs:
    """Pairs of records that differ in the outcome alone: its highest value against its lowest.

    Attributes:
        x: Covariates, corners of the domain, [m, q].
        a: Treatments, [m].
        domain: The public bounds.
    """

    x: Tensor
    a: Tensor
    domain: Domain

    def records(self, coins: Tensor) -> CausalData:
        """Return the data set that the coins choose, -1 or +1, [m]."""
        ends = torch.tensor([self.domain.outcome_low, self.domain.outcome_high], dtype=self.x.dtype)
        return CausalData(self.x, self.a, ends[(coins > 0).long()])


def canary_domain(canaries: int) -> Domain:
    """Return a domain with so many covariates that the canaries' gradients are orthogonal in a linear model.

    Example:
        >>> canary_domain(1000).dimension
        1023
    """
    dimension = _order(canaries) - 1
    return Domain([-1.0] * dimension, [1.0] * dimension, outcome_low=0.0, outcome_high=1.0)


def canary_pairs(module: Nuisances, canaries: int) -> CanaryPairs:
    r"""Choose canaries whose two gradients are opposite, and nearly orthogonal to those of the others.

    A pair differs in the outcome, so the gradients of its records point in opposite directions if the prediction is
    between the two, but for the small share of the propensity; and clipping makes them equally long. A linear model's
    gradient is a multiple of (1, x) in the head of the record's arm, so different arms are orthogonal, and corners
    x that are rows of a Hadamard matrix are as well, if the domain has a covariate for each of its columns but the
    first (with fewer, they are a public random code and nearly orthogonal). Among all corners in both arms those are
    taken whose predictions by the untrained, public weights lie nearest to the middle of the outcome's range.

    Args:
        module: Untrained nuisances.
        canaries: Number m of pairs.

    Raises:
        InputError: No canaries, or more than twice the covariates and one, so that no directions are left.
    """
    domain = module.domain
    if not 1 <= canaries <= 2 * (domain.dimension + 1):
        raise InputError(
            f"canaries = {canaries}: give between 1 and {2 * (domain.dimension + 1)}, twice the covariates and one, "
            "or leave domain out"
        )
    order = _order(max(domain.dimension + 1, canaries // 2))
    chosen = 1 + torch.randperm(order - 1, generator=torch.Generator().manual_seed(_SHUFFLE))[: domain.dimension]
    corners = torch.from_numpy(hadamard(order))[:, chosen] > 0
    x = torch.where(corners, domain.covariate_high, domain.covariate_low)
    with torch.no_grad():
        means = module.outcome(module.scaled(x)).T.flatten()
    best = (means - 0.5).abs().argsort(stable=True)[:canaries]
    return CanaryPairs(x[best % order], (best // order).to(x), domain)


def _order(least: int) -> int:
    """The smallest power of two of at least ``least`` and 2."""
    return 1 << max(least - 1, 1).bit_length()


class Eavesdropper(Callback):
    r"""Listens to a DP-SGD fit as its adversary does: weights before each step and its noisy gradient.

    The evidence of a step for z+ against z- is the log-likelihood ratio of the noisy sum G if the other records
    contributed nothing along the canary's gradients g+ and g- (clipped, at the weights before the step):

    .. math:: \ln\frac{1 - q + q e^{l(g^+)}}{1 - q + q e^{l(g^-)}}, \qquad
              l(g) = \frac{\langle G, g \rangle - \|g\|^2 / 2}{\sigma^2 C^2}.

    At q = 1 its sum over the steps is the sum of the inner products of G with g+ - g-, up to a factor. Where the
    gradients of different canaries are not orthogonal it is a worse attack, and as valid.

    Args:
        module: The module that will train; a copy is kept, free of hooks.
        pairs: The canaries.
        plan: The DP-SGD run as claimed.

    Attributes:
        scores: Evidence so far, [m] float64.
    """

    def __init__(self, module: Nuisances, pairs: CanaryPairs, plan: DPSGDPlan) -> None:
        self.plan = plan
        self.scores = torch.zeros(len(pairs.x), dtype=torch.float64)
        self._loss = _Loss(copy.deepcopy(module))
        self._sides = [_batch(pairs.records(torch.full_like(pairs.a, side))) for side in (1.0, -1.0)]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Note the weights before the step."""
        self._weights = {f"module.{name}": p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Weigh the step's noisy gradient."""
        released = {f"module.{name}": p.grad for name, p in pl_module.named_parameters()}
        for_plus, for_minus = (self._evidence(released, side) for side in self._sides)
        self.scores += for_plus - for_minus

    def _evidence(self, released: dict[str, Any], batch: tuple[Tensor, ...]) -> Tensor:
        plan, expected = self.plan, self.plan.sampling_rate * len(self.scores)

        def pull(*record: Tensor) -> tuple[Tensor, Tensor]:
            own = grad(lambda weights: functional_call(self._loss, weights, record))(self._weights)
            inner = torch.stack([(g * released[name]).sum() for name, g in own.items()])
            return inner.sum(), torch.stack([(g * g).sum() for g in own.values()]).sum()

        inner, square = (part.double() for part in vmap(pull, chunk_size=_CHUNK)(*batch))
        clip = (plan.max_grad_norm / square.sqrt()).clamp(max=1.0)
        ratio = (expected * inner * clip - square * clip**2 / 2) / (plan.noise_multiplier * plan.max_grad_norm) ** 2
        rate = torch.tensor(plan.sampling_rate, dtype=torch.float64)
        return torch.logaddexp((1 - rate).log(), rate.log() + ratio)


class _Loss(nn.Module):
    """The loss of one record, as a forward pass for ``functional_call``."""

    def __init__(self, module: Nuisances) -> None:
        super().__init__()
        self.module = module

    def forward(self, *record: Tensor) -> Tensor:
        x, a, y = (part[None] for part in record)
        return self.module.record_loss((x, a, y))[0]


def _batch(records: CausalData) -> tuple[Tensor, Tensor, Tensor]:
    return records.x.float(), records.a.float(), records.y.float()


def loss_gaps(module: Nuisances, pairs: CanaryPairs) -> Tensor:
    """Return by how much the loss of z- exceeds that of z+, [m] float64."""
    with torch.no_grad():
        plus, minus = (
            module.record_loss(_batch(pairs.records(torch.full_like(pairs.a, side)))).double() for side in (1.0, -1.0)
        )
    return minus - plus


@dataclass(frozen=True)
class Overheard:
    """What one training run betrayed.

    Attributes:
        coins: The truth, -1 or +1, [m].
        white_box: Evidence from every noisy step, see ``Eavesdropper``, [m].
        black_box: Evidence from the final model alone: how training changed ``loss_gaps``, [m].
    """

    coins: Tensor
    white_box: Tensor
    black_box: Tensor


def overhear(
    config: NuisanceConfig, plan: DPSGDPlan, domain: Domain, canaries: int, seed: int, noise: NoiseSource
) -> Overheard:
    """Toss the coins, train on the records that they choose, and listen.

    Args:
        config: The settings of the nuisances.
        plan: The DP-SGD run.
        domain: Public bounds.
        canaries: Number m of pairs; they fill the data set, so n = m.
        seed: Of the public first weights.
        noise: Where the coins, the sampling and the noise come from.

    Raises:
        InputError: See ``canary_pairs`` and ``train``.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = config.module(domain)
    pairs = canary_pairs(module, canaries)
    coins = 2.0 * noise.coins(canaries, 0.5) - 1
    before, eavesdropper = loss_gaps(module, pairs), Eavesdropper(module, pairs, plan)

    def trainer(*, callbacks: list[Callback], **limits: Any) -> Trainer:
        return default_trainer(accelerator="cpu", callbacks=[*callbacks, eavesdropper], **limits)

    settings: dict[str, Any] = {"batch_size": config.batch_size, "epochs": config.epochs, "average": config.average}
    train(module, pairs.records(coins), trainer, seed=seed, plan=plan, noise=noise, **settings)
    return Overheard(coins, eavesdropper.scores, loss_gaps(module, pairs) - before)


@dataclass(frozen=True)
class OneRunAudit:
    """What canaries in one training run, or a few, prove about its privacy.

    Each bound alone holds at the confidence. The claim is a trade-off curve, and ``epsilon_bound`` alone is
    set against it: it lies above the claim if and only if that curve is refuted.

    Attributes:
        attack: ``white_box`` or ``black_box``.
        canaries: Number of pairs, and of records.
        guesses: Guesses in each run.
        correct: Right ones, run by run.
        confidence: Of each bound.
        delta: At which epsilons are stated.
        claim: Claimed epsilon.
        epsilon_bound: Epsilon of the noisiest DP-SGD run of these steps and this rate that is not refuted.
        mu_bound: Least mu of a Gaussian trade-off that is not refuted.
        free_bound: Least epsilon that is not refuted whatever the shape of the trade-off (Steinke et al. 2023).
    """

    attack: str
    canaries: int
    guesses: int
    correct: tuple[int, ...]
    confidence: float
    delta: float
    claim: float
    epsilon_bound: float
    mu_bound: float
    free_bound: float

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        return self.epsilon_bound > self.claim

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for a file."""
        return asdict(self) | {"refuted": self.refuted}


def audit_nuisances(
    budget: PrivacyBudget,
    config: NuisanceConfig = CANARY_CONFIG,
    domain: Domain | None = None,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    runs: int = 1,
    attack: str = "white_box",
    confidence: float = 0.95,
    seed: int = 0,
    noise: NoiseSource | None = None,
) -> OneRunAudit:
    """Train nuisances by DP-SGD on canaries alone and bound the privacy loss from below.

    The adversary of both attacks chose all records but the coins, as differential privacy lets it. With 1,000 canaries
    and the default settings, at 95 %, noise at half its scale is refuted in one run with probability 0.3, 0.8 and 0.9
    at claims of epsilon = 1, 4 and 8, and never from 10 on, where not even 500 right guesses of 500 would do; in four
    runs with probability 0.98 at 1, and above 0.99 from 2 to 16.

    Args:
        budget: What the training claims to spend.
        config: The settings of the nuisances.
        domain: Public bounds; None takes ``canary_domain``.
        canaries: Number of pairs, and of records.
        guesses: Guesses in each run, fixed here and now; None takes half the canaries.
        runs: Independent runs; more bring the bound closer to the truth, see ``bounds.confidence_of_each``.
        attack: ``white_box`` sees every noisy step, as DP-SGD allows its adversary; ``black_box`` the final model.
        confidence: Of the bounds: an honest training is refuted with probability at most 1 - confidence.
        seed: Of the public first weights; coins, sampling and noise do not depend on it.
        noise: Where these come from; None takes the system's entropy.

    Raises:
        InputError: A number out of its range, or an unknown attack.

    Example:
        >>> config = NuisanceConfig(width=0, batch_size=50, epochs=2, noise_walk=1e-3)
        >>> audit_nuisances(PrivacyBudget(1.0, 1e-5), config, canaries=100, confidence=1 - 1e-7).refuted
        False
    """
    if attack not in ATTACKS:
        raise InputError(f"attack = {attack!r}: choose one of {', '.join(ATTACKS)}")
    if runs < 1:
        raise InputError(f"runs = {runs}: give at least 1")
    guesses = max(canaries // 2, 1) if guesses is None else guesses
    check_counts(guesses, 0, canaries, confidence)
    plan = config.plan(canaries, budget)
    domain, noise = domain or canary_domain(canaries), noise or NoiseSource.system()
    correct = []
    for _ in range(runs):
        heard = overhear(config, plan, domain, canaries, seed, noise)
        correct.append(int(best_guesses(getattr(heard, attack), heard.coins, guesses)))
    return judge(plan, budget.delta, attack, canaries, guesses, tuple(correct), confidence)


def judge(
    plan: DPSGDPlan,
    delta: float,
    attack: str,
    canaries: int,
    guesses: int,
    correct: tuple[int, ...],
    confidence: float,
) -> OneRunAudit:
    """Turn the counts of right guesses of independent runs into bounds, and set them beside the plan's claim."""
    counts = guesses, min(correct), canaries
    each = confidence_of_each(confidence, len(correct))

    def family(less_noise: float) -> TradeOff:
        return dp_sgd_trade_off(plan.noise_multiplier / less_noise, plan.sampling_rate, plan.steps)

    less_noise = one_run_fdp(*counts, family, each)
    return OneRunAudit(
        attack=attack,
        canaries=canaries,
        guesses=guesses,
        correct=correct,
        confidence=confidence,
        delta=delta,
        claim=_epsilon(plan, 1.0, delta),
        epsilon_bound=_epsilon(plan, less_noise, delta) if less_noise else 0.0,
        mu_bound=one_run_fdp(*counts, gaussian_trade_off, each),
        free_bound=one_run_epsilon(*counts, delta, each),
    )


def _epsilon(plan: DPSGDPlan, less_noise: float, delta: float) -> float:
    return dp_sgd_epsilon(plan.noise_multiplier / less_noise, delta, plan.sampling_rate, plan.steps)
