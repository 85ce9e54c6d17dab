"""Released weights: the propensity as a function of the covariates, and how far they balance the arms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import to_config
from torchdpcate.release.parts import load_features, named_tensors
from torchdpcate.release.release import require_tensor

if TYPE_CHECKING:
    import pandas as pd


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


COLUMNS = ("before", "before_sd", "after", "after_sd", "expected", "expected_sd")
"""Columns of numbers."""


@dataclass(frozen=True)
class BalanceTable:
    """Differences of the arms' means of every feature, in units of half the feature's range.

    Attributes:
        names: What the features are called.
        before: Treated minus controls as they are; None where it was not asked for.
        before_sd: Deviation of the noise in it.
        after: Treated minus controls, weighted.
        after_sd: Deviation of the noise in it.
        expected: What the fit's shrinkage leaves after weighting, by public facts and released numbers.
        expected_sd: Deviation of what the fit's noise leaves.

    Raises:
        InputError: A column of another length than ``names``, or a number that is not finite.

    Example:
        >>> BalanceTable(["age"], before=[0.4], after=[0.02]).frame()
             before  after
        age     0.4   0.02
    """

    unit: ClassVar[str] = "half ranges"
    """Of all numbers."""

    names: Sequence[str]
    before: Sequence[float] | None = None
    before_sd: Sequence[float] | None = None
    after: Sequence[float] | None = None
    after_sd: Sequence[float] | None = None
    expected: Sequence[float] | None = None
    expected_sd: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Refuse columns that do not fit together."""
        for name, column in self.columns().items():
            if len(column) != len(self.names) or not all(map(math.isfinite, column)):
                raise InputError(f"{name}: give {len(self.names)} finite numbers, one a feature, or None")

    def columns(self) -> dict[str, Sequence[float]]:
        """Return the columns that are there, by name."""
        return {name: column for name in COLUMNS if (column := getattr(self, name)) is not None}

    def frame(self) -> "pd.DataFrame":
        """Return the columns that are there, with a row a feature."""
        import pandas as pd

        return pd.DataFrame(self.columns(), index=list(self.names), dtype=float)


class StandardisedBalance(BalanceTable):
    """The same in units of the feature's standard deviation over the records, which is the curator's."""

    unit: ClassVar[str] = "standard deviations"
