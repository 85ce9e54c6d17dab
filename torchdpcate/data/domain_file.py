"""Domain files: the entries that name a table's columns and their public bounds."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchdpcate.data._yaml import read_yaml, shipped
from torchdpcate.data.covariates import Categorical, Covariate, Numeric
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import IN_CODE, check_bounds, check_filled, check_origin
from torchdpcate.data.propensity import level_values
from torchdpcate.errors import InputError

_NEEDED = {"treatment", "outcome", "covariates"}


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
    entries = _entries(facts, "domain", _NEEDED, {"overlap", "origin", "out_of_bounds", "propensity", "treated"})
    outcome = _outcome(entries["outcome"])
    if not isinstance(entries["covariates"], Mapping) or not entries["covariates"]:
        raise InputError(
            "covariates is empty in the domain; name at least one, with low and high; where there is none, as for an "
            "average effect of a trial, add a column of zeros to the table, and none: {low: 0, high: 1}"
        )
    covariates = tuple(_covariate(str(name), entry) for name, entry in entries["covariates"].items())
    domain = _domain(entries, covariates, outcome)
    treatment, arms = _treatment(entries["treatment"])
    return {
        "treatment": treatment,
        "outcome": str(outcome["name"]),
        "covariates": covariates,
        "domain": domain,
        "outcome_origin": _origin("outcome", outcome),
        "arms": arms,
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
    )


def _covariate(name: str, entry: Any) -> Covariate:
    """Build a covariate from its yaml entry."""
    what = f"covariate {name!r}"
    if isinstance(entry, Mapping) and "categories" in entry:
        for fact in ("scale", "typical"):
            if fact in entry:
                raise InputError(f"{what} has categories, and {fact}, which is of numbers alone; leave it out")
        _entries(entry, what, {"categories"}, {"origin"})
        return Categorical(name, _levels(name, entry), _origin(what, entry))
    bounds = _entries(entry, what, {"low", "high"}, {"origin", "two_levels", "scale", "typical"})
    two_levels = bounds.get("two_levels", False)
    if not isinstance(two_levels, bool):
        raise InputError(f"two_levels of {what} is {two_levels!r}; give true or false")
    scale, typical = bounds.get("scale", "linear"), bounds.get("typical")
    return Numeric(name, bounds["low"], bounds["high"], _origin(what, bounds), two_levels, scale, typical)


def _outcome(entry: Any) -> Mapping[str, Any]:
    """Return the outcome's entries, with the bounds and the kind that its categories bring."""
    if isinstance(entry, Mapping) and "categories" in entry:
        levels = _levels("outcome", _entries(entry, "outcome", {"name", "categories"}, {"origin"}))
        if any(isinstance(level, bool | str) for level in levels) or sorted(levels) != [0, 1]:
            raise InputError(
                f"categories of the outcome are {list(levels)}; a binary outcome is coded 0 "
                "and 1, or true and false: write these into the column, and categories: [0, 1]"
            )
        own = {"origin": entry["origin"]} if "origin" in entry else {}
        return {"name": entry["name"], "low": 0, "high": 1, "kind": "binary", **own}
    return _entries(entry, "outcome", {"name", "low", "high"}, {"origin", "kind"})


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
