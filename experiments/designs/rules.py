"""Generators for rules and policies: three shapes of a best rule, and a treatment that helps in a rare region."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data._arrays import listed
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.errors import InputError
from torchdpcate.papers.rules import GaussianRuleStudy


class ITR(GaussianRuleStudy):
    r"""Three shapes of the best rule on ten covariates, in a trial or an observational study.

    X is uniform on [-1, 1]^10, the noise has variance 2, and tau is

    - ``linear``: 3 x2 + 3 x3 - 3 x4;
    - ``quadratic``: 3 x2 + 9 x3^2 - 3, smooth, its mean 0; no linear rule gets the second term;
    - ``tree``: 3 where (x2 > 0 and x3 > -1/2) or (x2 <= 0 and x4 > 1/2), else -3: two thresholds deep.

    All three are the library's own, not those of a paper. ``confounded=False`` tosses a fair coin around m = 0. With
    ``confounded=True`` the logit of the propensity is 1.2 x0 - 1.2 x1 and m = 4: equal weights learn who was treated.
    Outcomes are clipped to m - 8 and m + 8, 2.5 standard deviations of the noise beyond half of a linear effect at
    its largest.

    Args:
        scenario: ``"linear"``, ``"quadratic"`` or ``"tree"``.
        confounded: Whether the treatment depends on covariates.

    Raises:
        InputError: An unknown scenario.

    Example:
        >>> study = ITR("tree", confounded=True, n=500).load()
        >>> study.name, sorted(set(study.effect.tolist())), study.domain.overlap
        ('itr_tree_confounded', [-3.0, 3.0], 0.08)
    """

    low, high, dimension, noise_sd = -1.0, 1.0, 10, math.sqrt(2.0)

    def __init__(self, scenario: str = "linear", confounded: bool = False, **given: Any) -> None:
        super().__init__(**given)
        if scenario not in _EFFECTS:
            raise InputError(f"data.scenario is {scenario!r}; choose one of {', '.join(_EFFECTS)}")
        self.scenario = scenario
        self.confounded = confounded
        self._middle = 4.0 if confounded else 0.0
        self.trial_propensity = None if confounded else 0.5
        self.outcome_bounds = self._middle - 8.0, self._middle + 8.0
        self.overlap = 0.08 if confounded else 0.4  # the propensity stays within 0.083 and 0.917

    @property
    def name(self) -> str:
        """``itr_`` and the scenario, and whether it is confounded."""
        return f"itr_{self.scenario}" + ("_confounded" if self.confounded else "")

    def effect(self, x: Tensor) -> Tensor:
        """Return the scenario's tau(x)."""
        return _EFFECTS[self.scenario](x)

    def baseline(self, x: Tensor) -> Tensor:
        """Return 4 if confounded, else 0."""
        return torch.full_like(x[..., 0], self._middle)

    def propensity(self, x: Tensor) -> Tensor:
        """Return sigmoid(1.2 x0 - 1.2 x1) if confounded, else 1/2."""
        return torch.sigmoid(1.2 * (x[..., 0] - x[..., 1]) * self.confounded)


def _tree(x: Tensor) -> Tensor:
    better = torch.where(x[..., 2] > 0, x[..., 3] > -0.5, x[..., 4] > 0.5)
    return 6.0 * better.to(x.dtype) - 3.0


_EFFECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: 3.0 * (x[..., 2] + x[..., 3] - x[..., 4]),
    "quadratic": lambda x: 3.0 * x[..., 2] + 9.0 * x[..., 3].square() - 3.0,
    "tree": _tree,
}


class RareRegion(GeneratedStudy):
    r"""Normal covariates; a treatment that helps in a rare region, where few get it, and hurts a little elsewhere.

    .. math::
        S = \{x_j > t_j \text{ for all } j \in \text{region}\}, \quad
        \tau(x) = \begin{cases} 0.5 & x \in S \\ -0.06 & \text{else} \end{cases}, \quad
        P(A = 1 | x) = \begin{cases} 0.1 & x \in S \\ 0.5 & \text{else} \end{cases}, \quad
        Y = 0.38 + 0.04\, u_b(x) + A\, \tau(x) + U[-0.07, 0.07],

    with :math:`u_b` in [-1, 1] the first covariate outside the region, scaled by its bounds. The outcome lies in [0, 1]
    whatever is drawn, so the means are exact. Most policies cost more than they gain, and the records that distinguish
    the good ones are few: the hard case for private selection, where a learned score's indirect sensitivity matters,
    and where a constant propensity misses much of the gain.

    Covariates are twenty standard normal ones clipped to [-3, 3]; by default S is x0 > 0.7 and x1 > 0.7, six in a
    hundred. Of the 160 policies that treat where one covariate is above, or at most, a threshold at one, two, three or
    four fifths of its bounds, a uniform choice has regret 0.0299 (0.0286 in the design of theory note
    ``policy_learning`` 9.5).

    Args:
        region: Thresholds :math:`t_j` by covariate, in the covariates' own units; None takes the generator's.

    Raises:
        InputError: ``region`` is no mapping to numbers, or (on ``load``) names something that is no covariate.

    Example:
        >>> study = RareRegion(n=2000, seed=0).load()
        >>> study.records.n, study.domain.dimension, sorted(set(study.effect.tolist()))
        (1800, 20, [-0.06, 0.5])
    """

    gain, cost = 0.5, 0.06
    _rare, _usual = 0.1, 0.5
    _baseline, _slope, _noise = 0.38, 0.04, 0.07
    usual_region: ClassVar[Mapping[str, float]] = {"x0": 0.7, "x1": 0.7}
    _dimension, _bound = 20, 3.0

    def __init__(self, region: Mapping[str, float] | None = None, **given: Any) -> None:
        super().__init__(**given)
        region = self.usual_region if region is None else region
        if not isinstance(region, Mapping) or not region:
            raise InputError(f"data.region is {region!r}; give a threshold by covariate, as {dict(self.usual_region)}")
        self.region = {str(name): to_number(f"data.region.{name}", t) for name, t in region.items()}

    @property
    def name(self) -> str:
        """Name of the data."""
        return "rare_region"

    def domain(self) -> Domain:
        """Return the public facts of the law: outcomes in [0, 1], propensities from 0.1."""
        names = [f"x{j}" for j in range(self._dimension)]
        low, high = [-self._bound] * self._dimension, [self._bound] * self._dimension
        unknown = [name for name in self.region if name not in names]
        if unknown or len(self.region) >= len(names):
            raise InputError(
                f"data.region names {listed(list(self.region))}; choose some of the covariates {listed(names)}, not all"
            )
        return Domain(low, high, 0.0, 1.0, self._rare, names, self._origin(), better="higher")

    def inside(self, x: Tensor) -> Tensor:
        """Return whether covariates [n, q] lie in the region, bool [n]."""
        names = self.domain().names
        above = [x[:, names.index(name)] > threshold for name, threshold in self.region.items()]
        return torch.stack(above).all(0)

    def effect(self, x: Tensor) -> Tensor:
        """Return tau(x), [n]: 0.5 in the region, -0.06 elsewhere."""
        return self._of(x, self.gain, -self.cost)

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x), [n]: 0.1 in the region, 0.5 elsewhere."""
        return self._of(x, self._rare, self._usual)

    def outcome(self, x: Tensor) -> Tensor:
        """Return E[Y | x, a], [n, 2]: of the untreated and of the treated."""
        domain = self.domain()
        other = next(j for j, name in enumerate(domain.names) if name not in self.region)
        untreated = self._baseline + self._slope * domain.scale(x)[:, other]
        return torch.stack([untreated, untreated + self.effect(x)], dim=1)

    def _of(self, x: Tensor, within: float, elsewhere: float) -> Tensor:
        values = torch.tensor([elsewhere, within], dtype=torch.float64)
        return values[self.inside(x).long()]

    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples: covariates by the seed, treatments and outcomes by the generator."""
        covariates = public_generator(self.seed, "covariates")
        x = torch.randn(n, self._dimension, generator=covariates, dtype=torch.float64).clamp(-self._bound, self._bound)
        u = torch.rand(n, 2, generator=generator, dtype=torch.float64)
        a = u[:, 0] < self.propensity(x)
        mean = self.outcome(x)
        y = torch.where(a, mean[:, 1], mean[:, 0]) + self._noise * (2.0 * u[:, 1] - 1.0)
        return CausalData(x, a.to(torch.float64), y)
