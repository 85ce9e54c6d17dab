"""A table's public facts: which columns are read, and how they become numbers."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._templates import html_table_of, some
from torchdpcate._text import plain
from torchdpcate.data._arrays import (
    MEND_CODES,
    MEND_WORDS,
    category_codes,
    check_aligned,
    is_frame,
    listed,
    missing_columns,
    numeric_column,
    to_matrix,
)
from torchdpcate.data._cells import Code, code_entries, read_cells
from torchdpcate.data._frames import CSV, PARQUET, file_kind, files_of
from torchdpcate.data.assignment import Cluster, Pairs
from torchdpcate.data.censoring import columns_or_outcome
from torchdpcate.data.covariates import Categorical, Covariate, Numeric, bounds_in_words, said
from torchdpcate.data.domain import Domain, unit_grid
from torchdpcate.data.domain_file import read_domain_file, schema_arguments
from torchdpcate.data.facts import IN_CODE, check_distinct, check_name
from torchdpcate.data.propensity import StratumPropensity
from torchdpcate.data.records import NAMED_ARMS, NAMED_LEVELS, CausalData, column_of
from torchdpcate.data.weights import DROP
from torchdpcate.errors import InputError
from torchdpcate.registry import refuse_strings

if TYPE_CHECKING:
    import pandas as pd

MORE_ARMS = (
    "more than two arms take task=cate with release=function (RLearner), task=average_effect and task=subgroups "
    "(SubgroupEffects, of everybody or of groups) of a randomised trial, and task=policy_selection (PolicySelector)"
)
"""What takes more than two arms, for messages."""


@dataclass(frozen=True, repr=False)
class TableSchema:
    """Which columns of a table are treatment, outcome and covariates, with their public domain.

    Args:
        treatment: Name of the treatment column.
        outcome: Name of the outcome column.
        covariates: The covariates, in order; columns not named in a schema are never read.
        domain: Public bounds of the *encoded* columns (categories become 0/1 columns).
        outcome_origin: Where the outcome's bounds come from, if other than the domain's; never compared.
        arms: Categories of the treatment column, in the order of ``actions``; empty if it holds 0 and 1.
        kind_said: Whether the entries of the outcome say its kind; None where there are no entries, as in code. Where
            they do not, records whose outcomes are all 0 and 1 are refused; never compared.
        outcome_levels: Categories of the outcome's column; empty if it holds numbers.
        success: Those among them that count as 1, the others as 0.
        treatment_codes: What else means that a treatment is missing, or stands for another, see ``check_codes``.
        outcome_codes: The same of an outcome.
        out_of_bounds: What becomes of covariates outside their bounds, in records and queries alike: ``"refuse"``
            them, or ``"clip"`` them to the bounds, a public map of each row; never compared.
        assignment: Clusters that a trial assigned as a whole, or pairs of which one is treated; None where each record
            got its treatment by itself.
        outcome_unit: Unit of the outcome, in words; empty if nothing is said. Never compared.
        treatment_label: What readers see in the place of the treatment's name, which it is where nothing is said; never
            compared.
        outcome_label: The same of the outcome.
        arm_labels: The same of each of ``arms``, or of 0 and 1.

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
    kind_said: bool | None = field(default=None, compare=False)
    assignment: Cluster | Pairs | None = None
    outcome_levels: tuple[Any, ...] = ()
    success: tuple[Any, ...] = ()
    treatment_codes: tuple[Code, ...] = ()
    outcome_codes: tuple[Code, ...] = ()
    outcome_unit: str = field(default="", compare=False)
    treatment_label: str = field(default="", compare=False)
    outcome_label: str = field(default="", compare=False)
    arm_labels: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        refuse_strings(type(self), vars(self))
        shown = self._shown_arms  # may refuse
        vars(self).update(treatment_label=shown.label, arm_labels=shown.labels)
        vars(self).update(outcome_label=self.outcome_label or self.outcome)
        names = [self.treatment, self.outcome, *self.columns]
        for name in names:
            check_name("a column", name)
        check_policy(self.out_of_bounds, "out_of_bounds")
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise InputError(f"column {twice[0]!r} has two roles in the domain file; give each column one")
        check_distinct("columns", names)
        labels = [self.treatment_label, self.outcome_label, *(covariate.label for covariate in self.covariates)]
        check_distinct("labels", labels if labels != names else [])
        expected = sum(len(covariate.columns) for covariate in self.covariates)
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
        if self.propensity_column is not None:
            role[self.propensity_column] = "the propensity"
        if self.domain.censoring is not None:
            of_follow_up = dict.fromkeys(self.domain.censoring.columns, "of the outcome")
            twice = sorted(of_follow_up.keys() & (role.keys() - {self.outcome}))
            if twice or self.outcome != self.domain.censoring.name:
                raise InputError(f"column {(*twice, self.outcome)[0]!r} has two roles; give time and event their own")
            role |= of_follow_up
        if (weights := self.domain.weights) is not None and weights.name in role:
            raise InputError(
                f"{weights.role} column {weights.name!r} is also {role[weights.name]}; give one of its own"
            )

        if self.pairs is not None:
            taken = sorted({self.treatment, self.outcome, *self.columns} & {*self.pairs.columns})
            other = {
                f"column {(*taken, '')[0]!r} has another role; give the pairs a column of its own": taken,
                "treatment has more than two arms; put the records of two into a file of their own": self.compared,
                "weights and exposures are of a record; leave them out": self.domain.weights,
                "an outcome by a horizon has no difference where follow-up ends before it; take the state at a time to "
                "which all were followed": self.domain.censoring,
            }
            for words in (words for words, there in other.items() if there):
                raise InputError(f"assignment by pairs: {words}")

    @property
    def cluster(self) -> Cluster | None:
        """Clusters that a trial assigned as a whole."""
        return self.assignment if isinstance(self.assignment, Cluster) else None

    @property
    def pairs(self) -> Pairs | None:
        """Pairs of which one record is treated, each a record of a fit."""
        return self.assignment if isinstance(self.assignment, Pairs) else None

    @property
    def scores(self) -> dict[Any, float]:
        """Numbers that words of an ordered outcome stand for, whose ends are its bounds; empty of other outcomes."""
        words = code_entries(self.outcome_codes).get("words", {})
        ends = {self.domain.outcome_low, self.domain.outcome_high}
        return words if self.domain.censoring is None and {*words.values()} >= ends else {}

    @property
    def greatest(self) -> float:
        """Largest effect that there may be: the outcome's range, of pairs a bound of differences, of rates none."""
        most = None if self.pairs is None else self.pairs.most
        return min(math.inf if self.domain.is_rate else self.domain.outcome_range, most or math.inf)

    @property
    def effect_range(self) -> float:
        """What noise is planned over: the largest effect; of rates the outcome's range over the expected exposure."""
        return min(self.greatest, self.domain.outcome_range * self.domain.effect_unit)

    @property
    def effect_scale(self) -> tuple[float, str]:
        """What sizes of effects and noise are judged by: the outcome's standard deviation if stated, else its range.

        Of rates either is over the mean exposure that plans expect.
        """
        sd, unit = self.domain.outcome_sd, self.domain.effect_unit
        return (self.effect_range, "range") if sd is None else (sd * unit, "standard deviation")

    @property
    def summed(self) -> tuple[float, float]:
        """Middle and half width of what is summed, outcomes or differences of pairs; of rates 0 and the largest."""
        domain = self.domain
        if domain.is_rate:
            return 0.0, domain.outcome_high
        own = domain.outcome_middle, domain.outcome_range / 2
        return own if self.pairs is None else (0.0, self.greatest)

    @property
    def cell_unit(self) -> float:
        """What one of the numbers of cells is in units of an effect: the half width; of rates per largest exposure."""
        weights = self.domain.weights
        return self.summed[1] / (weights.high if weights is not None and self.domain.is_rate else 1)

    @property
    def event(self) -> float:
        """What one event adds to a sum of outcomes in half widths; zero where these are no counts."""
        return 1 / self.summed[1] if self.domain.is_rate or self.domain.outcome_kind != "continuous" else 0.0

    @property
    def _shown_arms(self) -> Categorical:
        """The treatment as readers see it."""
        return Categorical(self.treatment, self.arms or (0, 1), label=self.treatment_label, labels=self.arm_labels)

    @property
    def propensity_column(self) -> str | None:
        """The column that holds each record's known propensity; None where there is none."""
        known = self.domain.known_propensity
        return None if known is None else known.column

    @property
    def weight_column(self) -> str | None:
        """The column that holds each record's weight; None where there is none."""
        return None if self.domain.weights is None else self.domain.weights.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the covariates' columns in the table, before encoding."""
        return tuple(covariate.name for covariate in self.covariates)

    @property
    def places(self) -> dict[str, range]:
        """Positions of each covariate's encoded columns, by its name in the table."""
        ends = itertools.accumulate(len(covariate.columns) for covariate in self.covariates)
        return {c.name: range(end - len(c.columns), end) for c, end in zip(self.covariates, ends, strict=True)}

    @property
    def reference(self) -> str:
        """Name of the arm that all others are compared with: the first category; empty where none is named."""
        return str(self.arms[0]) if self.arms else ""

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of the arms that are compared with the reference, where there are more than two; else empty.

        Example:
            >>> treatment = {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"}
            >>> facts = {"treatment": treatment, "outcome": {"name": "y", "low": 0, "high": 1}}
            >>> schema = TableSchema.from_dict(facts | {"covariates": {"age": {"low": 0, "high": 99}}})
            >>> schema.reference, schema.compared
            ('placebo', ('low', 'high'))
        """
        return tuple(map(str, self.arms[1:])) if len(self.arms) > 2 else ()

    @property
    def actions(self) -> tuple[int, ...]:
        """Labels of the arms: 0 and 1 if there are two; if there are more, their own integers, or 1 to K."""
        if len(self.arms) < 3:
            return 0, 1
        ordered = all(isinstance(arm, int) for arm in self.arms) and list(self.arms) == sorted(self.arms)
        return tuple(self.arms) if ordered else tuple(range(1, len(self.arms) + 1))

    @property
    def may_miss(self) -> list[str]:
        """Names of the covariates whose values may be missing."""
        return [covariate.name for covariate in self.covariates if covariate.missing]

    @property
    def missing_columns(self) -> int:
        """How many encoded columns there are for missing values alone, which noise grows with."""
        plain = (replace(covariate, missing=False) for covariate in self.covariates)
        return self.domain.dimension - sum(len(covariate.columns) for covariate in plain)

    def two_arms(self, what: str = "this") -> "TableSchema":
        """Return this schema if it has two arms.

        Args:
            what: What compares two, for the message.

        Raises:
            InputError: It has more: says what takes them.
        """
        if len(self.actions) > 2:
            raise InputError(
                f"treatment {self.treatment!r} has {len(self.actions)} arms, and {what} compares two; {MORE_ARMS}, or "
                "put the records of two arms into a file of their own (their number is then public) and list these two"
            )
        return self

    @property
    def design_effect(self) -> float:
        """By what clusters multiply the sampling variance; 1 where there are none.

        Raises:
            InputError: See ``Cluster.design_effect``.
        """
        return 1.0 if self.cluster is None else self.cluster.design_effect

    def own_propensity(self, records: CausalData) -> Tensor | None:
        """Return what learners' ``fit`` takes as propensity: that of the records if the domain names a column of it."""
        return None if self.propensity_column is None else records.propensity

    def outcome_of(self, records: CausalData) -> Tensor:
        """Return what learners' ``fit`` takes as Y: outcomes [n], time and event, or control and treated [n, 2]."""
        return records.y if records.follow_up is None else records.follow_up

    def one_column(self, Y: Any) -> Any:
        """Return outcomes as they are, the times of time and event, or differences of pairs."""
        follow_up = self.follow_up_of(Y)
        if follow_up is None:
            return Y
        return follow_up[:, 0] if self.pairs is None else follow_up[:, 1] - follow_up[:, 0]

    def own(self, records: CausalData) -> dict[str, Any]:
        """Return what learners' ``fit`` takes of records beside X, A and Y, by its arguments' names."""
        found: dict[str, Any] = {"propensity": self.own_propensity(records)}
        if records.weight is not None:
            found["weight"] = records.weight * (1.0 if self.domain.weights is None else self.domain.weights.high)
        return found

    @property
    def origins(self) -> dict[str, str]:
        """Where the bounds of the outcome and of each covariate come from, by the column's name in the table."""
        own = {self.outcome: self.outcome_origin, **{c.name: c.origin for c in self.covariates}}
        return {name: origin or self.domain.origin for name, origin in own.items()}

    @property
    def text_columns(self) -> frozenset[str]:
        """Columns whose values are words, to be read as text."""
        text = [c.name for c in self.covariates if (c.is_text if isinstance(c, Categorical) else c.format)]
        roles = [(self.treatment, self.arms), (self.outcome, self.outcome_levels)]
        if self.domain.censoring is not None:
            roles.append((self.domain.censoring.event, self.domain.censoring.success))
        return frozenset([*text, *(name for name, levels in roles if levels and isinstance(levels[0], str))])

    def text_in(self, paths: Any) -> frozenset[str]:
        """Return the columns to be read as text: in files with value labels also those whose cells may be words.

        Args:
            paths: A file, or a list of files.
        """
        if all(file_kind(path) in (CSV, PARQUET) for path in files_of(paths)):
            return self.text_columns
        codes = {self.treatment: self.treatment_codes} | {c.name: c.codes for c in self.covariates}
        codes |= dict.fromkeys(columns_or_outcome(self.domain.censoring, self.outcome), self.outcome_codes)
        return self.text_columns | {name for name, own in codes.items() if any(isinstance(code, tuple) for code in own)}

    def encode(self, frame: "pd.DataFrame") -> Tensor:
        """Return the covariates of ``frame`` as numbers, float64 [n, q]; bounds are not checked here.

        Raises:
            InputError: A column is missing, or holds missing, non-numeric or unknown values (which
                column, how many).
        """
        self._check_there(frame)
        encoded = [covariate.encode(frame[covariate.name]) for covariate in self.covariates]
        return torch.from_numpy(np.concatenate(encoded, axis=1))

    def encode_known(self, frame: "pd.DataFrame") -> tuple[Tensor, np.ndarray]:
        """Return the covariates of the rows within the domain, float64 [k, q], and which rows these are, bool [n].

        Outside are missing, non-numeric and unknown values, and those outside their bounds where ``out_of_bounds`` does
        not clip them.

        Raises:
            InputError: A column is missing.
        """
        self._check_there(frame)
        known = np.all([covariate.readable(frame[covariate.name]) for covariate in self.covariates], axis=0)
        x = self.encode(frame[known])
        clipped = self.domain.clip_covariates(x)
        if self.out_of_bounds == "clip":
            return clipped, known
        within = (clipped == x).all(1)
        known[known] = within.numpy()
        return x[within], known

    def _check_there(self, frame: "pd.DataFrame") -> None:
        missing = missing_columns(self.columns, list(frame.columns))
        if missing:
            raise InputError(missing)

    def encode_treatment(self, frame: "pd.DataFrame") -> Tensor:
        """Return the treatment of ``frame`` as labels, float64 [n]; NaN where it is missing and may be.

        Raises:
            InputError: Missing, non-numeric or unknown values; says how many.
        """
        words, missing = self.treatment in self.text_columns, "treatment" in self.domain.dropped
        column = read_cells(frame[self.treatment], self.treatment_codes, text=words)
        if not self.arms:
            remedy = f"name the arms in the domain: {NAMED_ARMS}"
            values = numeric_column(column, self.treatment, truth=True, remedy=remedy, missing=missing)
            return torch.from_numpy(values)
        remedy = (
            "list all arms, or put the records of these arms into a file of their own (their number is then public)"
        )
        codes = category_codes(column, self.treatment, self.arms, remedy, missing=missing)
        return torch.tensor([*self.actions, torch.nan], dtype=torch.float64)[torch.from_numpy(codes)]

    def encode_outcome(self, frame: "pd.DataFrame") -> Tensor:
        """Return the outcome of ``frame``, float64 [n]; of categories 1 for the one that counts as 1, else 0.

        NaN where one that may be missing is; of an outcome by a horizon the time.

        Raises:
            InputError: Missing, non-numeric or unknown values; says how many.
        """
        missing = "outcome" in self.domain.dropped
        if (follow_up := self.encode_follow_up(frame)) is not None:
            return follow_up[:, 0]
        words = self.outcome_levels and isinstance(self.outcome_levels[0], str)
        column = read_cells(frame[self.outcome], self.outcome_codes, text=bool(words))
        if not self.outcome_levels:
            binary = self.domain.outcome_kind == "binary"
            remedy = f"name its levels in the domain: {NAMED_LEVELS}; {MEND_WORDS}, or {MEND_CODES}"
            values = numeric_column(column, self.outcome, truth=binary, remedy=remedy, missing=missing)
            return torch.from_numpy(values)
        codes = category_codes(column, self.outcome, self.outcome_levels, missing=missing)
        counts = [float(level in self.success) for level in self.outcome_levels]
        return torch.tensor([*counts, torch.nan], dtype=torch.float64)[torch.from_numpy(codes)]

    def encode_follow_up(self, frame: "pd.DataFrame") -> Tensor | None:
        """Return time and event of an outcome by a horizon, float64 [n, 2]; None of other outcomes.

        Raises:
            InputError: Missing or non-numeric values; says how many.
        """
        censoring, missing = self.domain.censoring, "outcome" in self.domain.dropped
        if censoring is None:
            return None
        time = read_cells(frame[censoring.time], self.outcome_codes, text=False)
        event = read_cells(frame[censoring.event], self.outcome_codes, text=censoring.event in self.text_columns)
        read = numeric_column(time, censoring.time, missing=missing), censoring.events(event, missing)
        return torch.from_numpy(np.stack(read, 1))

    def follow_up_of(self, Y: Any) -> Tensor | None:
        """Return time and event, [n, 2], of an outcome by a horizon, given as ``Censoring.columns_of`` takes it.

        Of pairs the outcomes of control and treated, where they are given as two columns.
        """
        if self.pairs is not None:
            return to_matrix(Y) if np.ndim(Y) == 2 else None
        found = None if self.domain.censoring is None else self.domain.censoring.columns_of(Y)
        return found if found is None or isinstance(found, Tensor) else self.encode_follow_up(found)

    def outcomes(self, Y: Any) -> Any:
        """Return an outcome that is given by the names of its categories as 0 and 1; numbers as they are.

        Args:
            Y: Outcome [n]: words among ``outcome_levels``, or anything else.

        Raises:
            InputError: Unknown words; says how many.

        Example:
            >>> facts = {"treatment": "a", "outcome": {"name": "died", "categories": ["no", "yes"]}}
            >>> facts["covariates"] = {"age": {"low": 0, "high": 99}}
            >>> TableSchema.from_dict(facts).outcomes(["yes", "no"]).tolist()
            [1.0, 0.0]
        """
        codes = () if self.domain.censoring is not None else self.outcome_codes
        return _as_cells(Y, self.outcome, self.outcome_levels, codes, self.encode_outcome)

    def labels(self, A: Any) -> Any:
        """Return a treatment that is given by the names of its categories as labels, float64 [n]; numbers as they are.

        Args:
            A: Treatment [n]: words among ``arms``, or anything else.

        Raises:
            InputError: Unknown words; says how many.

        Example:
            >>> treatment = {"name": "arm", "categories": ["none", "drug"]}
            >>> facts = {"treatment": treatment, "outcome": {"name": "y", "low": 0, "high": 1}, "covariates": {}}
            >>> facts["covariates"] = {"age": {"low": 0, "high": 99}}
            >>> TableSchema.from_dict(facts).labels(["drug", "none"]).tolist()
            [1.0, 0.0]
        """
        return _as_cells(A, self.treatment, self.arms, self.treatment_codes, self.encode_treatment)

    def __repr__(self) -> str:
        """Return columns and the outcome's bounds, in one line."""
        outcome = f"{self.outcome} in [{self.domain.outcome_low:g}, {self.domain.outcome_high:g}]"
        return plain(f"<TableSchema: effect of {self.treatment} on {outcome}, by {some(self.columns)}>")

    def _repr_html_(self) -> str:
        domain = self.domain
        rows = [
            ("treatment", self.treatment),
            ("outcome", f"{self.outcome}: {domain.outcome_low:g} to {domain.outcome_high:g}"),
            ("overlap", f"{domain.overlap:g}" if domain.known_propensity is None else "propensity known by the design"),
            ("covariates", "; ".join(map(bounds_in_words, self.covariates))),
        ]
        return html_table_of("TableSchema", rows)

    def matrix(self, X: Any, what: str = "X") -> Tensor:
        """Return covariates as numbers, float64 [n, q]; bounds are not checked here.

        A frame that has one of the schema's columns is encoded; anything else holds encoded columns already,
        in the order of ``domain.names``.

        Raises:
            InputError: See ``encode`` and ``Domain.matrix``.
        """
        if hasattr(X, "columns"):
            folded = {str(name).strip().casefold() for name in X.columns}
            if any(name.strip().casefold() in folded for name in self.columns):
                return self.encode(X)
        return self.domain.matrix(X, what)

    def records(
        self, X: Any, A: Any, Y: Any, actions: Sequence[int] = (0, 1), propensity: Any = None, weight: Any = None
    ) -> CausalData:
        """Return records; the one place where learners take arrays. Bounds are not checked here.

        Args:
            X: Covariates, see ``matrix``; a frame may have the propensity's column too.
            A: Treatment [n], one of ``actions``.
            Y: Outcome [n]; where the domain has one by a horizon, time and event [n, 2].
            actions: Labels of the arms.
            propensity: Each record's known propensity [n], where the domain names a column of it that X lacks.
            weight: Each record's weight [n], likewise; records have it as it is. Where treatment or outcome may be
                missing, there may be some without a column too.

        Raises:
            InputError: See ``matrix`` and ``CausalData.from_arrays``; a known propensity, or a weight, that is missing.
        """
        check_aligned(X=X, A=A, Y=Y, propensity=propensity, weight=weight)
        propensity = self._column_beside(X, self.propensity_column, propensity)
        weight = self._column_beside(X, self.weight_column, weight)
        follow_up = self.follow_up_of(Y)
        if self.pairs is not None and follow_up is None and not is_frame(X):
            raise InputError(f"X is no frame with the column {self.pairs.name!r} of assignment:; give one")
        Y = self.one_column(Y)
        records = CausalData.from_arrays(self.matrix(X), A, Y, actions, self.domain.dropped)
        records = replace(records, follow_up=follow_up)
        if propensity is not None:
            declared = self.propensity_column, "propensity: COLUMN", "Domain(propensity='COLUMN')"
            records = records.with_propensity(_given("propensity", propensity, records.n, *declared))
        if weight is not None:
            own = "weights: {name: COLUMN, high: 5}", "Domain(weights={'name': 'COLUMN', 'high': 5})"
            column = "weight" if self.domain.dropped else self.weight_column
            records = records.with_weight(_given("weight", weight, records.n, column, *own))
        elif self.domain.weights is not None:
            role = self.domain.weights.role
            raise InputError(f"X lacks the column {self.weight_column!r} of {role}; add it, or give weight=")
        return records

    @staticmethod
    def _column_beside(X: Any, name: str | None, given: Any) -> Any:
        """Return what was given, or a frame's column of this name beside its covariates."""
        there = given is None and name is not None and hasattr(X, "columns") and name in X.columns
        return X[name] if there else given

    def within(self, x: Tensor, what: str = "covariate") -> Tensor:
        """Return encoded covariates [n, q] within the domain: clipped if ``out_of_bounds`` says so, else as they are.

        Args:
            x: Encoded covariates.
            what: ``"covariate"``, or ``"query"`` for points at which effects are requested.

        Raises:
            InputError: Points outside the domain, which are not to be clipped (which column, how many).

        Example:
            >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], 0.0, 1.0)).handling("clip")
            >>> schema.within(torch.tensor([[7.0]])).tolist()
            [[1.0]]
        """
        if self.out_of_bounds == "clip":
            return self.domain.clip_covariates(x)
        self.domain.check_covariates(x, what, self.written)
        return x

    def written(self, name: str, bound: float) -> str:
        """Return a bound of a column as it is shown: its digits, or the date."""
        dates = (c for c in self.covariates if c.name == name and isinstance(c, Numeric) and c.start is not None)
        own = next(dates, None)
        return f"{bound:.10g}" if own is None else own.written(bound)

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
        bounds = {"low": low, "high": high, "origin": origin, "kind": kind}
        facts["outcome"] = {**facts["outcome"], **bounds}
        return replace(TableSchema.from_dict(facts), kind_said=None)

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
        return replace(TableSchema.from_dict(facts), kind_said=self.kind_said)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types in the form of the yaml file; ``from_dict`` is the inverse."""
        domain = self.domain
        entries = [covariate.to_dict() for covariate in self.covariates]
        every = {self.treatment_codes, self.outcome_codes, *(covariate.codes for covariate in self.covariates)}
        own = code_entries(self.outcome_codes) if self.outcome_codes else {}
        shared = every.pop() if len(every) == 1 and "words" not in own else ()
        treatment: dict[str, Any] = (
            ({"categories": list(self.arms)} if self.arms else {})
            | ({"missing": DROP} if "treatment" in domain.dropped else {})
            | (code_entries(self.treatment_codes) if self.treatment_codes and not shared else {})
            | {key: fact for key, fact in self._shown_arms.to_dict().items() if key in ("label", "labels")}
        )
        facts = {
            "treatment": {"name": self.treatment, **treatment} if treatment else self.treatment,
            "outcome": self._outcome_entry() | ({} if shared else own),
            "covariates": {
                covariate.name: {key: fact for key, fact in entry.items() if key != "codes" or not shared}
                for covariate, entry in zip(self.covariates, entries, strict=True)
            },
            "codes": list(shared) or None,
            "overlap": domain.overlap,
            "origin": domain.origin,
            "out_of_bounds": None if self.out_of_bounds == "refuse" else self.out_of_bounds,
            "propensity": self._propensity_entry(),
            "treated": domain.treated,
            "assignment": None if self.assignment is None else self.assignment.entry(),
            "weights": None if domain.weights is None or domain.is_rate else domain.weights.entry(),
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    def check_written(self) -> None:
        """Refuse, before anything is spent, facts that a release's file would not hold as they are.

        Raises:
            InputError: Says why.
        """
        try:
            written = json.dumps(self.to_dict())
            again = TableSchema.from_dict(json.loads(written))
            why = "" if again == self and json.dumps(again.to_dict()) == written else "other facts are read back"
        except (TypeError, ValueError) as error:
            why = str(error)
        if why:
            raise InputError(f"domain: no release's file could hold it as it is ({why}); give plain numbers and words")

    def _outcome_entry(self) -> dict[str, Any]:
        """Return the outcome's name, bounds and kind, or its columns and horizon, and that it may be missing."""
        domain, levels = self.domain, list(self.outcome_levels)
        more: dict[str, Any] = (
            ({"missing": DROP} if "outcome" in domain.dropped else {})
            | ({} if domain.better is None else {"better": domain.better})
            | ({} if domain.outcome_sd is None else {"sd": domain.outcome_sd})
            | ({"unit": self.outcome_unit} if self.outcome_unit else {})
            | ({"label": self.outcome_label} if self.outcome_label != self.outcome else {})
            | said(self.outcome_origin)
            | ({"exposure": domain.weights.entry()} if domain.weights is not None and domain.is_rate else {})
        )
        if domain.censoring is not None:
            return {**domain.censoring.entry(), **more}
        if levels:
            usual = levels[1:] == list(self.success) and len(levels) == 2 and levels != [1, 0]
            chosen = {} if usual else {"success": list(self.success)}
            return {"name": self.outcome, "categories": levels, **chosen, **more}
        plain_number = domain.outcome_kind == "continuous" and not self.kind_said
        kind = {} if plain_number else {"kind": domain.outcome_kind}
        return {"name": self.outcome, "low": domain.outcome_low, "high": domain.outcome_high, **kind, **more}

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
        and 1 in the order listed, more become 1 to K. ``reference`` names the category that all others are compared
        with, the first where it is not given; a list of propensities is in the order of the categories as listed. An
        entry ``origin`` says in words where the bounds come from: of
        all, at the top; of one column, in its own entry. ``out_of_bounds: clip`` moves values outside their bounds to
        them, in records and in queries of the release.

        An outcome has ``low`` and ``high``, and may have a ``kind``: ``binary`` (0 or 1; ``categories: [no, yes]`` says
        so too, and brings the bounds: the second counts as 1, or those that ``success`` names), ``count`` or
        ``continuous``; of an ordered one ``scores`` are the number of each word. ``better: lower`` or ``higher`` says
        which outcomes are good, as rules need to know; ``sd`` is their standard deviation as known from elsewhere, for
        plans alone. An outcome by a horizon has ``time``, ``event``, ``horizon``, ``kind`` and ``censoring``, see
        ``Censoring.of``. ``codes`` say what else means that a value is missing, at the top or in the entry of a column,
        whose ``words`` say what its cells stand for; ``missing: indicator`` of a covariate says that its values may be,
        see ``Numeric`` and ``Categorical``. One of dates has ``kind: date``, with bounds as dates, and may have the
        ``format`` that cells are written in. A covariate that is a number may have ``scale: log`` and the range
        ``typical: [a, b]`` of about nine of ten values, see ``CovariateScales``; it and the outcome may have a ``unit``
        in words. Treatment, outcome and covariates may have a ``label``, which readers see in the place of the column's
        name, and arms and categories ``labels``, as ``{1: men, 2: women}``. ``propensity`` is what the design of a
        study makes known: P(A = 1), the name of a column that holds each record's own and is read with the records, or
        a number for each category of one covariate, ``{covariate: {category: p}}``. Without one, ``treated`` is the
        public share of the treated, by which plans know how rare they are. ``weights`` has the entries of
        ``RecordWeights.of``: a column, with its public bound. ``assignment`` says how treatment was given, see
        ``assignment_of``.


        Raises:
            InputError: An entry is missing, unknown or invalid.
        """
        found = schema_arguments(facts)
        return cls(**{**found, "domain": Domain.of_columns(**found["domain"])})

    @classmethod
    def from_yaml(cls, path: str | Path) -> "TableSchema":
        """Read a domain file, or a shipped one by its name (``"lalonde"``).

        The file's name, without folder and ending, becomes the origin of the bounds and so part of every release.

        Raises:
            InputError: No such file or name, not yaml, or see ``from_dict``.
        """
        return read_domain_file(path, cls.from_dict)

    @classmethod
    def from_domain(cls, domain: Domain) -> "TableSchema":
        """Return the schema of a table with numeric columns ``domain.names``, treatment a, outcome y.

        An outcome by a horizon has the name of its own column. Of a column with missing values the next one is that of
        their indicator, ``name=missing``.

        Raises:
            InputError: An indicator by another name, or in another place.
        """
        outcome = "y" if domain.censoring is None else domain.censoring.name
        return cls("a", outcome, tuple(_covariates_of(domain)), domain)

    @classmethod
    def of(cls, domain: "TableSchema | Domain | Mapping[str, Any] | str | Path") -> "TableSchema":
        """Return the schema meant by a schema, a domain, the entries of a domain file, a path or a name."""
        if isinstance(domain, TableSchema):
            return domain
        if isinstance(domain, Domain):
            return cls.from_domain(domain)
        return cls.from_dict(domain) if isinstance(domain, Mapping) else cls.from_yaml(domain)


def _covariates_of(domain: Domain) -> Iterator[Numeric]:
    """Yield the covariates that a domain's columns are of: a number and where it is missing are one."""
    of_missing = set(domain.indicators) - {None}
    for place, (column, indicator) in enumerate(zip(domain.columns, domain.indicators, strict=True)):
        if indicator is None:
            if place not in of_missing:
                yield column
            continue
        found = replace(column, missing=True)
        if indicator != place + 1 or domain.names[indicator] != found.columns[1].name:
            raise InputError(
                f"indicators: of {column.name!r} it is {domain.names[indicator]!r}; let the next column be "
                f"{found.columns[1].name!r}, which files of releases know again"
            )
        yield found


def _as_cells(
    values: Any, column: str, levels: Sequence[Any], codes: Sequence[Code], encode: "Callable[[pd.DataFrame], Tensor]"
) -> Any:
    """Return what ``encode`` makes of words, and of numbers among which some are codes; other numbers as they are."""
    words = bool(levels) and isinstance(levels[0], str)
    if isinstance(values, Tensor) or not (words or (codes and not levels)):
        return values
    # of parts of Arrow's dictionaries NumPy takes a null for a word
    own = values.to_pandas() if hasattr(values, "to_pandas") else values
    found = np.asarray(own, dtype=object if words else None).reshape(-1)
    if words and not any(isinstance(value, str) for value in found):
        return values
    import pandas as pd

    return encode(pd.DataFrame({column: found}))


def _given(what: str, values: Any, n: int, column: str | None, entry: str, argument: str) -> Tensor:
    """Return a column that was given beside X, [n], if the domain names one."""
    if column is None:
        raise InputError(
            f"{what}= is given, and the domain names no column of it; declare it: {entry} in the domain file, or "
            f"{argument}"
        )
    found = column_of(values, what)
    if len(found) != n:
        raise InputError(f"{what} has {len(found)} values and X {n} records; they must be as many")
    return found


def check_policy(out_of_bounds: Any, name: str = "data.out_of_bounds") -> None:
    """Refuse anything but ``"refuse"`` and ``"clip"``.

    Raises:
        InputError: ``out_of_bounds`` is neither.
    """
    if out_of_bounds not in ("refuse", "clip"):
        raise InputError(f"{name} is {out_of_bounds!r}; choose refuse or clip")
