"""Released weights: the propensity as a function of the covariates."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import to_config
from torchdpcate.release.parts import load_features, named_tensors
from torchdpcate.release.release import require_tensor


@dataclass(frozen=True, eq=False)
class ReleasedWeights:
    r"""Weights as functions of the covariates: e(x) = sigmoid(psi(x)'theta), clipped to [eta, 1 - eta].

    Attributes:
        theta: Coefficients that a mechanism released, float64 [p].
        features: Public feature map.
        estimand: Estimand and clip.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.data.domain import Domain
        >>> from torchdpcate.features.maps import Identity
        >>> theta = torch.tensor([0.0, 4.0], dtype=torch.float64)
        >>> features = Identity().setup(Domain([0.0], [1.0], 0.0, 1.0))
        >>> released, x = ReleasedWeights(theta, features, ATE(0.1)), torch.tensor([[0.5], [1.0]])
        >>> released.propensity(x.double()).round(decimals=3).tolist(), released.clipped_share(x.double())
        ([0.5, 0.9], 0.5)
    """

    theta: Tensor
    features: FeatureMap
    estimand: Estimand

    def propensity(self, x: Tensor) -> Tensor:
        """Return the clipped propensity at encoded covariates x [m, q], [m]."""
        return self.estimand.propensity(self._predictor(x))

    def weights(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the weights of records with encoded covariates x [m, q] and treatments z [m] in {0, 1}, [m]."""
        return self.estimand.weights(self._predictor(x), z)

    def clipped_share(self, x: Tensor) -> float:
        """Return the share of rows of x [m, q] whose propensity lies beyond [eta, 1 - eta]."""
        return self.estimand.clipped(self._predictor(x)).double().mean().item()

    def tensors(self) -> dict[str, Tensor]:
        """Return the coefficients and the feature map's buffers."""
        return {"theta": self.theta, **named_tensors("features", self.features)}

    def facts(self) -> dict[str, Any]:
        """Return estimand, clip and feature map, as plain types."""
        return {
            "estimand": self.estimand.name,
            "eta": self.estimand.overlap,
            "features": to_config(self.features),
        }

    @classmethod
    def build(cls, tensors: dict[str, Tensor], facts: dict[str, Any], domain: Domain) -> "ReleasedWeights":
        """Rebuild weights from ``tensors`` and ``facts``."""
        features = load_features(tensors, facts["features"], domain)
        require_tensor(tensors["theta"], (features.dimension,), "theta")
        return cls(tensors["theta"], features, make_estimand(facts["estimand"], facts["eta"]))

    def _predictor(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.features.product(self.theta, x)
