"""Full-batch steps of DP-SGD in Lightning: linear layers, and features beside one hidden layer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from torchdpcate.composition.constants import of_kind
from torchdpcate.composition.linear_fit import FitPlan, Learnt, LinearFit, NewtonPoints
from torchdpcate.composition.steps import NoisySteps, StepEvent, summation_error
from torchdpcate.errors import InputError
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.fit.dp_sgd_plan import AT_ONCE, DPSGDPlan, poisson_loader
from torchdpcate.fit.trainable import RecordLossModule
from torchdpcate.fit.training import run
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.noise import NoiseSource

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_SLACK = 2.0**-15
"""Share of the clip norm above the bound of a gradient: what gradients are clipped to is less by 2^-16 of it, and
Opacus adds 1e-6 to a norm before it compares, so that neither binds."""


def full_batches(event: StepEvent, count: int, n: int, p: int) -> DPSGDPlan:
    """Return DP-SGD steps at rate 1 that cost this event each, for gradients of norm at most 1 of n records.

    Args:
        event: Of one step.
        count: Number of steps.
        n: Number of records.
        p: Trained numbers.

    Raises:
        InputError: The event is pure.

    Example:
        >>> full_batches(GaussianEvent(20.0), 100, 500, 3).event
        DPSGDEvent(noise_multiplier=40.0, sampling_rate=1.0)
    """
    if not isinstance(event, GaussianEvent):
        raise InputError("delta = 0: DP-SGD takes Gaussian steps; give privacy.delta above 0, or nuisance=auto")
    # a replaced record moves the sum of clipped gradients by two clip norms
    clip = 1 + _SLACK + math.sqrt(p) * summation_error(n, 1.0, AT_ONCE) / 2
    return DPSGDPlan(2 * event.noise_multiplier, clip, 1.0, count)


def train(
    module: LightningModule,
    records: tuple[Tensor, ...],
    plans: Sequence[DPSGDPlan],
    noise: NoiseSource,
    trainer: Callable[..., Trainer],
) -> None:
    """Take noisy steps on all records, in float64; the caller has paid for them.

    Args:
        module: Its record losses have gradients of norm at most 1, else they are clipped.
        records: What a batch of ``module`` is made of, each [n, ...].
        plans: One run of steps after another.
        noise: Where the noise comes from.
        trainer: Makes a Trainer from keyword arguments.

    Raises:
        InputError: Settings of the Trainer that break the analysis, or a GPU with too little memory.
        NumericalError: Training diverged.
    """
    data = TensorDataset(*records)
    with torch.random.fork_rng():
        for plan in plans:
            loader = poisson_loader(data, plan.sampling_rate, plan.steps, noise)
            private, less = [DPSGD(plan, noise, mode="chain")], "take nuisance=auto"
            run(module, loader, trainer, private, less, max_epochs=1, max_steps=plan.steps, precision="64-true")


class LinearLayer(RecordLossModule):
    """One linear layer of features without a bias, trained by scaled steps from zero.

    Args:
        fit: What is fitted; its losses are divided by their slope.
        points: The steps.
    """

    def __init__(self, fit: LinearFit, points: NewtonPoints) -> None:
        super().__init__()
        n, p = fit.predictors.shape
        self.fit, self.points, self.units = fit, points, n * fit.slope
        self.layer = _layer(p, 1, bias=False)

    def record_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Weighted losses `[B]` over the slope, of a batch of predictors, weights and targets."""
        predictors, weights, targets = batch
        fit = replace(self.fit, predictors=predictors, weights=weights, targets=targets)
        return weights * fit.losses(self.layer(predictors).squeeze(1)) / fit.slope

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Scaled steps, by the sum of gradients in the loss's own units."""
        return GivenSteps([self.layer.weight], self._take, self.units)

    def _take(self, gradients: Sequence[Tensor]) -> None:
        self.points.step(gradients[0].flatten().cpu())
        self.layer.weight.copy_(self.points.theta[None])


class GivenSteps(torch.optim.Optimizer):
    """Hands the gradients of parameters to what takes steps by them.

    Args:
        ordered: The parameters.
        take: Moves them by their gradients, in the same order.
        units: The sum's gradient over that which an optimizer gets.
    """

    def __init__(self, ordered: Sequence[Tensor], take: Callable[[Sequence[Tensor]], None], units: float) -> None:
        super().__init__(ordered, {})
        self.ordered, self.take, self.units = ordered, take, units

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.take([p.grad * self.units for p in self.ordered if p.grad is not None])
        return loss


def _layer(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """Return a layer of zeros; nothing is drawn from the global generator."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, dtype=torch.float64)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


_SEED = 0  # of initial weights and of the sample that curvatures are of: public
_GAIN, _SPREAD = 1.5, 0.7  # of initial hidden weights, times 1/sqrt(k), and of their biases
_MEAN_SQUARE = 0.45  # of a hidden unit, about
_MEAN_NORM = 0.95  # of features, about
_SAMPLE, _MOST = 1000, 3.0  # standard normal covariates, clipped as standardised ones are
_MOMENTUM, _LATE = 0.5, 0.5
_WALK = 0.5  # most that noise alone moves a hidden weight
_CLIPPED = 0.5  # variance of a record's pull, in squared slopes
_PRIOR = {"propensity": 2.0}  # standard deviation of output weights in slopes; 1 otherwise


class Network(RecordLossModule):
    r"""f = psi'theta + s v'tanh(W z + b), and its record losses over the norm of f's gradient.

    Args:
        fit: Loss and targets; its weights, which are for features alone, are not used.
        k: Number of covariates.
        width: Hidden units.
        share: The hidden layer's part of a squared gradient.
        features: How many of the fit's features are part of f.
    """

    def __init__(self, fit: LinearFit, k: int, width: int, share: float, features: int) -> None:
        super().__init__()
        self.fit, self.share = fit, share
        self.scale = math.sqrt(share / (1 - share) / (width * _MEAN_SQUARE))
        self.wide = _layer(features, 1, bias=False)
        self.hidden, self.out = _layer(k, width, bias=True), _layer(width, 1, bias=False)
        self.steps: NetworkSteps | None = None
        generator = torch.Generator().manual_seed(_SEED)
        with torch.no_grad():
            self.hidden.weight.normal_(0, _GAIN / math.sqrt(k), generator=generator)
            self.hidden.bias.normal_(0, _SPREAD, generator=generator)

    @property
    def ordered(self) -> list[Tensor]:
        """Weights of features, of the output, and biases and weights of hidden units."""
        return [self.wide.weight, self.out.weight, self.hidden.bias, self.hidden.weight]

    def forward(self, psi: Tensor, z: Tensor) -> Tensor:
        """Return f [n] at features [n, p] and covariates [n, k]."""
        return self._of_units(psi, torch.tanh(self.hidden(z)))

    def _of_units(self, psi: Tensor, h: Tensor) -> Tensor:
        return (self.wide(psi) + self.out(self.scale * h)).squeeze(1)

    @torch.no_grad()
    def squares(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return squared derivatives of f in output weights and in biases, [n, width] each.

        Those in hidden weights are the latter times z^2.

        Args:
            h: Values of the hidden units, [n, width].
        """
        squared = h.square()
        return self.scale**2 * squared, (self.scale * (1 - squared) * self.out.weight).square_()

    @torch.no_grad()
    def inverse_norms(self, features: Tensor | float, z: Tensor, squares: tuple[Tensor, Tensor]) -> Tensor:
        """Return one over the norm of f's gradient, [n].

        Args:
            features: Their squared norms.
            z: Covariates [n, k].
            squares: As ``squares`` returns them.
        """
        out, bias = squares
        return (features + out.sum(1) + bias.sum(1) * (1 + z.square().sum(1))).rsqrt()

    def record_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Weighted losses `[B]` over the slope, of a batch of features, covariates and targets."""
        psi, z, targets = batch
        scores, weights = self._weighted(psi, z)
        return weights * replace(self.fit, predictors=psi, targets=targets).losses(scores) / self.fit.slope

    def _weighted(self, psi: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and the inverse norms of its gradient, [n] each, of hidden units that are worked out once."""
        h = torch.tanh(self.hidden(z))
        return self._of_units(psi, h), self.inverse_norms(psi.square().sum(1), z, self.squares(h.detach()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The plan's steps."""
        assert self.steps is not None
        return GivenSteps(self.ordered, self.steps.step, len(self.fit.targets) * self.fit.slope)


class EffectNetwork(Network):
    r"""The same of an effect: residuals on :math:`(a - \pi) f`, whose gradient is that of f times :math:`a - \pi`."""

    def record_loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """See ``Network``, of a batch with a - pi and max(pi, 1 - pi), which |a - pi| does not exceed, beside."""
        psi, z, targets, treatment, largest = batch
        scores, weights = self._weighted(psi, z)
        fit = replace(self.fit, predictors=psi, targets=targets)
        return weights / largest * fit.losses(treatment * scores) / fit.slope


def trained(
    network: Network,
    plan: FitPlan,
    z: Tensor,
    steps: NoisySteps,
    trainer: "Callable[..., Trainer]",
    beside: tuple[Tensor, ...] = (),
) -> Learnt:
    """Return f after the plan's steps, which are paid for here, as a function of records' features and covariates.

    Args:
        network: Untrained.
        plan: How the fit is set up.
        z: Standardised covariates [n, k].
        steps: Pays, and draws noise.
        trainer: Makes a Trainer from keyword arguments.
        beside: What else its record losses are made of, [n] each.
    """
    fit, plan = network.fit, _with_all_steps(plan)
    network.steps = NetworkSteps(network, plan, steps.scale(plan.step, 2 * fit.slope))
    p = sum(parameter.numel() for parameter in network.parameters())
    plans = [full_batches(event, count, len(z), p) for event, count in plan.pay(steps)]
    psi = fit.predictors[:, : network.wide.in_features].contiguous()
    train(network, (psi, z, fit.targets, *beside), plans, steps.session.noise, trainer)
    network.steps.finish()
    network.to(z.device)
    network.fit = replace(fit, **{name: getattr(fit, name)[:0] for name in ("predictors", "weights", "targets")})

    @torch.no_grad()
    def learnt(features: Tensor, z: Tensor) -> Tensor:
        return network(features[:, : network.wide.in_features], z)

    weights, biases = (p.detach().cpu().clone() for p in (network.hidden.weight, network.hidden.bias))
    return Learnt(learnt, hidden=(weights, biases))


def _with_all_steps(plan: FitPlan) -> FitPlan:
    """Return a plan of the steps of small n mu: a network has a momentum of its own, and its loss is not convex."""
    if not plan.momentum:
        return plan
    own = of_kind("effect")["settings"]
    steps = own["step_bounds"][1]
    return replace(plan, steps=steps, burn_in=round(own["burn_in"] * steps), size=own["step_size"], momentum=0.0)


class NetworkSteps:
    """Scaled steps with momentum by noisy gradients of a network, and the mean of its late weights: post-processing.

    Args:
        network: The network.
        plan: Scaling and ridge of the features' coefficients, number of steps and their size.
        noise: Standard deviation of the noise that all steps would have as one event, in the units of the fit's sum.
    """

    def __init__(self, network: Network, plan: FitPlan, noise: float) -> None:
        fit, wide = network.fit, network.wide.in_features
        self._network, self._plan = network, plan
        self._slope, self._noise, self._prior = fit.slope, noise, _PRIOR.get(plan.step, 1.0) * fit.score_scale
        self._ridge = plan.ridge[:wide]
        curvature = plan.preconditioner[:wide, :wide] - self._ridge.diag()
        # a hidden layer takes its part of a record's gradient
        self._root = torch.linalg.cholesky(curvature * math.sqrt(1 - network.share) + self._ridge.diag())
        self._whole = float(plan.scaling.sum()) / _MEAN_NORM  # of a feature that is one everywhere, and has no weight
        self._features = float(plan.scaling[:wide].sum() / plan.scaling.sum())
        generator = torch.Generator().manual_seed(_SEED + 1)
        size = _SAMPLE, network.hidden.in_features
        self._sample = torch.randn(size, generator=generator, dtype=torch.float64).clamp_(-_MOST, _MOST)
        self._velocity = [torch.zeros_like(p) for p in network.ordered]
        self._sum = [torch.zeros_like(p) for p in network.ordered]
        self._taken, self._first = 0, round(plan.steps * (1 - _LATE))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step by noisy gradients of the sum, in the order of ``Network.ordered``."""
        parameters = self._network.ordered
        scalings, ridges = self._scaled(parameters[0].device)
        for i, (p, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            pull = gradient + ridges[i] * p
            step = pull / scalings[i - 1] if i else torch.cholesky_solve(pull.T, self._root.to(p)).T
            self._velocity[i] = _MOMENTUM * self._velocity[i].to(step) + step
            p -= self._plan.size * self._velocity[i]
            if self._taken >= self._first:
                self._sum[i] = self._sum[i].to(p) + p
        self._taken += 1

    @torch.no_grad()
    def finish(self) -> None:
        """Leave the network with the mean of its late weights."""
        for p, total in zip(self._network.ordered, self._sum, strict=True):
            p.copy_(total / (self._taken - self._first))

    def _scaled(self, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Return scalings of the hidden layer's parameters and ridges of all, by present weights and public facts."""
        z = self._sample.to(device)
        out, bias = squares = self._network.squares(torch.tanh(self._network.hidden(z)))
        weights = self._network.inverse_norms(self._features, z, squares)
        share = self._whole / len(z)
        curved_out, curved_bias = share * (weights @ out), share * (weights @ bias)
        curved_hidden = share * ((bias * weights[:, None]).T @ z.square())
        # noise and sampling over prior variance, as features have it
        ridge = (self._noise**2 + _CLIPPED * curved_out * self._slope**2) / (curved_out * self._prior**2)
        # hidden weights have no prior: under noise alone they wander by this much at most
        least = self._plan.size * self._noise * self._plan.steps / _WALK
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        return (
            [(curved_out + ridge)[None], curved_bias.clamp_min(least), curved_hidden.clamp_min(least)],
            [self._ridge.to(device)[None], ridge[None], nothing, nothing],
        )
