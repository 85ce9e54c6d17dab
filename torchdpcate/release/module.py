"""What a release answers, as a module of PyTorch: for whoever serves models, compiles or exports them."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from torchdpcate.data.domain import Domain
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.nuisances import NuisanceModel
from torchdpcate.fit.weighted_basis import HiddenUnits, Standardisation, WeightedBasis, effects_of


class ReleaseModule(nn.Module):
    """Answers of a release at encoded covariates: post-processing of released numbers, which its state alone holds.

    Rows are what a release takes as a tensor: numbers in the domain's units in the order of ``schema.domain.names``, of
    categories their indicators, of a value that may be missing the middle of its bounds beside an indicator of 1;
    ``schema.matrix(frame)`` encodes a table. A number beyond its bounds is moved to them, and a row with a NaN is
    answered by NaN, for a module refuses nothing.

    It is made in float64; ``.float()`` and ``.to(device)`` are those of any module. Covariates of another type are
    cast.

    Args:
        domain: Public bounds of the covariates.
        answer: What is answered within them.

    Example:
        >>> from torchdpcate.release.release import _example
        >>> module = _example().module()
        >>> answers = module(torch.tensor([[0.25], [1.0], [7.0], [torch.nan]])).round(decimals=6)
        >>> answers.tolist(), module.float()(torch.rand(2, 1)).dtype
        ([-0.5, 1.0, 1.0, nan], torch.float32)
    """

    low: Tensor
    high: Tensor

    def __init__(self, domain: Domain, answer: nn.Module) -> None:
        super().__init__()
        self.register_buffer("low", domain.covariate_low.clone())
        self.register_buffer("high", domain.covariate_high.clone())
        self.answer = answer
        self.double().eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the answers, [m] or of K > 2 arms [m, K - 1], at encoded covariates x [m, q]."""
        x = x.to(self.low.dtype)
        answers, unknown = self.answer(x.clamp(self.low, self.high)), x.isnan().any(1)
        return torch.where(unknown if answers.ndim == 1 else unknown[:, None], torch.nan, answers)


class FunctionValues(nn.Module):
    """psi(x)'theta, with nuisances mu1(x) - mu0(x) + psi(x)'theta, clipped to [-bound, bound].

    Args:
        theta: Released coefficients, [p].
        features: Public feature map, set up.
        nuisances: Released nuisances; None for none.
        bound: Largest size of a value; None for no clip.
    """

    theta: Tensor

    def __init__(
        self,
        theta: Tensor,
        features: FeatureMap,
        nuisances: NuisanceModel | None = None,
        bound: float | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("theta", theta.clone())
        # together, for a map may be made of the nuisances' networks
        self.features, self.nuisances = deepcopy((features, nuisances))
        self.bound = bound

    def forward(self, x: Tensor) -> Tensor:
        """Return the values, [m], at encoded covariates x [m, q]."""
        values = self.features.product(self.theta, x)
        if self.nuisances is not None:
            values = self.nuisances.effect(x) + values
        return values if self.bound is None else values.clamp(-self.bound, self.bound)


class ComposedValues(nn.Module):
    """The effect of a composition, psi(z(x))'theta + shift, clipped to the outcome's range.

    Args:
        coefficients: theta.
        shift: What is added.
        basis: Features, of the standardised covariates.
        standardisation: Means and spreads of the covariates in use.
        domain: Public bounds.
        columns: Covariates in use; None for all.
        arms: Number of treatments.
    """

    theta: Tensor
    mean: Tensor
    sd: Tensor
    weights: Tensor

    def __init__(
        self,
        coefficients: Tensor,
        shift: float,
        basis: WeightedBasis,
        standardisation: Standardisation,
        domain: Domain,
        columns: tuple[int, ...] | None,
        arms: int,
    ) -> None:
        super().__init__()
        numbers = {"theta": coefficients, "mean": standardisation.mean, "sd": standardisation.sd}
        for name, tensor in {**numbers, "weights": basis.feature_weights}.items():
            self.register_buffer(name, tensor.clone())
        self.domain, self.columns, self.features = domain, columns, basis.features
        self.base = None if basis.units is None else basis.units.base.features
        if basis.units is not None:
            for name, tensor in {**basis.units.tensors(), "base": basis.units.base.feature_weights}.items():
                self.register_buffer(f"units_{name}", tensor.clone())
        self.arms, self.shift = arms, shift

    def forward(self, x: Tensor) -> Tensor:
        """Return the effects, [m] or [m, K - 1], at encoded covariates x [m, q]."""
        units = Standardisation(self.mean, self.sd)
        z = units.of(self.domain.scale(x), self.columns, self.domain.indicators)
        psi = WeightedBasis(self.features, self.weights, self._units()).traced(z)
        bound = self.domain.outcome_range
        return (effects_of(psi, self.theta, self.arms) + self.shift).clamp(-bound, bound)

    def _units(self) -> HiddenUnits | None:
        """Return the hidden units with their numbers where this module's are."""
        if self.base is None:
            return None
        numbers = {name.removeprefix("units_"): own for name, own in self.named_buffers() if name.startswith("units_")}
        return HiddenUnits(base=WeightedBasis(self.base, numbers.pop("base")), **numbers)


class Gain(nn.Module):
    """What a rule by an effect decides by the sign of: the effect, or minus it, less a public number.

    Args:
        effect: The effect.
        direction: 1 or -1.
        cost: The number.
    """

    def __init__(self, effect: nn.Module, direction: int, cost: float) -> None:
        super().__init__()
        self.effect, self.direction, self.cost = effect, direction, cost

    def forward(self, x: Tensor) -> Tensor:
        """Return the gain, [m], at encoded covariates x [m, q]."""
        return self.direction * self.effect(x) - self.cost
