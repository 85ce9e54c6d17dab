"""The release card as one self-contained page: inline style, no script, nothing fetched, two sheets of A4."""

from collections.abc import Iterable, Mapping
from typing import Any

from torchdpcate._html import bullets, escaped, html_table, named_rows, section
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
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Release card</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(card_parts(card)) + "\n</body></html>\n"
    )


def card_parts(card: Mapping[str, Any]) -> list[str]:
    """Return the parts of the page, markup each, for other pages to hold.

    Args:
        card: From ``make_card``.
    """
    guarantee, release = card["guarantee"], card["release"]
    claims = "epsilon" in guarantee
    colour = guarantee["level"] if claims else "none"
    assumptions = section("Floating point, entropy and other assumptions", _list(card["assumptions"]))
    parts = [
        f"<header><div><h1>Release card</h1><p>{escaped(release['kind'])} by {escaped(release['mechanism'])}</p></div>"
        f'<p class="level {escaped(colour)}">{escaped(guarantee["headline"])}</p></header>',
        f'<p class="words">{escaped(guarantee["in_words"])}</p>',
        _registry(card, "About this release", _ABOUT),
        _summary(card.get("summary", {})),
        _guarantee(guarantee),
        _event_tree(card["event_tree"]),
        _bounds(card["bounds"], card["split"]),
        section("What is not protected", _list(card["not_protected"])),
        assumptions if card["assumptions"] else "",
        _how(card),
        _audit(card["audit"]),
        _registry(card, "Deployment", _DEPLOYMENT),
        _footer(card),
    ]
    return list(filter(None, parts))


def _summary(summary: Mapping[str, Any]) -> str:
    rows = [(name, _found(value)) for name, value in summary_rows(summary)]
    return section("What it says", named_rows(rows)) if rows else ""


def _found(value: Any) -> str:
    """Markup of a number, of an interval, or of words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(map(_number, value)) if isinstance(value, list) else _number(value)


def _guarantee(guarantee: Mapping[str, Any]) -> str:
    rows: list[tuple[str, str]] = [
        ("Claim", escaped(guarantee["claim"])),
        ("Level", f"{escaped(guarantee['level'])}: {escaped(guarantee['level_in_words'])}"),
        ("Adjacency", escaped(guarantee["adjacency"])),
        ("Unit of privacy", escaped(guarantee["unit_of_privacy"])),
        ("Records", f"{guarantee['records']:,}"),
        *([("Persons", f"{guarantee['persons']:,}")] if "persons" in guarantee else []),
    ]
    if "epsilon" in guarantee:
        rows.insert(1, ("Epsilon, delta", f"{guarantee['epsilon']:.6g}, {guarantee['delta']:.6g}"))
        rows.insert(2, ("Mu (Gaussian DP)", _mu(guarantee["mu_gdp"])))
    conditions = [f"{_holds(c['holds'])}: {escaped(c['name'])}, {escaped(c['text'])}" for c in guarantee["conditions"]]
    return section("Guarantee", named_rows(rows) + (f"<p>Conditions</p>{bullets(conditions)}" if conditions else ""))


def _event_tree(tree: Mapping[str, Any]) -> str:
    blocks = []
    for block in tree["blocks"]:
        head = f"<b>{escaped(block['name'])}</b>, {block['records']:,} records, {escaped(block['composition'])}"
        if "epsilon" in block:
            head += f": epsilon {_number(block['epsilon'])} at delta {_number(block['delta'])}"
            head += f" ({_number(block['naive_epsilon'])} if epsilons were added); mu {_mu(block['mu_gdp'])}"
        blocks.append(head + bullets(map(_charge, block["charges"])))
    return section("Event tree", f"<p>{escaped(tree['composition'])}</p>{bullets(blocks)}")


def _charge(charge: Mapping[str, Any]) -> str:
    text = f"{escaped(charge['label'])} ({escaped(charge['level'])})"
    if "event" not in charge:
        return text
    event = ", ".join(f"{escaped(key)} {_number(value)}" for key, value in charge["event"].items() if key != "kind")
    return f"{text}: {charge.get('count', 0):,} × {escaped(charge['event'].get('kind'))} ({event})"


def _bounds(bounds: Mapping[str, Any], split: Mapping[str, Any]) -> str:
    outcome, overlap, covariates = bounds["outcome"], bounds["overlap"], bounds["covariates"]
    shown = [
        ("outcome " + outcome["name"], outcome),
        *((entry["name"], entry) for entry in covariates[:_MOST_COVARIATES]),
    ]
    rows = [(escaped(name), _range(entry), escaped(entry["origin"])) for name, entry in shown]
    rows.append(
        ("overlap", f"propensities at least {_number(overlap['least_propensity'])}", escaped(overlap["origin"]))
    )
    if "propensity" in bounds:
        known = bounds["propensity"]["known"]
        rows.append(("propensity", f"known by the design: {escaped(known)}", escaped(overlap["origin"])))
    more = len(covariates) - _MOST_COVARIATES
    note = f"{more} more covariates are in card.json. " if more > 0 else ""
    sizes = ", ".join(f"{escaped(name)} {size:,}" for name, size in split["block_sizes"].items())
    share, seed = split.get("share_of_the_first_block"), split.get("public_seed")
    shares = [] if share is None else [f"share of the first {share}" if isinstance(share, float) else str(share)]
    shares += [] if seed is None else [f"public seed {seed}"]
    return section(
        "Public facts: bounds and blocks",
        html_table(("Column", "Bounds", "Where they come from"), rows)
        + f"<p>{note}{escaped(bounds['note'])}.</p>"
        + f"<p>Blocks of records: {sizes}; {escaped('; '.join([*shares, split['how']]))}.</p>",
    )


def _how(card: Mapping[str, Any]) -> str:
    tuning = card["tuning"]
    text = tuning if isinstance(tuning, str) else f"{tuning['text']} (runs known of: {tuning['runs']})"
    rows = [("Tuning cost", escaped(text))]
    if "accountant" in card:
        accountant = card["accountant"]
        words = accountant if isinstance(accountant, str) else ", ".join(map(str, accountant.values()))
        rows += [("Accountant", escaped(words)), ("Noise", escaped(card["mechanism"]["formula"]))]
        numbers = card["mechanism"]["public_numbers"].items()
        rows.append(("Public numbers", ", ".join(f"{escaped(key)} {_number(value)}" for key, value in numbers)))
    return section("Accountant, mechanism and tuning", named_rows(rows))


def _audit(audit: Mapping[str, Any]) -> str:
    body, bounds = f"<p>{escaped(audit['what_it_is'])}.</p>", audit.get("lower_bounds")
    if isinstance(bounds, Mapping):
        keys = ("claimed", "bound", "delta", "confidence", "attack", "trials")
        rows = [(escaped(name), *(_number(entry.get(key)) for key in keys)) for name, entry in bounds.items()]
        heads = ("Mechanism", "Claimed in the attack", "Lower bound", "Delta", "Confidence", "Attack", "Trials")
        body += html_table(heads, rows)
    elif bounds is not None:
        body += f"<p>Lower bounds: {escaped(bounds)}.</p>"
    if audit.get("influence_versus_truth"):
        rows = [(escaped(head), _number(change)) for head, change in audit["influence_versus_truth"].items()]
        body += f"<p>{escaped(_TRUTH)}</p>" + html_table(("Head", "Largest change over scale"), rows)
    return section("Audit", body)


def _registry(card: Mapping[str, Any], title: str, labels: Mapping[str, str]) -> str:
    rows = []
    for name, label in labels.items():
        part, key = name.split(".")
        value = card["registry"]["deployment"][part][key]
        stated = name in card["stated_by_the_curator"] and not FIELDS[name].added  # which says so itself
        said = ' class="said"' if stated else ""
        rows.append((label, _BLANK if value is None else f"<span{said}>{_value(value)}</span>"))
    return section(title, named_rows(rows))


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_value(entry) for entry in value)
    return ", ".join(escaped(entry) for entry in value.values()) if isinstance(value, Mapping) else escaped(value)


def _footer(card: Mapping[str, Any]) -> str:
    release, missing = card["release"], len(card["to_be_filled_in_by_the_curator"])
    versions = ", ".join(f"{escaped(name)} {escaped(number)}" for name, number in release["versions"].items())
    file = f"File {escaped(release['file'])}, SHA-256 {escaped(release['sha256'])}" if "file" in release else ""
    file += f"; {escaped(release['signature'])}" if "signature" in release else ""
    file += ". " if file else ""
    tier = card["registry"]["deployment"]["administrative"]["tier"]
    reached = f"reaches tier {tier}" if tier else "reaches no tier yet"
    return (
        f"<footer><p>{file}Made with {versions}. Registry fields after {escaped(card['registry_schema'])}; this record "
        f"{reached}: {missing} fields are left to the curator. card.json has every field.</p></footer>"
    )


def _list(texts: Iterable[Any]) -> str:
    return bullets(map(escaped, texts))


def _mu(found: Mapping[str, Any]) -> str:
    if found["mu"] is None:
        return escaped(found["kind"])
    end = f", delta = {_number(found['down_to_delta'])}" if "down_to_delta" in found else ""
    return f"{_number(found['mu'])} ({escaped(found['kind'])}{end})"


def _holds(holds: bool | None) -> str:
    return {True: "<b>holds</b>", False: "<b>FAILS</b>", None: "<b>not checked</b>"}[holds]


def _range(entry: Mapping[str, Any]) -> str:
    if "categories" in entry:
        return f"one of {escaped(', '.join(map(str, entry['categories'])))}"
    return f"{_number(entry['low'])} to {_number(entry['high'])}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else escaped(f"{value:,}" if type(value) is int else value)
