"""Networks of propensity and outcomes, and the optimizers that train them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.nuisances import NuisanceModel, NuisanceValues, propensity_at

MOMENTUM = 0.9
"""Momentum of `sgd`."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=MOMENTUM, fused=True),
}
"""Optimizers by name: Adam with PyTorch's settings, SGD with momentum 0.9; each step one call, not one a weight."""


def check_optimizer(name: str, learning_rate: float) -> None:
    """Refuse an unknown optimizer, or a learning rate that is not above 0.

    Raises:
        InputError: either of them.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer={name!r} is unknown; choose one of {sorted(OPTIMIZERS)}")
    if not learning_rate > 0:
        raise InputError(f"learning_rate={learning_rate!r} must be above 0")


ScaledBatch = tuple[Tensor, Tensor, Tensor]


def by_hours(names: Sequence[str]) -> tuple[list[list[int]], list[int]]:
    """Return positions of the columns of hours, by variable and hour, and those of all other columns.

    Args:
        names: Names of the columns; those of a variable over H hours are `NAME_h0` to `NAME_h{H-1}`.

    Raises:
        InputError: There are no such columns, or variables of other hours.

    Example:
        >>> by_hours(["age", "pulse_h0", "pulse_h1"])
        ([[1, 2]], [0])
    """
    found: dict[str, dict[int, int]] = {}
    for place, name in enumerate(names):
        if hour := re.fullmatch("(.+)_h(0|[1-9][0-9]*)", name):
            found.setdefault(hour[1], {})[int(hour[2])] = place
    hours = sorted({tuple(sorted(places)) for places in found.values()})
    if len(hours) != 1 or hours[0] != tuple(range(len(hours[0]))):
        raise InputError(
            f"nuisance=recurrent needs variables of the same hours from 0 on, NAME_h0, NAME_h1, ...; the domain has "
            f"{len(found)} variables of {len(hours)} lengths; give them hours: in the domain file, or use nuisance=mlp"
        )
    series = [[places[hour] for hour in hours[0]] for places in found.values()]
    return series, sorted(set(range(len(names))).difference(*series))


class HourLayer(nn.Module):
    r"""Last hidden state of an LSTM over the hours, beside the columns that have none.

    Args:
        names: Names of the columns, see `by_hours`.
        width: Hidden units.

    Example:
        >>> HourLayer(["age", "pulse_h0", "pulse_h1"], width=4)(torch.zeros(5, 3)).shape
        torch.Size([5, 5])
    """

    def __init__(self, names: Sequence[str], width: int) -> None:
        super().__init__()
        if width < 1:
            raise InputError(f"width={width}: nuisance=recurrent needs at least one hidden unit")
        self.series, self.others = by_hours(names)
        self.outputs = width + len(self.others)
        self.lstm: nn.Module = nn.LSTM(len(self.series), width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Features [..., width + others] of scaled columns x [..., q]."""
        rows = x.reshape(-1, x.shape[-1])
        states, _ = self.lstm(rows[:, self.series].transpose(1, 2))
        return torch.cat([states[:, -1], rows[:, self.others]], 1).reshape(*x.shape[:-1], self.outputs)


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden ReLU layer, or a linear map when `width` is 0.

    Example:
        >>> [type(layer).__name__ for layer in mlp(3, 32, 2)]
        ['Linear', 'ReLU', 'Linear']

    Raises:
        InputError: `inputs` below 1 or `width` below 0.
    """
    if inputs < 1:
        raise InputError(f"dimension={inputs} must be at least 1")
    if width < 0:
        raise InputError(f"width={width} must be 0 (linear) or more")
    if width == 0:
        return nn.Sequential(nn.Linear(inputs, outputs))
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


class PropensityNetwork(nn.Module):
    r"""Propensity model :math:`\pi(x) = \mathrm{sigmoid}(f(x))`, trained by cross-entropy.

    Args:
        dimension: number of covariates q.
        width: hidden units; 0 is a linear model.

    Example:
        >>> PropensityNetwork(3, width=8)(torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    def __init__(self, dimension: int, width: int = 32) -> None:
        super().__init__()
        self.net = mlp(dimension, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[..., B]` of treatment at covariates `x` `[..., B, q]` scaled to [-1, 1]."""
        return self.net(x).squeeze(-1)

    def record_loss(self, batch: ScaledBatch) -> Tensor:
        """Cross-entropy `[B]` of (scaled covariates, treatment, outcome on [0, 1])."""
        x, a, _ = batch
        logits = self(x)
        return nn.functional.binary_cross_entropy_with_logits(logits, a.to(logits), reduction="none")


class OutcomeNetwork(nn.Module):
    r"""Mean outcomes :math:`(\mu_0(x), \mu_1(x))` as two heads on one hidden layer, on the [0, 1] outcome scale.

    Trained by the squared error of the observed arm, so no network sees only one arm's records: under
    replace-one adjacency a record may change its arm, and separate fits would not be parallel.  Training
    starts from means in the middle of the range, and so from no effect: where noise leaves little to be learnt, the
    effect of random weights would stay.

    Args:
        dimension: number of covariates q.
        width: hidden units; 0 is a linear model.

    Example:
        >>> OutcomeNetwork(3, width=8)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, dimension: int, width: int = 32) -> None:
        super().__init__()
        self.net = mlp(dimension, width, 2)
        last = f"{len(self.net) - 1}"
        self.net.get_parameter(f"{last}.weight").data.zero_()
        self.net.get_parameter(f"{last}.bias").data.fill_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Both mean outcomes `[..., B, 2]` at covariates `x` `[..., B, q]` scaled to [-1, 1]."""
        return self.net(x)

    def hidden(self, x: Tensor) -> Tensor:
        """Hidden layer `[..., B, width]`; the covariates themselves in a linear model."""
        return self.net[:-1](x)

    def record_loss(self, batch: ScaledBatch) -> Tensor:
        """Squared error `[B]` of (scaled covariates, treatment, outcome on [0, 1])."""
        x, a, y = batch
        mean = self(x)
        observed = torch.where(a > 0.5, mean[..., 1], mean[..., 0])
        return (y.to(observed) - observed) ** 2


class Nuisances(NuisanceModel):
    r"""The nuisances :math:`\eta = (\pi, \mu_0, \mu_1)` of one domain.

    The loss of a record is

    .. math::
        (1 - s) \left[-a \log \pi(x) - (1 - a) \log(1 - \pi(x))\right] + s \, (y - \mu_a(x))^2,

    with y on the [0, 1] outcome scale and s the `outcome_share`: squared errors on that scale are small, and
    under clipping the larger part of a gradient would leave nothing for the other.  Both networks are
    clipped jointly, so that one run of DP-SGD pays for both: this needs a lower noise multiplier than two
    runs at half the budget each.

    Covariates come raw and are scaled by the domain's public bounds inside.  This is what a release holds; what is
    trained is a `TrainableNuisances`, the same networks as a Lightning module.

    Args:
        domain: public bounds of covariates and outcome, and the overlap bound.
        width: hidden units of each network; 0 is a linear model.
        learning_rate: step size of the optimizer that trains them.
        optimizer: `adam`, or `sgd` (momentum 0.9).
        outcome_share: share s of the outcome in the loss, between 0 and 1.
        hours: whether columns of hours pass an LSTM, see `HourLayer`.

    Raises:
        InputError: a value out of its range, or `hours` without such columns.

    Example:
        >>> module = Nuisances(Domain([0, 0], [1, 1], outcome_low=-3, outcome_high=3), width=8)
        >>> values = module.predict(torch.rand(5, 2))
        >>> values.pi.shape, bool((values.mu1.abs() <= 3).all())
        (torch.Size([5]), True)
    """

    centre: Tensor
    half_width: Tensor

    def __init__(
        self,
        domain: Domain,
        width: int = 32,
        learning_rate: float = 0.2,
        optimizer: str = "sgd",
        outcome_share: float = 0.95,
        hours: bool = False,
    ) -> None:
        super().__init__()
        check_optimizer(optimizer, learning_rate)
        if not 0 < outcome_share < 1:
            raise InputError(f"outcome_share={outcome_share!r} must be between 0 and 1, both excluded")
        self.learning_rate = float(learning_rate)
        self.optimizer = optimizer
        self.domain = domain
        self.width = width
        self.outcome_share = float(outcome_share)
        self.hours = hours
        self.propensity = PropensityNetwork(domain.dimension, width)
        self.outcome = OutcomeNetwork(domain.dimension, width)
        if hours:
            layers = [HourLayer(domain.names, width) for _ in range(2)]
            self.propensity.net, self.outcome.net = (
                nn.Sequential(layer, nn.Linear(layer.outputs, outputs))
                for layer, outputs in zip(layers, (1, 2), strict=True)
            )
            self.outcome.net.get_parameter("1.bias").data.fill_(0.5)
        half_width = (domain.covariate_high - domain.covariate_low) / 2
        # bounds stay float64 whatever the weights are, so that scaling agrees with Domain.scale
        self.register_buffer("centre", domain.covariate_low + half_width, persistent=False)
        self.register_buffer("half_width", half_width, persistent=False)

    def scaled(self, x: Tensor) -> Tensor:
        """Covariates `x` `[..., q]` on [-1, 1], in the weights' precision."""
        weight = next(self.outcome.parameters())
        if not self.domain.linear:
            return self.domain.scale(x.double()).to(weight.dtype)
        return ((x - self.centre) / self.half_width).to(weight.dtype)

    def record_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Loss `[B]` of a batch (x `[B, q]`, a `[B]`, y `[B]`) in the domain's own units."""
        x, a, y = batch
        x = self.scaled(x)
        y = (y - self.domain.outcome_low) / self.domain.outcome_range
        # a propensity that is known has no part in the loss, but for gradients of zero
        share, scaled = 1.0 if self.domain.known_propensity is not None else self.outcome_share, (x, a, y)
        return (1 - share) * self.propensity.record_loss(scaled) + share * self.outcome.record_loss(scaled)

    def loss_slopes(self, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]] | None:
        """`record_loss`, and its derivatives at both networks' outputs in closed form, see `RecordLossModule`."""
        if type(self.propensity) is not PropensityNetwork or type(self.outcome) is not OutcomeNetwork:
            return None
        x, a, y = batch
        x = self.scaled(x)
        logits, means = self.propensity.net(x), self.outcome.net(x)
        with torch.no_grad():
            share = 1.0 if self.domain.known_propensity is not None else self.outcome_share
            arms, treated = means.unbind(1), a > 0.5
            y = ((y - self.domain.outcome_low) / self.domain.outcome_range).to(means)
            error = torch.where(treated, arms[1], arms[0]) - y
            treatment = a.to(logits)[:, None]
            entropy = nn.functional.binary_cross_entropy_with_logits(logits, treatment, reduction="none")
            slope = (2 * share) * error
            losses = (1 - share) * entropy[:, 0] + share * error.square()
            observed = torch.stack([torch.where(treated, 0, slope), torch.where(treated, slope, 0)], 1)
            return losses, [(logits, (1 - share) * (torch.sigmoid(logits) - treatment)), (means, observed)]

    def predict(self, x: Tensor) -> NuisanceValues:
        """Nuisances at raw covariates `x` `[B, q]`, clipped to the domain.

        Differentiable, and usable under `torch.func`; in the weights' precision (`.double()` for float64).
        """
        known, x = propensity_at(x, self.domain), self.scaled(x)
        overlap = self.domain.overlap
        pi = torch.sigmoid(self.propensity(x)).clamp(overlap, 1 - overlap) if known is None else known.to(x)
        mean = self.outcome(x).clamp(0, 1) * self.domain.outcome_range + self.domain.outcome_low
        return NuisanceValues(pi, mean[..., 0], mean[..., 1])

    def forward(self, x: Tensor) -> NuisanceValues:
        """As `predict`."""
        return self.predict(x)

    def representation(self, x: Tensor) -> Tensor:
        """Hidden layer of the outcome network `[B, width]` at raw covariates; `[B, q]` in a linear model."""
        return self.outcome.hidden(self.scaled(x))

    def config(self) -> dict[str, Any]:
        """Plain types from which `from_config` makes a module of the same shape (weights not included)."""
        return {
            "domain": self.domain.to_dict(),
            "width": self.width,
            "learning_rate": self.learning_rate,
            "optimizer": self.optimizer,
            "outcome_share": self.outcome_share,
            **({"hours": True} if self.hours else {}),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Nuisances:
        """Module of the shape that `config` describes, with fresh weights."""
        settings = dict(config)
        return cls(Domain.from_dict(settings.pop("domain")), **settings)

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights and biases of both networks, by their names."""
        inputs, width = len(config["domain"]["covariate_low"]), config["width"]
        found: dict[str, tuple[int, ...]] = {}
        for network, outputs in (("propensity", 1), ("outcome", 2)):
            if config.get("hours"):
                series, others = by_hours(config["domain"]["names"] or [])
                recurrent: dict[str, tuple[int, ...]] = {
                    "weight_ih": (4 * width, len(series)),
                    "weight_hh": (4 * width, width),
                }
                recurrent |= {"bias_ih": (4 * width,), "bias_hh": (4 * width,)}
                found |= {f"{network}.net.0.lstm.{name}_l0": shape for name, shape in recurrent.items()}
                found[f"{network}.net.1.weight"] = (outputs, width + len(others))
                found[f"{network}.net.1.bias"] = (outputs,)
                continue
            layers = ((0, inputs, width), (2, width, outputs)) if width else ((0, inputs, outputs),)
            for position, entering, leaving in layers:
                found[f"{network}.net.{position}.weight"] = (leaving, entering)
                found[f"{network}.net.{position}.bias"] = (leaving,)
        return found
