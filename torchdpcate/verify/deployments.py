"""Fields of the OpenDP Deployments Registry, and the facts that only the curator can put into them."""

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchdpcate.data._yaml import read_yaml
from torchdpcate.errors import InputError

SCHEMA = "opendp/deployments-registry-data, schemas/deployments-schema.yaml, commit 057e5d81"


@dataclass(frozen=True)
class Field:
    """A field of the registry.

    Attributes:
        tier: The transparency tier that requests it, 1 to 3.
        by_curator: Whether the curator may state it. What a release knows of itself cannot be overridden.
        added: Whether the curator's words are added to the release's own, rather than put in their place.
        choices: Values that the registry allows; any words if empty.
        kind: ``words``, ``date``, ``names`` (a list), ``curators`` or ``sources``.
        optional: Whether the tier is reached without it.
    """

    tier: int
    by_curator: bool = True
    added: bool = False
    choices: tuple[str, ...] = ()
    kind: str = "words"
    optional: bool = False


def _own(tier: int) -> Field:
    """A field that the release fills itself."""
    return Field(tier, by_curator=False)


FIELDS: dict[str, Field] = {
    "url_slug": Field(1),
    "basic.name": Field(1),
    "basic.data_curators": Field(1, kind="curators"),
    "basic.description": Field(1),
    "basic.intended_use": Field(1),
    "basic.data_product_type": _own(1),
    "basic.data_product_region": Field(1),
    "basic.data_product_sector": Field(
        1, choices=("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"), optional=True
    ),
    "basic.publication_date": Field(1, kind="date"),
    "dp_variant.variant_name": _own(2),
    "dp_variant.data_domain": _own(3),
    "dp_variant.unprotected_quantities": Field(3, added=True),
    "privacy_loss.privacy_unit": _own(2),
    "privacy_loss.privacy_unit_details": Field(3, added=True),
    "privacy_loss.number_of_privacy_units": _own(3),
    "privacy_loss.privacy_parameters": _own(2),
    "privacy_loss.privacy_parameters_details": _own(3),
    "deployment_model.model_name": _own(2),
    "deployment_model.model_name_details": Field(3, added=True),
    "deployment_model.trust_assumptions": Field(3, added=True),
    "deployment_model.actors": Field(3, added=True),
    "deployment_model.release_type": Field(2, choices=("One release", "Many releases")),
    "deployment_model.release_type_details": Field(3, added=True),
    "deployment_model.data_source_type": Field(2, choices=("Static", "Dynamic")),
    "deployment_model.data_source_type_details": Field(2, added=True),
    "deployment_model.access_type": _own(2),
    "deployment_model.access_type_details": _own(3),
    "implementation.preprocessing_and_hyperparameter_tuning": Field(3, added=True),
    "implementation.mechanisms": Field(3, added=True),
    "implementation.composition": _own(3),
    "implementation.post_processing": Field(3, added=True),
    "implementation.justification": Field(3),
    "implementation.utility": Field(3, optional=True),
    "implementation.additional_information": Field(1, optional=True),
    "administrative.evidence_sources": Field(1, kind="sources", optional=True),
    "administrative.status": _own(1),
    "administrative.registry_authors": Field(1, kind="names"),
}
"""Every field of tiers 1 to 3 but ``administrative.tier``, which follows from them; without the word ``deployment``."""

_CURATOR_TYPES = ("Government", "Industry", "Nonprofit")
_KINDS = {
    "date": ": such as 2026-01-31",
    "names": ": [NAME, ...]",
    "curators": f": [{{data_curator_name: NAME, data_curator_type: {' or '.join(_CURATOR_TYPES)}}}]",
    "sources": ": an entry for each source, with evidence_source_type",
}
_SOURCE_TYPES = (
    "Peer-reviewed publication",
    "Formal publication by the deploying organization",
    "Authorized organizational attestation",
    "Other public source",
)


def read_facts(path: str | Path) -> dict[str, Any]:
    """Read the curator's facts, a yaml file nested as the registry's own records are.

    Args:
        path: For instance a file with ``deployment: {basic: {name: ..., intended_use: ...}}``.

    Returns:
        Facts by the keys of ``FIELDS``.

    Raises:
        InputError: No such file, not yaml, an unknown or computed field, or a value that the registry does not allow.
    """
    if not os.path.isfile(path):
        raise InputError(f"facts = {path}: no such file")
    try:
        content = read_yaml(Path(path))
    except InputError as error:
        raise InputError(f"facts = {path}: cannot be read: {error}") from None
    try:
        return {name: _value(name, value) for name, value in _flat(content).items()}
    except InputError as error:
        raise InputError(f"facts = {path}: {error}") from None


def record(own: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Join what the release knows with the curator's facts into a registry record.

    Args:
        own: The release's own values by the keys of ``FIELDS``; None or absent where it knows nothing.
        facts: The curator's, from ``read_facts``.

    Returns:
        The record in the registry's nesting, with the tier it reaches (None below tier 1); and the fields that are
        still empty.
    """
    values = {name: _joined(field, own.get(name), facts.get(name)) for name, field in FIELDS.items()}
    empty = [name for name, value in values.items() if value is None]
    lowest = min((FIELDS[name].tier for name in empty if not FIELDS[name].optional), default=4)
    values["administrative.tier"] = lowest - 1 or None
    nested: dict[str, Any] = {"url_slug": values.pop("url_slug"), "deployment": {}}
    for name, value in values.items():
        section, key = name.split(".")
        nested["deployment"].setdefault(section, {})[key] = value
    return nested, [name if name == "url_slug" else f"deployment.{name}" for name in empty]


def wanted(missing: Sequence[str]) -> dict[int, list[str]]:
    """Return the fields that each tier still wants, by tier; those without which it is reached are left out.

    Args:
        missing: Empty fields, as ``record`` names them.

    Example:
        >>> wanted(["url_slug", "deployment.implementation.justification", "deployment.implementation.utility"])
        {1: ['url_slug'], 3: ['implementation.justification']}
    """
    names = [name.removeprefix("deployment.") for name in missing]
    needed = [name for name in names if not FIELDS[name].optional]
    tiers = sorted({FIELDS[name].tier for name in needed})
    return {tier: [name for name in needed if FIELDS[name].tier == tier] for tier in tiers}


def facts_template() -> str:
    """Return a yaml file of all facts that only the curator knows, each empty, with its tier and what it may be."""
    lines = [
        "# Facts for inspect --card --facts and report --facts. What is left empty is left out.",
        "url_slug:  # tier 1",
    ]
    section = "deployment"
    lines.append("deployment:")
    for name, field in FIELDS.items():
        if not field.by_curator or name == "url_slug":
            continue
        own, key = name.split(".")
        if own != section:
            section = own
            lines.append(f"  {section}:")
        what = f": one of {', '.join(field.choices)}" if field.choices else _KINDS.get(field.kind, "")
        lines.append(f"    {key}:  # tier {field.tier}{', may stay empty' if field.optional else ''}{what}")
    return "\n".join(lines) + "\n"


def _joined(field: Field, own: Any, stated: Any) -> Any:
    if stated is None or own is None or not field.added:
        return own if stated is None else stated
    return f"{own} The curator adds: {stated}"


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Facts by the keys of ``FIELDS``; what is left empty is left out."""
    if not isinstance(content, Mapping):
        shown = f"{prefix} is {content!r}" if prefix else "the file holds no entries"  # it may be of records
        raise InputError(f"{shown}; it needs entries, such as deployment: basic: name")
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}".removeprefix("deployment.")
        field = FIELDS.get(name)
        if field is not None and not field.by_curator:
            raise InputError(f"{name} is computed from the release; leave it out")
        if field is not None:
            flat |= {} if value is None else {name: value}
        elif name == "deployment" or any(known.startswith(f"{name}.") for known in FIELDS):
            flat |= {} if value is None else _flat(value, f"{name}.")
        else:
            unknown = f"unknown field {name!r}" if prefix else "an unknown field at the top"  # it may be a record's
            raise InputError(f"{unknown}; the fields are those of the registry: {_near(prefix)}")
    return flat


def _near(prefix: str) -> str:
    """The fields that may stand where an unknown one was found."""
    inside = prefix.removeprefix("deployment.")
    names = [name for name, field in FIELDS.items() if name.startswith(inside) and field.by_curator]
    if not inside:
        names = [
            "url_slug",
            *(f"deployment.{section}" for section in sorted({n.split(".")[0] for n in names if "." in n})),
        ]
    return ", ".join(names)


def _value(name: str, value: Any) -> Any:
    """Check a fact against what the registry allows."""
    field = FIELDS[name]
    if field.kind == "date":
        return _date(name, value)
    if field.kind == "names":
        if not isinstance(value, list) or not value:
            raise InputError(f"{name} is {value!r}; give a list of names")
        return [_words(name, entry) for entry in value]
    if field.kind == "curators":
        return _curators(name, value)
    if field.kind == "sources":
        return _sources(name, value)
    return _words(name, value, field.choices)


def _words(name: str, value: Any, choices: tuple[str, ...] = ()) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{name} is {value!r}; give words")
    if choices and value not in choices:
        raise InputError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
    return " ".join(value.split())


def _date(name: str, value: Any) -> str:
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise InputError(f"{name} is {str(value)!r}; write YYYY-MM-DD") from None


def _curators(name: str, value: Any) -> list[dict[str, str]]:
    allowed = {"data_curator_name": (), "data_curator_type": _CURATOR_TYPES}
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(v, Mapping) and set(v) == set(allowed) for v in value)
    ):
        raise InputError(f"{name} is {value!r}; give a list of entries with {' and '.join(allowed)}")
    return [{key: _words(key, entry[key], choices) for key, choices in allowed.items()} for entry in value]


def _sources(name: str, value: Any) -> dict[str, Any]:
    """Check evidence: by a label, a type and one BibTeX entry of words or numbers."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{name} is {value!r}; give an entry for each source, with evidence_source_type")
    sources: dict[str, Any] = {}
    for label, entry in value.items():
        if not isinstance(entry, Mapping) or "evidence_source_type" not in entry or len(entry) > 2:
            raise InputError(f"{name}.{label} needs evidence_source_type and one BibTeX entry, such as misc")
        sources[str(label)] = {"evidence_source_type": _words(name, entry["evidence_source_type"], _SOURCE_TYPES)}
        for kind, fields in entry.items():
            if kind != "evidence_source_type":
                sources[str(label)][str(kind)] = _bibtex(f"{name}.{label}.{kind}", fields)
    return sources


def _bibtex(name: str, fields: Any) -> dict[str, str]:
    if not isinstance(fields, Mapping) or not all(isinstance(v, str | int | float) for v in fields.values()):
        raise InputError(f"{name} is {fields!r}; give BibTeX fields such as title, author, url")
    return {str(key): str(text) for key, text in fields.items()}
