"""The designs A to E of Niu et al. (2022), by which private learners of effects are compared."""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.errors import InputError

_COVARIATES = 6
_OVERLAP = 0.1


class _Design(ABC):
    """Covariates, propensity e, baseline b and effect tau of one design, with its public bounds.

    Attributes:
        low: Least value of a covariate that is no indicator.
        high: Largest value.
        outcome: Bounds of the outcome.
        indicators: How many of the last covariates are 0 or 1.
    """

    low: ClassVar[float] = -3.0
    high: ClassVar[float] = 3.0
    outcome: ClassVar[tuple[float, float]]
    indicators: ClassVar[int] = 0

    def covariates(self, n: int, generator: torch.Generator) -> Tensor:
        return _normal((n, _COVARIATES), generator)

    def noise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Noise of the outcome, [n], at x [n, 6]."""
        return _normal(len(x), generator)

    @abstractmethod
    def propensity(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def baseline(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def effect(self, x: Tensor) -> Tensor: ...


class _A(_Design):
    low, high, outcome = 0.0, 1.0, (-4.0, 8.0)

    def covariates(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, _COVARIATES, generator=generator, dtype=torch.float64)

    def propensity(self, x: Tensor) -> Tensor:
        return torch.sin(torch.pi * x[:, 0] * x[:, 1]).clamp(0.1, 0.9)

    def baseline(self, x: Tensor) -> Tensor:
        wave = torch.sin(torch.pi * x[:, 0] * x[:, 1])
        return wave + 2.0 * (x[:, 2] - 0.5) ** 2 + x[:, 3] + 0.5 * x[:, 4]

    def effect(self, x: Tensor) -> Tensor:
        return (x[:, 0] + x[:, 1]) / 2.0


class _B(_Design):
    outcome = (-6.0, 14.0)

    def propensity(self, x: Tensor) -> Tensor:
        return torch.full_like(x[:, 0], 0.5)

    def baseline(self, x: Tensor) -> Tensor:
        highest = torch.stack([torch.zeros_like(x[:, 0]), x[:, 0] + x[:, 1], x[:, 2]]).amax(0)
        return highest + (x[:, 3] + x[:, 4]).relu()

    def effect(self, x: Tensor) -> Tensor:
        return x[:, 0] + softplus(x[:, 1])


class _C(_Design):
    outcome = (-4.0, 14.0)

    def propensity(self, x: Tensor) -> Tensor:
        return torch.sigmoid(-x[:, 1] - x[:, 2])

    def baseline(self, x: Tensor) -> Tensor:
        return 2.0 * softplus(x[:, :3].sum(1))

    def effect(self, x: Tensor) -> Tensor:
        return torch.ones_like(x[:, 0])


class _D(_Design):
    outcome = (-8.0, 14.0)

    def propensity(self, x: Tensor) -> Tensor:
        return 1.0 / (1.0 + torch.exp(-x[:, 0]) + torch.exp(-x[:, 1]))

    def baseline(self, x: Tensor) -> Tensor:
        return (x[:, 0] + x[:, 1]).relu() + (x[:, 3] + x[:, 4]).relu()

    def effect(self, x: Tensor) -> Tensor:
        return x[:, :3].sum(1).relu() - (x[:, 3] + x[:, 4]).relu()


class _E(_Design):
    low, high, outcome, indicators = -7.0, 7.0, (-15.0, 25.0), 3

    def covariates(self, n: int, generator: torch.Generator) -> Tensor:
        latent = _normal((n, _COVARIATES), generator) @ _root().T
        return torch.cat([latent[:, :3], (latent[:, 3:] > 1.0).to(torch.float64)], 1)

    def noise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        own, common = _normal((2, len(x)), generator)
        return common + (x[:, 0] + 1.0) * own

    def propensity(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x[:, 0] + x[:, 5]).clamp(0.1, 0.9)

    def baseline(self, x: Tensor) -> Tensor:
        slopes = torch.linspace(0.0, 3.0, _COVARIATES, dtype=x.dtype)
        inner = torch.where(x[:, 2].abs() < 0.5, 0.8, 0.2).to(x)
        return x @ slopes + x[:, 0] * x[:, 5] + inner

    def effect(self, x: Tensor) -> Tensor:
        slopes = torch.tensor([0.0, 1.0, -1.0, 1.0, 1.0, 1.0], dtype=x.dtype)
        return x @ slopes + 5.0 * torch.sigmoid(x[:, 0])


_DESIGNS: dict[str, type[Any]] = {"A": _A, "B": _B, "C": _C, "D": _D, "E": _E}


class Niu(GeneratedStudy):
    r"""A design of Niu et al. (2022), six covariates, :math:`Y = b(X) + A\,\tau(X) + \varepsilon`.

    ====== ============================== ======================================= ==========================
    design covariates                     P(A = 1 given x)                        effect
    ====== ============================== ======================================= ==========================
    A      uniform on [0, 1]              sin(pi x0 x1), within [0.1, 0.9]        (x0 + x1)/2
    B      standard normal                0.5                                     x0 + log(1 + exp(x1))
    C      standard normal                1/(1 + exp(x1 + x2))                    1
    D      standard normal                1/(1 + exp(-x0) + exp(-x1))             (x0 + x1 + x2)+ - (x3 + x4)+
    E      3 correlated normal, 3 0 or 1  sigmoid(x0 + x5), within [0.1, 0.9]     x'g + 5 sigmoid(x0)
    ====== ============================== ======================================= ==========================

    with g = (0, 1, -1, 1, 1, 1). The noise is standard normal; E has (x0 + 1) times a normal variable besides. The
    domain's bounds are facts of the law but for tails: covariates and outcomes beyond are moved to them (3 standard
    deviations of a covariate, fewer than 1 in 300), so that ``effect`` at a record that was moved is that at the bound.
    The overlap 0.1 is a fact of A, B and E, and a clip in C and D. Error of the best constant: 0.042, 1.27, 0, 1.70 and
    10.2. Source: F. Niu, H. Nori, B. Quistorff, R. Caruana, D. Ngwe and A. Kannan, "Differentially private estimation
    of heterogeneous causal effects", CLeaR 2022; A to D follow Nie and Wager (2021).

    Args:
        design: ``A``, ``B``, ``C``, ``D`` or ``E``.
        randomised: P(A = 1) of a coin in place of the design's propensity, which is then a known one; None keeps it.

    Raises:
        InputError: No such design, a coin within 0.1 of 0 or 1; n too small to split, or bad queries.

    Example:
        >>> study = Niu("E", n=1000, seed=0).load()
        >>> study.records.n, study.records.x[:, 3:].unique().tolist()
        (900, [0.0, 1.0])
    """

    def __init__(self, design: str = "A", randomised: float | None = None, **given: Any) -> None:
        super().__init__(**given)
        if design not in _DESIGNS:
            raise InputError(f"data.design is {design!r}; choose one of {', '.join(_DESIGNS)}")
        if randomised is not None and not _OVERLAP <= randomised <= 1.0 - _OVERLAP:
            raise InputError(f"data.randomised is {randomised}; give a probability between 0.1 and 0.9, or none")
        self.design = design
        self.randomised = randomised
        self._law: _Design = _DESIGNS[design]()

    @property
    def name(self) -> str:
        """``niu_a`` to ``niu_e``."""
        return f"niu_{self.design.lower()}"

    def domain(self) -> Domain:
        """Return the public facts of the law, but for tails."""
        law, others = self._law, _COVARIATES - self._law.indicators
        low, high = [law.low] * others + [0.0] * law.indicators, [law.high] * others + [1.0] * law.indicators
        return Domain(low, high, *law.outcome, _OVERLAP, origin=self._origin(), better="higher")

    def schema(self) -> TableSchema:
        """Return the public facts, the last three covariates of E being 0 or 1."""
        facts = super().schema().to_dict()
        for name in list(facts["covariates"])[_COVARIATES - self._law.indicators :]:
            facts["covariates"][name] = {"categories": [0, 1]}
        if self.randomised is not None:
            facts["propensity"] = self.randomised
        return replace(TableSchema.from_dict(facts), kind_said=None)

    def effect(self, x: Tensor) -> Tensor:
        """Return tau(x), [n], at x [n, 6]."""
        return self._law.effect(x)

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x), [n], at x [n, 6]."""
        return self._law.propensity(x) if self.randomised is None else torch.full_like(x[:, 0], self.randomised)

    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples of the law as it is, tails beyond the domain too."""
        law = self._law
        x = law.covariates(n, generator)
        a = (torch.rand(n, generator=generator, dtype=torch.float64) < self.propensity(x)).to(torch.float64)
        return CausalData(x, a, law.baseline(x) + a * law.effect(x) + law.noise(x, generator))

    def _sample(self) -> CausalData:
        domain, drawn = self.domain(), super()._sample()
        return CausalData(domain.clip_covariates(drawn.x), drawn.a, domain.clip_outcome(drawn.y))


def _normal(shape: int | tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@cache
def _root() -> Tensor:
    """A root of the covariance of E's normal variables: that of M M', cut to 6 x 6, M as NumPy's seed 1 draws it."""
    drawn = np.random.RandomState(1).uniform(-1.0, 1.0, (2 * _COVARIATES, 2 * _COVARIATES))
    covariance = (drawn @ drawn.T)[:_COVARIATES, :_COVARIATES]
    return torch.linalg.cholesky(torch.from_numpy(covariance))
