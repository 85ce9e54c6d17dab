"""Features of standardised covariates, each with a weight of its own; of both arms of a study; and hidden units."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST = 3.0
"""Standardised covariates are clipped to [-MOST, MOST]."""
_STEEP, _FLAT, _SLOPE, _SIZE = 2.5, 2.0, 0.787, 0.38
_REACH, _HUMP = 1.5, 1.5  # at which a hump ends, and slopes of products; what it, and three slopes, are multiplied by
_SINE = 2.5  # of the waves: about one period over four standard deviations
TWO_VALUES = 1.4
"""Product of standardised ends below which there are two values: 1 but for noise, see ``Standardisation.levels``."""
Indicators = Sequence[int | None]
"""For each covariate the position of the column that says where it is missing, or None; empty if none may be."""
PAIRED, TRIPLE = "tqp", "p"
"""Kinds of products that a private choice gives an effect: a slope times a step, a hump or two slopes; the last."""
PRODUCTS = {"x": 2, "t": 2, "q": 2, TRIPLE: 3}
"""Kinds of several covariates, with how many."""


@dataclass(frozen=True, eq=False)
class Standardisation:
    r"""z = clip((u - mean) / sd, -3, 3) for covariates u scaled to [-1, 1].

    Its numbers are released before anything else is computed from z, so that z is a public map of each record, and a
    clip bounds what one record can do.

    Attributes:
        mean: Released means, float64 [k].
        sd: Released standard deviations, float64 [k], positive.

    Example:
        >>> Standardisation(torch.zeros(1).double(), torch.full((1,), 0.25).double())(torch.tensor([[0.5], [1.0]])).T
        tensor([[2., 3.]], dtype=torch.float64)
    """

    mean: Tensor
    sd: Tensor

    def __call__(self, u: Tensor) -> Tensor:
        """Return z [n, k] of scaled covariates u [n, k]."""
        device = u.device
        return ((u - self.mean.to(device)) / self.sd.to(device)).clamp(-MOST, MOST)

    def of(self, u: Tensor, columns: Sequence[int] | None = None, indicators: Indicators = ()) -> Tensor:
        """Return z [n, k] of some of all scaled covariates u [n, q]; that of a missing value is 0.

        A missing value is so imputed by the released mean, at no cost beyond its indicator.

        Args:
            u: All covariates.
            columns: Which of them are standardised; None for all.
            indicators: For each of all the position of the one that says where it is missing, see ``Domain``.

        Example:
            >>> same = Standardisation(torch.full((1,), 0.5).double(), torch.full((1,), 0.5).double())
            >>> same.of(torch.tensor([[0.0, 1.0], [0.0, -1.0]]), [0], (1, None)).tolist()
            [[0.0], [-1.0]]
        """
        z = self(u if columns is None else u[:, list(columns)])
        gone = absent(u, columns, indicators)
        return z if gone is None else z.masked_fill_(gone.to(z.device), 0.0)

    @classmethod
    def none(cls, k: int) -> "Standardisation":
        """Return that which leaves k scaled covariates as they are.

        Args:
            k: How many.
        """
        zero = torch.zeros(k, dtype=torch.float64)
        return cls(zero, zero + 1)

    def levels(self, two_levels: Sequence[bool]) -> tuple[bool, ...]:
        r"""Return which covariates have two levels, as it is declared or as these numbers say, [k].

        .. math:: E[(z - z_-)(z_+ - z)] = -1 - z_- z_+ \ge 0

        for z of mean 0 and variance 1 between the ends :math:`z_- < 0 < z_+`, of [-1, 1] or of the clip: it is nought
        where z is always at one of them, 2 where it is uniform, and more of most others. Squares, waves and steps of
        two values are lines. What it says follows from released numbers, and costs nothing.

        Args:
            two_levels: Whether each has two levels, as it is declared.

        Example:
            >>> half = torch.full((3,), 0.5, dtype=torch.float64)
            >>> spread = torch.tensor([0.75**0.5, 0.2, 0.2], dtype=torch.float64)
            >>> Standardisation(half, spread).levels([False, False, True])
            (True, False, True)
        """
        low, high = ((1 + self.mean) / self.sd).clamp_max(MOST), ((1 - self.mean) / self.sd).clamp_max(MOST)
        return tuple((torch.tensor(two_levels, dtype=torch.bool) | (low * high < TWO_VALUES)).tolist())

    def tensors(self) -> dict[str, Tensor]:
        """Return its numbers by name."""
        return {"mean": self.mean, "sd": self.sd}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Standardisation":
        """Inverse of ``tensors``.

        Raises:
            ValueError: Numbers of shapes that do not fit, or a spread that is not positive.
        """
        mean, sd = tensors["mean"], tensors["sd"]
        if not mean.shape == sd.shape == (len(mean),) or not bool((sd > 0).all()):
            raise ValueError("standardisation: mean and sd [k], sd positive")
        if not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in (mean, sd)):
            raise ValueError("standardisation: numbers are not finite float64")
        return cls(mean, sd)


def absent(u: Tensor, columns: Sequence[int] | None, indicators: Indicators) -> Tensor | None:
    """Return where values of some of all scaled covariates u [n, q] are missing, bool [n, k]; None if none may be.

    Args:
        u: All covariates.
        columns: Which of them are asked for; None for all.
        indicators: See ``Standardisation.of``.
    """
    chosen = range(len(indicators)) if columns is None else columns
    at = [indicators[column] for column in chosen] if indicators else []
    pairs = [(place, where) for place, where in enumerate(at) if where is not None]
    if not pairs:
        return None
    found = torch.zeros(u.shape[0], len(at), dtype=torch.bool, device=u.device)
    places, where = (list(part) for part in zip(*pairs, strict=True))
    found[:, places] = u[:, where] > 0
    return found


def among(columns: Sequence[int] | None, indicators: Indicators) -> Indicators:
    """Return the indicators of some covariates by positions among these; None where one is not there.

    Args:
        columns: Which of all covariates; None for all.
        indicators: Of all covariates.

    Example:
        >>> among((2, 3, 0), (1, None, 3, None))
        (1, None, None)
    """
    if columns is None or not indicators:
        return indicators
    places = {column: place for place, column in enumerate(columns)}
    at = [indicators[column] for column in columns]
    return tuple(None if where is None else places.get(where) for where in at)


class Levels(tuple[bool, ...]):
    """Whether each of some covariates has two levels, and which of them say where others are missing.

    A standardised value is 0 where it is missing, so that its product with its own indicator is a multiple of itself:
    ``all_features`` has no such product.

    Attributes:
        observed_by: For each the position of its indicator among them, or None; empty if none may be missing.

    Example:
        >>> [f"{f.kind}{f.i}{f.j}" for f in all_features(Levels([False, True, True], (1, None, None)), "1x")]
        ['100', '111', '122', 'x02', 'x12']
    """

    observed_by: Indicators

    def __new__(cls, two_levels: Sequence[bool], observed_by: Indicators = ()) -> "Levels":
        """Return the truth values, with their indicators."""
        found = super().__new__(cls, two_levels)
        found.observed_by = tuple(observed_by)
        return found

    @classmethod
    def of(cls, two_levels: Sequence[bool]) -> "Levels":
        """Return those that are given, or plain truth values as covariates of which none is missing."""
        return two_levels if isinstance(two_levels, Levels) else cls(two_levels)

    def pair(self, *places: int) -> bool:
        """Return whether one of some covariates says where another of them is missing."""
        return bool(self.observed_by) and not {*places}.isdisjoint(map(self.observed_by.__getitem__, places))


class Feature(NamedTuple):
    """A feature of one covariate, or of two.

    Attributes:
        kind: ``1`` linear, ``2`` square, ``x`` product of two, ``s`` sine, ``c`` cosine, ``t`` product with a step,
            ``q`` product with a hump, ``p`` product of three, ``h`` combination of hidden units.
        i: Position of the covariate, or of the combination.
        j: Position of the other one of a product, or of the one that steps or has the hump; else i again.
        third: That of the third one of a product of three; else none.
    """

    kind: str
    i: int
    j: int
    third: int | None = None


def step(z: Tensor) -> Tensor:
    r"""Return a step at zero less what a line has of it, at most 1.511 in size: of mean square .786 for a normal z.

    .. math:: h(z) = \frac{\tanh(2.5 z) - .787\, \mathrm{clip}(z, \pm 2)}{.38}

    A product :math:`z_i h(z_j)` is then nearly uncorrelated with :math:`z_i z_j`.

    Example:
        >>> step(torch.tensor([-0.5, 0.0, 2.0], dtype=torch.float64)).round(decimals=3).tolist()
        [-1.197, 0.0, -1.511]
    """
    return (_STEEP * z).tanh_().sub_(z.clamp(-_FLAT, _FLAT), alpha=_SLOPE).div_(_SIZE)


def hump(z: Tensor) -> Tensor:
    r"""Return a clipped square, at most 2.25 in size: the feature ``2`` within 1.5 of nothing.

    .. math:: c(z) = 1.5\, \mathrm{clip}((z^2 - 1) / \sqrt2, \pm 1.5)

    A product :math:`\mathrm{clip}(z_i, \pm 1.5)\, c(z_j)` is odd in one covariate and even in the other, and so is
    uncorrelated with :math:`z_i z_j` and :math:`z_i h(z_j)` of independent normal ones. Its mean square is .852 then.

    Example:
        >>> hump(torch.tensor([-3.0, 0.0, 1.0], dtype=torch.float64)).round(decimals=3).tolist()
        [2.25, -1.061, 0.0]
    """
    return z.square().sub_(1).div_(math.sqrt(2)).clamp_(-_REACH, _REACH).mul_(_HUMP)


# of mean square one for a standard normal covariate, but for waves (about one), steps (.786), humps (.852) and products
# of three (1.06). The first argument holds the covariates and becomes the features in place: copies of some megabytes
# cost more than the arithmetic.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "1": lambda a: a,
    "2": lambda a: a.square_().sub_(1).div_(math.sqrt(2)),
    "x": lambda a, b: a.mul_(b),
    "s": lambda a: a.mul_(_SINE).sin_().mul_(math.sqrt(2)),
    "c": lambda a: a.mul_(_SINE).cos_().mul_(math.sqrt(2)),
    "t": lambda a, b: a.mul_(step(b)),
    "q": lambda a, b: a.clamp_(-_REACH, _REACH).mul_(hump(b)),
    TRIPLE: lambda a, *b: torch.stack([a, *b]).clamp_(-_REACH, _REACH).prod(0).mul_(_HUMP),
}
KINDS = tuple(_FUNCTIONS)
"""Kinds of features, in the order in which a basis has them."""
UNITS = "h"
"""Kind of combinations of released hidden units, after all others: see ``HiddenUnits``."""


def lengths(psi: Tensor) -> Tensor:
    """Return the norms of features psi [n, p] of records, [n]; faster than ``norm`` where they lie feature by feature.

    Example:
        >>> lengths(torch.tensor([[3.0, 4.0]]))
        tensor([5.])
    """
    return psi.square().sum(1).sqrt()


def all_features(
    two_levels: Sequence[bool], kinds: Sequence[str] = KINDS, heads: int | None = None
) -> tuple[Feature, ...]:
    """Return the features of k covariates; those with two levels have a linear part and products, and do not step.

    None is of a covariate with what says where it is missing, see ``Levels``.

    Args:
        two_levels: Whether each covariate has two levels, by its schema.
        kinds: Which kinds.
        heads: How many of them, the first ones, have more than a linear feature; None: all.

    Example:
        >>> [f"{f.kind}{f.i}{f.j}" for f in all_features([False, True], "12x")]
        ['100', '111', '200', 'x01']
    """
    k, found, levels = len(two_levels), [], Levels.of(two_levels)
    rich = k if heads is None else heads
    for kind in kinds:
        if kind == "x":
            found += [Feature(kind, i, j) for i in range(rich) for j in range(i + 1, rich)]
        elif kind == TRIPLE:
            found += [Feature(kind, *three) for three in combinations(range(rich), 3) if not levels.pair(*three)]
        elif kind in PAIRED:
            found += [Feature(kind, i, j) for i in range(rich) for j in range(rich) if i != j and not two_levels[j]]
        elif kind == "1":
            found += [Feature(kind, i, i) for i in range(k)]
        else:
            found += [Feature(kind, i, i) for i in range(rich) if not two_levels[i]]
    return tuple(feature for feature in found if not levels.pair(feature.i, feature.j))


@dataclass(frozen=True, eq=False)
class WeightedBasis:
    r"""psi(z) = (sqrt(e_0), sqrt(e_1) f_1(z), ..., sqrt(e_p) f_p(z)) with public weights e of sum one.

    One draw of isotropic noise on the coefficients then costs the constant 1/e_0 and feature j 1/e_j: feature_weights
    say how a step's budget is divided among features.

    Attributes:
        features: f_1 .. f_p, those of one kind next to each other.
        feature_weights: e, float64 [1 + p], positive.
        units: What features of the kind ``h`` are of; None where there are none.

    Example:
        >>> basis = WeightedBasis((Feature("1", 0, 0),), torch.tensor([0.75, 0.25]).double())
        >>> basis(torch.tensor([[2.0]]).double())
        tensor([[0.8660, 1.0000]], dtype=torch.float64)
    """

    features: tuple[Feature, ...]
    feature_weights: Tensor
    units: "HiddenUnits | None" = None

    @property
    def dimension(self) -> int:
        """Number of coefficients, 1 + p."""
        return 1 + len(self.features)

    @property
    def parts(self) -> dict[str, list[int]]:
        """Positions of the coefficients of each kind."""
        found: dict[str, list[int]] = {}
        for position, feature in enumerate(self.features, 1):
            found.setdefault(feature.kind, []).append(position)
        return found

    def __call__(self, z: Tensor) -> Tensor:
        """Return psi [n, 1 + p] of standardised covariates z [n, k], feature by feature in memory; no graph of z."""
        rows, start = z.T.contiguous(), 1  # a covariate lies in one piece, as do features made of it
        psi = z.new_empty(self.dimension, len(z))
        psi[0] = 1
        for kind, group in groupby(self.features, key=lambda feature: feature.kind):
            pairs = list(group)
            part = psi[start : start + len(pairs)]
            if kind == UNITS:
                assert self.units is not None
                part.copy_(self.units(z).T[[f.i for f in pairs]])
            else:
                first, *others = list(zip(*pairs, strict=True))[1 : 1 + PRODUCTS.get(kind, 1)]
                torch.index_select(rows, 0, torch.tensor(first, device=z.device), out=part)
                part.copy_(_FUNCTIONS[kind](part, *map(rows.__getitem__, map(list, others))))
            start += len(pairs)
        return psi.mul_(self.feature_weights.sqrt().to(z)[:, None]).T

    def traced(self, z: Tensor) -> Tensor:
        """Return what ``__call__`` does, in z's type and of any number of rows: for graphs that are exported."""
        parts = [torch.ones_like(z[:, :1])]
        for kind, group in groupby(self.features, key=lambda feature: feature.kind):
            pairs = list(group)
            if kind == UNITS:
                assert self.units is not None
                parts.append(self.units.traced(z)[:, [f.i for f in pairs]])
                continue
            places = list(zip(*pairs, strict=True))[1 : 1 + PRODUCTS.get(kind, 1)]
            parts.append(_FUNCTIONS[kind](*[z[:, list(place)] for place in places]))
        return torch.cat(parts, 1) * self.feature_weights.sqrt()

    def config(self) -> list[list[Any]]:
        """Return the features as plain types."""
        return [list(feature[: 3 + (feature.kind == TRIPLE)]) for feature in self.features]

    @classmethod
    def from_config(
        cls, config: Any, feature_weights: Tensor, covariates: int, units: "HiddenUnits | None" = None
    ) -> "WeightedBasis":
        """Inverse of ``config``.

        Args:
            config: Features as plain types.
            feature_weights: e.
            covariates: Number of covariates k.
            units: See ``WeightedBasis``.

        Raises:
            ValueError: No such features, or feature_weights that do not fit.
        """
        features = tuple(Feature(str(kind), int(i), int(j), *map(int, third[:1])) for kind, i, j, *third in config)
        most = dict.fromkeys(KINDS, covariates) | ({} if units is None else {UNITS: len(units.shares)})
        known = all(
            len(row) == 3 + (f.kind == TRIPLE)
            and 0 <= min(map(int, row[1:])) <= max(map(int, row[1:])) < most.get(f.kind, 0)
            for f, row in zip(features, config, strict=True)
        )
        order = [list(most).index(f.kind) for f in features] if known else []
        if not known or order != sorted(order) or len(set(features)) < len(features):
            raise ValueError("basis: features of unknown kind, of covariates that are not there, or out of order")
        fits = feature_weights.shape == (1 + len(features),) and feature_weights.dtype == torch.float64
        if not fits or not bool((feature_weights > 0).all()) or not bool(feature_weights.isfinite().all()):
            raise ValueError("basis: feature_weights are positive float64 numbers, one a coefficient")
        return cls(features, feature_weights, units)


_LEAST = 0.2  # variance of a combination, over the largest: each costs sampling, and the other features some noise
_NAMES = ("weights", "biases", "correlations", "mixed", "less", "shares")
_CLOSE = 1e-4  # of moments over points
_RIDGE = 1e-6  # of features of weight one over public points, where two may be alike, or one nearly nothing


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    r"""Combinations of released hidden units less what other features have of them, of a covariate vector z.

    .. math:: c(z) = Q^\top \tanh(W z + b) - B^\top \psi(z)

    W and b are paid for by the regression that trained them; Q and B follow from them and from public points, over
    which the combinations are of mean square one, uncorrelated with each other and with the features. Where the network
    has nothing beyond features, the effect of those alone is so found as without it.

    Attributes:
        weights: W, float64 [units, k].
        biases: b, float64 [units].
        base: psi, features of weight one.
        correlations: Released ones, which the public points have, float64 [k, k].
        mixed: Q, float64 [units, m].
        less: B, float64 [1 + p, m].
        shares: Of the variance that all combinations have over public points, positive, float64 [m].

    Example:
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> points = torch.randn(500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> line = WeightedBasis(all_features([False], "1"), one)
        >>> found = HiddenUnits.beyond(torch.tensor([[3.0], [0.0]]).double(), 0 * one, line, one[:1, None], points)
        >>> len(found.features), (found(points).T @ points).abs().max().item() < 0.01
        (1, True)
    """

    weights: Tensor
    biases: Tensor
    base: WeightedBasis
    correlations: Tensor
    mixed: Tensor
    less: Tensor
    shares: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Return c [n, m] of standardised covariates z [n, k]."""
        mixed, less = self.mixed.to(z), self.less.to(z)
        return self._raw(z) @ mixed - self.base(z) @ less

    def traced(self, z: Tensor) -> Tensor:
        """Return what ``__call__`` does, on the device and of the type of its numbers: for graphs that are exported."""
        return torch.tanh(z @ self.weights.T + self.biases) @ self.mixed - self.base.traced(z) @ self.less

    def _raw(self, z: Tensor) -> Tensor:
        return torch.tanh(z @ self.weights.to(z).T + self.biases.to(z))

    @property
    def features(self) -> tuple[Feature, ...]:
        """Each combination as a feature."""
        return tuple(Feature(UNITS, j, j) for j in range(len(self.shares)))

    @classmethod
    def beyond(
        cls, weights: Tensor, biases: Tensor, basis: WeightedBasis, correlations: Tensor, points: Tensor
    ) -> "HiddenUnits | None":
        """Return what units have beyond features, the largest combinations first; None where that is nothing.

        Args:
            weights: W.
            biases: b.
            basis: The features, whose weights do not matter.
            correlations: Of the points.
            points: Public, [N, k].
        """
        base = WeightedBasis(basis.features, torch.ones_like(basis.feature_weights))
        psi, n = base(points), len(points)
        nothing = torch.zeros(0, dtype=torch.float64)
        raw = cls(weights, biases, base, correlations, nothing, nothing, nothing)._raw(points)
        gram = psi.T @ psi / n
        less = torch.linalg.solve(gram + _RIDGE * torch.eye(len(gram), dtype=torch.float64), psi.T @ raw / n)
        rest = raw - psi @ less
        values, vectors = torch.linalg.eigh(rest.T @ rest / n)
        own = values > max(_LEAST * float(values[-1]), _RIDGE)
        if not bool(own.any()):
            return None
        values, vectors = values[own].flip(0), vectors[:, own].flip(1) / values[own].flip(0).sqrt()
        return cls(weights, biases, base, correlations, vectors, less @ vectors, values / values.sum())

    def fit(self, basis: WeightedBasis, points: Tensor) -> bool:
        """Return whether Q, B and the shares are what ``beyond`` makes of W and b.

        Args:
            basis: As of ``beyond``.
            points: As of ``beyond``, with the correlations.
        """
        if self.base.features != basis.features:
            return False
        found, one = self(points), torch.eye(len(self.shares), dtype=torch.float64)
        shares = 1 / self.mixed.square().sum(0)
        return (
            torch.allclose(found.T @ found / len(points), one, rtol=0, atol=_CLOSE)
            and float((self.base(points).T @ found / len(points) - _RIDGE * self.less).abs().max()) < _CLOSE
            and torch.allclose(self.shares, shares / shares.sum(), rtol=_CLOSE, atol=0)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return its numbers by name."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], base: Any, covariates: int) -> "HiddenUnits":
        """Inverse of ``tensors``.

        Args:
            tensors: The numbers.
            base: Features as ``WeightedBasis.config`` returns them.
            covariates: Number of covariates k.

        Raises:
            ValueError: Numbers whose shapes do not fit, or shares that are not positive.
        """
        found = dict(tensors)
        if set(found) != set(_NAMES):
            raise ValueError(f"units: {', '.join(_NAMES)}")
        basis = WeightedBasis.from_config(base, torch.ones(1 + len(base), dtype=torch.float64), covariates)
        units, m = len(found["biases"]), len(found["shares"])
        shapes = {
            "weights": (units, covariates),
            "biases": (units,),
            "correlations": (covariates, covariates),
            "mixed": (units, m),
            "less": (basis.dimension, m),
            "shares": (m,),
        }
        for name, shape in shapes.items():
            tensor = found[name]
            if tensor.shape != shape or tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
                raise ValueError(f"units: {name} is float64 {list(shape)}, finite")
        if not m or not bool((found["shares"] > 0).all()) or float(found["shares"].sum()) > 1 + 1e-9:
            raise ValueError("units: shares are positive, and one together")
        correlations = found["correlations"]
        if not torch.allclose(correlations, correlations.T, rtol=0, atol=1e-12) or bool(
            torch.linalg.cholesky_ex(correlations).info
        ):
            raise ValueError("units: correlations are a positive definite matrix")
        return cls(base=basis, **found)


def simplex(arms: int) -> Tensor:
    """Return K points at distance one from each other, of mean zero, float64 [K, K - 1].

    Example:
        >>> simplex(2).round(decimals=9).tolist()
        [[-0.5], [0.5]]
        >>> [round(value, 6) for value in torch.pdist(simplex(4)).tolist()]
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    points = torch.zeros(arms, arms - 1, dtype=torch.float64)
    for column in range(arms - 1):
        # Helmert's contrast of arm column + 1 and the mean of all before it
        points[: column + 1, column] = -1 / (column + 1)
        points[column + 1, column] = 1
    return points / (points.norm(dim=0) * math.sqrt(2))


def effects_of(psi: Tensor, theta: Tensor, arms: int) -> Tensor:
    r"""Return effects by features and coefficients: [m] of two arms, else those of all others against the first.

    .. math:: \tau_k(x) = (v_k - v_1)^\top b(x), \qquad b_j(x) = \psi(x)^\top \theta_j,

    v being ``simplex(K)``: none of the arms was another's reference when they were fitted.

    Args:
        psi: Features, [m, 1 + p].
        theta: Coefficients, [(K - 1) (1 + p)].
        arms: K.

    Returns:
        [m], or [m, K - 1].

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> effects_of(one, torch.tensor([1.0, 0.0], dtype=torch.float64), 3).round(decimals=6).tolist()
        [[1.0, 0.5]]
    """
    if arms == 2:
        return psi @ theta
    points = simplex(arms).to(psi)
    return psi @ theta.reshape(arms - 1, -1).T @ (points[1:] - points[0]).T
