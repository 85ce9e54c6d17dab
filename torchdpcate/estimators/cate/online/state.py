"""What an online service knows besides its history, with f and its kernel at any point; and its file. The curator's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate._files import PRIVATE, atomic_path
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.fit.user_maps import to_config
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.stage import FittedStage, LinearStage
from torchdpcate.release.file import DIGEST_KEY, release_digest
from torchdpcate.release.parts import load_features, load_nuisances, named_tensors
from torchdpcate.release.statement import PrivacyStatement

_KEPT_FEATURES = 4_096  # a map of more is not worked out for every query once and for all


@dataclass(frozen=True, eq=False)
class FeatureCorrection:
    """f(x) = psi(x)'theta with the kernel psi(x)'psi(y), away from the records' block; float64 on the CPU.

    Points are lifted once, to features, and everything else takes lifted points. ``value`` and ``tensors`` are secret.
    """

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
class KernelCorrection:
    """f(x) = sum_i c_i K(x_i, x) with a unit kernel, likewise, lifted to its units; holds the training points."""

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


Correction = FeatureCorrection | KernelCorrection
"""A function f with its public kernel. ``correction_from`` makes it of its ``tensors`` and ``facts``, plain types."""


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


def head_of(stage: FittedStage) -> dict[str, Any] | None:
    """Return what is public of a second stage's kernel, as plain types, for a release of answers.

    Args:
        stage: The fitted second stage.

    Returns:
        Feature map (by its name alone where it is not the library's) or kernel; None for a stage without.
    """
    if isinstance(stage, KernelStage):
        kernel = {"name": stage.kernel.name, "bandwidth": stage.kernel.bandwidth}
        return {"kernel": kernel}
    if not isinstance(stage, LinearStage):
        return None
    try:
        stated = to_config(stage.features)
    except InputError:  # a map of the user's, which no reader needs to evaluate
        stated = {"name": stage.features.title}
    return {"features": stated}


def correction_from(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], domain: Domain, nuisances: NuisanceModel
) -> Correction:
    """Rebuild f from its ``tensors`` and ``facts``."""
    if "kernel" in facts:
        kernel = UnitKernel(**facts["kernel"], domain=domain)
        return KernelCorrection(tensors["points"], tensors["coefficients"], kernel)
    return FeatureCorrection(tensors["theta"], load_features(tensors, facts["features"], domain, nuisances))


STATE_FILE = "state.safetensors"
_FORMAT, _FORMAT_VERSION = "torchdpcate-online", "1"


@dataclass(frozen=True, eq=False)
class ServiceState:
    """What the service knows besides its history. The curator's."""

    run: str
    correction: Correction
    nuisances: NuisanceModel
    schema: TableSchema
    privacy: PrivacyStatement
    scale: float
    counter: str | None = None

    def save(self, path: Path) -> None:
        """Write it for its owner alone, as a complete file or not at all."""
        from safetensors.torch import save_file

        facts = {**self.correction.facts(), "nuisances": self.nuisances.config()}
        facts |= {"scale": self.scale, "counter": self.counter}
        metadata = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "run": self.run,
            "facts": json.dumps(facts),
            "schema": json.dumps(self.schema.to_dict()),
            "privacy": json.dumps(self.privacy.to_dict()),
        }
        own = {f"correction.{name}": tensor for name, tensor in self.correction.tensors().items()}
        tensors = {
            name: t.contiguous().clone() for name, t in (own | named_tensors("nuisances", self.nuisances)).items()
        }
        metadata[DIGEST_KEY] = release_digest(metadata, tensors)
        with atomic_path(path, PRIVATE) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> "ServiceState":
        """Read it.

        Raises:
            ReleaseFileError: A file that is damaged, changed, or none of a service.
        """
        from safetensors import safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if metadata["format"] != _FORMAT or metadata["format_version"] != _FORMAT_VERSION:
                raise ValueError("not of this format")
            if metadata[DIGEST_KEY] != release_digest(metadata, tensors):
                raise ValueError("it does not match its checksum")
            facts = json.loads(metadata["facts"])
            schema = TableSchema.from_dict(json.loads(metadata["schema"]))
            nuisances = load_nuisances(tensors, facts["nuisances"])
            own = {n.removeprefix("correction."): t for n, t in tensors.items() if n.startswith("correction.")}
            correction = correction_from(own, facts, schema.domain, nuisances)
            privacy = PrivacyStatement.from_dict(json.loads(metadata["privacy"]))
            counter = None if facts.get("counter") is None else str(facts["counter"])
            scale = float(facts["scale"])
            return cls(metadata["run"], correction, nuisances, schema, privacy, scale, counter)
        except Exception as error:  # whatever Python raises on forged contents
            raise ReleaseFileError(f"{path}: damaged or changed ({type(error).__name__}: {error})") from error
