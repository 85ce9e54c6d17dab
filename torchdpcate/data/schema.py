"""A table's public facts: which columns are read, and how they become numbers."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._arrays import check_aligned, listed, missing_columns
from torchdpcate.data._columns import category_codes, numeric_column
from torchdpcate.data._shipped import shipped
from torchdpcate.data._yaml import read_yaml
from torchdpcate.data.domain import IN_CODE, Domain, check_bounds, check_name, check_origin, to_number, unit_grid
from torchdpcate.data.propensity import StratumPropensity, level_values
from torchdpcate.data.records import CausalData, column_of
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class Covariate(ABC):
    """One column of a table and the numeric columns it becomes.

    Attributes:
        name: The column's name in the table.
        origin: Where its bounds or categories come from, if other than the schema's own; never compared.
    """

    name: str
    origin: str

    @property
    @abstractmethod
    def bounds(self) -> tuple[tuple[str, float, float], ...]:
        """Name, lower and upper bound of each encoded column."""

    @property
    @abstractmethod
    def levels(self) -> tuple[Any, ...]:
        """The values that the column may have, in the order of the encoding; empty if any between the bounds."""

    @abstractmethod
    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return the encoded columns, float64 [n, k].

        Raises:
            InputError: Missing or unknown values; says which column and how many.
        """

    @abstractmethod
    def decode_unit(self, u: Tensor) -> Tensor:
        """Map points u [n] of [0, 1) to encoded columns [n, k]: where a public grid lies."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return this covariate's yaml entry."""


@dataclass(frozen=True)
class Numeric(Covariate):
    """A number between public bounds, or one of the two if it has two levels; encoded as it is."""

    name: str
    low: float
    high: float
    origin: str = field(default="", compare=False)
    two_levels: bool = False

    def __post_init__(self) -> None:
        low, high = check_bounds(f"covariate {self.name!r}", self.low, self.high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def bounds(self) -> tuple[tuple[str, float, float], ...]:
        """The declared bounds."""
        return ((self.name, self.low, self.high),)

    @property
    def levels(self) -> tuple[Any, ...]:
        """The bounds, if it has two levels."""
        return (self.low, self.high) if self.two_levels else ()

    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return the numbers [n, 1]; bounds are the domain's to check."""
        return numeric_column(column, self.name)[:, None]

    def decode_unit(self, u: Tensor) -> Tensor:
        """Return low + u (high - low), kept in the bounds against rounding; of two levels, the nearer."""
        u = u.round() if self.two_levels else u
        return (self.low + u * (self.high - self.low)).clamp(self.low, self.high)[:, None]

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds."""
        two = {"two_levels": True} if self.two_levels else {}
        return {"low": self.low, "high": self.high} | two | _said(self.origin)


@dataclass(frozen=True)
class Categorical(Covariate):
    """One of k public categories: a 0/1 column if k = 2, k one-hot columns ``name=level`` otherwise.

    With two categories the column is 0 for the first one listed and 1 for the second.
    """

    name: str
    categories: tuple[Any, ...]
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        for level in self.categories:
            if isinstance(level, str):
                check_name(f"a category of {self.name!r}", level)
            elif abs(to_number(f"a category of {self.name!r}", level)) >= 2**53:
                raise InputError(f"category {level} of {self.name!r} is beyond 2^53; put identifiers in quotes")
        if len(self.categories) < 2 or len(set(self.categories)) < len(self.categories):
            raise InputError(f"categories of {self.name!r} are {list(self.categories)}; list two or more, each once")
        if any(isinstance(level, bool) for level in self.categories):
            raise InputError(
                f"categories of {self.name!r} hold true/false; put words like 'yes' in quotes, or use 0 and 1"
            )
        if len({isinstance(level, str) for level in self.categories}) == 2:
            raise InputError(f"categories of {self.name!r} mix words and numbers; use one kind")

    @property
    def is_text(self) -> bool:
        """Whether the categories are words rather than numbers."""
        return isinstance(self.categories[0], str)

    @property
    def bounds(self) -> tuple[tuple[str, float, float], ...]:
        """Every encoded column lies in [0, 1]."""
        if len(self.categories) == 2:
            return ((self.name, 0.0, 1.0),)
        return tuple((f"{self.name}={level}", 0.0, 1.0) for level in self.categories)

    @property
    def levels(self) -> tuple[Any, ...]:
        """The categories."""
        return self.categories

    def encode(self, column: "pd.Series") -> np.ndarray:
        """Return 0/1 columns [n, 1] or [n, k]."""
        return self._one_hot(category_codes(column, self.name, self.categories))

    def decode_unit(self, u: Tensor) -> Tensor:
        """Give each category the same share of [0, 1)."""
        return torch.from_numpy(self._one_hot((u * len(self.categories)).long().numpy()))

    def to_dict(self) -> dict[str, Any]:
        """Return the categories."""
        return {"categories": list(self.categories)} | _said(self.origin)

    def _one_hot(self, codes: np.ndarray) -> np.ndarray:
        if len(self.categories) == 2:
            return codes.astype(np.float64)[:, None]
        return np.eye(len(self.categories))[codes]


@dataclass(frozen=True)
class TableSchema:
    """Which columns of a table are treatment, outcome and covariates, with their public domain.

    Args:
        treatment: Name of the treatment column.
        outcome: Name of the outcome column.
        covariates: The covariates, in order; columns not named in a schema are never read.
        domain: Public bounds of the *encoded* columns (categories become 0/1 columns).
        outcome_origin: Where the outcome's bounds come from, if other than the domain's; never compared.
        arms: Categories of the treatment column, in the order of ``actions``; empty if it holds 0 and 1.
        out_of_bounds: What becomes of covariates outside their bounds, in records and queries alike: ``"refuse"``
            them, or ``"clip"`` them to the bounds, a public map of each row; never compared.

    Example:
        >>> schema = TableSchema.from_dict({
        ...     "treatment": "treat",
        ...     "outcome": {"name": "re78", "low": 0, "high": 60000},
        ...     "covariates": {"age": {"low": 16, "high": 60}, "race": {"categories": ["a", "b", "c"]}},
        ... })
        >>> schema.domain.names
        ('age', 'race=a', 'race=b', 'race=c')
    """

    treatment: str
    outcome: str
    covariates: tuple[Covariate, ...]
    domain: Domain
    outcome_origin: str = field(default="", compare=False)
    arms: tuple[Any, ...] = ()
    out_of_bounds: str = field(default="refuse", compare=False)

    def __post_init__(self) -> None:
        if self.arms:
            Categorical(self.treatment, self.arms)  # may refuse
        names = [self.treatment, self.outcome, *self.columns]
        for name in names:
            check_name("a column", name)
        check_policy(self.out_of_bounds, "out_of_bounds")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"column {twice[0]!r} has two roles in the domain file; give each column one")
        expected = sum(len(covariate.bounds) for covariate in self.covariates)
        if expected != self.domain.dimension:
            raise InputError(f"domain has {self.domain.dimension} columns; the covariates encode to {expected}")
        known, arms = self.domain.known_propensity, len(self.actions)
        if known is not None and len(known.of_arms) != arms:
            raise InputError(
                f"propensity tells of {len(known.of_arms)} arms, and treatment {self.treatment!r} has {arms}; give a "
                "number for each of them, in their order"
            )
        role = {self.treatment: "treatment", self.outcome: "outcome"} | dict.fromkeys(self.columns, "a covariate")
        if self.propensity_column in role:
            raise InputError(
                f"propensity column {self.propensity_column!r} is also {role[self.propensity_column]}; give a column "
                "of its own, or a number"
            )

    @property
    def two_levels(self) -> tuple[bool, ...]:
        """For each encoded column, whether it has two levels: its bounds, and nothing between."""
        return self.domain.two_levels

    @property
    def propensity_column(self) -> str | None:
        """The column that holds each record's known propensity; None where there is none."""
        known = self.domain.known_propensity
        return None if known is None else known.column

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the covariates' columns in the table, before encoding."""
        return tuple(covariate.name for covariate in self.covariates)

    @property
    def actions(self) -> tuple[int, ...]:
        """Labels of the arms: 0 and 1 if there are two; if there are more, their own integers, or 1 to K."""
        if len(self.arms) < 3:
            return 0, 1
        ordered = all(isinstance(arm, int) for arm in self.arms) and list(self.arms) == sorted(self.arms)
        return tuple(self.arms) if ordered else tuple(range(1, len(self.arms) + 1))

    def two_arms(self) -> "TableSchema":
        """Return this schema if it has two arms.

        Raises:
            InputError: It has more.
        """
        if len(self.actions) > 2:
            raise InputError(
                f"treatment {self.treatment!r} has {len(self.actions)} arms, and effects and rules compare two; keep "
                "the records of two arms, or choose among policies with PolicySelector"
            )
        return self

    def own_propensity(self, records: CausalData) -> Tensor | None:
        """Return what learners' ``fit`` takes as propensity: that of the records if the domain names a column of it."""
        return None if self.propensity_column is None else records.propensity

    @property
    def origins(self) -> dict[str, str]:
        """Where the bounds of the outcome and of each covariate come from, by the column's name in the table."""
        own = {self.outcome: self.outcome_origin, **{c.name: c.origin for c in self.covariates}}
        return {name: origin or self.domain.origin for name, origin in own.items()}

    @property
    def text_columns(self) -> frozenset[str]:
        """Columns whose values are words, to be read as text."""
        text = [c.name for c in self.covariates if isinstance(c, Categorical) and c.is_text]
        return frozenset([*text, self.treatment] if self.arms and isinstance(self.arms[0], str) else text)

    def encode(self, frame: "pd.DataFrame") -> Tensor:
        """Return the covariates of ``frame`` as numbers, float64 [n, q]; bounds are not checked here.

        Raises:
            InputError: A column is missing, or holds missing, non-numeric or unknown values (which
                column, how many).
        """
        missing = missing_columns(self.columns, list(frame.columns))
        if missing:
            raise InputError(missing)
        encoded = [covariate.encode(frame[covariate.name]) for covariate in self.covariates]
        return torch.from_numpy(np.concatenate(encoded, axis=1))

    def encode_treatment(self, frame: "pd.DataFrame") -> Tensor:
        """Return the treatment of ``frame`` as labels, float64 [n].

        Raises:
            InputError: Missing, non-numeric or unknown values; says how many.
        """
        column = frame[self.treatment]
        if not self.arms:
            return torch.from_numpy(numeric_column(column, self.treatment, truth=True))
        codes = category_codes(column, self.treatment, self.arms)
        return torch.tensor(self.actions, dtype=torch.float64)[torch.from_numpy(codes)]

    def matrix(self, X: Any, what: str = "X") -> Tensor:
        """Return covariates as numbers, float64 [n, q]; bounds are not checked here.

        A frame that has one of the schema's columns is encoded; anything else holds encoded columns already,
        in the order of ``domain.names``.

        Raises:
            InputError: See ``encode`` and ``Domain.matrix``.
        """
        named = hasattr(X, "columns") and any(name in X.columns for name in self.columns)
        return self.encode(X) if named else self.domain.matrix(X, what)

    def records(self, X: Any, A: Any, Y: Any, actions: Sequence[int] = (0, 1), propensity: Any = None) -> CausalData:
        """Return records; the one place where learners take arrays. Bounds are not checked here.

        Args:
            X: Covariates, see ``matrix``; a frame may have the propensity's column too.
            A: Treatment [n], one of ``actions``.
            Y: Outcome [n].
            actions: Labels of the arms.
            propensity: Each record's known propensity [n], where the domain names a column of it that X lacks.

        Raises:
            InputError: See ``matrix`` and ``CausalData.from_arrays``; a known propensity that is missing.
        """
        check_aligned(X=X, A=A, Y=Y, propensity=propensity)
        known = self.propensity_column
        if propensity is None and known is not None and hasattr(X, "columns") and known in X.columns:
            propensity = X[known]
        records = CausalData.from_arrays(self.matrix(X), A, Y, self.domain, actions)
        return records if propensity is None else records.with_propensity(self._own_propensity(propensity, records.n))

    def _own_propensity(self, propensity: Any, n: int) -> Tensor:
        """Return each record's known propensity as the domain's column, [n]."""
        if self.propensity_column is None:
            raise InputError(
                "propensity= is given, and the domain names no column of it; declare it: propensity: COLUMN in the "
                "domain file, or Domain(propensity='COLUMN')"
            )
        values = column_of(propensity, "propensity")
        if len(values) != n:
            raise InputError(f"propensity has {len(values)} values and X {n} records; they must be as many")
        return values

    def within(self, x: Tensor, what: str = "covariate") -> Tensor:
        """Return encoded covariates [n, q] within the domain: clipped if ``out_of_bounds`` says so, else as they are.

        Args:
            x: Encoded covariates.
            what: ``"covariate"``, or ``"query"`` for points at which effects are asked for.

        Raises:
            InputError: Points outside the domain, which are not to be clipped (which column, how many).

        Example:
            >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], 0.0, 1.0)).handling("clip")
            >>> schema.within(torch.tensor([[7.0]])).tolist()
            [[1.0]]
        """
        if self.out_of_bounds == "clip":
            return self.domain.clip_covariates(x)
        self.domain.check_covariates(x, what)
        return x

    def handling(self, out_of_bounds: str) -> "TableSchema":
        """Return this schema with another rule for covariates outside their bounds; ``"refuse"`` leaves its own.

        Raises:
            InputError: Neither ``"refuse"`` nor ``"clip"``.
        """
        check_policy(out_of_bounds)
        return self if out_of_bounds == "refuse" else replace(self, out_of_bounds=out_of_bounds)

    def grid(self, count: int) -> Tensor:
        """Return ``count`` public points of the domain, float64 [count, q]; categories are respected."""
        u = unit_grid(count, len(self.covariates))
        return torch.cat([c.decode_unit(u[:, i]) for i, c in enumerate(self.covariates)], dim=1)

    def with_outcome_bounds(
        self, low: float, high: float, origin: str = IN_CODE, kind: str = "continuous"
    ) -> "TableSchema":
        """Return this schema with other public bounds of the outcome, where they come from, and its kind."""
        facts = self.to_dict()
        facts["outcome"] = {"name": self.outcome, "low": low, "high": high, "origin": origin, "kind": kind}
        return TableSchema.from_dict(facts)

    def without(self, covariate: str) -> "TableSchema":
        """Return this schema without one of its covariates, by the column's name in the table.

        Raises:
            InputError: There is no such covariate, or no other.
        """
        facts = self.to_dict()
        if facts["covariates"].pop(covariate, None) is None or not facts["covariates"]:
            raise InputError(f"covariate {covariate!r} cannot be left out of {listed(self.columns)}")
        known = self.domain.known_propensity
        if isinstance(known, StratumPropensity) and known.covariate == covariate:
            del facts["propensity"]  # no function of what is left
        return TableSchema.from_dict(facts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types in the form of the yaml file; ``from_dict`` is the inverse."""
        return {
            "treatment": {"name": self.treatment, "categories": list(self.arms)} if self.arms else self.treatment,
            "outcome": {
                "name": self.outcome,
                "low": self.domain.outcome_low,
                "high": self.domain.outcome_high,
                **({} if self.domain.outcome_kind == "continuous" else {"kind": self.domain.outcome_kind}),
                **_said(self.outcome_origin),
            },
            "covariates": {covariate.name: covariate.to_dict() for covariate in self.covariates},
            "overlap": self.domain.overlap,
            "origin": self.domain.origin,
            **({} if self.out_of_bounds == "refuse" else {"out_of_bounds": self.out_of_bounds}),
            **({} if self.domain.known_propensity is None else {"propensity": self._propensity_entry()}),
        }

    def _propensity_entry(self) -> Any:
        """Return the known propensity by the table's own columns and categories."""
        known = self.domain.known_propensity
        if not isinstance(known, StratumPropensity):
            return None if known is None else known.entry()
        levels = next(covariate.levels for covariate in self.covariates if covariate.name == known.covariate)
        return {known.covariate: {str(level): value for level, value in zip(levels, known.values, strict=True)}}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "TableSchema":
        """Build a schema from the entries of a domain file.

        The treatment is the name of a column of 0 and 1, or has the entries ``name`` and ``categories``: two become 0
        and 1 in the order listed, more become 1 to K. An entry ``origin`` says in words where the bounds come from: of
        all, at the top; of one column, in its own entry. ``out_of_bounds: clip`` moves values outside their bounds to
        them, in records and in queries of the release.

        An outcome has ``low`` and ``high``, and may have a ``kind``: ``binary`` (0 or 1; ``categories: [0, 1]`` says so
        too, and brings the bounds) or ``count``. ``propensity`` is what the design of a study makes known: P(A = 1),
        the name of a column that holds each record's own and is read with the records, or a number for each category
        of one covariate, ``{covariate: {category: p}}``.

        Raises:
            InputError: An entry is missing, unknown or invalid.
        """
        entries = _entries(
            facts,
            "domain",
            {"treatment", "outcome", "covariates"},
            {"overlap", "origin", "out_of_bounds", "propensity"},
        )
        outcome = _outcome(entries["outcome"])
        if not isinstance(entries["covariates"], Mapping) or not entries["covariates"]:
            raise InputError("covariates is empty in the domain; name at least one, with low and high")
        covariates = tuple(_covariate(str(name), entry) for name, entry in entries["covariates"].items())
        bounds = [bound for covariate in covariates for bound in covariate.bounds]
        names, low, high = zip(*bounds, strict=True)
        outcome_low, outcome_high = check_bounds(f"outcome {outcome['name']!r}", outcome["low"], outcome["high"])
        overlap, origin = entries.get("overlap", 0.05), entries.get("origin", IN_CODE)
        two_levels = [bool(covariate.levels) for covariate in covariates for _ in covariate.bounds]
        domain = Domain(
            low,
            high,
            outcome_low,
            outcome_high,
            overlap,
            names,
            origin,
            two_levels,
            _encoded_propensity(entries.get("propensity"), covariates),
            outcome.get("kind", "continuous"),
        )
        treatment, arms = _treatment(entries["treatment"])
        policy = entries.get("out_of_bounds", "refuse")
        return cls(treatment, str(outcome["name"]), covariates, domain, _origin("outcome", outcome), arms, policy)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "TableSchema":
        """Read a domain file, or a shipped one by its name (``"lalonde"``).

        The file's name, without folder and ending, becomes the origin of the bounds and so part of every release.

        Raises:
            InputError: No such file or name, not yaml, or see ``from_dict``.
        """
        file, owner = Path(path), ""
        if not os.path.isfile(file) and file.suffix not in (".yaml", ".yml") and len(file.parts) == 1:
            file, owner = shipped("domain", str(path)), ", shipped with torchdpcate"
        if not os.path.isfile(file):
            raise InputError(f"domain file {str(path)!r} does not exist; give the path of a domain yaml")
        try:
            facts = read_yaml(file)
        except InputError as error:
            raise InputError(f"domain file {str(path)!r} cannot be read: {error}") from None
        try:
            return cls.from_dict(_with_origin(facts, f"domain file {file.stem}{owner}"))
        except InputError as error:
            raise InputError(f"domain file {str(path)!r}: {error}") from None

    @classmethod
    def from_domain(cls, domain: Domain) -> "TableSchema":
        """Return the schema of a table with numeric columns ``domain.names``, treatment a, outcome y."""
        bounds = zip(domain.names, domain.covariate_low.tolist(), domain.covariate_high.tolist(), strict=True)
        two_levels = zip(bounds, domain.two_levels, strict=True)
        return cls("a", "y", tuple(Numeric(*bound, two_levels=two) for bound, two in two_levels), domain)

    @classmethod
    def of(cls, domain: "TableSchema | Domain | Mapping[str, Any] | str | Path") -> "TableSchema":
        """Return the schema meant by a schema, a domain, the entries of a domain file, a path or a name."""
        if isinstance(domain, TableSchema):
            return domain
        if isinstance(domain, Domain):
            return cls.from_domain(domain)
        return cls.from_dict(domain) if isinstance(domain, Mapping) else cls.from_yaml(domain)


def check_policy(out_of_bounds: Any, name: str = "data.out_of_bounds") -> None:
    """Refuse anything but ``"refuse"`` and ``"clip"``.

    Raises:
        InputError: ``out_of_bounds`` is neither.
    """
    if out_of_bounds not in ("refuse", "clip"):
        raise InputError(f"{name} is {out_of_bounds!r}; choose refuse or clip")


def _covariate(name: str, entry: Any) -> Covariate:
    """Build a covariate from its yaml entry."""
    what = f"covariate {name!r}"
    if isinstance(entry, Mapping) and "categories" in entry:
        _entries(entry, what, {"categories"}, {"origin"})
        return Categorical(name, _levels(name, entry), _origin(what, entry))
    bounds = _entries(entry, what, {"low", "high"}, {"origin", "two_levels"})
    two_levels = bounds.get("two_levels", False)
    if not isinstance(two_levels, bool):
        raise InputError(f"two_levels of {what} is {two_levels!r}; give true or false")
    return Numeric(name, bounds["low"], bounds["high"], _origin(what, bounds), two_levels)


def _outcome(entry: Any) -> Mapping[str, Any]:
    """Return the outcome's entries, with the bounds and the kind that its categories bring."""
    if isinstance(entry, Mapping) and "categories" in entry:
        levels = _levels("outcome", _entries(entry, "outcome", {"name", "categories"}, {"origin"}))
        if any(isinstance(level, bool | str) for level in levels) or sorted(levels) != [0, 1]:
            raise InputError(f"categories of the outcome are {list(levels)}; a binary outcome is coded 0 and 1")
        return {"name": entry["name"], "low": 0, "high": 1, "kind": "binary", **_kept(entry, "origin")}
    return _entries(entry, "outcome", {"name", "low", "high"}, {"origin", "kind"})


def _kept(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: entry[name]} if name in entry else {}


def _encoded_propensity(given: Any, covariates: Sequence[Covariate]) -> Any:
    """Return a known propensity by the names and levels of the encoded columns."""
    if not isinstance(given, Mapping) or len(given) != 1:
        return given
    name, entries = next(iter(given.items()))
    covariate = next((covariate for covariate in covariates if covariate.name == str(name)), None)
    if not isinstance(covariate, Categorical):
        return given
    values = level_values(covariate.name, entries, covariate.levels)
    encoded = (0.0, 1.0) if len(covariate.levels) == 2 else covariate.levels
    return {covariate.name: {str(label): values[level] for label, level in zip(encoded, covariate.levels, strict=True)}}


def _treatment(entry: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the treatment's column and its categories, if it has any."""
    if not isinstance(entry, Mapping):
        return str(entry), ()
    name = str(_entries(entry, "treatment", {"name", "categories"}, set())["name"])
    return name, _levels(name, entry)


def _levels(name: str, entry: Mapping[str, Any]) -> tuple[Any, ...]:
    levels = entry["categories"]
    if isinstance(levels, str | Mapping) or not hasattr(levels, "__iter__"):
        raise InputError(f"categories of {name!r} are {levels!r}; write a list")
    return tuple(levels)


def _origin(what: str, entry: Mapping[str, Any]) -> str:
    """Return where an entry says its bounds come from; empty if it says nothing."""
    return check_origin(what, entry["origin"]) if "origin" in entry else ""


def _said(origin: str) -> dict[str, str]:
    return {"origin": origin} if origin else {}


def _with_origin(facts: Any, file: str) -> Any:
    """Put the file's name before what the file itself says of its bounds' origin."""
    if not isinstance(facts, Mapping):
        return facts
    return {**facts, "origin": f"{file}: {check_origin('domain', facts['origin'])}" if "origin" in facts else file}


def _entries(entry: Any, what: str, needed: set[str], allowed: set[str]) -> Mapping[str, Any]:
    """Check that a mapping has the entries it needs and no unknown ones."""
    if not isinstance(entry, Mapping):
        raise InputError(f"{what} is {entry!r}; it needs the entries {', '.join(sorted(needed))}")
    missing = sorted(key for key in needed if entry.get(key) is None)
    unknown = sorted(str(key) for key in entry if key not in needed | allowed)
    if missing:
        raise InputError(f"{what} has no entry {missing[0]!r}; it needs {', '.join(sorted(needed))}")
    if unknown:
        raise InputError(
            f"{what} has the unknown entry {unknown[0]!r}; known are {', '.join(sorted(needed | allowed))}"
        )
    return entry
