"""The public facts about the records: bounds of every column, and the overlap bound."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate._process import BATCH
from torchdpcate.data._arrays import (
    MEND_MISSING,
    is_frame,
    missing_columns,
    others_too,
    plural,
    to_float64,
    to_matrix,
)
from torchdpcate.data.censoring import Censoring
from torchdpcate.data.covariates import CovariateScales, Numeric
from torchdpcate.data.domain_file import read_domain_file, schema_arguments
from torchdpcate.data.facts import (
    IN_CODE,
    check_better,
    check_bounds,
    check_count,
    check_distinct,
    check_integer,
    check_kind,
    check_name,
    check_origin,
    check_sd,
    to_number,
)
from torchdpcate.data.propensity import KnownPropensity, Propensity, known_propensity
from torchdpcate.data.weights import DROP, RecordWeights, dropped_roles, dropped_words
from torchdpcate.errors import InputError, MissingError

_RESOLUTION = 2.0**-40  # least range of outcomes, in units of their size
_CLIP = (
    "name codes of missing values in the domain file first, codes: [-99]; then clip with data.out_of_bounds=clip "
    "(Domain.clip_covariates), or give a bound known from outside the records"
)
_MOVE = "move these queries into the domain"


def _digits(_: str, bound: float) -> str:
    return f"{bound:.10g}"


class Domain:
    r"""Public box of the covariates and of the outcome, with the overlap bound.

    A record is (x, a, y) with :math:`x \in \prod_j [l_j, u_j]`, :math:`a \in \{0, 1\}` and
    :math:`y \in [y_{lo}, y_{hi}]`; propensities are clipped to :math:`[\zeta, 1 - \zeta]`, with
    :math:`\zeta` the overlap bound. Every guarantee rests on these facts, so they come from the
    user and never from the records.

    Args:
        covariate_low: Lower bounds :math:`l`, q numbers.
        covariate_high: Upper bounds :math:`u`, q numbers, each above its lower bound.
        outcome_low: :math:`y_{lo}`.
        outcome_high: :math:`y_{hi}`, above ``outcome_low``.
        overlap: :math:`\zeta`, above 0 and at most 1/2, which a known propensity alone may have.
        names: Names of the q columns; ``x0, x1, ...`` if left out.
        origin: Where these facts come from, in a few public words; part of every release. Two domains with
            the same facts are equal wherever the facts come from.
        two_levels: For each column, whether it holds its lower or its upper bound and nothing between; none does if
            left out.
        propensity: P(A = 1) where the design of the study makes it known, within the overlap: a number, the name of a
            column that is no covariate and holds each record's own, or ``{covariate: {level: number}}`` of a covariate
            with two levels or of indicators ``covariate=level``; None where it is not known.
        outcome_kind: ``"continuous"``, ``"binary"`` (0 or 1) or ``"count"`` (integers from 0 on).
        scales: For each column ``"linear"`` or ``"log"``; all are linear if left out. See ``CovariateScales``.
        typical: For each column None or the range ``(a, b)`` that about nine of ten values lie in, known from outside
            the records.
        treated: Share of records that are treated, known from outside them, where the propensity is not known: what a
            plan expects of rare treatments; None expects about half.
        indicators: For columns whose values may be missing, the name of the column of two levels that is 1 where they
            are; a missing value is then the middle of its bounds, and compositions take it as the mean of the others.
        weights: Column of the records' weights with its public bound, ``{"name": "w", "high": 5}``, see
            ``RecordWeights``; None where all records count alike.
        missing: ``{"outcome": "drop", "treatment": "drop"}``, either or both, where these may be missing: such records
            count nothing, n stays the public number of all, and how many they are is told with paid noise alone.
        censoring: Entries of an outcome by a horizon that follow-up may end before, see ``Censoring``, whose bounds and
            kind it has; None where outcomes are known.
        better: ``"higher"`` or ``"lower"``: which outcomes are good, as rules and choices of a policy need to know;
            None where nothing is said.
        outcome_sd: Standard deviation of the outcome as known from outside the records, by which plans judge noise; no
            guarantee rests on it. None where nothing is said.

    Attributes:
        covariate_low: float64 tensor [q].
        covariate_high: float64 tensor [q].
        columns: Tuple of q ``Numeric``.
        names: Tuple of q names.
        two_levels: Tuple of q truth values.
        scales: Tuple of q words.
        typical: Tuple of q ranges or None.
        known_propensity: A ``KnownPropensity``, or None.
        treated: The public share of the treated, or None.
        indicators: For each column the position of the one that says where it is missing, or None.
        weights: ``RecordWeights``, or None.
        dropped: Which of ``outcome`` and ``treatment`` may be missing.
        censoring: ``Censoring``, or None.
        better: Which outcomes are good, or None.
        outcome_sd: Standard deviation of the outcome, or None.

    Raises:
        InputError: A bound is missing or not finite, low is not below high, ``overlap`` lies outside (0, 1/2], or is
            1/2 without a propensity, ``names`` do not match, ``origin`` is not words, the propensity is 0 or 1, outside
            the overlap, a covariate's column or without a number for a level, ``treated`` is outside the overlap or
            beside a propensity, the outcome's bounds do not fit its kind, a scale or a typical range does not fit its
            column, see ``check_scale``, an indicator is no column of two levels from 0 to 1, ``better`` is another
            word, or ``outcome_sd`` none that the bounds allow.

    Example:
        >>> domain = Domain([0.0, 16.0], [1.0, 60.0], outcome_low=-1.0, outcome_high=1.0)
        >>> domain.dimension, domain.outcome_range
        (2, 2.0)
        >>> domain.scale(torch.tensor([[0.5, 60.0]])).tolist()
        [[0.0, 1.0]]
    """

    def __init__(
        self,
        covariate_low: Sequence[float] | Tensor,
        covariate_high: Sequence[float] | Tensor,
        outcome_low: float,
        outcome_high: float,
        overlap: float = 0.05,
        names: Sequence[str] | None = None,
        origin: str = IN_CODE,
        two_levels: Sequence[bool] | None = None,
        propensity: Propensity | None = None,
        outcome_kind: str = "continuous",
        scales: Sequence[str] | None = None,
        typical: Sequence[Sequence[float] | None] | None = None,
        treated: float | None = None,
        indicators: Mapping[str, str] | None = None,
        weights: "RecordWeights | Mapping[str, Any] | None" = None,
        missing: Mapping[str, str] | None = None,
        censoring: "Censoring | Mapping[str, Any] | None" = None,
        better: str | None = None,
        outcome_sd: float | None = None,
    ) -> None:
        self.covariate_low = _vector(covariate_low, "covariate_low")
        self.covariate_high = _vector(covariate_high, "covariate_high")
        q = len(self.covariate_low)
        check_count(q)
        if q != len(self.covariate_high):
            raise InputError(
                f"covariate_low has {q} bounds and covariate_high {len(self.covariate_high)}; give both for every "
                "covariate"
            )
        self._named = names is not None
        self.names = tuple(f"x{i}" for i in range(q)) if names is None else tuple(map(str, names))
        self._check_names(q)
        bounds = self.names, self.covariate_low.tolist(), self.covariate_high.tolist(), [""] * q
        facts = _flags(two_levels, q), _one_each("scales", scales, "linear", q), _one_each("typical", typical, None, q)
        self.columns = tuple(itertools.starmap(Numeric, zip(*bounds, *facts, strict=True)))
        self.two_levels = tuple(column.two_levels for column in self.columns)
        self.scales = tuple(column.scale for column in self.columns)
        self.typical = tuple(column.typical for column in self.columns)
        self.covariate_scales = CovariateScales(self.columns)
        self.indicators = self._indicators(indicators or {})
        self.outcome_low, self.outcome_high = check_bounds("outcome", outcome_low, outcome_high)
        if self.outcome_range < _RESOLUTION * max(abs(self.outcome_low), abs(self.outcome_high)):
            raise InputError(
                f"bounds of outcome are [{self.outcome_low!r}, {self.outcome_high!r}]: float64 cannot "
                "distinguish outcomes so far from zero; subtract a public number from them"
            )
        self.overlap = to_number("overlap", overlap)
        if not 0.0 < self.overlap <= 0.5:
            raise InputError(f"overlap is {self.overlap:g}; it must lie above 0 and at most at 0.5")
        if self.overlap == 0.5 and propensity is None:
            raise InputError(
                "overlap is 0.5: it says that both arms are equally likely for everybody; where a trial's design says "
                "so, give propensity 0.5 too, else a lower overlap"
            )
        self.origin = check_origin("domain", origin)
        self.outcome_kind = check_kind(outcome_kind, self.outcome_low, self.outcome_high)
        levels = {column.name: column.levels for column in self.columns if column.levels}
        self.known_propensity: KnownPropensity | None = known_propensity(propensity, self.names, levels, self.overlap)
        self.treated = self._share(treated)
        self.weights = RecordWeights.of(weights)
        self.dropped = dropped_roles(missing)
        self.censoring = Censoring.of(censoring)
        if self.censoring is not None:
            own = {"low": self.outcome_low, "high": self.outcome_high, "kind": self.outcome_kind}
            if own != self.censoring.facts:
                raise InputError(f"outcome by a horizon has {self.censoring.facts}; give these, and not {own}")
        if self.is_rate and (self.outcome_low != 0 or self.outcome_kind == "binary" or self.censoring is not None):
            raise InputError("exposure: is of counts from 0 (low: 0, no kind: binary, no horizon); leave one out")
        self.better = check_better(better)
        self.outcome_sd = check_sd(outcome_sd, self.outcome_low, self.outcome_high)

    @classmethod
    def of_columns(
        cls, columns: Sequence[Numeric], outcome_low: float, outcome_high: float, overlap: float, **facts: Any
    ) -> "Domain":
        """Return the domain of these covariates; ``facts`` are the other arguments by their names."""
        found = cls(
            [column.low for column in columns],
            [column.high for column in columns],
            outcome_low,
            outcome_high,
            overlap,
            names=[column.name for column in columns],
            two_levels=[column.two_levels for column in columns],
            scales=[column.scale for column in columns],
            typical=[column.typical for column in columns],
            **facts,
        )
        found.columns = tuple(columns)  # which have labels
        return found

    def _share(self, treated: float | None) -> float | None:
        if treated is None:
            return None
        share = to_number("treated", treated)
        if self.known_propensity is not None:
            raise InputError(
                f"treated is {share:g}, beside a propensity that says who is treated; leave one of them out"
            )
        if not self.overlap <= share <= 1 - self.overlap:
            raise InputError(
                f"treated is {share:g}; give the public share of records that are treated, from the overlap "
                f"{self.overlap:g} to {1 - self.overlap:g}, or lower the overlap"
            )
        return share

    def _indicators(self, given: Mapping[str, str]) -> tuple[int | None, ...]:
        place = {name: position for position, name in enumerate(self.names)}
        for name, where in given.items():
            own = self.columns[place[where]] if where in place else None
            if name not in place or own is None or (own.low, own.high, own.two_levels) != (0.0, 1.0, True):
                raise InputError(
                    f"indicators is {dict(given)}: give for a column with missing values the name of a column of two "
                    "levels, 0 and 1"
                )
        return tuple(place[given[name]] if name in given else None for name in self.names)

    def _check_names(self, q: int) -> None:
        if not q:
            raise InputError("covariate_low is empty; a domain needs at least one covariate")
        if len(self.names) != q:
            raise InputError(f"names has {len(self.names)} names for {q} covariates")
        for name in self.names:
            check_name("a covariate", name)
        if len(set(self.names)) != q:
            raise InputError(f"names {list(self.names)} holds a name twice; each column needs its own")
        check_distinct("covariates", self.names)

    @property
    def dimension(self) -> int:
        """Number q of (encoded) covariate columns."""
        return len(self.covariate_low)

    @property
    def is_rate(self) -> bool:
        """Whether effects are on a rate: the sum of outcomes over that of an exposure."""
        return self.weights is not None and self.weights.unit is not None

    @property
    def effect_unit(self) -> float:
        """What one of the outcome is of an effect: one; of rates one over the mean exposure that plans expect."""
        return 1 / self.weights.mean if self.weights and self.is_rate else 1.0

    @property
    def expected_weight(self) -> float | None:
        """Mean of the records' weights v that plans expect, public; None where all count alike."""
        if self.weights is None and self.censoring is None:
            return 1.0 if self.dropped else None
        share = 1.0 if self.weights is None else self.weights.share
        return share if self.censoring is None else share * self.censoring.expected_weight

    @property
    def counting(self) -> dict[str, str]:
        """How records count where they do not all count alike, in words, by subject."""
        found = {} if self.weights is None else {"exposure" if self.is_rate else "weights": self.weights.words}
        if self.dropped:
            found["missing"] = dropped_words(self.dropped, self.known_propensity is not None)
        return found if self.censoring is None else {**found, "censoring": self.censoring.words}

    def weigh(self, weight: Tensor, clip: bool) -> Tensor:
        """Return v [n], in [0, 1], of records with weights [n] as they are given.

        Args:
            weight: In the units of ``weights``; without any, 1, or 0 where treatment or outcome is missing.
            clip: Whether weights outside their bounds are moved to them, or refused.

        Raises:
            InputError: Weights outside their bounds (how many).
        """
        return (self.weights or RecordWeights("weight", 1.0, 1.0)).within(weight, clip)

    @property
    def least_propensity(self) -> float:
        """Least probability of either arm that any record may have: the overlap bound, or more where it is known."""
        return self.overlap if self.known_propensity is None else self.known_propensity.of_arms.min().item()

    @property
    def outcome_middle(self) -> float:
        """Middle of the outcome's bounds."""
        return self.outcome_low + self.outcome_range / 2

    @property
    def outcome_range(self) -> float:
        r"""Width :math:`R = y_{hi} - y_{lo}`."""
        return self.outcome_high - self.outcome_low

    @property
    def direction(self) -> int:
        """1 where large outcomes are good, -1 where small ones are: what a rule maximises is this times the outcome.

        A sign turns no bound, as those of scores and of weights are about zero: sensitivities are the same.

        Raises:
            MissingError: Nothing is said of it.

        Example:
            >>> Domain([0.0], [1.0], 0.0, 10.0, better="lower").direction
            -1
        """
        if self.better is None:
            raise MissingError(
                "better: nothing says whether high or low outcomes are good, and a rule needs to know; add better: "
                "higher or better: lower to the outcome in the domain file, or Domain(better=)"
            )
        return 1 if self.better == "higher" else -1

    def matrix(self, X: Any, what: str = "X") -> Tensor:
        """Return covariates as a finite float64 matrix [n, q], its columns in the domain's order.

        A DataFrame that has all the domain's names is read by name, and must have them if the user
        named the columns; anything else is read by position. Bounds are not checked.

        Raises:
            InputError: Wrong shape, missing columns, or missing values (which column, how many).
        """
        if is_frame(X):
            missing = [name for name in self.names if name not in X.columns]
            twice = None if missing else missing_columns(self.names, list(X.columns))
            if twice:
                raise InputError(f"{what}: {twice}")
            if missing and self._named:
                raise InputError(f"{what} lacks the column {missing[0]!r}; it needs {list(self.names)}")
            X = X if missing else X[list(self.names)]
        matrix = to_matrix(X, self.names, what)
        if matrix.shape[1] != self.dimension:
            raise InputError(f"{what} has {matrix.shape[1]} columns; the domain has {self.dimension}")
        return matrix

    def check_covariates(self, X: Any, what: str = "covariate", written: Callable[[str, float], str] = _digits) -> None:
        """Refuse covariates [n, q] outside the box.

        Args:
            X: Covariates, NumPy, torch or pandas.
            what: ``"covariate"``, or ``"query"`` for points at which effects are requested.
            written: From a column's name and a bound to the words of the bound in messages.

        Raises:
            InputError: Names the column with most values outside, how many, and its bounds.
        """
        X = self.matrix(X, what)
        if not all(torch.equal(self.clip_covariates(rows), rows) for rows in X.split(BATCH)):
            outside = (self.clip_covariates(X) != X).sum(0)
            column = int(outside.argmax())
            bounds = self.covariate_low[column].item(), self.covariate_high[column].item()
            remedy = _MOVE if what.startswith("query") else _CLIP
            name = self.names[column]
            _refuse(f"{what} {name!r}", outside, [written(name, bound) for bound in bounds], remedy)

    def check_outcome(self, y: Any, what: str = "outcome") -> None:
        """Refuse outcomes [n] outside their bounds; ``what`` names them in the message.

        Raises:
            InputError: Says how many lie outside, and the bounds.
        """
        y = to_float64(y, what).flatten()
        missing = int((~torch.isfinite(y)).sum())
        if missing:
            raise InputError(f"{what} has {plural(missing, 'missing or infinite value')}; {MEND_MISSING}")
        outside = ((y < self.outcome_low) | (y > self.outcome_high)).sum(0, keepdim=True)
        if outside.any():
            bounds = self.outcome_low, self.outcome_high
            _refuse(what, outside, [_digits(what, bound) for bound in bounds], _CLIP)

    def clip_covariates(self, X: Tensor) -> Tensor:
        """Move each covariate of X [n, q] to the nearest point of its bounds (dtype follows X)."""
        return torch.clamp(X, self.covariate_low.to(X), self.covariate_high.to(X))

    def clip_outcome(self, y: Tensor) -> Tensor:
        """Move each outcome of y [n] to the nearest point of its bounds."""
        return torch.clamp(y, self.outcome_low, self.outcome_high)

    def scale(self, X: Tensor) -> Tensor:
        r"""Return :math:`2 (x - l) / (u - l) - 1`, in :math:`[-1, 1]^q` for x in the box.

        A column with a log scale or a typical range is bent by it between the same ends, see ``CovariateScales``. A
        column whose bounds are one number in X's dtype becomes 0. Device and floating dtype follow X; differentiable.
        """
        X = X if X.is_floating_point() else X.to(torch.float64)
        low, width = self.covariate_low.to(X), self.covariate_high.to(X) - self.covariate_low.to(X)
        constant = width == 0
        shares = (X - low) / width.masked_fill(constant, 1.0)
        scaled = 2.0 * (shares if self.linear else self.covariate_scales.shares(shares)) - 1.0
        return scaled.masked_fill(constant, 0.0)

    @property
    def linear(self) -> bool:
        """Whether every column is scaled linearly: none is on a log scale or has a typical range."""
        return self.covariate_scales.linear

    def from_unit(self, shares: Tensor) -> Tensor:
        r"""Return the points x [..., q] of the box with :math:`\mathrm{scale}(x) = 2 s - 1`, for shares s in [0, 1].

        Device and dtype follow the shares; differentiable.

        Example:
            >>> domain = Domain([1.0, 0.0], [100.0, 4.0], 0.0, 1.0, scales=["log", "linear"])
            >>> domain.from_unit(torch.tensor([[0.5, 0.5]])).round(decimals=4).tolist()
            [[10.0, 2.0]]
        """
        low, width = self.covariate_low.to(shares), (self.covariate_high - self.covariate_low).to(shares)
        # Rounding may step over the upper bound.
        return self.clip_covariates(low + self.covariate_scales.linear_shares(shares) * width)

    def line(self, column: int, points: int) -> Tensor:
        """Return values of one column from bound to bound, evenly on its scale, float64 [points]."""
        own = self.columns[column]
        if own.linear:
            return torch.linspace(own.low, own.high, points, dtype=torch.float64)
        return own.decode_unit(torch.linspace(0, 1, points, dtype=torch.float64))[:, 0]

    def grid(self, count: int) -> Tensor:
        """Return ``count`` public points that fill the scaled box evenly, float64 [count, q].

        Scrambled Sobol points with a fixed seed: the same for everybody. A schema with categories
        has its own ``TableSchema.grid``, which keeps to the categories.
        """
        return self.from_unit(unit_grid(count, self.dimension))

    def select(self, columns: Sequence[int]) -> "Domain":
        """Return the domain of some of the covariates, by position.

        Raises:
            InputError: A position that is not there, or none at all.

        Example:
            >>> Domain([0, 1, 2], [3, 4, 5], 0.0, 1.0, names=["a", "b", "c"]).select([0, 2]).names
            ('a', 'c')
        """
        chosen = list(columns)
        if not all(0 <= column < self.dimension for column in chosen):
            raise InputError(f"columns are {chosen}; the domain has {self.dimension}, counted from 0")
        selected = Domain.of_columns(
            [self.columns[column] for column in chosen],
            self.outcome_low,
            self.outcome_high,
            self.overlap,
            origin=self.origin,
            outcome_kind=self.outcome_kind,
            propensity=0.5 if self.overlap == 0.5 else None,  # where it is known, it replaces this below
            treated=self.treated,
            weights=self.weights,
            missing=dict.fromkeys(self.dropped, DROP),
            censoring=self.censoring,
            better=self.better,
            outcome_sd=self.outcome_sd,
        )
        at = [self.indicators[column] for column in chosen]
        selected.indicators = tuple(chosen.index(place) if place in chosen else None for place in at)
        if self.known_propensity is not None:
            selected.known_propensity = self.known_propensity.select(chosen)
        return selected

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, fit for JSON; ``from_dict`` is the inverse."""
        return {
            "covariate_low": self.covariate_low.tolist(),
            "covariate_high": self.covariate_high.tolist(),
            "outcome_low": self.outcome_low,
            "outcome_high": self.outcome_high,
            "overlap": self.overlap,
            "names": list(self.names) if self._named else None,
            "origin": self.origin,
            **({"two_levels": list(self.two_levels)} if any(self.two_levels) else {}),
            **({} if self.known_propensity is None else {"propensity": self.known_propensity.entry()}),
            **({} if self.outcome_kind == "continuous" else {"outcome_kind": self.outcome_kind}),
            **({"scales": list(self.scales)} if "log" in self.scales else {}),
            **({"typical": [range_ and list(range_) for range_ in self.typical]} if any(self.typical) else {}),
            **({} if self.treated is None else {"treated": self.treated}),
            **({"indicators": self._named_indicators()} if self.has_missing else {}),
            **({} if self.weights is None else {"weights": self.weights.entry()}),
            **({"missing": dict.fromkeys(self.dropped, DROP)} if self.dropped else {}),
            **({} if self.censoring is None else {"censoring": self.censoring.entry()}),
            **({} if self.better is None else {"better": self.better}),
            **({} if self.outcome_sd is None else {"outcome_sd": self.outcome_sd}),
        }

    @property
    def has_missing(self) -> bool:
        """Whether values of a column may be missing."""
        return any(place is not None for place in self.indicators)

    def _named_indicators(self) -> dict[str, str]:
        both = zip(self.names, self.indicators, strict=True)
        return {name: self.names[place] for name, place in both if place is not None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "Domain":
        """Rebuild a domain from ``to_dict``.

        Raises:
            InputError: An entry is missing, unknown or invalid.
        """
        try:
            return cls(**facts)
        except TypeError as error:
            raise InputError(f"domain is not what Domain.to_dict writes: {error}") from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> "Domain":
        """Read the domain of a table's yaml file, or of a shipped one by name (``"lalonde"``).

        Raises:
            InputError: See ``TableSchema.from_yaml``.
        """
        return cls.of_columns(**read_domain_file(path, schema_arguments)["domain"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        outcome = f"[{self.outcome_low:g}, {self.outcome_high:g}]"
        return f"Domain(dimension={self.dimension}, outcome={outcome}, overlap={self.overlap:g})"

    def _facts(self) -> tuple:
        outcome = (self.outcome_low, self.outcome_high, self.outcome_kind)
        propensity = self.overlap, self.known_propensity, self.treated
        counting = self.indicators, self.weights, self.dropped, self.censoring
        return self.columns, *outcome, *propensity, *counting, self.better, self.outcome_sd


def unit_grid(count: int, dimension: int) -> Tensor:
    """Return ``count`` scrambled Sobol points of a fixed seed in [0, 1)^dimension, float64.

    Raises:
        InputError: ``count`` is not a positive integer.
    """
    check_integer("queries", count)
    return torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0).draw(count, dtype=torch.float64)


def _vector(bounds: Sequence[float] | Tensor, name: str) -> Tensor:
    vector = to_float64(bounds, name).cpu()
    if vector.ndim != 1:
        raise InputError(f"{name} has shape {tuple(vector.shape)}; give one number per covariate")
    return vector.clone()


def _one_each(name: str, given: Any, default: Any, q: int) -> Sequence[Any]:
    if given is None:
        return [default] * q
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != q:
        raise InputError(f"{name} is {given!r}; give a list with one entry for each of {q} covariates")
    return given


def _flags(two_levels: Sequence[bool] | None, q: int) -> list[bool]:
    flags = [False] * q if two_levels is None else list(two_levels)
    if len(flags) != q or not all(flag in (True, False) for flag in flags):
        raise InputError(f"two_levels is {flags}; give true or false for each of {q} covariates")
    return [bool(flag) for flag in flags]


def _refuse(who: str, outside: Tensor, bounds: Iterable[str], remedy: str) -> None:
    """Refuse values of the column of which most are outside, by how many are so of each column."""
    raise InputError(
        f"{who} has {plural(int(outside.max()), 'value')} outside its declared bounds [{', '.join(bounds)}]"
        f"{others_too(outside)}; {remedy}"
    )
