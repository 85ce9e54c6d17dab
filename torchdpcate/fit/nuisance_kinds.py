"""Convex nuisances, the mean of several, and the kind that a file names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import additive_legendre
from torchdpcate.fit.networks import Nuisances
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


class AveragedNuisances(NuisanceModel):
    """Mean of the predictions of nuisances that were trained, and paid for, apart: those of cross-fitting.

    Args:
        members: nuisances of the same domain.

    Raises:
        InputError: fewer than two.

    Example:
        >>> from torchdpcate.data import Domain
        >>> pair = AveragedNuisances([Nuisances(Domain([0], [1], 0, 1), width=4) for _ in range(2)])
        >>> pair.predict(torch.rand(5, 1)).mu1.shape
        torch.Size([5])
    """

    kind = "averaged"

    def __init__(self, members: Sequence[NuisanceModel]) -> None:
        super().__init__()
        if len(members) < 2:
            raise InputError(f"members has {len(members)}; an average needs at least two")
        self._of = tuple(members)
        self.members = nn.ModuleList(members)

    def predict(self, x: Tensor) -> NuisanceValues:
        """Mean nuisances at raw covariates `x` `[B, q]`."""
        values = [member.predict(x) for member in self._of]
        return NuisanceValues(*(torch.stack(parts).mean(0) for parts in zip(*values, strict=True)))

    def representation(self, x: Tensor) -> Tensor:
        """Hidden layers of all members side by side, over the root of their number."""
        layers = [member.representation(x) for member in self._of]
        return torch.cat(layers, 1) / math.sqrt(len(layers))

    def config(self) -> dict[str, Any]:
        """Plain types from which `from_config` makes modules of the same shapes."""
        return {"kind": self.kind, "members": [member.config() for member in self._of]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AveragedNuisances:
        """Modules of the shapes that `config` describes, with fresh weights."""
        return cls([nuisances_from_config(member) for member in config["members"]])

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the members' weights, by member and name.

        Raises:
            InputError: a member that is an average itself, which no fit makes.
        """
        found: dict[str, tuple[int, ...]] = {}
        for i, member in enumerate(config["members"]):
            if member.get("kind") == cls.kind:
                raise InputError("members: an average of averages; give the nuisances that were trained")
            found |= {f"members.{i}.{name}": shape for name, shape in nuisance_shapes(member).items()}
        return found


def nuisances_from_config(config: Mapping[str, Any]) -> NuisanceModel:
    """Nuisances of the kind and shape that `config` describes, with fresh weights.

    Raises:
        InputError: a kind that there is not.
    """
    return _kind(config).from_config({name: value for name, value in config.items() if name != "kind"})


def nuisance_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of the nuisances that `config` describes, by name; nothing is made.

    Raises:
        InputError: a kind that there is not.

    Example:
        >>> from torchdpcate.data import Domain
        >>> one = Nuisances(Domain([0], [1], 0, 1), width=4)
        >>> nuisance_shapes(one.config()) == {k: tuple(v.shape) for k, v in one.state_dict().items()}
        True
    """
    return _kind(config).shapes(config)


def _kind(config: Mapping[str, Any]) -> type[NuisanceModel]:
    """The class that `config` names; networks if it names none."""
    kinds: dict[str, type[NuisanceModel]] = {cls.kind: cls for cls in (Nuisances, ConvexNuisances, AveragedNuisances)}
    kind = config.get("kind", Nuisances.kind)
    if kind not in kinds:
        raise InputError(f"nuisances of kind {kind!r}: this version knows {', '.join(kinds)}")
    return kinds[kind]


def networks_of(model: NuisanceModel | None) -> tuple[Nuisances, ...]:
    """Return the networks whose mean prediction a model is; none if other models have a part in it."""
    members = model._of if isinstance(model, AveragedNuisances) else (model,)
    networks = tuple(member for member in members if isinstance(member, Nuisances))
    return networks if len(networks) == len(members) else ()
