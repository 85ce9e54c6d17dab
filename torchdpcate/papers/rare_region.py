"""Generators for choosing among policies: treatment helps in a rare region and is rarely given there."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data._arrays import listed
from torchdpcate.data._frames import about, read_frame
from torchdpcate.data.covariates import Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema, check_policy
from torchdpcate.data.split import public_generator
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.data.table import public_subsample, table_name
from torchdpcate.errors import InputError


class RareRegionStudy(GeneratedStudy):
    r"""Covariates of some law; a treatment that helps in a rare region, where few get it, and hurts a little elsewhere.

    .. math::
        S = \{x_j > t_j \text{ for all } j \in \text{region}\}, \quad
        \tau(x) = \begin{cases} 0.5 & x \in S \\ -0.06 & \text{else} \end{cases}, \quad
        P(A = 1 | x) = \begin{cases} 0.1 & x \in S \\ 0.5 & \text{else} \end{cases}, \quad
        Y = 0.38 + 0.04\, u_b(x) + A\, \tau(x) + U[-0.07, 0.07],

    with :math:`u_b` in [-1, 1] the first covariate outside the region, scaled by its bounds. The outcome lies in [0, 1]
    whatever is drawn, so the means are exact. Most policies cost more than they gain, and the records that distinguish
    the good ones are few: the hard case for private selection, where a learned score's indirect sensitivity matters,
    and where a constant propensity misses much of the gain. Other arguments and errors: see ``GeneratedStudy``.

    Args:
        region: Thresholds :math:`t_j` by covariate, in the covariates' own units; None takes the generator's.

    Raises:
        InputError: ``region`` is no mapping to numbers, or (on ``load``) names something that is no covariate.
    """

    gain, cost = 0.5, 0.06
    _rare, _usual = 0.1, 0.5
    _baseline, _slope, _noise = 0.38, 0.04, 0.07
    usual_region: ClassVar[Mapping[str, float]]

    def __init__(self, region: Mapping[str, float] | None = None, **given: Any) -> None:
        super().__init__(**given)
        region = self.usual_region if region is None else region
        if not isinstance(region, Mapping) or not region:
            raise InputError(f"data.region is {region!r}; give a threshold by covariate, as {dict(self.usual_region)}")
        self.region = {str(name): to_number(f"data.region.{name}", t) for name, t in region.items()}

    @abstractmethod
    def draw_covariates(self, n: int) -> Tensor:
        """Return the covariates of n samples, [n, q], within the domain, by the seed."""

    @abstractmethod
    def numeric(self) -> tuple[Numeric, ...]:
        """Return the covariates' names and public bounds."""

    def domain(self) -> Domain:
        """Return the public facts of the law: outcomes in [0, 1], propensities from 0.1."""
        columns = self.numeric()
        low, high = [column.low for column in columns], [column.high for column in columns]
        names = [column.name for column in columns]
        unknown = [name for name in self.region if name not in names]
        if unknown or len(self.region) >= len(names):
            raise InputError(
                f"data.region names {listed(list(self.region))}; choose some of the covariates {listed(names)}, not all"
            )
        return Domain(low, high, 0.0, 1.0, self._rare, names, self._origin())

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
        x = self.draw_covariates(n)
        u = torch.rand(n, 2, generator=generator, dtype=torch.float64)
        a = u[:, 0] < self.propensity(x)
        mean = self.outcome(x)
        y = torch.where(a, mean[:, 1], mean[:, 0]) + self._noise * (2.0 * u[:, 1] - 1.0)
        return CausalData(x, a.to(torch.float64), y)


class RareRegion(RareRegionStudy):
    """Twenty standard normal covariates clipped to [-3, 3]; the region is x0 > 0.7 and x1 > 0.7, six in a hundred.

    Of the 160 policies that treat where one covariate is above, or at most, a threshold at one, two, three or four
    fifths of its bounds, a uniform choice has regret 0.0299 (0.0286 in the design of theory note ``policy_learning``
    9.5). Arguments and errors: see ``RareRegionStudy``.

    Example:
        >>> study = RareRegion(n=2000, seed=0).load()
        >>> study.records.n, study.domain.dimension, sorted(set(study.effect.tolist()))
        (1800, 20, [-0.06, 0.5])
    """

    usual_region: ClassVar[Mapping[str, float]] = {"x0": 0.7, "x1": 0.7}
    _dimension, _bound = 20, 3.0

    @property
    def name(self) -> str:
        """Name of the data."""
        return "rare_region"

    def draw_covariates(self, n: int) -> Tensor:
        """Draw the covariates from the seed."""
        generator = public_generator(self.seed, "covariates")
        x = torch.randn(n, self._dimension, generator=generator, dtype=torch.float64)
        return x.clamp(-self._bound, self._bound)

    def numeric(self) -> tuple[Numeric, ...]:
        """Return x0, ..., x19 in [-3, 3]."""
        return tuple(Numeric(f"x{j}", -self._bound, self._bound) for j in range(self._dimension))


class RealRareRegion(RareRegionStudy):
    """The first twenty numeric covariates of a real table, in their own units; by default those of ACIC 2016.

    The usual region is a mother above 31 who weighed more than 140 pounds: seven rows in a hundred. A uniform choice
    among the 160 policies of ``RareRegion`` has regret 0.0303. Other arguments and errors: see ``RareRegionStudy``.

    Args:
        path: csv, csv.gz or parquet of covariates (ACIC 2016: ``x.csv``), or a list of such files.
        covariates: The domain file, the name of a shipped one, its entries, or a schema; only its covariates' bounds
            are used, as treatment and outcome are the generator's.
        out_of_bounds: ``"refuse"`` or ``"clip"`` values outside their bounds.
        n: Rows used, records and held-out ones together, a public subsample; ACIC 2016 has 4,802.

    Raises:
        InputError: On ``load``, whatever in the file is not as declared (which column, how many).

    Example:
        >>> study = RealRareRegion("x.csv").load()  # doctest: +SKIP
        >>> study.records.n, study.domain.names[:3]  # doctest: +SKIP
        (4321, ('x_1', 'x_3', 'x_4'))
    """

    usual_region: ClassVar[Mapping[str, float]] = {"x_1": 31.0, "x_6": 140.0}
    _dimension = 20

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        covariates: TableSchema | Domain | Mapping[str, Any] | str | Path = "acic2016",
        out_of_bounds: str = "refuse",
        region: Mapping[str, float] | None = None,
        n: int = 4802,
        **given: Any,
    ) -> None:
        super().__init__(region, n=n, **given)
        check_policy(out_of_bounds)
        self.path = path
        self.covariates = covariates
        self.out_of_bounds = out_of_bounds

    @property
    def name(self) -> str:
        """The file's name and ``rare_region``."""
        return f"{table_name(self.path)}_rare_region"

    def numeric(self) -> tuple[Numeric, ...]:
        """Return the first twenty numeric covariates."""
        columns = [column for column in TableSchema.of(self.covariates).covariates if isinstance(column, Numeric)]
        return tuple(columns[: self._dimension])

    def draw_covariates(self, n: int) -> Tensor:
        """Read the rows."""
        columns = self.numeric()
        frame = read_frame(self.path, [column.name for column in columns])
        with about(self.path):
            x = torch.cat([torch.from_numpy(column.encode(frame[column.name])) for column in columns], dim=1)
            x = self.schema().handling(self.out_of_bounds).within(x)
        return x[public_subsample(len(x), n, self.seed)]
