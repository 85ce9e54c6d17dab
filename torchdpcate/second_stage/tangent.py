"""The tangent head: regression on the gradient of the private outcome network, a neural head with a certificate."""

from dataclasses import dataclass, field
from typing import ClassVar

from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.tangent import Tangent
from torchdpcate.second_stage.recipes import LinearSecondStage


@dataclass(frozen=True)
class TangentSecondStage(LinearSecondStage):
    """A linear head on ``Tangent`` features; settings are those of ``RidgeSecondStage``.

    Attributes:
        features: Always ``Tangent``.
    """

    choice: ClassVar[str] = "tangent"

    features: FeatureMap = field(init=False, default_factory=Tangent)
