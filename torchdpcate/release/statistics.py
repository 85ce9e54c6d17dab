"""A CATE function with the noisy sufficient statistics that it comes from."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.minimise import NormalEquations
from torchdpcate.release.release import FunctionRelease, require_tensor
from torchdpcate.release.statement import PrivacyStatement


@dataclass(frozen=True, eq=False)
class StatisticsRelease(FunctionRelease):
    """A CATE function with the statistics from which its reader makes that of any other ridge.

    Attributes:
        statistics: Noisy normal equations, as released.
        ridge: Of ``theta``.
    """

    kind = "statistics"

    statistics: NormalEquations
    ridge: float

    def at_ridge(self, ridge: float) -> "StatisticsRelease":
        """Return the function of another ridge lambda: post-processing, free however often and however chosen.

        Raises:
            InputError: A ridge that is not positive.
        """
        privacy = dataclasses.replace(self.privacy, public={**self.privacy.public, "ridge": ridge})
        return dataclasses.replace(self, theta=self.statistics.solve(ridge), ridge=ridge, privacy=privacy)

    def summary(self) -> dict[str, Any]:
        """Return the summary of a function, with the ridge of its coefficients and the records of its statistics."""
        return {**super().summary(), "ridge": self.ridge, "records": self.statistics.n}

    def tensors(self) -> dict[str, Tensor]:
        """Return what a function release holds, and the statistics."""
        statistics = {"statistics.matrix": self.statistics.matrix, "statistics.vector": self.statistics.vector}
        return {**super().tensors(), **statistics}

    def facts(self) -> dict[str, Any]:
        """Return what a function release states, the ridge, and the records of the statistics."""
        return {**super().facts(), "ridge": self.ridge, "records": self.statistics.n}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "StatisticsRelease":
        """Rebuild a release from ``tensors`` and ``facts``."""
        function = FunctionRelease.build(tensors, facts, schema, privacy)
        matrix, vector, p = tensors["statistics.matrix"], tensors["statistics.vector"], function.theta.numel()
        require_tensor(matrix, (p, p), "statistics.matrix")
        require_tensor(vector, (p,), "statistics.vector")
        n, ridge = facts["records"], float(facts["ridge"])
        if not torch.equal(matrix, matrix.T) or not (isinstance(n, int) and n > 0) or not 0 < ridge < math.inf:
            raise ValueError("statistics that are not symmetric, or without records or ridge")
        known = {field.name: getattr(function, field.name) for field in dataclasses.fields(function)}
        return cls(**known, statistics=NormalEquations.of(matrix, vector, n), ridge=ridge)
