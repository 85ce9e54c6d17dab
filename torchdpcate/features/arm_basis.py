"""Features of both arms of a study: those that the arms share, and those in which they differ."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdpcate.features.weighted_basis import WeightedBasis


@dataclass(frozen=True, eq=False)
class ArmBasis:
    r"""psi(z, a) = (psi_shared(z), (2a - 1) psi_contrast(z)), of public energies whose sum is one.

    The outcome's means of both arms come from one regression on it, :math:`m_a(x) = \psi(z, a)^\top\theta`.

    Attributes:
        shared: Features that both arms share, a constant among them.
        contrast: Features of half the difference of the arms, a constant among them; None where they do not differ.

    Example:
        >>> from torchdpcate.features.weighted_basis import Feature
        >>> shared = WeightedBasis((Feature("1", 0, 0),), torch.tensor([0.64, 0.16]).double())
        >>> basis = ArmBasis(shared, WeightedBasis((), torch.tensor([0.2]).double()))
        >>> treated, control = (basis(torch.ones(1, 1).double(), torch.tensor([a]).double()) for a in (1.0, 0.0))
        >>> (treated - control).square().round(decimals=4).tolist(), round(treated.square().sum().item(), 6)
        ([[0.0, 0.0, 0.8]], 1.0)
    """

    shared: WeightedBasis
    contrast: WeightedBasis | None

    @property
    def energies(self) -> Tensor:
        """Energies of all features, float64 [p]."""
        parts = [self.shared.energies] if self.contrast is None else [self.shared.energies, self.contrast.energies]
        return torch.cat(parts)

    @property
    def parts(self) -> dict[str, list[int]]:
        """Positions of the coefficients of each kind; the contrast's constant is a kind of its own."""
        found, first = dict(self.shared.parts), self.shared.dimension
        if self.contrast is not None:
            found["contrast"] = [first]
            for kind, positions in self.contrast.parts.items():
                found[f"contrast {kind}"] = [first + position for position in positions]
        return found

    def __call__(self, z: Tensor, a: Tensor) -> Tensor:
        """Return psi [n, p] of standardised covariates z [n, k] and arms a in {0, 1}, [n]."""
        shared = self.shared(z)
        return shared if self.contrast is None else torch.cat([shared, (2 * a - 1)[:, None] * self.contrast(z)], 1)
