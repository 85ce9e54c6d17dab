"""What a clipped sum needs of linear layers: their inputs, and the gradients at their outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdpcate.errors import InputError

LAYERS = (nn.Linear, nn.Sequential, nn.ReLU)
"""PyTorch's layers in the library's plain networks; they mix no records."""


class Use(NamedTuple):
    """One use of a linear layer by a batch.

    Attributes:
        layer: The layer.
        inputs: What it saw, [B, inputs].
        gradients: Of the summed losses at what it gave, [B, outputs].
    """

    layer: nn.Linear
    inputs: Tensor
    gradients: Tensor

    def of(self, records: Tensor) -> Use:
        """The use by some records `[B]`: what others saw and gave is zero."""
        return Use(self.layer, *(torch.where(records[:, None], part, 0) for part in self[1:]))

    def squared_norms(self) -> Tensor:
        r"""Squared norms `[B]` of the layer's per-record gradients: :math:`\|\delta_i\|^2 (\|a_i\|^2 + 1)`."""
        found, lengths = (torch.linalg.vecdot(part, part) for part in (self.gradients, self.inputs))
        # |d|^2 + |d|^2 |a|^2
        return found * lengths if self.layer.bias is None else torch.addcmul(found, found, lengths)

    def weighted_sums(self, factors: Tensor, into: dict[Tensor, Tensor], *, add: bool) -> None:
        """Write the sums of the per-record gradients, each times its factor `[B, 1]`, or add them to what is there."""
        gradients = self.gradients * factors
        pairs = [(self.layer.weight, partial(torch.mm, gradients.t(), self.inputs))]
        if self.layer.bias is not None:
            pairs.append((self.layer.bias, partial(torch.sum, gradients, 0)))
        for parameter, total in pairs:
            if add:  # the part's own sum first: each number goes through few additions
                into[parameter].add_(total())
            else:
                total(out=into[parameter])


class LinearTaps:
    """Listens to the linear layers of a module, whose own weights stay out of the graph meanwhile.

    A layer computes with detached weights, so that a backward pass goes from the losses to the layers' outputs and no
    further. A `Sequential` of linear layers and ReLU is passed through by hand, without a graph.

    Args:
        module: One of the library's, untouched; its layers see records as rows, each layer once.

    Raises:
        InputError: Some parameter does not lie in a linear layer of its own, or is not trained.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = linear_layers(module)
        if layers is None:
            raise InputError("mode='chain' is for networks of trained linear layers alone; use mode='opacus'")
        self._layers = set(layers)
        self._heard: list[tuple[Tensor, Callable[[Tensor], list[Use]]]] = []
        self._undo = ExitStack()
        for layer in layers:
            self._replace(layer, _LinearPass(layer, self))
        for part in module.modules():
            if isinstance(part, nn.Sequential):
                self._replace(part, _ChainPass(part, self))

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearTaps:
        """Nothing to hear: a copied module computes as this one, and no fit is behind it."""
        deaf = object.__new__(type(self))
        deaf._heard, deaf._undo = [], ExitStack()
        deaf.hear = lambda *_: None  # type: ignore[method-assign, assignment]
        return deaf

    def cleanup(self) -> None:
        """Give the layers their own passes back."""
        self._heard.clear()
        self._undo.close()

    def hear(self, output: Tensor, backward: Callable[[Tensor], list[Use]]) -> None:
        """Note an output, which enters the graph, and how a gradient there goes on to the uses behind it."""
        if not output.requires_grad:
            output.requires_grad_()
        self._heard.append((output, backward))

    def uses(self, losses: Tensor, slopes: list[tuple[Tensor, Tensor]] | None = None) -> list[Use]:
        """Return the uses of layers on which losses `[B]` depend, with their gradients; the pass is forgotten.

        With `slopes`, derivatives by each output that was heard, no graph is requested.

        Raises:
            InputError: They are of other outputs; or a layer was not used once.
        """
        heard, self._heard = self._heard, []
        if slopes is None:
            wanted = [output for output, _ in heard]
            found = torch.autograd.grad(losses, wanted, torch.ones_like(losses), allow_unused=True)
        elif [id(output) for output, _ in slopes] == [id(output) for output, _ in heard]:
            found = tuple(gradient for _, gradient in slopes)
        else:
            raise InputError("loss_slopes: its outputs are not those of the networks; use mode='opacus'")
        pairs = zip(heard, found, strict=True)
        uses = [use for (_, backward), gradient in pairs if gradient is not None for use in backward(gradient)]
        if len(uses) != len(self._layers) or {use.layer for use in uses} != self._layers:
            raise InputError("a linear layer enters the losses twice or not at all; use mode='opacus'")
        return uses

    def _replace(self, part: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
        vars(part)["forward"] = forward
        self._undo.callback(vars(part).pop, "forward", None)


class _LinearPass:
    """The pass of one linear layer, heard by the taps. An object, so that a copy of the module has its own."""

    def __init__(self, layer: nn.Linear, taps: LinearTaps) -> None:
        self.layer, self.taps = layer, taps

    def __deepcopy__(self, memo: dict[int, Any]) -> _LinearPass:
        return _LinearPass(copy.deepcopy(self.layer, memo), copy.deepcopy(self.taps, memo))

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        output = functional.linear(x, layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
        if torch.is_grad_enabled():
            inputs = x.detach()
            self.taps.hear(output, lambda gradient: [Use(layer, inputs, gradient)])
        return output


class _ChainPass:
    """The pass of a chain that is given data: nothing but its output enters the graph."""

    def __init__(self, chain: nn.Sequential, taps: LinearTaps) -> None:
        self.chain, self.taps = chain, taps
        self.steps: list[nn.Module] = []  # a copy is made before its chain has parts

    def __deepcopy__(self, memo: dict[int, Any]) -> _ChainPass:
        return _ChainPass(copy.deepcopy(self.chain, memo), copy.deepcopy(self.taps, memo))

    def __call__(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return nn.Sequential.forward(self.chain, x)
        self.steps = steps = self.steps or list(self.chain)
        kept = [x]
        with torch.no_grad():
            for step in steps:
                last = kept[-1]
                kept.append(
                    functional.linear(last, step.weight, step.bias) if isinstance(step, nn.Linear) else last.relu()
                )
        output = kept[-1].detach()
        self.taps.hear(output, lambda gradient: _backward(steps, kept, gradient))
        return output


def _backward(steps: list[nn.Module], kept: list[Tensor], gradient: Tensor) -> list[Use]:
    """Uses of the layers of a chain, from the gradient at its output; `kept` holds what goes between."""
    uses = []
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        if not isinstance(step, nn.Linear):
            gradient = torch.ops.aten.threshold_backward(gradient, kept[i + 1], 0)
            continue
        uses.append(Use(step, kept[i], gradient))
        if i:
            gradient = gradient @ step.weight
    return uses


def linear_layers(module: nn.Module) -> list[nn.Linear] | None:
    """Return the linear layers that hold the parameters of `module`; None if some lie elsewhere or are not trained.

    Only plain layers count: no subclass, no parametrisation and no parameter that another layer has too; all of one
    type and on one device.

    Example:
        >>> [layer.in_features for layer in linear_layers(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))]
        [3, 2]
        >>> linear_layers(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))) is None
        True
    """
    found = [part for part in module.modules() if type(part) is nn.Linear]
    owned, parameters = [p for part in found for p in part.parameters()], list(module.parameters())
    alike = len({(p.dtype, p.device, p.requires_grad) for p in parameters}) < 2 and parameters[0].requires_grad
    return found if alike and len(owned) == len(parameters) == len(set(owned)) else None


def is_plain_layer(part: nn.Module) -> bool:
    """Return whether a call of a module is its class's pass and nothing else."""
    hooks = part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks
    return "forward" not in vars(part) and not any(hooks)
