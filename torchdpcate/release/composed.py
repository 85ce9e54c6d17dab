"""The release of one composition: an effect function that was fitted with all nuisances under one plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.schema import TableSchema
from torchdpcate.features.standardisation import Standardisation
from torchdpcate.features.weighted_basis import WeightedBasis
from torchdpcate.release.parts import tensors_of
from torchdpcate.release.release import EffectRelease, require_tensor
from torchdpcate.release.statement import PrivacyStatement


@dataclass(frozen=True, eq=False)
class ComposedRelease(EffectRelease):
    r"""A CATE function: g(x) = psi(z(x))'theta, clipped to [-R, R].

    Attributes:
        theta: Coefficients, drawn to zero as far as their known noise says, float64 [1 + p].
        estimates: The same before that, with known noise, float64 [1 + p].
        curvatures: Released mean curvatures of the features, from which the noise follows, float64 [1 + p].
        scale: Released residual scale S, in outcome units.
        basis: Features of standardised covariates, with public energies.
        standardisation: Released means and spreads of the covariates in use.
        schema: Columns and public bounds.
        privacy: The privacy statement.
        columns: Covariates in use; None for all.
    """

    kind = "composed"
    subject = "Estimated effect of {treatment} on {outcome} as a function of the covariates"
    product = "Machine learning model"
    reading = "The effect is a function of standardised covariates, clipped to the outcome's range; evaluating it uses "
    reading += "released numbers alone."

    theta: Tensor
    estimates: Tensor
    curvatures: Tensor
    scale: float
    basis: WeightedBasis
    standardisation: Standardisation
    schema: TableSchema
    privacy: PrivacyStatement
    columns: tuple[int, ...] | None = field(default=None, kw_only=True)

    @property
    def rung(self) -> str:
        """What was asked of the effect: ``constant``, ``linear`` or ``additive``."""
        kinds = set(self.basis.parts)
        return "additive" if kinds - {"1"} else "linear" if kinds else "constant"

    def features(self, x: Tensor) -> Tensor:
        """Return psi, [m, 1 + p], at encoded covariates x [m, q]."""
        u = self.domain.scale(x)
        return self.basis(self.standardisation(u if self.columns is None else u[:, list(self.columns)]))

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return g(x), [m]."""
        bound = self.domain.outcome_range
        return (self.features(x) @ self.theta).clamp(-bound, bound)

    def _noise_scale(self, x: Tensor) -> Tensor:
        raise self._no_band()

    def summary(self) -> dict[str, Any]:
        """Return how rich the effect is, and its scale."""
        return {"rung": self.rung, "residual_scale": self.scale, "features": len(self.basis.features)}

    def tensors(self) -> dict[str, Tensor]:
        """Return coefficients, curvatures, energies, scale and standardisation."""
        standardisation = self.standardisation.tensors()
        return {
            "theta": self.theta,
            "estimates": self.estimates,
            "curvatures": self.curvatures,
            "energies": self.basis.energies,
            "scale": torch.tensor([self.scale], dtype=torch.float64),
            **{f"standardisation.{name}": tensor for name, tensor in standardisation.items()},
        }

    def facts(self) -> dict[str, Any]:
        """Return the features, and the columns in use."""
        return {"features": self.basis.config(), "columns": None if self.columns is None else list(self.columns)}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: Mapping[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "ComposedRelease":
        """Rebuild a release from ``tensors`` and ``facts``."""
        columns = None if facts.get("columns") is None else tuple(map(int, facts["columns"]))
        standardisation = Standardisation.from_tensors(tensors_of("standardisation", tensors))
        width = schema.domain.dimension if columns is None else len(columns)
        if len(standardisation.mean) != width or (
            columns and not 0 <= min(columns) <= max(columns) < len(schema.domain.names)
        ):
            raise ValueError("standardisation: not of the columns in use")
        basis = WeightedBasis.from_config(facts["features"], tensors["energies"], width)
        for name in ("theta", "estimates", "curvatures"):
            require_tensor(tensors[name], (basis.dimension,), name)
        require_tensor(tensors["scale"], (1,), "scale")
        return cls(
            tensors["theta"],
            tensors["estimates"],
            tensors["curvatures"],
            tensors["scale"].item(),
            basis,
            standardisation,
            schema,
            privacy,
            columns=columns,
        )
