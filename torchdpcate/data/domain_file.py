"""Domain files: the entries that name a table's columns and their public bounds."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchdpcate.data._cells import INDICATOR, Code, check_codes, is_date
from torchdpcate.data._yaml import read_yaml, shipped
from torchdpcate.data.assignment import assignment_of
from torchdpcate.data.censoring import Censoring
from torchdpcate.data.covariates import Categorical, Covariate, Numeric
from torchdpcate.data.facts import (
    IN_CODE,
    check_bounds,
    check_count,
    check_entries,
    check_filled,
    check_integer,
    check_origin,
    check_shown,
    to_number,
)
from torchdpcate.data.propensity import level_values
from torchdpcate.errors import InputError

Made = TypeVar("Made")
_NEEDED = {"treatment", "outcome", "covariates"}
_OVERLAP = 0.05  # where the file states none
_OPTIONAL = {"overlap", "origin", "out_of_bounds", "propensity", "treated", "assignment", "codes", "weights"}
_SCORES = "of an outcome with an order give scores: {WORD: NUMBER} in the place of categories"
_OF_OUTCOMES = ("origin", "codes", "words", "missing", "better", "sd", "unit")  # of every kind


def read_domain_file(path: str | Path, make: Callable[[Mapping[str, Any]], Made]) -> Made:
    """Return what is made of a domain file's entries, or of a shipped one's, with the file's name as their origin.

    Args:
        path: The file, or the name of a shipped one.
        make: Of the entries.

    Raises:
        InputError: No such file or name, not yaml, or entries that ``make`` refuses.
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
        if not facts.keys() & {"overlap", "propensity"} and "pairs" not in (facts.get("assignment") or ()):
            warnings.warn(f"domain file {str(path)!r}: states no overlap; {_OVERLAP:g} is taken", stacklevel=2)
        return make({**facts, "origin": source + own})
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
    entries = check_entries(facts, "domain", _NEEDED, _OPTIONAL)
    codes = check_codes("all columns", entries.get("codes", ()))
    outcome, levels, success = _outcome(entries["outcome"])
    if not isinstance(entries["covariates"], Mapping) or not entries["covariates"]:
        raise InputError(
            "covariates is empty in the domain; name at least one, with low and high; where there is none, as for an "
            "average effect of a trial, add a column of zeros to the table, and none: {low: 0, high: 1}"
        )
    check_count(len(entries["covariates"]))
    covariates = tuple(
        one for name, entry in entries["covariates"].items() for one in _covariates(str(name), entry, codes)
    )
    check_count(len(covariates))
    treatment, order = _treatment(entries["treatment"], codes)
    given = entries.get("assignment")
    domain = _domain(_in_this_order(entries, treatment["arms"], order), covariates, outcome)
    return {
        **treatment,
        "outcome": str(outcome["name"]),
        "covariates": covariates,
        "domain": domain,
        "outcome_origin": _origin("outcome", outcome),
        "outcome_levels": levels,
        "success": success,
        "outcome_codes": _codes("outcome", outcome, codes, levels),
        "out_of_bounds": entries.get("out_of_bounds", "refuse"),
        "kind_said": bool({"kind", "exposure"} & outcome.keys()),
        "assignment": None if given is None else assignment_of(given, entries.get("propensity")),
        "outcome_unit": check_shown("unit", "outcome", outcome.get("unit", ""), 30),
        "outcome_label": check_shown("label", "outcome", outcome.get("label", "")),
    }


def _check_form(facts: Any) -> None:
    """Refuse what has not the form of a domain file, and may be records: nothing of it is shown."""
    if not isinstance(facts, Mapping) or not facts.keys() >= _NEEDED:
        missing = f"has no entry {min(_NEEDED - facts.keys())!r}" if isinstance(facts, Mapping) else "holds no entries"
        raise InputError(f"domain {missing}; it needs {', '.join(sorted(_NEEDED))}")


def _domain(entries: Mapping[str, Any], covariates: Sequence[Covariate], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``Domain.of_columns`` takes: the public bounds of the encoded columns and of the outcome."""
    low, high = check_bounds(f"outcome {outcome['name']!r}", outcome["low"], outcome["high"])
    return {
        "columns": [column for covariate in covariates for column in covariate.columns],
        "outcome_low": low,
        "outcome_high": high,
        "overlap": entries.get("overlap", _OVERLAP),
        "origin": entries.get("origin", IN_CODE),
        "propensity": _encoded_propensity(entries.get("propensity"), covariates),
        "outcome_kind": outcome.get("kind", "continuous"),
        "treated": entries.get("treated"),
        "indicators": {c.name: c.columns[1].name for c in covariates if isinstance(c, Numeric) and c.missing},
        "weights": _counted(entries.get("weights"), outcome),
        "missing": _dropped(entries["treatment"], outcome),
        "censoring": outcome.get("censoring"),
        "better": outcome.get("better"),
        "outcome_sd": outcome.get("sd"),
    }


def _counted(weights: Any, outcome: Mapping[str, Any]) -> Any:
    """Return the weights of records, or the exposure that the outcome names, in the unit of time that it has or is."""
    exposure = outcome.get("exposure")
    if exposure is None:
        return weights
    own = check_entries(exposure, "exposure", {"name", "high"}, {"mean", "unit"})
    if weights is not None:
        raise InputError("exposure: the outcome has one, and records have weights; leave one out")
    return {"unit": str(own["name"]), **own}


def _covariates(name: str, entry: Any, codes: tuple[Code, ...]) -> list[Covariate]:
    """Build a covariate, or those of its hours, from its yaml entry and the codes of missing values of all columns."""
    what, optional, entry = f"covariate {name!r}", {"origin", "missing", "codes", "label"}, _scored(name, entry)
    if isinstance(entry, Mapping) and "hours" in entry:
        own = {key: value for key, value in entry.items() if key != "hours"}
        check_count(check_integer(f"hours of {what}", entry["hours"]))
        label = check_shown("label", what, own.get("label", ""))
        labels = [{"label": f"{label}, hour {hour}"} if label else {} for hour in range(entry["hours"])]
        return [one for hour, its in enumerate(labels) for one in _covariates(f"{name}_h{hour}", own | its, codes)]
    if isinstance(entry, Mapping) and "categories" in entry:
        check_entries(entry, what, {"categories"}, optional | {"labels", "words"})
        levels = _levels(name, entry)
        shown = {"labels": _labels(what, entry, levels), **_missing(what, entry, codes, levels)}
        return [Categorical(name, levels, _origin(what, entry), **shown)]
    kind = entry.get("kind", "number") if isinstance(entry, Mapping) else "number"
    if kind not in ("number", "date"):
        raise InputError(f"kind of {what} is {kind!r}; choose date, or leave it out of a number")
    of_numbers = {"format"} if kind == "date" else {"two_levels", "scale", "unit", "words"}
    bounds = check_entries(entry, what, {"low", "high"}, {"typical", "kind"} | of_numbers | optional)
    said, ends, typical = _missing(what, bounds, codes, ()), (bounds["low"], bounds["high"]), bounds.get("typical")
    if kind == "date":
        said |= {"origin": _origin(what, bounds), "format": bounds.get("format", "")}
        return [Numeric.of_dates(name, *ends, typical, **said)]
    if any(map(is_date, ends)):
        raise InputError(f"bounds of {what} are {ends[0]} and {ends[1]}; of dates add kind: date")
    two_levels, scale = bounds.get("two_levels", False), bounds.get("scale", "linear")
    if not isinstance(two_levels, bool):
        raise InputError(f"two_levels of {what} is {two_levels!r}; give true or false")
    said["unit"] = check_shown("unit", what, bounds.get("unit", ""), 30)
    return [Numeric(name, *ends, _origin(what, bounds), two_levels, scale, typical, **said)]


def _scored(name: str, entry: Any) -> Any:
    """Return an entry with the scores of its words as these and bounds; another one as it is."""
    if not isinstance(entry, Mapping) or "scores" not in entry:
        return entry
    scores, rest = entry["scores"], {key: fact for key, fact in entry.items() if key != "scores"}
    if not isinstance(scores, Mapping) or rest.keys() & {"low", "high", "words", "categories"}:
        raise InputError(f"scores of {name!r} are {scores!r}; give each word its number, without low, high and words")
    numbers = [to_number(f"a score of {name!r}", score) for score in (scores or {"": 0}).values()]
    return {**rest, "words": scores, "low": min(numbers), "high": max(numbers)}


def _missing(what: str, entry: Mapping[str, Any], codes: tuple[Code, ...], levels: Sequence[Any]) -> dict[str, Any]:
    """Return whether values of a covariate may be missing, and what else says so."""
    given = entry.get("missing")
    if given == "drop":
        raise InputError(
            f"missing of {what} is drop, which is of treatment and outcome alone; give missing: {INDICATOR}"
        )
    if given not in (None, INDICATOR):
        raise InputError(f"missing of {what} is {given!r}; give missing: {INDICATOR}, or leave it out")
    label = check_shown("label", what, entry.get("label", ""))
    return {"missing": given == INDICATOR, "codes": _codes(what, entry, codes, levels), "label": label}


def _codes(what: str, entry: Mapping[str, Any], codes: tuple[Code, ...], levels: Sequence[Any]) -> tuple[Code, ...]:
    """Return a column's own codes of missing values, or those of all columns, and what its words stand for."""
    return check_codes(what, entry.get("codes", codes), entry.get("words"), levels)


def _outcome(entry: Any) -> tuple[Mapping[str, Any], tuple[Any, ...], tuple[Any, ...]]:
    """Return the outcome's entries, its categories, and which count as 1; a horizon brings bounds and kind too.

    The categories 0 and 1 are numbers as they are.
    """
    entry = _scored("outcome", entry)
    if isinstance(entry, Mapping) and {"time", "event", "horizon"} & set(entry):
        more = {fact: entry[fact] for fact in _OF_OUTCOMES if fact in entry}
        censoring = Censoring.of({fact: value for fact, value in entry.items() if fact not in more})
        assert censoring is not None
        return {"name": censoring.name, **censoring.facts, "censoring": censoring, **more}, (), ()
    if not isinstance(entry, Mapping) or "categories" not in entry:
        others = {"kind", "label", "exposure", *_OF_OUTCOMES}
        return check_entries(entry, "outcome", {"name", "low", "high"}, others), (), ()
    own = check_entries(entry, "outcome", {"name", "categories"}, {"success", "label", *_OF_OUTCOMES})
    levels, success = _levels("outcome", own), own.get("success")
    Categorical("outcome", levels)  # may refuse
    if success is None and (len(levels) > 2 or levels == (1, 0)):
        raise InputError(
            f"categories of the outcome are {list(levels)}; say which of them counts as 1: success: {levels[-1]}"
        )
    given = levels[1:] if success is None else success if isinstance(success, list | tuple) else (success,)
    success = tuple(level for level in levels if level in given)
    if len(success) != len(given) or len(success) in (0, len(levels)):
        raise InputError(
            f"success of the outcome is {', '.join(map(repr, given))}; choose one or some of its categories "
            f"{list(levels)}, each once; {_SCORES}"
        )
    facts = {key: own[key] for key in ("name", "label", *_OF_OUTCOMES) if key in own}
    facts |= {"low": 0, "high": 1, "kind": "binary"}
    return facts, *(((), ()) if (*levels, *success) == (0, 1, 1) else (levels, success))


def _dropped(treatment: Any, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what becomes of records without treatment or outcome, where the entries say it."""
    given = {"treatment": treatment, "outcome": outcome}
    return {
        role: entry["missing"] for role, entry in given.items() if isinstance(entry, Mapping) and "missing" in entry
    }


def _encoded_propensity(given: Any, covariates: Sequence[Covariate]) -> Any:
    """Return a known propensity by the names and levels of the encoded columns."""
    if not isinstance(given, Mapping) or len(given) != 1:
        return given
    name, entries = next(iter(given.items()))
    covariate = next((covariate for covariate in covariates if covariate.name == str(name)), None)
    if not isinstance(covariate, Categorical):
        return given
    values = level_values(f"propensity by {covariate.name!r}", entries, covariate.levels)
    encoded = (0.0, 1.0) if len(covariate.levels) == 2 else covariate.levels
    return {covariate.name: {str(label): values[level] for label, level in zip(encoded, covariate.levels, strict=True)}}


def _treatment(entry: Any, codes: tuple[Code, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return what is said of the treatment, its categories with the reference first, and their places as listed."""
    if not isinstance(entry, Mapping):
        return {"treatment": str(entry), "treatment_codes": codes, "arms": ()}, ()
    optional = {"codes", "missing", "label", "labels", "words"}
    needed = {"name"} if optional & entry.keys() else {"name", "categories"}  # a name alone needs no entries
    own = check_entries(entry, "treatment", needed, {"categories", "reference", *optional})
    name = str(own["name"])
    levels = _levels(name, own) if "categories" in own else ()
    codes = _codes("treatment", own, codes, levels or (0, 1))
    first = _reference(name, levels, own["reference"]) if "reference" in own else 0
    order = tuple(sorted(range(len(levels)), key=lambda place: place != first))
    arms = tuple(levels[place] for place in order)
    shown = {
        "treatment_label": check_shown("label", "treatment", own.get("label", "")),
        "arm_labels": _labels("treatment", own, arms or (0, 1)),
    }
    return {"treatment": name, "arms": arms, "treatment_codes": codes, **shown}, order


def _reference(name: str, levels: Sequence[Any], given: Any) -> int:
    """Return the position of the arm that all others are compared with."""
    found = [place for place, level in enumerate(levels) if level == given and type(level) is type(given)]
    if not found:
        raise InputError(f"reference of {name!r} is {given!r}; give one of its categories, {list(levels)}")
    return found[0]


def _in_this_order(entries: Mapping[str, Any], arms: Sequence[Any], order: Sequence[int]) -> Mapping[str, Any]:
    """Return the entries with a number for each arm, where they have some, in the order of the arms.

    Raises:
        InputError: The reference is not the first category, and something is said of the second one alone.
    """
    given = entries.get("propensity")
    if list(order) == sorted(order):
        return entries
    if isinstance(given, list | tuple) and len(given) == len(order):
        entries = {**entries, "propensity": [given[place] for place in order]}
        given = None
    stated = "propensity" if given is not None else "treated"
    if given is not None or entries.get("treated") is not None:
        raise InputError(
            f"{stated} is {entries[stated]!r}, which is of the second category, and reference = {arms[0]!r} is another "
            f"order; list {arms[0]!r} first in categories, and state {stated} of the second"
            + (", or give propensity a number for each category" if stated == "propensity" else "")
        )
    return entries


def _levels(name: str, entry: Mapping[str, Any]) -> tuple[Any, ...]:
    levels = entry["categories"]
    if isinstance(levels, str | Mapping) or not hasattr(levels, "__iter__"):
        raise InputError(f"categories of {name!r} are {levels!r}; write a list; {_SCORES}")
    return tuple(int(level) if isinstance(level, bool) else level for level in levels)


def _labels(what: str, entry: Mapping[str, Any], levels: Sequence[Any]) -> tuple[str, ...]:
    """Return what readers see of each level; empty if nothing is said."""
    if "labels" not in entry:
        return ()
    given = level_values(f"labels of {what}", entry["labels"], levels, "label")
    return tuple(check_shown("label", f"{level!r} of {what}", given[level]) or str(level) for level in levels)


def _origin(what: str, entry: Mapping[str, Any]) -> str:
    """Return where an entry says its bounds come from; empty if it says nothing."""
    return check_origin(what, entry["origin"]) if "origin" in entry else ""
