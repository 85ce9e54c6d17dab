"""Tangent features: the gradient of the private outcome network, which make a neural head with a certificate."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, batches
from torchdpcate.fit.nuisance_kinds import networks_of

if TYPE_CHECKING:
    from torchdpcate.fit.nuisance_kinds import Nuisances
    from torchdpcate.fit.nuisances import NuisanceModel

_LEAST_ROWS = 64  # of a batch: each one reads and writes p numbers
_KERNEL_ROWS = 1_024  # of a block of the kernel, for which two passes through the network are in memory


class _Gradient(NamedTuple):
    """Gradient (c_j (z, 1), -(h, 1), (h, 1)) of one network's effect at B records, never formed unless requested.

    Attributes:
        z: Scaled covariates, [B, q].
        hidden: Hidden layer h, [B, H]; z itself in a linear network.
        slopes: Derivative c of the effect in each pre-activation, [B, H]; [B, 0] in a linear network.
    """

    z: Tensor
    hidden: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, nuisances: "Nuisances", x: Tensor) -> "_Gradient":
        net, z = nuisances.outcome.net, nuisances.scaled(x)
        if len(net) == 1:
            return cls(z, z, z[:, :0])
        hidden, weight = net[0](z).relu(), net[-1].get_parameter("weight")
        return cls(z, hidden, (hidden > 0) * (weight[1] - weight[0]))

    def dense(self) -> Tensor:
        """The gradients, [B, p], in the order of the network's parameters."""
        one = self.z.new_ones(len(self.z), 1)
        inner, last = (self.slopes[:, :, None] * self.z[:, None, :]).flatten(1), self.hidden
        return torch.cat([inner, self.slopes, -last, last, -one, one], 1)

    def product(self, theta: Tensor) -> Tensor:
        """The gradients times theta [..., p], [..., B]: a jvp of the network."""
        w1, b1, w2, b2 = self._layers(theta)
        inner = ((w1 @ self.z.mT + b1[..., None]) * self.slopes.mT).sum(-2)
        return inner + ((w2[..., 1, :] - w2[..., 0, :]) @ self.hidden.mT + (b2[..., 1:] - b2[..., :1]))

    def adjoint(self, r: Tensor) -> Tensor:
        """The sum of r_i times gradient i, [..., p], for r [..., B]: a vjp of the network."""
        pull, last, total = r[..., None, :] * self.slopes.mT, r @ self.hidden, r.sum(-1, keepdim=True)
        return torch.cat([(pull @ self.z).flatten(-2), pull.sum(-1), -last, last, -total, total], -1)

    def inner(self, other: "_Gradient") -> Tensor:
        """Inner products of these gradients and others, [B, B']."""
        layers = (self.z @ other.z.mT + 1) * (self.slopes @ other.slopes.mT)
        return layers + 2 * (self.hidden @ other.hidden.mT + 1)

    def square(self) -> Tensor:
        """Squared norms, [B]: at least 2."""
        z, hidden, slopes = (torch.linalg.vector_norm(part, dim=1).square() for part in self)
        return (z + 1) * slopes + 2 * (hidden + 1)

    def _layers(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights [..., H, q] and biases [..., H] of the hidden layer, then [..., 2, H] and [..., 2] of the last."""
        H, q, last = self.slopes.shape[1], self.z.shape[1], self.hidden.shape[1]
        w1, b1, w2, b2 = theta.split([H * q, H, 2 * last, 2], -1)
        return w1.unflatten(-1, (H, q)), b1, w2.unflatten(-1, (2, last)), b2


class Tangent(FeatureMap):
    r"""Gradient of the outcome network's effect in its parameters, clipped to norm one.

    .. math:: \psi(x) = \nabla_\theta e_{\theta_0}(x) / \max(1, \|\nabla_\theta e_{\theta_0}(x)\|),
        \quad e_\theta = (\mu_1 - \mu_0) / R

    with theta_0 the DP-trained outcome network (mu_0, mu_1) of the nuisance block, one hidden ReLU layer or none, and
    R the public outcome range: psi(x)'theta is the change of the effect along theta, to first order. Of averaged
    nuisances e is the mean effect and theta all their parameters. theta_0 is private, so for the second-stage block
    this is a public map, and a linear head's guarantees hold for it whatever the network has learnt. The effect is
    taken before the network's outputs are clipped to the outcome's bounds: beyond a bound the clipped one has no
    gradient to learn along.

    With h the hidden layer and c_j the derivative of e in its j-th pre-activation, the gradient is
    (c_j (x, 1), -(h, 1), (h, 1)), in the order of the network's own parameters. Products with it (a jvp, a vjp) and
    the kernel never form it: p may be in the millions. Source: Jacot, Gabriel & Hongler (2018) for the kernel.

    Raises:
        InputError: In ``setup``, nuisances without such a network.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.fit.nuisance_kinds import Nuisances
        >>> domain = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 1.0)
        >>> psi = Tangent().setup(domain, Nuisances(domain, width=8).double().requires_grad_(False))
        >>> psi.dimension, psi(domain.grid(2)).norm(dim=1).round(decimals=6)
        (42, tensor([1., 1.], dtype=torch.float64))
    """

    def _setup(self, width: int, nuisances: "NuisanceModel | None") -> None:
        networks = networks_of(nuisances)
        kinds = [[type(layer) for layer in network.outcome.net] for network in networks]
        if not networks or any(k not in ([nn.Linear], [nn.Linear, nn.ReLU, nn.Linear]) for k in kinds):
            raise InputError(
                "features = tangent: needs the learner's trained outcome network, with one hidden layer or none; use "
                "nuisance=mlp, or other features"
            )
        # In a tuple, so that its weights are not saved a second time as part of this module.
        self._networks = networks
        self._sizes = [sum(weight.numel() for weight in network.outcome.parameters()) for network in networks]

    @property
    def dimension(self) -> int:
        """Return the number of parameters of the outcome network."""
        return sum(self._sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the clipped gradient, [B, p], in the order of the network's parameters."""
        gradients, scale = self._gradients(x)
        return torch.cat([gradient.dense() for gradient in gradients], 1) * scale[:, None]

    def product(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return psi(x)'theta, [..., B], without psi; see the base class."""
        parts, results = theta.split(self._sizes, -1), []
        for gradients, scale in self._passes(x):
            change = [gradient.product(part) for gradient, part in zip(gradients, parts, strict=True)]
            results.append(sum(change[1:], change[0]) * scale)
        return torch.cat(results, -1)

    def adjoint(self, r: Tensor, x: Tensor) -> Tensor:
        """Return sum_i r_i psi(x_i), [..., p], without psi; see the base class."""
        total, done = r.new_zeros(*r.shape[:-1], self.dimension), 0
        for gradients, scale in self._passes(x):
            pull = r[..., done : done + len(scale)] * scale
            total = total + torch.cat([gradient.adjoint(pull) for gradient in gradients], -1)
            done += len(scale)
        return total

    def norm(self, x: Tensor) -> Tensor:
        """Return ||psi(x)||, [B]."""
        return torch.cat([_square(gradients).sqrt() * scale for gradients, scale in self._passes(x)])

    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the tangent kernel, [m, k], from inner products of layers; see the base class."""
        blocks = [[self._inner(a, b) for b in y.split(_KERNEL_ROWS)] for a in x.split(_KERNEL_ROWS)]
        return torch.cat([torch.cat(row, 1) for row in blocks])

    def _inner(self, x: Tensor, y: Tensor) -> Tensor:
        (left, scale), (right, other) = self._gradients(x), self._gradients(y)
        inner = [a.inner(b) for a, b in zip(left, right, strict=True)]
        return sum(inner[1:], inner[0]) * scale[:, None] * other

    def _gradients(self, x: Tensor) -> tuple[list[_Gradient], Tensor]:
        """Each network's gradient, and what they are multiplied by: their mean, clipped."""
        gradients = [_Gradient.of(network, x) for network in self._networks]
        # the mean's norm, and clipped: (1 / K) / max(1, sqrt(square) / K)
        return gradients, 1 / _square(gradients).sqrt().clamp(min=float(len(gradients)))

    def _passes(self, x: Tensor) -> Iterator[tuple[list[_Gradient], Tensor]]:
        """The records in batches of which a pass, not the gradient, fits into a cache."""
        width = sum(network.width + x.shape[1] for network in self._networks)
        return (self._gradients(part) for part in batches(x, width, least=_LEAST_ROWS))


def _square(gradients: list[_Gradient]) -> Tensor:
    return torch.stack([gradient.square() for gradient in gradients]).sum(0)
