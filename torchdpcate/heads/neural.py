"""The neural head, and its fit to a stationary point of the ridge objective."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchdpcate._process import threads_for
from torchdpcate._progress import bar
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.trainable import StatedModule
from torchdpcate.fit.watching import CuratorsCheckpoint

Objective = Callable[[Tensor], Tensor]


class FeedForward:
    """Tanh network as a function of a flat theta: ``f = W_L tanh(... tanh(W_1 u(x) + b_1) ...) + b_L``.

    theta holds W_1 (row by row), b_1, W_2, b_2, and so on; ``u(x) = (x - centre) * slope``, unless it is given.

    Args:
        widths: Covariates, hidden units of each layer, 1.
        centre: Middle of the public box, [q].
        slope: 2 over the width of the box, [q].
        scale: u itself, where it is not linear.

    Attributes:
        in_float32: It also takes float32 parameters and covariates.
    """

    in_float32 = True

    def __init__(self, widths: Sequence[int], centre: Tensor, slope: Tensor, scale: Objective | None = None):
        self._shapes = [(units, inputs) for inputs, units in pairwise(widths)]
        self._sizes = [size for units, inputs in self._shapes for size in (units * inputs, units)]
        self._centre, self._slope, self._scale = centre, slope, scale

    @property
    def size(self) -> int:
        """Number of parameters p."""
        return sum(self._sizes)

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """``f_theta(x)``, [p] and [B, q] -> [B]; twice differentiable in both."""
        *hidden, (W, b) = self.layers(theta)
        h = (x - self._centre.to(x)) * self._slope.to(x) if self._scale is None else self._scale(x)
        for V, c in hidden:
            h = torch.tanh(h @ V.T + c)
        return (h @ W.T + b).squeeze(-1)

    def layers(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weight [out, in] and bias [out] of each layer, first to last; views of theta."""
        parts = theta.split(self._sizes)  # one split: slices would each have a backward pass of length p
        return [(W.view(shape), b) for W, b, shape in zip(parts[::2], parts[1::2], self._shapes, strict=True)]


class NeuralHead(StatedModule):
    r"""Neural second stage with its ridge term in the objective, and so in the Hessian.

    ``F(theta) = mean_i (s_i - w_i f_theta(x_i))^2 + ridge ||theta||^2``. The parameters are one flat float64
    vector, as the influence function needs them. Targets are best given on a unit scale (divided by the
    outcome range): the ridge and the polish's tolerance are in their units.

    Its training is not private: what is released of it has noise by its influence function. So a checkpoint of it is
    the curator's, and ``NeuralHead.load_from_checkpoint(path, private=False)`` loads it.

    Args:
        domain: Public bounds of the covariates, or what ``Domain.to_dict`` makes of them.
        width: Units of each hidden layer.
        depth: Hidden layers.
        ridge: Weight of ``||theta||^2`` (no one half; a weight decay of 2 ridge), at least 0.
        learning_rate: Of Adam.
        generator: Source of the initial weights; None is torch's global one.

    Example:
        >>> head = NeuralHead(Domain([0.0, 0.0], [1.0, 2.0], 0.0, 1.0), width=3, depth=1)
        >>> head.theta.shape, head(torch.rand(5, 2, dtype=torch.float64)).shape
        (torch.Size([13]), torch.Size([5]))
    """

    centre: Tensor
    slope: Tensor

    def __init__(
        self,
        domain: Domain | Mapping[str, Any],
        width: int = 32,
        depth: int = 2,
        ridge: float = 1e-3,
        learning_rate: float = 1e-2,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        domain = Domain.from_dict(domain) if isinstance(domain, Mapping) else domain
        low, high = domain.covariate_low, domain.covariate_high
        self.ridge, self.learning_rate = float(ridge), learning_rate
        self._scale = None if domain.linear else domain.scale
        self.widths = (domain.dimension, *[width] * depth, 1)
        self.register_buffer("centre", (low + high) / 2)
        self.register_buffer("slope", 2 / (high - low))
        self.theta = nn.Parameter(self._initial(generator))
        sizes = {"width": width, "depth": depth, "ridge": self.ridge, "learning_rate": learning_rate}
        self.save_hyperparameters({"domain": domain.to_dict(), **sizes})

    @property
    def functional(self) -> FeedForward:
        """``f`` as a function of (theta, x), on the head's device."""
        return FeedForward(self.widths, self.centre, self.slope, self._scale)

    def forward(self, x: Tensor) -> Tensor:
        """``f_theta(x)`` at the head's own parameters, [B, q] -> [B]."""
        return self.functional(self.theta, x)

    def objective(self, theta: Tensor, x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        """``F(theta)`` on records x [n, q], s [n], w [n]."""
        return ((s - w * self.functional(theta, x)) ** 2).mean() + self.ridge * (theta @ theta)

    def training_step(self, batch: Sequence[Tensor], batch_index: int) -> Tensor:
        """Objective on a batch (x, s, w): an unbiased estimate of F."""
        x, s, w = batch
        return self.objective(self.theta, x, s, w)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, without weight decay: the ridge is in the objective."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def _initial(self, generator: torch.Generator | None) -> Tensor:
        """Glorot & Bengio's (2010) uniform weights, zero biases."""
        theta = torch.zeros(self.functional.size, dtype=torch.float64)
        for W, _ in self.functional.layers(theta):
            nn.init.xavier_uniform_(W, generator=generator)
        return theta


@dataclass(frozen=True)
class NeuralFit:
    """A stationary point of the head's objective. Not private.

    Attributes:
        theta: The parameters, [p], float64, on the device that trained them.
        gradient_norm: ``||grad F(theta)||_2``.
        objective: ``F(theta)``.
        iterations: L-BFGS iterations of the polish.
        newton_steps: Newton steps after them.
    """

    theta: Tensor
    gradient_norm: float
    objective: float
    iterations: int
    newton_steps: int


def fit_neural_head(
    head: NeuralHead,
    x: Tensor,
    s: Tensor,
    w: Tensor,
    trainer_factory: Callable[..., Trainer],
    *,
    epochs: int = 50,
    batch_size: int = 128,
    tolerance: float = 1e-8,
    polish_iterations: int = 500,
    newton_steps: int = 500,
    generator: torch.Generator | None = None,
) -> NeuralFit:
    """Train the head by Adam under a Trainer, then polish it to a stationary point on the trainer's device.

    The influence function speaks of a minimiser, which Adam does not return. Full-batch L-BFGS with a strong
    Wolfe line search in float64 goes on from Adam's end; Newton steps by conjugate gradients in a trust
    region, which cope with negative curvature, finish what it leaves.

    Args:
        head: The head; it is trained in place and ends on the trainer's device.
        x: Covariates of the second-stage block, [n, q].
        s: Targets, [n].
        w: Weights, [n].
        trainer_factory: ``(max_epochs=...) -> Trainer``.
        epochs: Passes of Adam over the records; 0 leaves all to the polish.
        batch_size: Records a step of Adam.
        tolerance: Largest gradient norm of F at the end.
        polish_iterations: Most L-BFGS iterations.
        newton_steps: Most Newton steps.
        generator: Source of the order of the batches; None is torch's global one.

    Returns:
        The stationary point. That it is a minimum is for the solver of the influence function to check.

    Raises:
        InputError: if the trainer's device has no float64.
        NumericalError: if the gradient norm stays above the tolerance.
    """
    trainer = trainer_factory(max_epochs=epochs)
    device = trainer.strategy.root_device
    if device.type == "mps":
        raise InputError("trainer.accelerator=mps has no float64, which the polish needs; use accelerator=cpu")
    x, s, w = (t.detach().double() for t in (x, s, w))
    if epochs > 0:
        records = TensorDataset(x.cpu(), s.cpu(), w.cpu())
        loader = DataLoader(records, batch_size, shuffle=True, generator=generator)
        with threads_for(sum(parameter.numel() for parameter in head.parameters())):
            trainer.fit(head, loader)
    head.to(device)
    x, s, w = (t.to(device) for t in (x, s, w))
    objective = partial(head.objective, x=x, s=s, w=w)
    with bar("NeuralHead, polish") as count:

        def counted(theta: Tensor) -> Tensor:
            count()
            return objective(theta)

        theta, iterations = _lbfgs(counted, head.theta.detach(), tolerance, polish_iterations)
        theta, steps = _trust_region(counted, theta, tolerance, newton_steps)
    value, gradient = _gradient(objective, theta)
    norm = float(gradient.norm())
    if not norm <= tolerance:
        raise NumericalError(
            f"the neural head's gradient norm is {norm:.1e} after the polish (tolerance {tolerance:.1e}): "
            f"raise its `ridge`, divide the targets by the outcome range, or raise `polish_iterations` "
            f"({polish_iterations}) and `newton_steps` ({newton_steps})"
        )
    with torch.no_grad():
        head.theta.copy_(theta)
    for kept in trainer.checkpoint_callbacks if epochs > 0 else ():
        if isinstance(kept, CuratorsCheckpoint):
            kept.on_train_end(trainer, head)  # the head as it is now, in place of that before the polish
    return NeuralFit(theta, norm, float(value), iterations, steps)


def _lbfgs(objective: Objective, theta: Tensor, tolerance: float, iterations: int) -> tuple[Tensor, int]:
    """Full-batch L-BFGS until the gradient norm is at most the tolerance; the end and its iterations."""
    theta = theta.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=50,
        tolerance_grad=tolerance / theta.numel() ** 0.5,  # torch compares the largest entry
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(theta)
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)
    return theta.detach(), int(optimizer.state[theta]["n_iter"])


def _trust_region(objective: Objective, theta: Tensor, tolerance: float, steps: int) -> tuple[Tensor, int]:
    """Newton steps within a trust region (Nocedal & Wright, 2006, algorithms 4.1 and 7.2)."""
    radius = 1.0
    value, gradient = _gradient(objective, theta)
    for taken in range(steps):
        norm = float(gradient.norm())
        if not norm > tolerance:
            return theta, taken
        step, predicted = _newton_step(objective, theta, radius, accuracy=min(0.5, norm**0.5))
        new_value, new_gradient = _gradient(objective, theta + step)
        ratio = float(value - new_value) / predicted
        if predicted < 1e-14 * abs(float(value)):  # F no longer resolves the step: the gradient norm decides
            ratio = 1.0 if float(new_gradient.norm()) < norm else 0.0
        length = float(step.norm())
        if not ratio >= 0.25:
            radius = length / 4
        elif ratio > 0.75 and length > 0.99 * radius:
            radius = 2 * radius
        if ratio > 1e-3:
            theta, value, gradient = theta + step, new_value, new_gradient
    return theta, steps


def _gradient(objective: Objective, theta: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        value = objective(theta)
        (gradient,) = torch.autograd.grad(value, theta)
    return value.detach(), gradient


def _newton_step(objective: Objective, theta: Tensor, radius: float, accuracy: float) -> tuple[Tensor, float]:
    """Approximate minimiser of the quadratic model within the radius, and the decrease of F that it predicts.

    Conjugate gradients stop at the relative accuracy, or at the boundary when a step or negative curvature
    takes them there (Steihaug, 1983).
    """
    with torch.enable_grad():
        theta = theta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(theta), theta, create_graph=True)

    def product(v: Tensor) -> Tensor:
        return torch.autograd.grad(gradient, theta, v, retain_graph=True)[0]

    residual = -gradient.detach()
    step, direction = torch.zeros_like(residual), residual
    square = residual @ residual
    target = accuracy**2 * square
    for _ in range(2 * len(residual)):
        image = product(direction)
        curvature = direction @ image
        length = square / curvature
        if not curvature > 0 or float((step + length * direction).norm()) >= radius:
            step = step + _to_boundary(step, direction, radius) * direction
            break
        step, residual = step + length * direction, residual - length * image
        new = residual @ residual
        if new <= target:
            break
        direction, square = residual + new / square * direction, new
    return step, -float(gradient.detach() @ step + step @ product(step) / 2)


def _to_boundary(step: Tensor, direction: Tensor, radius: float) -> Tensor:
    """The positive t with ``||step + t direction|| = radius``."""
    a, b, c = direction @ direction, step @ direction, radius**2 - step @ step
    return ((b * b + a * c).sqrt() - b) / a
