"""The law of a composed effect's error, all noise and sampling together, which intervals rest on."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from torchdpcate.errors import InputError


@dataclass(frozen=True, eq=False)
class EffectLaw:
    r"""Unshrunk estimates of a projection of the effect, and the covariance of their error; outcome units.

    The target is :math:`\tau^*(x) = \psi(x)^\top\theta^* + E_h[\tau - \psi^\top\theta^*]`: the best linear projection
    of the effect on combinations of features, in the weights
    :math:`\pi(1-\pi) / (|\psi| \max(\pi, 1-\pi))`, moved so that its mean is that of the effect itself, both in the
    weights :math:`h = \pi(1-\pi)` (all records alike in a trial with one propensity). Its estimate
    :math:`\psi(x)^\top t + c` has the variance

    .. math:: (\psi(x) - \bar\psi)^\top V (\psi(x) - \bar\psi) + \mathrm{var}(c),

    for an error of t moves c by :math:`-\bar\psi` times it (docs/intervals.md).

    Attributes:
        estimates: t, [p], in the span of the directions.
        covariance: V, of sampling and privacy noise, [p, p].
        directions: Combinations of the features on which the target projects, [p, a].
        centre: Mean features, [p].
        correction: c, what the effect's mean has beyond that of psi't.
        correction_variance: Of its own noise and sampling.
        average: Mean effect in the weights h.
        average_variance: Of all its noise and sampling.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> law = EffectLaw(2 * one, 0.04 * one[None], one[None], one, 0.5, 0.01, 2.5, 0.01)
        >>> law.interval(one[None], 0.95).round(decimals=3).tolist()
        [[2.304, 2.696]]
    """

    estimates: Tensor
    covariance: Tensor
    directions: Tensor
    centre: Tensor
    correction: float
    correction_variance: float
    average: float
    average_variance: float

    def interval(self, psi: Tensor, level: float) -> Tensor:
        """Return intervals [m, 2] of the target at features psi [m, p].

        Raises:
            InputError: A level outside (0, 1).
        """
        middle = psi @ self.estimates + self.correction
        return _about(middle, self._variance(psi - self.centre) + self.correction_variance, level)

    def contrast(self, psi: Tensor, other: Tensor, level: float) -> Tensor:
        """Return intervals [m, 2] of the target's difference, at psi minus at other, both [m, p].

        Raises:
            InputError: A level outside (0, 1).
        """
        difference = psi - other
        return _about(difference @ self.estimates, self._variance(difference), level)

    def average_interval(self, level: float) -> Tensor:
        """Return the interval [2] of the mean effect.

        Raises:
            InputError: A level outside (0, 1).
        """
        middle, variance = (self.estimates.new_tensor([v]) for v in (self.average, self.average_variance))
        return _about(middle, variance, level)[0]

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers as tensors."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v if isinstance(v, Tensor) else torch.tensor([v], dtype=torch.float64) for k, v in values.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], dimension: int) -> "EffectLaw":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers that are no law of so many features.
        """
        square, columns = (dimension, dimension), tensors["directions"].shape[-1]
        shapes = {"estimates": (dimension,), "covariance": square, "centre": (dimension,)}
        shapes["directions"] = (dimension, min(columns, dimension))
        found: dict[str, Tensor | float] = {}
        for field in fields(cls):
            tensor = tensors[field.name]
            fits = tensor.shape == shapes.get(field.name, (1,)) and tensor.dtype == torch.float64
            if not fits or not bool(tensor.isfinite().all()):
                raise ValueError(f"{field.name}: not finite float64 numbers of the shape that the features need")
            found[field.name] = tensor if field.name in shapes else tensor.item()
        law = cls(**found)  # type: ignore[arg-type]
        if min(law.correction_variance, law.average_variance) < 0 or bool((law.covariance.diagonal() < 0).any()):
            raise ValueError("covariance: a variance is negative")
        return law

    def _variance(self, psi: Tensor) -> Tensor:
        return ((psi @ self.covariance) * psi).sum(1).clamp_min(0)


@dataclass(frozen=True, eq=False)
class IntervalNumbers:
    """Released numbers that a law was made of, from which it follows with public facts.

    Attributes:
        point: Mean of the late iterates, [p].
        gradient: Mean of their noisy gradients, [p].
        matrix: Mean second moments of the features, weighted, [p, p].
        counts: Means of three bounded numbers, [3].
        correction: Two sums, [2].
        average: A sum, [1].
    """

    point: Tensor
    gradient: Tensor
    matrix: Tensor
    counts: Tensor
    correction: Tensor
    average: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], dimension: int) -> "IntervalNumbers":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers that are not finite, or of other shapes.
        """
        p = dimension
        shapes = {
            "point": (p,),
            "gradient": (p,),
            "matrix": (p, p),
            "counts": (3,),
            "correction": (2,),
            "average": (1,),
        }
        for name, shape in shapes.items():
            tensor = tensors[name]
            if tensor.shape != shape or tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
                raise ValueError(f"{name}: not finite float64 numbers of the shape that the features need")
        return cls(**{name: tensors[name] for name in shapes})


def _about(middle: Tensor, variance: Tensor, level: float) -> Tensor:
    """Return normal intervals [m, 2]."""
    if not 0 < level < 1:
        raise InputError(f"level = {level}: give a probability strictly between 0 and 1")
    half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)) * variance.sqrt()
    return torch.stack([middle - half, middle + half], 1)
