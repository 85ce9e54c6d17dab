"""What a service needs of a fitted second stage: f and its kernel at any point. The curator's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.features.kernels import UnitKernel
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import to_config
from torchdpcate.nuisance.model import NuisanceModel
from torchdpcate.release.parts import load_features, named_tensors
from torchdpcate.second_stage.kernel import KernelStage
from torchdpcate.second_stage.stage import FittedStage, LinearStage

_KEPT_FEATURES = 4_096  # a map of more is not worked out for every query once and for all


class Correction(ABC):
    """A function f with its public kernel, away from the records' block; float64 on the CPU.

    Points are lifted once (to features, or to the kernel's units), and everything else takes lifted points.
    """

    @abstractmethod
    def lift(self, x: Tensor) -> Tensor:
        """Return what stands for the covariates x [m, q], [m, k]."""

    @abstractmethod
    def value(self, lifted: Tensor) -> Tensor:
        """Return f in outcome units, [m]. Secret."""

    @abstractmethod
    def covariance(self, lifted: Tensor, other: Tensor) -> Tensor:
        """Return the kernel, [m, k]."""

    @abstractmethod
    def variance(self, lifted: Tensor) -> Tensor:
        """Return the kernel's diagonal K(x, x), [m]."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers that f is made of. Secret."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what is public of it, as plain types; ``correction_from`` is the inverse."""


@dataclass(frozen=True, eq=False)
class FeatureCorrection(Correction):
    """f(x) = psi(x)'theta with the kernel psi(x)'psi(y)."""

    theta: Tensor
    features: FeatureMap

    @property
    def _kept(self) -> bool:
        return self.features.dimension <= _KEPT_FEATURES

    def lift(self, x: Tensor) -> Tensor:
        """Return the features, or where they are too many the covariates themselves."""
        return self.features(x) if self._kept else x

    def value(self, lifted: Tensor) -> Tensor:
        """Return psi'theta."""
        return lifted @ self.theta if self._kept else self.features.product(self.theta, lifted)

    def covariance(self, lifted: Tensor, other: Tensor) -> Tensor:
        """Return psi'psi."""
        return lifted @ other.T if self._kept else self.features.covariance(lifted, other)

    def variance(self, lifted: Tensor) -> Tensor:
        """Return ||psi||^2."""
        return (lifted.norm(dim=1) if self._kept else self.features.norm(lifted)).square()

    def tensors(self) -> dict[str, Tensor]:
        """Return theta and the map's buffers."""
        return {"theta": self.theta, **named_tensors("features", self.features)}

    def facts(self) -> dict[str, Any]:
        """Return the map's name and settings."""
        return {"features": to_config(self.features)}


@dataclass(frozen=True, eq=False)
class KernelCorrection(Correction):
    """f(x) = sum_i c_i K(x_i, x) with a unit kernel; holds the training points."""

    points: Tensor
    coefficients: Tensor
    kernel: UnitKernel

    def lift(self, x: Tensor) -> Tensor:
        """Return the covariates in bandwidths."""
        return self.kernel.units(x)

    def value(self, lifted: Tensor) -> Tensor:
        """Return the sum over the training points."""
        parts = lifted.split(max(1, 2**22 // len(self.points)))
        return torch.cat([self.kernel.between(part, self.points) @ self.coefficients for part in parts])

    def covariance(self, lifted: Tensor, other: Tensor) -> Tensor:
        """Return K."""
        return self.kernel.between(lifted, other)

    def variance(self, lifted: Tensor) -> Tensor:
        """Return ones."""
        return lifted.new_ones(len(lifted))

    def tensors(self) -> dict[str, Tensor]:
        """Return training points and coefficients."""
        return {"points": self.points, "coefficients": self.coefficients}

    def facts(self) -> dict[str, Any]:
        """Return the kernel's name and bandwidth."""
        return {"kernel": {"name": self.kernel.name, "bandwidth": self.kernel.bandwidth}}


def correction_of(stage: FittedStage, nuisances: NuisanceModel | None = None) -> Correction:
    """Return f of a fitted stage, on the CPU.

    Args:
        stage: A linear or a kernel stage.
        nuisances: The trained nuisances, on the CPU, for features made of them.

    Raises:
        InputError: Another kind of stage.
    """
    if isinstance(stage, LinearStage):
        return FeatureCorrection(stage.unit * stage.theta.cpu(), stage.features.twin(nuisances))
    if isinstance(stage, KernelStage):
        points = stage.kernel.units(stage.block.x).cpu()
        return KernelCorrection(points, stage.unit * stage.coefficients.cpu(), stage.kernel)
    raise InputError("second_stage: answers online need second_stage=kernel_ridge, linear or tangent")


def head_of(stage: FittedStage, columns: Sequence[int] | None) -> dict[str, Any] | None:
    """Return what is public of a second stage's kernel, as plain types, for a release of answers.

    Args:
        stage: The fitted second stage.
        columns: Columns of the covariates that it sees; None for all.

    Returns:
        Feature map (by its name alone where it is not the library's) or kernel, and columns; None for a stage without.
    """
    if isinstance(stage, KernelStage):
        kernel = {"name": stage.kernel.name, "bandwidth": stage.kernel.bandwidth}
        return with_columns({"kernel": kernel}, columns)
    if not isinstance(stage, LinearStage):
        return None
    try:
        stated = to_config(stage.features)
    except InputError:  # a map of the user's, which no reader needs to evaluate
        stated = {"name": stage.features.title}
    return with_columns({"features": stated}, columns)


def with_columns(head: Mapping[str, Any], columns: Sequence[int] | None) -> dict[str, Any]:
    """Return what is public of a second stage, with the columns of the covariates that it sees; None for all."""
    return {**head, "columns": None if columns is None else list(columns)}


def correction_from(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], domain: Domain, nuisances: NuisanceModel
) -> Correction:
    """Rebuild f from its ``tensors`` and ``facts``."""
    if "kernel" in facts:
        kernel = UnitKernel(**facts["kernel"], domain=domain)
        return KernelCorrection(tensors["points"], tensors["coefficients"], kernel)
    return FeatureCorrection(tensors["theta"], load_features(tensors, facts["features"], domain, nuisances))
