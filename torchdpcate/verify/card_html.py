"""The release card as one self-contained page: inline style, no script, nothing fetched, two sheets of A4."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from torchdpcate._text import plain
from torchdpcate.verify.card_words import summary_rows
from torchdpcate.verify.deployments import FIELDS

_BLANK = '<i class="blank">to be filled in by the curator</i>'
_MOST_COVARIATES = 12
_STYLE = """
@page { size: A4; margin: 12mm }
* { box-sizing: border-box }
body { font: 9pt/1.32 system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; color: #1a1a1a; margin: 0 auto;
  max-width: 190mm; overflow-wrap: anywhere }
h1 { font-size: 15pt; margin: 0 }
h2 { font-size: 10pt; margin: 2.6mm 0 .8mm; border-bottom: .3mm solid #999; break-after: avoid }
p, ul { margin: .6mm 0 }
ul { padding-left: 4.5mm }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35mm 1.5mm .35mm 0; border-bottom: .15mm solid #ddd }
th { font-weight: 600; width: 42mm }
thead th { width: auto; background: #f2f2f2 }
tr, li { break-inside: avoid }
header { display: flex; justify-content: space-between; align-items: center; gap: 4mm }
.level { font-weight: 700; padding: 1mm 3mm; border: .5mm solid; white-space: nowrap }
.certified { color: #14532d } .conditional { color: #7c4a03 } .none { color: #991b1b }
.words { border-left: 1mm solid #555; padding: .5mm 0 .5mm 3mm; font-size: 10pt; margin: 1.5mm 0 }
.blank { color: #8a5a00 }
.said::after { content: " (stated by the curator)"; color: #555; font-size: 8pt }
small, footer { font-size: 7.5pt; color: #444 }
"""
_TRUTH = (
    "One record's true change over the change that the noise was scaled for, largest found; above 1 the noise was "
    "scaled for too little. Over n and over parameters per record: experiments/audit/influence_truth.md."
)
_ABOUT = {
    "basic.name": "Data product",
    "basic.data_curators": "Curator",
    "basic.description": "What it is",
    "basic.intended_use": "Intended use",
    "basic.data_product_region": "Region",
    "basic.data_product_sector": "Sector",
    "basic.publication_date": "Published",
}
_DEPLOYMENT = {
    "deployment_model.model_name": "Model",
    "deployment_model.actors": "Actors",
    "deployment_model.trust_assumptions": "Trust",
    "deployment_model.release_type_details": "Releases",
    "deployment_model.data_source_type": "Data source",
    "deployment_model.access_type_details": "Access",
    "implementation.preprocessing_and_hyperparameter_tuning": "Before training",
    "implementation.post_processing": "Afterwards",
    "implementation.justification": "Why so",
    "implementation.utility": "Usefulness",
    "implementation.additional_information": "More",
}


def card_html(card: Mapping[str, Any]) -> str:
    """Return the page of a card. Everything in the card is text to show, never markup.

    Args:
        card: From ``make_card``.
    """
    guarantee, release = card["guarantee"], card["release"]
    claims = "epsilon" in guarantee
    colour = guarantee["level"] if claims else "none"
    parts = [
        f"<header><div><h1>Release card</h1><p>{_text(release['kind'])} by {_text(release['mechanism'])}</p></div>"
        f'<p class="level {_text(colour)}">{_text(guarantee["headline"])}</p></header>',
        f'<p class="words">{_text(guarantee["in_words"])}</p>',
        _registry(card, "About this release", _ABOUT),
        _summary(card.get("summary", {})),
        _guarantee(guarantee),
        _event_tree(card["event_tree"]),
        _bounds(card["bounds"], card["split"]),
        _section("What is not protected", _list(card["not_protected"])),
        _section("Floating point, entropy and other assumptions", _list(card["assumptions"]))
        if card["assumptions"]
        else "",
        _how(card),
        _audit(card["audit"]),
        _registry(card, "Deployment", _DEPLOYMENT),
        _footer(card),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Release card</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(filter(None, parts)) + "\n</body></html>\n"
    )


def _summary(summary: Mapping[str, Any]) -> str:
    rows = [(name, _found(value)) for name, value in summary_rows(summary)]
    return _section("What it says", _rows(rows)) if rows else ""


def _found(value: Any) -> str:
    """Markup of a number, of an interval, or of words."""
    if value is None:
        return "none that is honest"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(map(_number, value)) if isinstance(value, list) else _number(value)


def _guarantee(guarantee: Mapping[str, Any]) -> str:
    rows: list[tuple[str, str]] = [
        ("Claim", _text(guarantee["claim"])),
        ("Level", f"{_text(guarantee['level'])}: {_text(guarantee['level_in_words'])}"),
        ("Adjacency", _text(guarantee["adjacency"])),
        ("Unit of privacy", _text(guarantee["unit_of_privacy"])),
        ("Records", f"{guarantee['records']:,}"),
        *([("Persons", f"{guarantee['persons']:,}")] if "persons" in guarantee else []),
    ]
    if "epsilon" in guarantee:
        rows.insert(1, ("Epsilon, delta", f"{guarantee['epsilon']:.6g}, {guarantee['delta']:.6g}"))
        rows.insert(2, ("Mu (Gaussian DP)", _mu(guarantee["mu_gdp"])))
    conditions = [f"{_holds(c['holds'])}: {_text(c['name'])}, {_text(c['text'])}" for c in guarantee["conditions"]]
    return _section("Guarantee", _rows(rows) + (f"<p>Conditions</p>{_bullets(conditions)}" if conditions else ""))


def _event_tree(tree: Mapping[str, Any]) -> str:
    blocks = []
    for block in tree["blocks"]:
        head = f"<b>{_text(block['name'])}</b>, {block['records']:,} records, {_text(block['composition'])}"
        if "epsilon" in block:
            head += f": epsilon {_number(block['epsilon'])} at delta {_number(block['delta'])}"
            head += f" ({_number(block['naive_epsilon'])} if epsilons were added); mu {_mu(block['mu_gdp'])}"
        blocks.append(head + _bullets(map(_charge, block["charges"])))
    return _section("Event tree", f"<p>{_text(tree['composition'])}</p>{_bullets(blocks)}")


def _charge(charge: Mapping[str, Any]) -> str:
    text = f"{_text(charge['label'])} ({_text(charge['level'])})"
    if "event" not in charge:
        return text
    event = ", ".join(f"{_text(key)} {_number(value)}" for key, value in charge["event"].items() if key != "kind")
    return f"{text}: {charge.get('count', 0):,} × {_text(charge['event'].get('kind'))} ({event})"


def _bounds(bounds: Mapping[str, Any], split: Mapping[str, Any]) -> str:
    outcome, overlap, covariates = bounds["outcome"], bounds["overlap"], bounds["covariates"]
    shown = [
        ("outcome " + outcome["name"], outcome),
        *((entry["name"], entry) for entry in covariates[:_MOST_COVARIATES]),
    ]
    rows = [(_text(name), _range(entry), _text(entry["origin"])) for name, entry in shown]
    rows.append(("overlap", f"propensities at least {_number(overlap['least_propensity'])}", _text(overlap["origin"])))
    if "propensity" in bounds:
        known = bounds["propensity"]["known"]
        rows.append(("propensity", f"known by the design: {_text(known)}", _text(overlap["origin"])))
    more = len(covariates) - _MOST_COVARIATES
    note = f"{more} more covariates are in card.json. " if more > 0 else ""
    sizes = ", ".join(f"{_text(name)} {size:,}" for name, size in split["block_sizes"].items())
    return _section(
        "Public facts: bounds and split",
        _table(("Column", "Bounds", "Where they come from"), rows)
        + f"<p>{note}{_text(bounds['note'])}.</p>"
        + f"<p>Split: share {_text(split['share_of_the_first_block'])} to the first block, public seed "
        + f"{_text(split['public_seed'])}; blocks: {sizes}; {_text(split['how'])}.</p>",
    )


def _how(card: Mapping[str, Any]) -> str:
    tuning = card["tuning"]
    text = tuning if isinstance(tuning, str) else f"{tuning['text']} (runs known of: {tuning['runs']})"
    rows = [("Tuning cost", _text(text))]
    if "accountant" in card:
        accountant = card["accountant"]
        words = accountant if isinstance(accountant, str) else ", ".join(map(str, accountant.values()))
        rows += [("Accountant", _text(words)), ("Noise", _text(card["mechanism"]["formula"]))]
        numbers = card["mechanism"]["public_numbers"].items()
        rows.append(("Public numbers", ", ".join(f"{_text(key)} {_number(value)}" for key, value in numbers)))
    return _section("Accountant, mechanism and tuning", _rows(rows))


def _audit(audit: Mapping[str, Any]) -> str:
    body, bounds = f"<p>{_text(audit['what_it_is'])}.</p>", audit.get("lower_bounds")
    if isinstance(bounds, Mapping):
        keys = ("claimed", "bound", "delta", "confidence", "attack", "trials")
        rows = [(_text(name), *(_number(entry.get(key)) for key in keys)) for name, entry in bounds.items()]
        heads = ("Mechanism", "Claimed in the attack", "Lower bound", "Delta", "Confidence", "Attack", "Trials")
        body += _table(heads, rows)
    elif bounds is not None:
        body += f"<p>Lower bounds: {_text(bounds)}.</p>"
    if audit.get("influence_versus_truth"):
        rows = [(_text(head), _number(change)) for head, change in audit["influence_versus_truth"].items()]
        body += f"<p>{_text(_TRUTH)}</p>" + _table(("Head", "Largest change over scale"), rows)
    return _section("Audit", body)


def _registry(card: Mapping[str, Any], title: str, labels: Mapping[str, str]) -> str:
    rows = []
    for name, label in labels.items():
        section, key = name.split(".")
        value = card["registry"]["deployment"][section][key]
        stated = name in card["stated_by_the_curator"] and not FIELDS[name].added  # which says so itself
        said = ' class="said"' if stated else ""
        rows.append((label, _BLANK if value is None else f"<span{said}>{_value(value)}</span>"))
    return _section(title, _rows(rows))


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_value(entry) for entry in value)
    return ", ".join(_text(entry) for entry in value.values()) if isinstance(value, Mapping) else _text(value)


def _footer(card: Mapping[str, Any]) -> str:
    release, missing = card["release"], len(card["to_be_filled_in_by_the_curator"])
    versions = ", ".join(f"{_text(name)} {_text(number)}" for name, number in release["versions"].items())
    file = f"File {_text(release['file'])}, SHA-256 {_text(release['sha256'])}" if "file" in release else ""
    file += f"; {_text(release['signature'])}" if "signature" in release else ""
    file += ". " if file else ""
    tier = card["registry"]["deployment"]["administrative"]["tier"]
    reached = f"reaches tier {tier}" if tier else "reaches no tier yet"
    return (
        f"<footer><p>{file}Made with {versions}. Registry fields after {_text(card['registry_schema'])}; this record "
        f"{reached}: {missing} fields are left to the curator. card.json has every field.</p></footer>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    """Rows of a name and of markup."""
    return "<table>" + "".join(f"<tr><th>{_text(name)}</th><td>{value}</td></tr>" for name, value in rows) + "</table>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(texts: Iterable[Any]) -> str:
    return _bullets(map(_text, texts))


def _bullets(items: Iterable[str]) -> str:
    """Items of markup."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _mu(found: Mapping[str, Any]) -> str:
    if found["mu"] is None:
        return _text(found["kind"])
    end = f", delta = {_number(found['down_to_delta'])}" if "down_to_delta" in found else ""
    return f"{_number(found['mu'])} ({_text(found['kind'])}{end})"


def _holds(holds: bool | None) -> str:
    return {True: "<b>holds</b>", False: "<b>FAILS</b>", None: "<b>not checked</b>"}[holds]


def _range(entry: Mapping[str, Any]) -> str:
    if "categories" in entry:
        return f"one of {_text(', '.join(map(str, entry['categories'])))}"
    return f"{_number(entry['low'])} to {_number(entry['high'])}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else _text(f"{value:,}" if type(value) is int else value)


def _text(value: Any) -> str:
    return escape(plain(value), quote=True)
