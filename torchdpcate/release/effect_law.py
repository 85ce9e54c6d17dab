"""The law of a composed effect's error, all noise and sampling together, which intervals rest on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from torchdpcate.errors import InputError
from torchdpcate.release.estimate import checked_level, quantile
from torchdpcate.release.parts import tensors_of

_NUISANCES = "nuisances"
_TOGETHER = ((_NUISANCES, "pull"), ("shrunk", "spread"))


@dataclass(frozen=True, eq=False)
class EffectLaw:
    r"""Unshrunk estimates of a projection of the effect, and the covariance of their error; outcome units.

    The target is :math:`\tau^*(x) = \psi(x)^\top\theta^* + E_h[\tau - \psi^\top\theta^*]`: the best linear projection
    of the effect on combinations of features, in the weights
    :math:`\pi(1-\pi) / (|\psi| \max(\pi, 1-\pi))`, moved so that its mean is that of the effect itself, both in the
    weights :math:`h = \pi(1-\pi)` (all records alike in a trial with one propensity). Its estimate
    :math:`\psi(x)^\top t + c` has the variance

    .. math:: (\psi(x) - \bar\psi)^\top V (\psi(x) - \bar\psi) + \mathrm{var}(c),

    for an error of t moves c by :math:`-\bar\psi` times it (docs/intervals.md). Where the propensity was estimated,
    h is that of the released one, and the errors of both nuisances add :math:`\psi^\top N \psi`.

    Attributes:
        estimates: t, [p], in the span of the directions.
        covariance: V, of sampling and privacy noise, [p, p].
        directions: Combinations of the features on which the target projects, [p, a].
        centre: Mean features, [p].
        correction: c, what the effect's mean has beyond that of psi't.
        correction_variance: Of its own noise and sampling.
        average: Mean effect in the weights h.
        average_variance: Of all its noise and sampling.
        nuisances: N, covariance of what the errors of estimated nuisances make, [p, p]; None where the propensity is
            known.
        pull: [p, p], what widens an interval for a stated bias; None where the propensity is known.
        missed: Variance, over the records, of what the effect has beyond its projection, as far as it is expected.
        shrunk: Expected t of persons' effects, given the estimates, with ``estimates``' level at the centre, [p]; None
            where the propensity is estimated.
        spread: Covariance about it, of the coefficients beside the constant, [p, p].

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
    nuisances: Tensor | None = None
    pull: Tensor | None = None
    missed: float = 0.0
    shrunk: Tensor | None = None
    spread: Tensor | None = None

    def of_persons(self, average: float | None, variance: float) -> "EffectLaw":
        """Return the law of persons' effects: shrunk, with the level of an average and its variance, if given."""
        if self.shrunk is None or self.spread is None:
            return self
        found = replace(self, estimates=self.shrunk, covariance=self.spread)
        if average is None:
            return found
        level = average - float(self.centre @ self.shrunk)
        return replace(found, correction=level, correction_variance=variance)

    def interval(self, psi: Tensor, level: float, bias: float = 0.0) -> Tensor:
        r"""Return intervals [m, 2] of the effect at features psi [m, p]: what the projection misses is in them.

        Args:
            psi: Features.
            level: Probability in (0, 1).
            bias: Stated bound of :math:`\|\hat\pi - \pi\| \|\hat\mu - \mu\| / E h`, by which the mean effect's interval
                grows on either side; at psi it grows by :math:`1 + |P (\psi - \bar\psi)|` times that, P being ``pull``.

        Raises:
            InputError: A level outside (0, 1), or a bias where it is negative or the propensity is known.
        """
        return self._of(psi, level, bias, self.missed)

    def mean_interval(self, psi: Tensor, level: float) -> Tensor:
        """Return intervals [m, 2] of the projection's means, of mean features psi [m, p] of several persons each."""
        return self._of(psi, level, 0.0, 0.0)

    def at_once(self, psi: Tensor, share: Tensor, level: float) -> Tensor:
        r"""Return intervals [m, 2] of psi't + share c of the projection, which hold for all psi and shares at once.

        Half widths are :math:`\sqrt{\chi^2_{r, \text{level}}}` deviations, with r errors: one a direction, one of c,
        and one a feature where nuisances were estimated. Source: Scheffe (1953).

        Args:
            psi: Sums of the features of some persons over the number of all, [m, p].
            share: Share of these persons, [m].
            level: Probability in (0, 1).

        Raises:
            InputError: A level outside (0, 1).
        """
        from scipy.stats import chi2

        checked_level(level)
        errors = self.directions.shape[1] + 1 + (0 if self.nuisances is None else len(self.centre))
        off = psi - share[:, None] * self.centre
        variance = self._variance(off) + share.square() * self.correction_variance + self._of_nuisances(psi)
        middle, half = psi @ self.estimates + share * self.correction, chi2.ppf(level, errors) ** 0.5 * variance.sqrt()
        return torch.stack([middle - half, middle + half], 1)

    def contrast(
        self, psi: Tensor, other: Tensor, level: float, bias: float = 0.0, apart: Tensor | None = None
    ) -> Tensor:
        """Return intervals [m, 2] of the effect's difference, at psi minus at other, both [m, p].

        Raises:
            InputError: As ``interval``.
        """
        difference = psi - other
        apart = (difference != 0).any(1) if apart is None else apart
        variance = self._variance(difference) + self._of_nuisances(difference) + 2 * self.missed * apart.double()
        return _about(difference @ self.estimates, variance, level, self._stated(bias) * self._pulled(difference))

    def average_interval(self, level: float, bias: float = 0.0) -> Tensor:
        """Return the interval [2] of the mean effect.

        Raises:
            InputError: As ``interval``.
        """
        middle, variance = (self.estimates.new_tensor([v]) for v in (self.average, self.average_variance))
        return _about(middle, variance, level, middle.new_tensor([self._stated(bias)]))[0]

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers as tensors."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        there = {name: value for name, value in values.items() if value is not None and (name != "missed" or value)}
        return {k: v if isinstance(v, Tensor) else torch.tensor([v], dtype=torch.float64) for k, v in there.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], dimension: int) -> "EffectLaw":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers that are no law of so many features.
        """
        square, columns = (dimension, dimension), tensors["directions"].shape[-1]
        shapes = {"estimates": (dimension,), "covariance": square, "centre": (dimension,)}
        shapes |= {"directions": (dimension, min(columns, dimension)), "nuisances": square, "pull": square}
        shapes |= {"shrunk": (dimension,), "spread": square}
        absent = {name for group in _TOGETHER if not tensors.keys() & set(group) for name in group}
        absent |= {"missed"} - tensors.keys()
        found: dict[str, Tensor | float] = {}
        for field in fields(cls):
            if field.name in absent:
                continue
            tensor = tensors[field.name]
            fits = tensor.shape == shapes.get(field.name, (1,)) and tensor.dtype == torch.float64
            if not fits or not bool(tensor.isfinite().all()):
                raise ValueError(f"{field.name}: not finite float64 numbers of the shape that the features need")
            found[field.name] = tensor if field.name in shapes else tensor.item()
        law = cls(**found)  # type: ignore[arg-type]
        least = law.covariance if law.spread is None else torch.minimum(law.covariance, law.spread)
        single = (law.correction_variance, law.average_variance, law.missed)
        if min(*single, *least.diagonal().tolist()) < 0:
            raise ValueError("covariance: a variance is negative")
        return law

    def moments(self, psi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the projection's estimates at features psi [m, p], with the variances of their errors, [m] each.

        The second is that of noise and sampling, the third that of the errors of estimated nuisances.
        """
        variance = self._variance(psi - self.centre) + self.correction_variance
        return psi @ self.estimates + self.correction, variance, self._of_nuisances(psi)

    def _of(self, psi: Tensor, level: float, bias: float, missed: float) -> Tensor:
        middle, own, nuisances = self.moments(psi)
        pulled = 1 + self._pulled(psi - self.centre)
        return _about(middle, own + nuisances + missed, level, self._stated(bias) * pulled)

    def _variance(self, psi: Tensor) -> Tensor:
        return ((psi @ self.covariance) * psi).sum(1).clamp_min(0)

    def _of_nuisances(self, psi: Tensor) -> Tensor:
        if self.nuisances is None:
            return psi.new_zeros(len(psi))
        return ((psi @ self.nuisances) * psi).sum(1).clamp_min(0)

    def _pulled(self, psi: Tensor) -> Tensor:
        return psi.new_zeros(len(psi)) if self.pull is None else (psi @ self.pull).norm(dim=1)

    def _stated(self, bias: float) -> float:
        return stated_bias(bias, self.pull is None)


@dataclass(frozen=True, eq=False)
class NuisanceNumbers:
    """What the regressions of an estimated propensity and of the outcome released.

    Attributes:
        propensity: Coefficients of the propensity's logit, [p].
        propensity_curvatures: Mean curvatures of its features, [p, p].
        outcome_curvatures: Of the outcome regression's, [q, q].
        outcome_scale: At which its residuals were clipped, in outcome units, [1].
    """

    propensity: Tensor
    propensity_curvatures: Tensor
    outcome_curvatures: Tensor
    outcome_scale: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "NuisanceNumbers":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers that are not finite, or of shapes that do not fit.
        """
        p, q = len(tensors["propensity"]), len(tensors["outcome_curvatures"])
        shapes = {"propensity": (p,), "propensity_curvatures": (p, p), "outcome_curvatures": (q, q)}
        return cls(**_finite(tensors, shapes | {"outcome_scale": (1,)}))


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
        nuisances: What the regressions before released; None where the propensity is known.
    """

    point: Tensor
    gradient: Tensor
    matrix: Tensor
    counts: Tensor
    correction: Tensor
    average: Tensor
    nuisances: NuisanceNumbers | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers by name."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != _NUISANCES}
        before = {} if self.nuisances is None else self.nuisances.tensors()
        return own | {f"{_NUISANCES}.{name}": tensor for name, tensor in before.items()}

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
        before = tensors_of(_NUISANCES, tensors)
        nuisances = NuisanceNumbers.from_tensors(before) if before else None
        return cls(**_finite(tensors, shapes), nuisances=nuisances)


def _finite(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the tensors of these names.

    Raises:
        ValueError: One is not finite float64 numbers of its shape.
    """
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape or tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: not finite float64 numbers of the shape that the features need")
    return {name: tensors[name] for name in shapes}


def stated_bias(bias: float, known: bool) -> float:
    """Return a bound of a bias, in outcome units.

    Args:
        bias: As stated.
        known: Whether the propensity is known.

    Raises:
        InputError: A bound that is negative, or of what there cannot be.
    """
    if not 0 <= bias < math.inf:
        raise InputError(f"bias = {bias}: give a bound in outcome units, 0 or more")
    if bias and known:
        raise InputError(f"bias = {bias}: the propensity is known, hence there is none; leave it out")
    return bias


def _about(middle: Tensor, variance: Tensor, level: float, more: Tensor) -> Tensor:
    """Return normal intervals [m, 2], on either side wider by ``more`` [m]."""
    half = quantile(level) * variance.sqrt() + more
    return torch.stack([middle - half, middle + half], 1)
