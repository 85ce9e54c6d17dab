"""What an online service knows: f and its kernel at any point, what was answered, and its file. The curator's."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._chain import Chain, alone, chained
from torchdpcate._files import own_state
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, to_config
from torchdpcate.fit.kernels import UnitKernel
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.heads.kernel import KernelStage
from torchdpcate.heads.stage import FittedStage, LinearStage
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
    raise InputError("second_stage: answers online need second_stage=kernel_ridge or linear")


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
        kernel = UnitKernel(facts["kernel"]["bandwidth"], domain)
        return KernelCorrection(tensors["points"], tensors["coefficients"], kernel)
    return FeatureCorrection(tensors["theta"], load_features(tensors, facts["features"], domain, nuisances))


SERVICE_FILE = "service.sqlite"
"""The one file of a service, in its folder."""
_FORMAT = "torchdpcate online service 1"


@dataclass(frozen=True, eq=False)
class ServiceState:
    """What the service knows besides its answers. The curator's."""

    run: str
    correction: Correction
    nuisances: NuisanceModel
    schema: TableSchema
    privacy: PrivacyStatement
    scale: float

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The numbers of f and of the nuisances."""
        own = {f"correction.{name}": tensor for name, tensor in self.correction.tensors().items()}
        return own | named_tensors("nuisances", self.nuisances)

    def lines(self) -> list[str | bytes]:
        """Return its two lines of the file: facts as JSON, and tensors."""
        from safetensors.torch import save

        facts = {
            "format": _FORMAT,
            "run": self.run,
            "facts": {**self.correction.facts(), "nuisances": self.nuisances.config()},
            "scale": self.scale,
            "schema": self.schema.to_dict(),
            "privacy": self.privacy.to_dict(),
        }
        return [json.dumps(facts), save({name: t.contiguous().clone() for name, t in self.tensors.items()})]

    @classmethod
    def of_lines(cls, text: str, data: bytes) -> "ServiceState":
        """Inverse of ``lines``; raises whatever Python raises on forged contents."""
        from safetensors.torch import load

        kept, tensors = json.loads(text), load(data)
        if kept["format"] != _FORMAT:
            raise ValueError("not of this format")
        schema, facts = TableSchema.from_dict(kept["schema"]), kept["facts"]
        nuisances = load_nuisances(tensors, facts["nuisances"])
        own = {n.removeprefix("correction."): t for n, t in tensors.items() if n.startswith("correction.")}
        correction = correction_from(own, facts, schema.domain, nuisances)
        privacy = PrivacyStatement.from_dict(kept["privacy"])
        return cls(str(kept["run"]), correction, nuisances, schema, privacy, float(kept["scale"]))


class ServiceFile:
    """The file of a service: its state in two lines, then a line of rows for each block of queries that was answered.

    What was answered is in the file, and noted in the user's state folder (``Chain``), before the answer leaves. So of
    any number of copies one goes on at most, wherever a process was killed: noise drawn anew for a query that was
    answered would be a second release. Rows that were written and never answered are taken up, for their noise is as
    good as any.

    Args:
        folder: Of the service.
    """

    def __init__(self, folder: Path) -> None:
        self._chain = Chain(Path(folder) / SERVICE_FILE, "service", "new noise for an old query is a second release")
        self._run, self._revision, self._digest = "", -1, ""

    def create(self, state: ServiceState) -> None:
        """Write the state of a new service, as a whole or not at all."""
        own_state("services")
        with alone, self._chain.database(make=True) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute(self._chain.table)
            first, second = state.lines()
            digest = chained("", first)
            database.execute("INSERT INTO service VALUES (0, ?, ?)", (first, digest))
            self._chain.add(database, state.run, 1, second, chained(digest, second))

    @contextmanager
    def exclusive(self) -> Iterator[sqlite3.Connection]:
        """Open it while every other asker waits.

        Raises:
            InputError: The file is missing, damaged, or an older one.
            OSError: It cannot be written.
        """
        own_state("services")
        with alone, self._chain.database() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    def news(self, database: sqlite3.Connection) -> list[Any]:
        """Return the lines that were added since the last call, by whomever: the first time all of them.

        Raises:
            InputError: Lines are missing or changed, or the file is an older one; nothing may be answered.
        """
        try:
            self._chain.require_table(database)
            known = database.execute("SELECT digest FROM service WHERE revision = ?", (self._revision,)).fetchall()
            if known != ([(self._digest,)] if self._digest else []):
                raise ValueError("it lost lines that were answered")
            command = "SELECT revision, line, digest FROM service WHERE revision > ? ORDER BY revision"
            lines = database.execute(command, (self._revision,)).fetchall()
            for place, (revision, line, digest) in enumerate(lines, self._revision + 1):
                self._digest = chained(self._digest, line)
                if (revision, digest) != (place, self._digest):
                    raise ValueError("its lines are not those that were written")
            self._run = self._run or json.loads(lines[0][1])["run"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError) as error:
            raise self._chain.damaged(error) from error
        self._chain.require_newest(database, self._run)
        self._revision += len(lines)
        return [line for _, line, _ in lines]

    def append(self, database: sqlite3.Connection, rows: np.ndarray) -> None:
        """Add rows and end the turn; on return they are on the disk and noted, and their answers may leave."""
        line = np.ascontiguousarray(rows, dtype="<f8").tobytes()
        self._revision, self._digest = self._revision + 1, chained(self._digest, line)
        self._chain.add(database, self._run, self._revision, line, self._digest)

    def damaged(self, error: Exception) -> InputError:
        """Return the refusal of a file that does not hold a service."""
        return self._chain.damaged(error)
