"""The records of one fit: within their bounds, in a random order, and known again if they are fitted twice."""

import hashlib
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate._process import BATCH
from torchdpcate.data._arrays import is_frame, numeric_column, plural, refuse_missing, to_float64, to_matrix
from torchdpcate.data._csv import setting
from torchdpcate.data.censoring import columns_or_outcome
from torchdpcate.data.records import DIFFERENCES, CausalData, ClippedValues, arm_sizes
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.errors import InputError
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.shared_ledger import FileFingerprint

if TYPE_CHECKING:
    import pandas as pd


LARGE_SHARE = 0.05
"""Share of a column's values from which on a curator is warned that they were moved."""
_MOST = 10_000  # digests
_MEND_PROPENSITY = "correct these cells: the design of a study knows it for every record"
_MEND_WEIGHT = "correct these cells: a record that is to count nothing has the weight 0"
_key = secrets.token_bytes(32)
_used: dict[int, bool] = {}  # digests, the oldest first, and whether the user was told


def fingerprint(X: Any, A: Any, Y: Any, schema: TableSchema | None = None) -> str:
    """Return the SHA-256 of records as a selector sees them, whatever their order, precision and coding of actions.

    A policy made from records carries their fingerprint, and a selector refuses one with its own. It detects the same
    records as they were given, missing values and those outside their bounds among them, and not a part of them. It is
    the curator's: a conjecture of all the records can be checked by it.

    Args:
        X: Covariates [n, q], encoded; or with a schema a frame of its columns.
        A: Treatment [n]; its values count by their order alone.
        Y: Outcome [n].
        schema: Encodes the covariates and puts them in order; needed for a frame.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: A frame without a schema, other shapes, or what is no number.

    Example:
        >>> one = fingerprint([[0.1], [0.2]], [0, 1], [1.0, 2.0])
        >>> one == fingerprint([[0.2], [0.1]], [2, 1], [2.0, 1.0])
        True
    """
    if schema is None and is_frame(X):
        raise InputError("X is a frame: give schema, so that its columns are encoded and ordered as a selector does it")
    x = to_matrix(X) if schema is None else schema.matrix(X)
    columns = [to_float64(value, name).reshape(-1, 1) for value, name in ((A, "treatment"), (Y, "outcome"))]
    if not len(x) == len(columns[0]) == len(columns[1]):
        raise InputError(
            f"X, A and Y have {len(x)}, {len(columns[0])} and {len(columns[1])} records; they must be as many"
        )
    known = ~columns[0].isnan()  # each NaN is another value to ``unique``
    columns[0][known] = torch.unique(columns[0][known], return_inverse=True)[1].double()
    # float32 numbers and their float64 copies are the same records; adding zero makes -0.0 the number 0.0
    table = np.concatenate([part.cpu().numpy() for part in (x, *columns)], 1).astype("<f4") + np.float32(0)
    table[np.isnan(table)] = np.float32(np.nan)  # of one bit pattern
    rows = table[np.lexsort(table.T)]
    return hashlib.sha256(f"{rows.shape}".encode() + rows.tobytes()).hexdigest()


def file_fingerprint(path: str | Path | Sequence[str | Path], ends: int | None = None) -> FileFingerprint:
    """Return the SHA-256 of the content of files, whatever their names, places and order.

    It is the same for every choice of columns, and another one once a file is written anew in another way. Like
    ``fingerprint`` it is the curator's.

    Args:
        path: A file, a folder, of which all files count, or a list of them.
        ends: How many bytes of a file's beginning, and of its end, count beside its size; None for all of it.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: There is none of this name, or no file in it.
    """
    given = [path] if isinstance(path, str | Path) else list(path)
    files: list[Path] = []
    for place in map(Path, given):
        found = sorted(below for below in place.rglob("*") if below.is_file()) if place.is_dir() else [place]
        if not found or not all(file.is_file() for file in found):
            raise InputError(f"path = {place}: there is no such file; give the files of the records")
        files += found
    digests = "\n".join(sorted(_digest(file, ends) for file in files))
    return FileFingerprint(hashlib.sha256(digests.encode()).hexdigest())


def _digest(path: Path, ends: int | None) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if ends is None or size <= 2 * ends:
            return hashlib.file_digest(file, "sha256").hexdigest()
        first = file.read(ends)
        file.seek(-ends, os.SEEK_END)
        return hashlib.sha256(f"{size}".encode() + first + file.read(ends)).hexdigest()


def keyed_digest(records: CausalData | RecordStream) -> int:
    r"""Return a digest of records in whatever order and precision; of a stream, of n and its first records.

    .. math:: n + \sum_i h(x_i, a_i, y_i) \mod 2^{64}

    with h a multilinear hash of a record's float32 bits with a random key, mixed.

    Args:
        records: Within their bounds.
    """
    first = records.first() if isinstance(records, RecordStream) else records
    rows = BATCH if isinstance(records, RecordStream) else first.n
    table = [first.x[:rows], first.a[:rows, None], first.y[:rows, None]]
    width = first.x.shape[1] + 2
    keys = torch.from_numpy(np.random.default_rng(list(_key)).integers(-(1 << 63), (1 << 63) - 1, width + 2) | 1)
    total = records.n * int(keys[-1])
    for parts in zip(*(part.split(BATCH) for part in table), strict=True):
        # adding zero makes -0.0 the number 0.0
        bits = (torch.cat([part.cpu().float() for part in parts], 1) + 0.0).view(torch.int32)
        mixed = (bits * keys[:width]).sum(1)
        mixed = (mixed ^ (mixed >> 31)) * keys[width]
        total += int((mixed ^ (mixed >> 29)).sum())
    return total % (1 << 64)


def used_again(digest: int, told: bool = True) -> bool:
    """Note a fit; return whether there was one to the same records before, of which nobody was told yet.

    Args:
        digest: Of the records.
        told: Whether the user is told now.
    """
    again = _used.get(digest)
    _used[digest] = (again or told) if again is not None else False
    if len(_used) > _MOST:
        del _used[next(iter(_used))]
    return told and again is False


def record_columns(schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that a record has in the table: treatment, outcome, covariates, known propensity, weight."""
    own = filter(None, (schema.propensity_column, schema.weight_column))
    outcome = columns_or_outcome(schema.domain.censoring, schema.outcome)
    return (schema.treatment, *outcome, *schema.columns, *own)


def encode_records(frame: "pd.DataFrame", schema: TableSchema) -> CausalData:
    """Return the rows of a frame as records within the domain; that treatments are arms is not checked here.

    Args:
        frame: The schema's columns.
        schema: Public facts of the table, with what becomes of values outside their bounds.

    Raises:
        InputError: Values missing, not numeric, unknown, or outside their bounds (which column, how many).
    """
    x = schema.encode(frame)
    a = schema.encode_treatment(frame)
    y, follow_up = schema.encode_outcome(frame), schema.encode_follow_up(frame)
    names = schema.propensity_column, schema.weight_column
    own, weight = (
        None if name is None else torch.from_numpy(numeric_column(frame[name], name, mend=mend))
        for name, mend in zip(names, (_MEND_PROPENSITY, _MEND_WEIGHT), strict=True)
    )
    return records_within(CausalData(x, a, y, own, weight=weight, follow_up=follow_up), schema)


def records_within(given: CausalData, schema: TableSchema) -> CausalData:
    """Return records within their public bounds, with their known propensity, and how many values were moved for that.

    Args:
        given: Encoded records, with weights as they are, which become v in [0, 1]; NaN is a treatment or an outcome
            that is missing where these may be.
        schema: Their bounds, with what becomes of values outside.

    Raises:
        InputError: Values outside their bounds that are not to be clipped (which column, how many).
    """
    given = with_outcomes(without_missing(given, schema), schema)
    x, y, follow_up = schema.within(given.x), given.y, given.follow_up
    if schema.pairs is None or follow_up is None:
        y = outcome_within(y, schema)
    else:
        follow_up = outcome_within(follow_up, schema)
        y = schema.pairs.within(follow_up[:, 1] - follow_up[:, 0], schema.greatest, schema.out_of_bounds == "clip")
    kept = with_known_propensity(CausalData(x, given.a, y, given.propensity, follow_up=follow_up), schema)
    if given.weight is not None:
        kept = kept.with_weight(schema.domain.weigh(given.weight, schema.out_of_bounds == "clip"))
    return replace(kept, clipped=_clipped(given, kept, schema)) if schema.out_of_bounds == "clip" else kept


def _clipped(given: CausalData, kept: CausalData, schema: TableSchema) -> ClippedValues:
    """Return how many values differ between records as they were read and the same within their bounds."""
    moved = {schema.outcome: int((given.y != kept.y).sum())}
    if schema.pairs is not None and kept.follow_up is not None and given.follow_up is not None:
        d = kept.follow_up[:, 1] - kept.follow_up[:, 0]
        moved = {schema.outcome: int((given.follow_up != kept.follow_up).sum()), DIFFERENCES: int((d != kept.y).sum())}
    moved |= dict(zip(schema.domain.names, (given.x != kept.x).sum(0).tolist(), strict=True))
    if schema.propensity_column is not None and given.propensity is not None and kept.propensity is not None:
        moved[schema.propensity_column] = int((given.propensity != kept.propensity).sum())
    weights = schema.domain.weights
    if weights is not None and given.weight is not None:
        moved[weights.name] = int((given.weight != given.weight.clamp(0, weights.high)).sum())
    rows = 2 * given.n if DIFFERENCES in moved else given.n
    return ClippedValues(rows, {name: count for name, count in moved.items() if count})


def warn_clipped(clipped: ClippedValues, schema: TableSchema) -> None:
    """Warn of columns of which a large share was moved, in one line that names the bounds of the worst.

    Args:
        clipped: How many values were moved.
        schema: Their bounds.
    """
    large = [name for name in clipped.moved if name != DIFFERENCES and clipped.share(name) > LARGE_SHARE]
    if not large:
        return
    worst = max(large, key=clipped.moved.__getitem__)
    others = f" (so were those of {plural(len(large) - 1, 'other column')})" if large[1:] else ""
    low, high = (schema.written(worst, bound) for bound in _bounds(worst, schema))
    between = " or between integers" if worst == schema.outcome and schema.domain.outcome_kind != "continuous" else ""
    warnings.warn(
        f"column {worst!r}: {clipped.count(worst)} values were outside the declared bounds [{low}, {high}]"
        f"{between} and were moved{others}; are codes of missing values (-99, 999) or another unit among them? "
        "these numbers are of the records: publish them nowhere, and take no bound from them",
        stacklevel=3,
    )


def _bounds(name: str, schema: TableSchema) -> tuple[float, float]:
    domain = schema.domain
    if name == schema.outcome:
        return domain.outcome_low, domain.outcome_high
    if name == schema.propensity_column and domain.known_propensity is not None:
        return domain.known_propensity.bounds
    if domain.weights is not None and name == domain.weights.name:
        return 0.0, domain.weights.high
    place = domain.names.index(name)
    return float(domain.covariate_low[place]), float(domain.covariate_high[place])


def without_missing(given: CausalData, schema: TableSchema) -> CausalData:
    """Return records in which a missing treatment or outcome is a public number, and the weight nought.

    Args:
        given: Encoded records, NaN where something is missing.
        schema: What may be missing.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], 2.0, 5.0, missing={"outcome": "drop"}))
        >>> y = torch.tensor([3.0, torch.nan])
        >>> found = without_missing(CausalData(y[:, None], 0 * y, y), schema)
        >>> found.y.tolist(), found.weight.tolist()
        ([3.0, 2.0], [1.0, 0.0])
    """
    domain = schema.domain
    if not domain.dropped:
        return given
    a, y, follow_up = given.a, given.y, given.follow_up
    missing = torch.zeros_like(y, dtype=torch.bool)
    if "treatment" in domain.dropped:
        missing, a = missing | a.isnan(), a.nan_to_num(float(schema.actions[0]))
    if "outcome" in domain.dropped:
        missing, y = missing | y.isnan(), y.nan_to_num(min(max(0.0, domain.outcome_low), domain.outcome_high))
        if follow_up is not None:
            missing, follow_up = missing | follow_up.isnan().any(1), follow_up.nan_to_num()
    weight = torch.ones_like(y) if given.weight is None else given.weight
    return replace(given, a=a, y=y, follow_up=follow_up, weight=weight.masked_fill(missing, 0.0))


def with_outcomes(given: CausalData, schema: TableSchema) -> CausalData:
    """Return records with the outcomes by a horizon that their follow-up gives, where the domain has such an outcome.

    Args:
        given: Encoded records; time and event as they are.
        schema: What is public of the outcome.

    Raises:
        InputError: Missing values, times below 0 that are not to be clipped, or events that are neither 0 nor 1.
    """
    censoring, follow_up = schema.domain.censoring, given.follow_up
    if censoring is None:
        return given
    if follow_up is None:
        raise InputError(f"records have no {censoring.time} and {censoring.event}; give both as Y")
    refuse_missing(int((~follow_up.isfinite()).any(1).sum()), censoring.name)
    censoring.check(follow_up, schema.out_of_bounds == "clip")
    follow_up = censoring.within(follow_up)
    return replace(given, y=censoring.outcome(follow_up), follow_up=follow_up)


class Outcomes:
    """What values an outcome has, as far as it matters for a domain that does not say its kind.

    Args:
        schema: Its public facts.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._found = [False, False, False]  # 0, 1, and anything else

    def add(self, records: CausalData) -> None:
        """Look at records, within their bounds."""
        if self.schema.kind_said or self.schema.domain.outcome_kind != "continuous" or self._found[2]:
            return
        y = records.y if records.weight is None else records.y[records.weight > 0]  # else it may be missing
        zero, one = y == 0, y == 1
        moved = self.schema.outcome in records.clipped.moved
        now = bool(zero.any()), bool(one.any()), moved or not bool((zero | one).all())
        self._found = [before or after for before, after in zip(self._found, now, strict=True)]

    def join(self, other: "Outcomes") -> None:
        """Add what was found among other records."""
        self._found = [here or there for here, there in zip(self._found, other._found, strict=True)]

    def check(self) -> None:
        """Refuse outcomes that are all 0 and 1 where the domain does not say what they are: they may be events.

        Of a domain in code they are not: nobody knows whether its kind was chosen.

        Raises:
            InputError: They are, with the line to add.
        """
        if self._found != [True, True, False] or self.schema.kind_said is None:
            return
        domain = self.schema.domain
        bounds = "" if (domain.outcome_low, domain.outcome_high) == (0.0, 1.0) else ", with low: 0 and high: 1"
        raise InputError(
            f"outcome {self.schema.outcome!r} holds 0 and 1 alone, and the domain does not say its kind; under outcome "
            f'add "kind: binary"{bounds}, or "kind: continuous" to keep it a number'
        )


def check_kind_said(records: CausalData, schema: TableSchema) -> None:
    """Refuse records whose outcomes are all 0 and 1 where the domain does not say their kind; see ``Outcomes``.

    Raises:
        InputError: They are, with the line to add.
    """
    outcomes = Outcomes(schema)
    outcomes.add(records)
    outcomes.check()


def with_known_propensity(records: CausalData, schema: TableSchema) -> CausalData:
    """Return records within the domain with their known propensity, if the domain knows one.

    It is computed here once for all: what later leaves covariates out leaves it as it is.

    Raises:
        InputError: The column is missing, or has values outside the overlap that are not to be clipped.
    """
    known = schema.domain.known_propensity
    if known is None or len(known.of_arms) > 2:  # K arms have a row of numbers that no record changes
        return records
    values, (low, high) = known.of(records), known.bounds
    outside = int(((values < low) | (values > high)).sum())
    if outside and schema.out_of_bounds != "clip":
        raise InputError(
            f"propensity column {known.column!r} has {plural(outside, 'value')} outside [{low:g}, {high:g}] of the "
            "overlap bound; lower overlap, or clip with data.out_of_bounds=clip"
        )
    return records.with_propensity(values.clamp(low, high))


def outcome_within(y: Tensor, schema: TableSchema) -> Tensor:
    """Clip outcomes [n] into their bounds, and to integers if binary or a count; or refuse those that are not so.

    Raises:
        InputError: Values outside or between integers, and the schema refuses them.
    """
    clip, domain = schema.out_of_bounds == "clip", schema.domain
    if clip:
        y = domain.clip_outcome(y)
    domain.check_outcome(y, f"outcome {schema.outcome!r}")
    if domain.outcome_kind == "continuous":
        return y
    between = int((y != y.round()).sum())
    if between and not clip:
        raise InputError(
            f"outcome {schema.outcome!r} has {plural(between, 'value')} between integers, and is declared "
            f"{domain.outcome_kind}; correct them, or its kind"
        )
    return y.round()


def checked_records(
    schema: TableSchema,
    X: Any,
    A: Any,
    Y: Any,
    noise: NoiseSource | None,
    actions: Sequence[int] = (0, 1),
    propensity: Any = None,
    weight: Any = None,
) -> CausalData:
    """Return the records of a fit, within their public bounds; with a noise source in a uniformly random order.

    Blocks and groups of records go by position. A claim for tables that differ in one record, wherever it stands
    and however the tables are sorted, needs positions that do not depend on the records: any two such tables can be
    written as lists that differ in the first place alone, and a random order of either list is a random order of its
    table (docs/guarantees/common.md). The order must stay secret, and nothing keeps it.

    Args:
        schema: Columns and public bounds.
        X: Covariates: a frame with the schema's columns, or encoded columns [n, q] as NumPy or torch.
        A: Treatment [n], one of the actions.
        Y: Outcome [n].
        noise: Where the order comes from; None keeps the order, for fits without privacy.
        actions: Labels of the arms.
        propensity: Each record's known propensity [n], where the domain names a column of it that X lacks.
        weight: Each record's weight [n], likewise.

    Returns:
        The records, with their propensity where the domain knows it, and how many values were moved to their bounds, of
        which it warns where they are many.

    Raises:
        InputError: Wrong shapes, missing values, values outside the domain, an arm without records, or outcomes of 0
            and 1 alone where a domain file does not say their kind.

    Example:
        >>> from torchdpcate.data.domain import Domain
        >>> schema = TableSchema.from_domain(Domain([0.0], [1.0], 0.0, 1.0))
        >>> records = checked_records(schema, [[0.1], [0.2], [0.3]], [0, 1, 1], [0.0, 1.0, 1.0], NoiseSource.system())
        >>> sorted(zip(records.x[:, 0].tolist(), records.a.tolist(), records.y.tolist()))
        [(0.1, 0.0, 0.0), (0.2, 1.0, 1.0), (0.3, 1.0, 1.0)]
    """
    rows = schema.pairs is not None and is_frame(X)  # a pair is two of them
    actions = schema.actions if rows else actions
    records = records_within(schema.records(X, A, Y, actions, propensity, weight), schema)
    check_kind_said(records, schema)
    warn_clipped(records.clipped, schema)
    if schema.pairs is not None and rows:
        folded = schema.pairs.fold(records, X, schema.greatest)
        records = replace(records_within(folded, schema), clipped=folded.clipped)
    return records if noise is None else records.subset(noise.permutation(records.n))


@contextmanager
def every_fault(frame: "pd.DataFrame", schema: TableSchema, what: str = "covariate") -> Iterator[None]:
    """Name every column that is not as declared where reading ends at the first, one line each with its remedy.

    Args:
        frame: What is read: the schema's columns.
        schema: What is declared.
        what: ``"covariate"`` of records, or ``"query"`` of points that have covariates alone.

    Raises:
        InputError: What was refused, with all else that would be.

    Example:
        >>> import pandas as pd
        >>> unit = {"low": 0, "high": 1}
        >>> facts = {"treatment": "a", "outcome": {"name": "y", **unit}, "covariates": {"x": unit, "z": unit}}
        >>> frame, schema = pd.DataFrame({"x": ["?"], "z": [7]}), TableSchema.from_dict(facts)
        >>> with every_fault(frame, schema, "query"):  # doctest: +ELLIPSIS
        ...     schema.within(schema.encode(frame))
        Traceback (most recent call last):
        ...
        torchdpcate.errors.InputError: 2 columns are not as the domain file says:
        - column 'x' has 1 non-numeric value; ...
        - query 'z' has 1 value outside its declared bounds [0, 1]; ...
    """
    try:
        yield
    except InputError:
        found = list(column_faults(frame, schema, what))
        if len(found) < 2:
            raise
        columns = len(schema.columns) + 2 * (what == "covariate")
        if len(found) == columns and len(frame) > 1 and not any(column_faults(frame.iloc[1:], schema, what)):
            raise InputError(
                f"all {columns} columns are not as the domain file says in the first row, and in no other; where that "
                f"is no record, but labels or units, delete it, or give {setting('skip_after_header', '1')} of a csv"
            ) from None
        lines = "".join(f"\n- {fault}" for fault in found)
        raise InputError(f"{len(found)} columns are not as the domain file says:{lines}") from None


def column_faults(frame: "pd.DataFrame", schema: TableSchema, what: str = "covariate") -> Iterator[str]:
    """Yield what would be refused of each column by itself: what is missing, no number, no level, or out of bounds.

    Args:
        frame: As of ``every_fault``, as are the others.
        schema: What is declared.
        what: ``"covariate"`` or ``"query"``.
    """
    if what == "covariate":
        yield from _refused(lambda: _treatment(frame, schema))
        yield from _refused(lambda: outcome_within(_there(schema.encode_outcome(frame)), schema))
    middle = schema.domain.from_unit(torch.full((1, schema.domain.dimension), 0.5, dtype=torch.float64))
    for covariate in schema.covariates:

        def check(name: str = covariate.name, encode: Callable = covariate.encode) -> None:
            x = middle.repeat(len(frame), 1)
            x[:, list(schema.places[name])] = torch.from_numpy(encode(frame[name]))
            schema.within(x, what)

        yield from _refused(check)


def _treatment(frame: "pd.DataFrame", schema: TableSchema) -> None:
    arm_sizes(_there(schema.encode_treatment(frame)), f"treatment column {schema.treatment!r}", schema.actions)


def _there(values: Tensor) -> Tensor:
    """Return the values that are not missing; where they may not be, reading refuses them."""
    return values[~values.isnan()]


def _refused(check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except InputError as error:
        yield str(error)
