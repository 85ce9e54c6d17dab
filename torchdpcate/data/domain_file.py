"""Domain files: the entries that name a table's columns and their public bounds, and drafts of them."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate._files import write_text
from torchdpcate._text import is_plain
from torchdpcate.data._arrays import MISSING, is_number
from torchdpcate.data._cells import INDICATOR, Code, check_codes
from torchdpcate.data._frames import (
    NUMBERS,
    TRUTHS,
    WORDS,
    arrow_path,
    check_there,
    column_kind,
    csv_batches,
    csv_names,
    file_kind,
    readable,
)
from torchdpcate.data._yaml import read_yaml, shipped
from torchdpcate.data.covariates import Categorical, Covariate, Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import IN_CODE, OPEN, check_bounds, check_filled, check_origin
from torchdpcate.data.propensity import level_values
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDED = {"treatment", "outcome", "covariates"}
OTHER, TWICE, ENCODED = "neither numbers nor words", "there more than once", "not in UTF-8"
_TO_USE = {
    OTHER: "make a number or a category of it to use it",
    TWICE: "rename all but one to use it",
    ENCODED: "save the file as UTF-8 to use it",
}
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]*(?: [\w.-]+)*")
_HEAD = """\
# Draft of a domain file: the table's columns by name and type, and nothing else of its records.
#
# Replace every ??? by a public fact, known without these records (a codebook, a protocol, a unit, a law), and say
# where it comes from. A bound, level or share that is read off the records is a leak that no guarantee covers.
# Delete what is no covariate: identifiers, dates, and whatever the treatment may have changed.
"""
_FOOT = """\
# codes: [NA, .]   # what else means that a value is missing, in every column; or in the entry of one
overlap: ???   # neither arm is less likely than this, whatever the covariates: such as 0.05
# propensity: 0.5   # of a trial alone: the share that its design treats
# treated: 0.05   # of anything else, where few or most are treated: their public share, such as that of another year
origin: ???   # where the overlap comes from, and every bound above that has no origin of its own
"""


def read_domain_file(path: str | Path) -> Any:
    """Return the entries of a domain file, or of a shipped one by its name, with the file's name as their origin.

    Args:
        path: The file, or the name of a shipped one.

    Raises:
        InputError: No such file or name, or not yaml.
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
        _check_form(facts)
        check_filled(facts)
        source = f"domain file {file.stem}{owner}"
        own = f": {check_origin('domain', facts['origin'])}" if "origin" in facts else ""
        return {**facts, "origin": source + own}
    except InputError as error:
        raise InputError(f"domain file {str(path)!r}: {error}") from None


def schema_arguments(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ``TableSchema`` is made of, by the entries of a domain file.

    Args:
        facts: See ``TableSchema.from_dict``.

    Raises:
        InputError: An entry is missing, unknown or invalid.
    """
    _check_form(facts)
    check_filled(facts)
    optional = {"overlap", "origin", "out_of_bounds", "propensity", "treated", "codes"}
    entries = _entries(facts, "domain", _NEEDED, optional)
    codes = check_codes("all columns", entries.get("codes", ()))
    outcome, levels, success = _outcome(entries["outcome"])
    if not isinstance(entries["covariates"], Mapping) or not entries["covariates"]:
        raise InputError(
            "covariates is empty in the domain; name at least one, with low and high; where there is none, as for an "
            "average effect of a trial, add a column of zeros to the table, and none: {low: 0, high: 1}"
        )
    covariates = tuple(_covariate(str(name), entry, codes) for name, entry in entries["covariates"].items())
    domain = _domain(entries, covariates, outcome)
    treatment, arms, treatment_codes = _treatment(entries["treatment"], codes)
    return {
        "treatment": treatment,
        "outcome": str(outcome["name"]),
        "covariates": covariates,
        "domain": domain,
        "outcome_origin": _origin("outcome", outcome),
        "arms": arms,
        "outcome_levels": levels,
        "success": success,
        "treatment_codes": treatment_codes,
        "outcome_codes": _codes("outcome", outcome, codes),
        "out_of_bounds": entries.get("out_of_bounds", "refuse"),
        "kind_said": "kind" in outcome,
    }


def _check_form(facts: Any) -> None:
    """Refuse what has not the form of a domain file, and may be records: nothing of it is shown."""
    if not isinstance(facts, Mapping) or not facts.keys() >= _NEEDED:
        missing = f"has no entry {min(_NEEDED - facts.keys())!r}" if isinstance(facts, Mapping) else "holds no entries"
        raise InputError(f"domain {missing}; it needs {', '.join(sorted(_NEEDED))}")


def _domain(entries: Mapping[str, Any], covariates: Sequence[Covariate], outcome: Mapping[str, Any]) -> Domain:
    """Return the public bounds of the encoded columns and of the outcome."""
    low, high = check_bounds(f"outcome {outcome['name']!r}", outcome["low"], outcome["high"])
    return Domain.of_columns(
        [column for covariate in covariates for column in covariate.columns],
        low,
        high,
        entries.get("overlap", 0.05),
        origin=entries.get("origin", IN_CODE),
        propensity=_encoded_propensity(entries.get("propensity"), covariates),
        outcome_kind=outcome.get("kind", "continuous"),
        treated=entries.get("treated"),
        indicators={c.name: c.columns[1].name for c in covariates if isinstance(c, Numeric) and c.missing},
    )


def _covariate(name: str, entry: Any, codes: tuple[Code, ...]) -> Covariate:
    """Build a covariate from its yaml entry, and the codes of missing values of all columns."""
    what = f"covariate {name!r}"
    optional = {"origin", "missing", "codes"}
    if isinstance(entry, Mapping) and "categories" in entry:
        for fact in ("scale", "typical"):
            if fact in entry:
                raise InputError(f"{what} has categories, and {fact}, which is of numbers alone; leave it out")
        _entries(entry, what, {"categories"}, optional)
        levels, said = _levels(name, entry), _missing(what, entry, codes)
        return Categorical(name, levels, _origin(what, entry), **said)
    bounds = _entries(entry, what, {"low", "high"}, {"two_levels", "scale", "typical", "kind"} | optional)
    said, kind, typical = _missing(what, bounds, codes), bounds.get("kind", "number"), bounds.get("typical")
    if kind not in ("number", "date"):
        raise InputError(f"kind of {what} is {kind!r}; choose date, or leave it out of a number")
    if kind == "date":
        for fact in ("scale", "two_levels"):
            if fact in bounds:
                raise InputError(f"{what} has dates, and {fact}, which is of numbers alone; leave it out")
        return Numeric.of_dates(name, bounds["low"], bounds["high"], typical, origin=_origin(what, bounds), **said)
    two_levels, scale = bounds.get("two_levels", False), bounds.get("scale", "linear")
    if not isinstance(two_levels, bool):
        raise InputError(f"two_levels of {what} is {two_levels!r}; give true or false")
    return Numeric(name, bounds["low"], bounds["high"], _origin(what, bounds), two_levels, scale, typical, **said)


def _missing(what: str, entry: Mapping[str, Any], codes: tuple[Code, ...]) -> dict[str, Any]:
    """Return whether values of a covariate may be missing, and what else says so."""
    given = entry.get("missing")
    if given == "drop":
        raise InputError(
            f"missing of {what} is drop, which is of treatment and outcome alone; give missing: {INDICATOR}"
        )
    if given not in (None, INDICATOR):
        raise InputError(f"missing of {what} is {given!r}; give missing: {INDICATOR}, or leave it out")
    return {"missing": given == INDICATOR, "codes": _codes(what, entry, codes)}


def _codes(what: str, entry: Mapping[str, Any], codes: tuple[Code, ...]) -> tuple[Code, ...]:
    """Return a column's own codes of missing values, or those of all columns."""
    return check_codes(what, entry["codes"]) if "codes" in entry else codes


def _outcome(entry: Any) -> tuple[Mapping[str, Any], tuple[Any, ...], Any]:
    """Return the outcome's entries, with bounds and kind that categories bring; these, and which of them counts as 1.

    The categories 0 and 1 are numbers as they are.
    """
    if not isinstance(entry, Mapping) or "categories" not in entry:
        return _entries(entry, "outcome", {"name", "low", "high"}, {"origin", "kind", "codes"}), (), None
    own = _entries(entry, "outcome", {"name", "categories"}, {"origin", "success", "codes"})
    levels, success = _levels("outcome", own), own.get("success")
    Categorical("outcome", levels)  # may refuse
    if success is None and (len(levels) > 2 or levels == (1, 0)):
        raise InputError(
            f"categories of the outcome are {list(levels)}; say which of them counts as 1: success: {levels[-1]}"
        )
    success = levels[1] if success is None else int(success) if isinstance(success, bool) else success
    if success not in levels:
        raise InputError(f"success of the outcome is {success!r}; choose one of its categories {list(levels)}")
    facts = {key: own[key] for key in ("name", "origin", "codes") if key in own}
    facts |= {"low": 0, "high": 1, "kind": "binary"}
    return facts, *(((), None) if (*levels, success) == (0, 1, 1) else (levels, success))


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


def _treatment(entry: Any, codes: tuple[Code, ...]) -> tuple[str, tuple[Any, ...], tuple[Code, ...]]:
    """Return the treatment's column, its categories, if it has any, and codes of missing values."""
    if not isinstance(entry, Mapping):
        return str(entry), (), codes
    optional = {"codes"} & entry.keys()  # a name alone needs no entries
    own = _entries(entry, "treatment", {"name"} if optional else {"name", "categories"}, {"categories", "codes"})
    name, codes = str(own["name"]), _codes("treatment", own, codes)
    return name, _levels(name, own) if "categories" in own else (), codes


def _levels(name: str, entry: Mapping[str, Any]) -> tuple[Any, ...]:
    levels = entry["categories"]
    if isinstance(levels, str | Mapping) or not hasattr(levels, "__iter__"):
        raise InputError(f"categories of {name!r} are {levels!r}; write a list")
    return tuple(int(level) if isinstance(level, bool) else level for level in levels)


def _origin(what: str, entry: Mapping[str, Any]) -> str:
    """Return where an entry says its bounds come from; empty if it says nothing."""
    return check_origin(what, entry["origin"]) if "origin" in entry else ""


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


def draft_domain(path: str | Path, treatment: str | None = None, outcome: str | None = None) -> str:
    """Return the draft of a domain file for a table: its columns by name and type, ``???`` for each public fact.

    No bound, level, count or value of the records is in it. A parquet file states its types. Those of a csv file
    are by majority of the values at its beginning, so that no record decides alone.

    Args:
        path: csv, csv.gz or parquet.
        treatment: Name of the treatment's column; None leaves it open.
        outcome: Name of the outcome's column; None leaves it open.

    Returns:
        Text of a yaml file that ``TableSchema.from_yaml`` refuses until each ``???`` is replaced.

    Raises:
        InputError: No such file, names of columns that may be a record's (a number, an
            empty one that is not the first), or one that cannot be shown; a treatment or an outcome that is no column,
            or there twice.
    """
    check_there(path)
    with readable(path):
        kinds = _of_csv(path) if file_kind(path) == "csv" else _of_parquet(path)
    _check_roles(kinds, treatment, outcome)
    rest = {name: kind for name, kind in kinds.items() if name not in (treatment, outcome)}
    covariates = {name: kind for name, kind in rest.items() if name and kind not in _TO_USE}
    if not covariates:
        raise InputError(
            f"data file {str(path)!r}: has no column that can be a covariate, and one is needed; where there is none, "
            "as for an average effect of a trial, add a column of zeros, with low: 0 and high: 1"
        )
    parts = [
        _HEAD,
        *_draft_treatment(treatment, kinds),
        *_draft_outcome(outcome),
        "covariates:   # of a number that is a code, categories: [1, 2, 3] in the place of low and high\n",
        *(line for name, kind in covariates.items() for line in _draft_covariate(name, kind)),
        *_left_out(rest),
        _FOOT,
    ]
    return "".join(parts)


def write_draft(draft: str, path: str | Path) -> Path:
    """Write a draft to a file that is not there yet.

    Raises:
        InputError: It is there, with what somebody filled in, or cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"output {str(path)!r} exists already, and may be filled in; choose another name or remove it")
    if not path.parent.is_dir():
        raise InputError(f"output {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    write_text(path, draft)
    return path


def _of_csv(path: str | Path) -> dict[str, str]:
    names = csv_names(arrow_path(path))
    if len(names) == 1:  # no table; its name may be a line of another kind of file
        raise InputError(f"data file {str(path)!r}: line 1 has no comma; write a csv with commas between its columns")
    _check_names(path, names, list(map(_like_a_number, names)))
    columns = [name for name in names if name and names.count(name) == 1]
    first = next(islice(csv_batches(arrow_path(path), columns, raw=True), 1), None) if columns else None
    found = {} if first is None else {name: _by_majority(first.column(name)) for name in columns}
    return {name: TWICE if names.count(name) > 1 else found.get(name, NUMBERS) for name in names}


def _of_parquet(path: str | Path) -> dict[str, str]:
    from pyarrow import parquet

    schema = parquet.read_schema(arrow_path(path))
    numbers = list(map(_like_a_number, schema.names))
    if schema.names == [str(place) for place in range(len(numbers))]:
        numbers = [False] * len(numbers)  # pandas' own names
    _check_names(path, schema.names, numbers)
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    return {field.name: TWICE if field.name in twice else _by_type(field.type) for field in schema}


def _by_type(type_: "pa.DataType") -> str:
    from pyarrow import types

    if types.is_dictionary(type_):
        return WORDS
    kind = column_kind(type_)
    return kind if kind in (NUMBERS, TRUTHS, WORDS) else OTHER


def _by_majority(column: "pa.Array") -> str:
    """Return what most values are: one record with a word among numbers does not make words of them."""
    try:
        values = [value.decode("utf-8").strip() for value in column.to_pylist() if value is not None]
    except UnicodeError:
        return ENCODED
    known = [value for value in values if value.lower() not in MISSING]
    return WORDS if 2 * sum(map(_is_number, known)) < len(known) else NUMBERS


def _is_number(text: str) -> bool:
    return is_number(text) and text.strip().lower() not in MISSING


def _like_a_number(name: str) -> bool:
    """Return whether a name is a number, or a date, a time or a share: digits, and no letter."""
    letters = any(map(str.isalpha, name))
    return _is_number(name) or (not letters and any(map(str.isdigit, name)))


def _check_names(path: str | Path, names: Sequence[str], numbers: Sequence[bool]) -> None:
    """Refuse names that may be a record's: they are counted from 1, and not shown."""
    wrong = {
        "is a number": numbers,
        "has characters that cannot be shown": [not is_plain(name) for name in names],
        "is empty": [not name and (place > 0 or not any(names)) for place, name in enumerate(names)],
    }
    for why, found in wrong.items():
        if any(found):
            raise InputError(
                f"data file {str(path)!r}: name {found.index(True) + 1} of its columns {why}; give the table a header"
            )


def _check_roles(kinds: Mapping[str, str], treatment: str | None, outcome: str | None) -> None:
    for what, name in (("treatment", treatment), ("outcome", outcome)):
        if name is not None and name not in kinds:
            # of a file without a header, what is there would be a record's
            similar = [there for there in kinds if there.strip().casefold() == name.strip().casefold()]
            hint = f"{similar[0]!r} is there" if similar else "give a name in line 1 of the table"
            raise InputError(f"{what} = {name}: is no column of the table; {hint}")
        if name is not None and kinds[name] in (TWICE, ENCODED):
            raise InputError(f"{what} = {name}: the column is {kinds[name]}; {_TO_USE[kinds[name]]}")
    if treatment is not None and treatment == outcome:
        raise InputError(f"treatment = outcome = {treatment}: give each a column of its own")


def _draft_treatment(name: str | None, kinds: Mapping[str, str]) -> Iterator[str]:
    if name is not None and kinds[name] == WORDS:
        yield f"treatment:\n  name: {_quoted(name)}\n"
        yield f"  categories: {OPEN}   # in the order of 0 and 1: [placebo, drug]\n"
    elif name is not None:
        yield f"treatment: {_quoted(name)}   # 0 and 1\n"
    else:
        yield f"treatment: {OPEN}   # a column of 0 and 1, or {{name: arm, categories: [placebo, drug]}}\n"


def _draft_outcome(name: str | None) -> Iterator[str]:
    yield f"outcome:   # or {{name: died, categories: [0, 1]}}\n  name: {OPEN if name is None else _quoted(name)}\n"
    yield f"  low: {OPEN}\n  high: {OPEN}\n  origin: {OPEN}\n"


def _draft_covariate(name: str, kind: str) -> Iterator[str]:
    yield f"  {_quoted(name)}:\n"
    if kind == NUMBERS:
        yield f"    low: {OPEN}\n    high: {OPEN}\n"
        yield "    # typical: [ , ]   # where nine of ten values lie, if the range is much wider\n"
        yield "    # scale: log   # of values over decades\n"
    else:
        yield "    categories: [0, 1]\n" if kind == TRUTHS else f"    categories: {OPEN}\n"
        yield "" if kind == TRUTHS else "    # kind: date   # of dates, with low and high in the place of categories\n"
    yield f"    # missing: {INDICATOR}   # where values may be missing\n"
    if kind != TRUTHS:
        yield f"    origin: {OPEN}\n"


def _left_out(kinds: Mapping[str, str]) -> Iterator[str]:
    for name, kind in kinds.items():
        if not name:
            yield "  # left out: a column without a name, such as the numbers of rows\n"
        elif kind in _TO_USE:
            yield f"  # left out: {_quoted(name)}, {kind}; {_TO_USE[kind]}\n"


def _quoted(name: str) -> str:
    """Return a name as yaml reads it back."""
    import yaml

    if _PLAIN_NAME.fullmatch(name) and yaml.safe_load(name) == name:
        return name
    return json.dumps(name, ensure_ascii=False)
