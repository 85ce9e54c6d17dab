"""What a clipped sum needs of trained linear layers: their inputs, and the gradients at their outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdpcate.errors import InputError

_MOST_NUMBERS = 2**24  # of per-record gradients at once, where a record has several rows

_Slope = Callable[[Tensor, Tensor], Tensor]

_SLOPES: dict[type[nn.Module], _Slope] = {
    nn.Identity: lambda gradient, output: gradient,
    nn.ReLU: lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0),
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.Sigmoid: torch.ops.aten.sigmoid_backward,
}
"""Gradients at the inputs of activations, from those at their outputs and the outputs themselves."""


LAYERS = (nn.Linear, nn.Sequential, *_SLOPES)
"""Layers that mix no records."""


class Trained:
    """A linear layer of a module that trains, with what is requested of it in every pass looked up once.

    Attributes:
        linear: The layer.
        trained: Whether weight and bias are trained.
        parameters: What of it is trained.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.linear = layer
        self.trained = layer.weight.requires_grad, layer.bias is not None and layer.bias.requires_grad
        self.parameters = [p for p in (layer.weight, layer.bias) if p is not None and p.requires_grad]


class Use(NamedTuple):
    """One use of a linear layer by a batch.

    Attributes:
        layer: The layer.
        inputs: What it saw, [B, ..., inputs].
        gradients: Of the summed losses at what it gave, [B, ..., outputs].
    """

    layer: Trained
    inputs: Tensor
    gradients: Tensor

    def of(self, records: Tensor) -> Use:
        """The use by some records `[B]`: what others saw and gave is zero."""
        parts = (torch.where(records.view(-1, *[1] * (part.dim() - 1)), part, 0) for part in self[1:])
        return Use(self.layer, *parts)

    def squared_norms(self) -> Tensor:
        r"""Squared norms `[B]` of the layer's per-record gradients: :math:`\|\delta_i\|^2 (\|a_i\|^2 + 1)`."""
        inputs, gradients = self._rows()
        weight, bias = self.layer.trained
        if inputs.dim() == 2:
            found = torch.linalg.vecdot(gradients, gradients)
            if not weight:
                return found
            lengths = torch.linalg.vecdot(inputs, inputs)
            # |d|^2 + |d|^2 |a|^2
            return torch.addcmul(found, found, lengths) if bias else found * lengths
        found = gradients.sum(1).square().sum(1) if bias else gradients.new_zeros(len(gradients))
        if weight and len(inputs):
            # products of several rows may cancel, so their norms are taken of the sum itself
            size = max(1, _MOST_NUMBERS // self.layer.linear.weight.numel())
            pairs = zip(gradients.split(size), inputs.split(size), strict=True)
            found = found + torch.cat([torch.bmm(g.mT, a).square().sum((1, 2)) for g, a in pairs])
        return found

    def weighted_sums(self, factors: Tensor, into: dict[Tensor, Tensor], *, add: bool) -> None:
        """Write the sums of the per-record gradients, each times its factor `[B, 1]`, or add them to what is there."""
        inputs, gradients = self._rows()
        weight, bias = self.layer.trained
        if gradients.dim() > 2:
            factors = factors[:, None]
        gradients = gradients * factors
        if gradients.dim() > 2:
            inputs, gradients = inputs.flatten(0, 1), gradients.flatten(0, 1)
        targets = [into[p] for p in self.layer.parameters]
        inputs, gradients = (part.to(targets[0].dtype) for part in (inputs, gradients))
        if weight and add:
            targets[0].add_(gradients.t() @ inputs)  # the part's own sum first: each number goes through few additions
        elif weight:
            torch.mm(gradients.t(), inputs, out=targets[0])
        if bias and add:
            targets[-1].add_(gradients.sum(0))
        elif bias:
            torch.sum(gradients, 0, out=targets[-1])

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Inputs and gradients in the weights' precision, [B, ...] or [B, rows, ...]."""
        inputs, gradients, dtype = self.inputs, self.gradients, self.layer.linear.weight.dtype
        if inputs.dtype != dtype or gradients.dtype != dtype:
            # a module may pass in reduced precision: norms and sums are those of the same numbers
            inputs, gradients = inputs.to(dtype), gradients.to(dtype)
        return (inputs.flatten(1, -2), gradients.flatten(1, -2)) if inputs.dim() > 3 else (inputs, gradients)


class LinearTaps:
    """Listens to the trained linear layers of a module, whose own weights stay out of the graph meanwhile.

    A layer computes with detached weights, so that a backward pass goes from the losses to the layers' outputs and no
    further, and a gradient at a weight shows a loss that depends on it in another way. A `Sequential` of linear layers
    and plain activations that is given data is passed through by hand, without a graph.

    Args:
        module: Its trained parameters lie in linear layers, see `linear_layers`.

    Raises:
        InputError: Some trained parameter does not lie in a plain linear layer.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = linear_layers(module)
        if layers is None:
            raise InputError(
                "mode='chain' needs every trained parameter in one nn.Linear of its own, without hooks; use mode='auto'"
            )
        self._trained = [p for layer in layers for p in Trained(layer).parameters]
        self._heard: list[_Heard] = []
        self._undo = ExitStack()
        chains = [part for part in module.modules() if isinstance(part, nn.Sequential) and _by_hand(part)]
        for layer in layers:
            self._replace(layer, _LinearPass(layer, self))
        for chain in chains:
            self._replace(chain, _ChainPass(chain, self))

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearTaps:
        """Nothing to hear: a copied module computes as this one, and no fit is behind it."""
        deaf = object.__new__(type(self))
        deaf._heard, deaf._undo, deaf._trained = [], ExitStack(), []
        deaf.hear = deaf.check_input = lambda *_: None  # type: ignore[method-assign, assignment]
        return deaf

    def cleanup(self) -> None:
        """Give the layers their own passes back."""
        self._heard.clear()
        self._undo.close()

    def hear(self, inputs: Tensor, output: Tensor, backward: Callable[[Tensor], list[Use]]) -> None:
        """Note an output, which enters the graph, and how a gradient there goes on to the uses behind it."""
        if not output.requires_grad:
            output.requires_grad_()
        self._heard.append(_Heard(inputs, output, inputs._version, output._version, backward))

    def check_input(self, x: Tensor) -> None:
        """Refuse data that request a gradient: a loss of it would depend on weights that are outside the graph.

        Raises:
            InputError: They do.
        """
        if x.requires_grad and x.is_leaf and not any(x is h.output for h in self._heard):
            raise InputError("a linear layer's input requests a gradient of its own; use mode='hooks'")

    def covered(self, slopes: list[tuple[Tensor, Tensor]]) -> bool:
        """Whether these are (output, derivative) of just the outputs that were heard; if not the pass is forgotten."""
        if [id(output) for output, _ in slopes] == [id(h.output) for h in self._heard]:
            return True
        self._heard = []
        return False

    def uses(self, losses: Tensor, slopes: list[tuple[Tensor, Tensor]] | None = None) -> list[Use]:
        """Return the uses of layers on which losses `[B]` depend, with their gradients; the pass is forgotten.

        With `slopes`, which are `covered`, no graph is requested.

        Raises:
            InputError: A loss depends on a trained parameter in another way or on a layer twice, or a layer's input or
                output was changed in place.
        """
        heard, self._heard = self._heard, []
        if any(h.inputs._version != h.before or h.output._version != h.after for h in heard):
            raise InputError("a linear layer's input or output is changed in place; set inplace=False, or mode='hooks'")
        if slopes is not None:
            with torch.no_grad():
                return [use for h, (_, gradient) in zip(heard, slopes, strict=True) for use in h.backward(gradient)]
        if not losses.requires_grad:
            return []
        wanted = [h.output for h in heard]
        ones = torch.ones_like(losses)
        found = torch.autograd.grad(losses, [*wanted, *self._trained], grad_outputs=ones, allow_unused=True)
        if any(gradient is not None for gradient in found[len(wanted) :]):
            raise InputError("a loss depends on the weights of a linear layer other than by its pass; use mode='hooks'")
        pairs = zip(heard, found, strict=False)
        with torch.no_grad():
            uses = [use for h, gradient in pairs if gradient is not None for use in h.backward(gradient)]
        if len({id(use.layer.parameters[0]) for use in uses}) < len(uses):
            raise InputError("a linear layer enters the losses twice; use mode='hooks'")
        return uses

    def _replace(self, part: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
        vars(part)["forward"] = forward
        self._undo.callback(vars(part).pop, "forward", None)


class _Heard(NamedTuple):
    """An output of this pass, its input, and the versions of both when it was made."""

    inputs: Tensor
    output: Tensor
    before: int
    after: int
    backward: Callable[[Tensor], list[Use]]


class _LinearPass:
    """The pass of one linear layer, heard by the taps. An object, so that a copy of the module has its own."""

    def __init__(self, layer: nn.Linear, taps: LinearTaps) -> None:
        self.layer, self.taps = layer, taps
        self.known: Trained | None = None  # a copy is made before its layer has parameters

    def __deepcopy__(self, memo: dict[int, Any]) -> _LinearPass:
        return _LinearPass(copy.deepcopy(self.layer, memo), copy.deepcopy(self.taps, memo))

    def __call__(self, x: Tensor) -> Tensor:
        layer, known = self.layer, self.known or Trained(self.layer)
        self.known = known
        self.taps.check_input(x)
        output = functional.linear(x, layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
        if torch.is_grad_enabled():
            inputs = x.detach()
            self.taps.hear(inputs, output, lambda gradient: [Use(known, inputs, gradient)])
        return output


class _ChainPass:
    """The pass of a chain that is given data: nothing but its output enters the graph."""

    def __init__(self, chain: nn.Sequential, taps: LinearTaps) -> None:
        self.chain, self.taps = chain, taps
        self.steps: list[Trained | nn.Module] = []  # a copy is made before its chain has parts

    def __deepcopy__(self, memo: dict[int, Any]) -> _ChainPass:
        return _ChainPass(copy.deepcopy(self.chain, memo), copy.deepcopy(self.taps, memo))

    def __call__(self, x: Tensor) -> Tensor:
        by_hand = not x.requires_grad and x.dim() == 2 and torch.is_grad_enabled()
        if not by_hand or torch.is_autocast_enabled(x.device.type):
            return nn.Sequential.forward(self.chain, x)
        if not self.steps:
            self.steps = [Trained(part) if isinstance(part, nn.Linear) else part for part in self.chain]
        steps, kept = self.steps, [x.detach()]
        with torch.no_grad():
            for step in steps:
                kept.append(
                    functional.linear(kept[-1], step.linear.weight, step.linear.bias)
                    if isinstance(step, Trained)
                    else step.forward(kept[-1])
                )
        output = kept[-1].detach()
        self.taps.hear(kept[0], output, lambda gradient: _backward(steps, kept, gradient))
        return output


def _backward(steps: list[Trained | nn.Module], kept: list[Tensor], gradient: Tensor) -> list[Use]:
    """Uses of the trained layers of a chain, from the gradient at its output; `kept` holds what goes between."""
    uses = []
    first = next(i for i, step in enumerate(steps) if isinstance(step, Trained) and step.parameters)
    for i in range(len(steps) - 1, first - 1, -1):
        step = steps[i]
        if not isinstance(step, Trained):
            gradient = _SLOPES[type(step)](gradient, kept[i + 1])
            continue
        if step.parameters:
            uses.append(Use(step, kept[i], gradient))
        if i > first:
            gradient = gradient @ step.linear.weight
    return uses


def sum_type(weights: Tensor) -> torch.dtype:
    """Return the type of sums of gradients: float64 on the CPU, else that of the weights.

    In float32 a sum of B records rounds by B times 6e-8 of the clip norm, and how it does depends on each record.
    """
    return torch.float64 if weights.device.type == "cpu" else weights.dtype


def linear_layers(module: nn.Module) -> list[nn.Linear] | None:
    """Return the linear layers that hold the trained parameters of `module`; None if some lie elsewhere.

    Only plain layers count: no subclass, no hook, no parametrisation, no pass of their own and no parameter that
    another layer has too; all of one type and on one device.

    Example:
        >>> [layer.in_features for layer in linear_layers(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))]
        [3, 2]
        >>> linear_layers(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))) is None
        True
    """
    found, owned = [], 0
    for part in module.modules():
        own = [p for p in part.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        if not (type(part) is nn.Linear and is_plain_layer(part)):
            return None
        found.append(part)
        owned += len(own)
    trained = [p for p in module.parameters() if p.requires_grad]
    alike = len({(p.dtype, p.device) for p in trained}) < 2
    return found if owned == len(trained) and alike else None


def is_plain_layer(part: nn.Module) -> bool:
    """Return whether a call of a module is its class's pass and nothing else."""
    hooks = part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks
    return "forward" not in vars(part) and not any(hooks)


def _by_hand(part: nn.Sequential) -> bool:
    """Whether a module is a plain chain of linear layers and activations, some layer of which is trained."""
    if not (type(part) is nn.Sequential and is_plain_layer(part)):
        return False
    steps = list(part)
    known = all((type(step) is nn.Linear or type(step) in _SLOPES) and is_plain_layer(step) for step in steps)
    in_place = any(getattr(step, "inplace", False) for step in steps)
    trained = any(p.requires_grad for p in part.parameters())
    return known and trained and not in_place
