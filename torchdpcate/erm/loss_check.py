"""Whether a loss keeps what it declares: targets, slope and curvature, tried on a dense public grid."""

import math

import torch
from torch import Tensor

from torchdpcate.erm.losses import Loss
from torchdpcate.errors import InputError

_ROUNDING = 1e-9  # of the declared bounds, by which numbers may exceed them
_FAR = 1e9
_LINEAR = 100.0
_ALONE = 25  # predictors that are tried by themselves


def check_loss(loss: Loss, targets: tuple[float, ...], reach: float = math.inf) -> None:
    r"""Refuse a loss that is not for these targets, or that breaks its bounds where it is tried.

    At each target, on 24,000 predictors up to ``reach`` (a hundredth apart up to 100, and ever farther up to 1e9): the
    slope is at most the declared one, and between neighbouring predictors u < v

    .. math:: 0 \le l'(v) - l'(u) \le \lambda (v - u),

    so that the loss is convex and its curvature what is declared, whatever it says of its second derivative; that one
    lies in [0, lambda] too. The slope of a loss that is declared monotone has one sign. A predictor gets the same
    slopes by itself. All of it up to a billionth.

    Args:
        loss: The loss.
        targets: What it is fed.
        reach: Largest predictor there can be.

    Raises:
        InputError: It declares no targets, or others; or a bound that does not hold.

    Example:
        >>> from torchdpcate.erm import CrossEntropy, Logistic
        >>> check_loss(Logistic(), (-1.0, 1.0))
        >>> check_loss(CrossEntropy(), (0.0, 1.0), reach=3.0)
    """
    name = f"loss = {type(loss).__name__}"
    if loss.targets is None:
        raise InputError(f"{name}: declares no targets; set targets = (lowest, highest), between which its bounds hold")
    low, high = loss.targets
    if not low <= min(targets) <= max(targets) <= high:
        fed = " and ".join(f"{target:g}" for target in targets)
        raise InputError(
            f"{name}: is for targets in [{low:g}, {high:g}] and would be fed {fed}, where its bounds do not hold; use "
            "loss=logistic, or a loss of labels"
        )
    for what, bound in (("slope", loss.slope), ("curvature", loss.curvature)):
        if not 0 < bound < math.inf:
            raise InputError(f"{name}: its {what} is at most {bound:g}, with which no noise is enough; bound it")
    u = _grid(reach)
    for target in targets:
        broken = _broken(loss, u, u.new_tensor([target]))
        if broken:
            raise InputError(f"{name}: at target {target:g} {broken}; correct the loss, or what it declares")


def _broken(loss: Loss, u: Tensor, target: Tensor) -> str:
    """Return what a loss does wrong at one target, in words; nothing if nothing was found."""
    slopes, slope, curvature = loss(u[None], target), loss.slope, loss.curvature
    if any(part.shape != (1, len(u)) for part in slopes):
        return "its derivatives are not of the predictor's shape"
    if not all(bool(part.isfinite().all()) for part in slopes):
        return "it is not finite everywhere"
    first, second = slopes.first[0], slopes.second[0]
    if first.abs().max().item() > slope * (1 + _ROUNDING):
        return f"its slope exceeds the declared {slope:g}"
    if loss.monotone and min(first.max().item(), -first.min().item()) > slope * _ROUNDING:
        return "its slope changes its sign, though it is declared monotone"
    step, slack = first.diff(), slope * _ROUNDING
    if step.min().item() < -slack or second.min().item() < -curvature * _ROUNDING:
        return "it is not convex: its slope falls somewhere"
    excess = step - curvature * (1 + _ROUNDING) * u.diff()
    if excess.max().item() > slack or second.max().item() > curvature * (1 + _ROUNDING):
        return f"its curvature exceeds the declared {curvature:g}"
    some = u[:: len(u) // _ALONE]
    alone = torch.cat([loss(v[None, None], target).first[0] for v in some])
    if not torch.allclose(alone, first[:: len(u) // _ALONE], rtol=0, atol=slope * 1e-6):
        return "a record's slope depends on other records"
    return ""


def _grid(reach: float) -> Tensor:
    """Return the predictors that losses are tried at, in increasing order."""
    linear = torch.linspace(-_LINEAR, _LINEAR, 20_001, dtype=torch.float64)
    fine = torch.logspace(-9, math.log10(_FAR), 1_000, dtype=torch.float64)
    u = torch.cat([linear, fine, -fine, 1 + fine, 1 - fine])
    return u.clamp(-reach, reach).unique()
