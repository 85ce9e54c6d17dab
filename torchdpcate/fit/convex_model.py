"""Convex nuisances: logistic propensity and linear outcomes on public features, as a release holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import additive_legendre
from torchdpcate.fit.nuisances import NuisanceModel, NuisanceValues, propensity_at


class ConvexNuisances(NuisanceModel):
    r"""Additive nuisances: pi = sigmoid(psi'theta), mu_a = m + psi'theta_a, with `additive_legendre` features.

    Args:
        domain: public bounds.
        degree: of the outcomes' polynomials.
        propensity_degree: of the propensity's; 0 is one propensity for all.

    Example:
        >>> module = ConvexNuisances(Domain([0, 0], [1, 1], outcome_low=-3, outcome_high=3))
        >>> module.predict(torch.rand(5, 2)).pi.tolist()
        [0.5, 0.5, 0.5, 0.5, 0.5]
    """

    kind = "convex"
    propensity: Tensor
    outcomes: Tensor
    median: Tensor

    def __init__(self, domain: Domain, degree: int = 2, propensity_degree: int = 1) -> None:
        super().__init__()
        self.domain, self.degree, self.propensity_degree = domain, degree, propensity_degree
        sizes = [1 + domain.dimension * d for d in (propensity_degree, degree)]
        self.register_buffer("propensity", torch.zeros(sizes[0], dtype=torch.float64))
        self.register_buffer("outcomes", torch.zeros(2, sizes[1], dtype=torch.float64))
        self.register_buffer("median", torch.full((1,), (domain.outcome_low + domain.outcome_high) / 2).double())

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the propensity `[B, p]` and of the outcomes `[B, p']` at raw covariates `x` `[B, q]`."""
        z = self.domain.scale(x.to(self.outcomes.dtype))
        return additive_legendre(z, self.propensity_degree), additive_legendre(z, self.degree)

    def predict(self, x: Tensor) -> NuisanceValues:
        """Nuisances at raw covariates `x` `[B, q]`, clipped to the domain; see `NuisanceModel.predict`."""
        treatment, outcome = self.features(x)
        overlap, pi = self.domain.overlap, propensity_at(x, self.domain)
        if pi is None:
            pi = torch.sigmoid(treatment @ self.propensity).clamp(overlap, 1 - overlap)
        mean = (self.median + outcome @ self.outcomes.T).clamp(self.domain.outcome_low, self.domain.outcome_high)
        return NuisanceValues(pi.to(mean), mean[:, 0], mean[:, 1])

    def config(self) -> dict[str, Any]:
        """Plain types from which `from_config` makes a module of the same shape (coefficients not included)."""
        settings = {"degree": self.degree, "propensity_degree": self.propensity_degree}
        return {"kind": self.kind, "domain": self.domain.to_dict(), **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ConvexNuisances:
        """Module of the shape that `config` describes, with coefficients of zero."""
        settings = {name: value for name, value in config.items() if name != "kind"}
        return cls(Domain.from_dict(settings.pop("domain")), **settings)

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the coefficients and of the median."""
        inputs = len(config["domain"]["covariate_low"])
        propensity, outcome = (1 + inputs * config[name] for name in ("propensity_degree", "degree"))
        return {"propensity": (propensity,), "outcomes": (2, outcome), "median": (1,)}
