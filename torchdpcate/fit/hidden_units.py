"""Hidden units that a network released, as features of an effect: what they have beyond the features of its plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.fit.weighted_basis import UNITS, Feature, WeightedBasis

_LEAST = 0.2  # variance of a combination, over the largest: each costs sampling, and the other features some noise
_NAMES = ("weights", "biases", "correlations", "mixed", "less", "shares")
_CLOSE = 1e-4  # of moments over points
_RIDGE = 1e-6  # of features of weight one over public points, where two may be alike, or one nearly nothing


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    r"""Combinations of released hidden units less what other features have of them, of a covariate vector z.

    .. math:: c(z) = Q^\top \tanh(W z + b) - B^\top \psi(z)

    W and b are paid for by the regression that trained them; Q and B follow from them and from public points, over
    which the combinations are of mean square one, uncorrelated with each other and with the features. Where the network
    has nothing beyond features, the effect of those alone is so found as without it.

    Attributes:
        weights: W, float64 [units, k].
        biases: b, float64 [units].
        base: psi, features of weight one.
        correlations: Released ones, which the public points have, float64 [k, k].
        mixed: Q, float64 [units, m].
        less: B, float64 [1 + p, m].
        shares: Of the variance that all combinations have over public points, positive, float64 [m].

    Example:
        >>> from torchdpcate.fit.weighted_basis import all_features
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> points = torch.randn(500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> line = WeightedBasis(all_features([False], "1"), one)
        >>> found = HiddenUnits.beyond(torch.tensor([[3.0], [0.0]]).double(), 0 * one, line, one[:1, None], points)
        >>> len(found.features), (found(points).T @ points).abs().max().item() < 0.01
        (1, True)
    """

    weights: Tensor
    biases: Tensor
    base: WeightedBasis
    correlations: Tensor
    mixed: Tensor
    less: Tensor
    shares: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Return c [n, m] of standardised covariates z [n, k]."""
        mixed, less = self.mixed.to(z), self.less.to(z)
        return self._raw(z) @ mixed - self.base(z) @ less

    def traced(self, z: Tensor) -> Tensor:
        """Return what ``__call__`` does, on the device and of the type of its numbers: for graphs that are exported."""
        return torch.tanh(z @ self.weights.T + self.biases) @ self.mixed - self.base.traced(z) @ self.less

    def _raw(self, z: Tensor) -> Tensor:
        return torch.tanh(z @ self.weights.to(z).T + self.biases.to(z))

    @property
    def features(self) -> tuple[Feature, ...]:
        """Each combination as a feature."""
        return tuple(Feature(UNITS, j, j) for j in range(len(self.shares)))

    @classmethod
    def beyond(
        cls, weights: Tensor, biases: Tensor, basis: WeightedBasis, correlations: Tensor, points: Tensor
    ) -> "HiddenUnits | None":
        """Return what units have beyond features, the largest combinations first; None where that is nothing.

        Args:
            weights: W.
            biases: b.
            basis: The features, whose weights do not matter.
            correlations: Of the points.
            points: Public, [N, k].
        """
        base = WeightedBasis(basis.features, torch.ones_like(basis.feature_weights))
        psi, n = base(points), len(points)
        nothing = torch.zeros(0, dtype=torch.float64)
        raw = cls(weights, biases, base, correlations, nothing, nothing, nothing)._raw(points)
        gram = psi.T @ psi / n
        less = torch.linalg.solve(gram + _RIDGE * torch.eye(len(gram), dtype=torch.float64), psi.T @ raw / n)
        rest = raw - psi @ less
        values, vectors = torch.linalg.eigh(rest.T @ rest / n)
        own = values > max(_LEAST * float(values[-1]), _RIDGE)
        if not bool(own.any()):
            return None
        values, vectors = values[own].flip(0), vectors[:, own].flip(1) / values[own].flip(0).sqrt()
        return cls(weights, biases, base, correlations, vectors, less @ vectors, values / values.sum())

    def fit(self, basis: WeightedBasis, points: Tensor) -> bool:
        """Return whether Q, B and the shares are what ``beyond`` makes of W and b.

        Args:
            basis: As of ``beyond``.
            points: As of ``beyond``, with the correlations.
        """
        if self.base.features != basis.features:
            return False
        found, one = self(points), torch.eye(len(self.shares), dtype=torch.float64)
        shares = 1 / self.mixed.square().sum(0)
        return (
            torch.allclose(found.T @ found / len(points), one, rtol=0, atol=_CLOSE)
            and float((self.base(points).T @ found / len(points) - _RIDGE * self.less).abs().max()) < _CLOSE
            and torch.allclose(self.shares, shares / shares.sum(), rtol=_CLOSE, atol=0)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return its numbers by name."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], base: Any, covariates: int) -> "HiddenUnits":
        """Inverse of ``tensors``.

        Args:
            tensors: The numbers.
            base: Features as ``WeightedBasis.config`` returns them.
            covariates: Number of covariates k.

        Raises:
            ValueError: Numbers whose shapes do not fit, or shares that are not positive.
        """
        found = dict(tensors)
        if set(found) != set(_NAMES):
            raise ValueError(f"units: {', '.join(_NAMES)}")
        basis = WeightedBasis.from_config(base, torch.ones(1 + len(base), dtype=torch.float64), covariates)
        units, m = len(found["biases"]), len(found["shares"])
        shapes = {
            "weights": (units, covariates),
            "biases": (units,),
            "correlations": (covariates, covariates),
            "mixed": (units, m),
            "less": (basis.dimension, m),
            "shares": (m,),
        }
        for name, shape in shapes.items():
            tensor = found[name]
            if tensor.shape != shape or tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
                raise ValueError(f"units: {name} is float64 {list(shape)}, finite")
        if not m or not bool((found["shares"] > 0).all()) or float(found["shares"].sum()) > 1 + 1e-9:
            raise ValueError("units: shares are positive, and one together")
        correlations = found["correlations"]
        if not torch.allclose(correlations, correlations.T, rtol=0, atol=1e-12) or bool(
            torch.linalg.cholesky_ex(correlations).info
        ):
            raise ValueError("units: correlations are a positive definite matrix")
        return cls(base=basis, **found)
