"""Verification of the files beside a release: what the release itself would write there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchdpcate.errors import VerificationError
from torchdpcate.release.file import SUMS_FILE, ReleaseFile, check_sums
from torchdpcate.release.release import Release
from torchdpcate.verify.card import CARD_HTML, CARD_JSON, make_card
from torchdpcate.verify.card_html import card_html

STATEMENT_JSON, STATEMENT_MD = "privacy.json", "privacy.md"
"""The statement's own files, which a run writes with the release."""

_CURATORS = ("audit", "registry", "stated_by_the_curator", "to_be_filled_in_by_the_curator", "registry_schema")
# what curators add to a card, and what an audit shipped with another version found


def beside(file: ReleaseFile, release: Release, cards: bool = True) -> tuple[tuple[str, str], list[str]]:
    """Compare the files beside a release with it.

    Args:
        file: The release's file.
        release: What was made of it.
        cards: Whether cards are compared, which takes some seconds; there is none of a statement that is wrong.

    Returns:
        What was found, for people to read; and what is wrong.
    """
    folder = file.path.parent
    own = [name for name in (STATEMENT_JSON, STATEMENT_MD) if (folder / name).is_file()]
    problems = [*_statements(file, release)]
    if cards:
        problems += _cards(file, release)
    if not (folder / SUMS_FILE).is_file():
        if own:
            problems.append(f"{SUMS_FILE} is missing, which a run writes beside {own[0]}; ask for the complete folder")
        text = f"none: no {SUMS_FILE} and no statement beside it, so this file alone was looked at"
        return ("files beside", text), problems
    finding, changed = _sums(file.path)
    return finding, [*changed, *problems]


def _sums(path: Path) -> tuple[tuple[str, str], list[str]]:
    report = check_sums(path.parent)
    text = f"{len(report.matching)} files match"
    text += f"; not here: {', '.join(report.absent)}" if report.absent else ""
    text += f"; not listed: {', '.join(report.unlisted)}" if report.unlisted else ""
    problems = [f"{name} is not as in {SUMS_FILE}" for name in report.changed]
    if path.name in report.unlisted:
        problems.append(f"{path.name} is not listed in {SUMS_FILE}")
    return (SUMS_FILE, text), problems


def _statements(file: ReleaseFile, release: Release) -> Iterator[str]:
    """Problems of the statement's own files."""
    own, folder = release.privacy.to_dict(), file.path.parent
    text = _text(folder / STATEMENT_JSON)
    if text is not None and _object(text) != own:
        yield f"{STATEMENT_JSON} does not say what the release says"
    text = _text(folder / STATEMENT_MD)
    if text is not None and text != release.privacy.to_markdown():
        yield f"{STATEMENT_MD} does not say what the release says"


def _cards(file: ReleaseFile, release: Release) -> Iterator[str]:
    """Problems of a card beside the release; what its curator or an audit added is theirs."""
    folder = file.path.parent
    text, page = _text(folder / CARD_JSON), _text(folder / CARD_HTML)
    if text is None:
        if page is not None:
            yield f"{CARD_HTML} is here without {CARD_JSON}, so that it cannot be compared"
        return
    card = _object(text)
    if card is None:
        yield f"{CARD_JSON} is no card"
        return
    named = isinstance(card.get("release"), dict) and "file" in card["release"]
    other = named and card["release"]["file"] != file.path.name
    if other and card["release"]["file"] in {path.name for path in folder.iterdir()}:
        return  # the card of another release of the folder
    try:
        needed = json.loads(json.dumps(make_card(release, path=file.path if named else None)))
    except VerificationError:
        return  # the statement's own problems, and the signature's, are reported elsewhere
    names = sorted((needed.keys() | card.keys()) - set(_CURATORS))
    if any(card.get(name) != needed.get(name) for name in names if not (other and name == "release")):
        yield f"{CARD_JSON} does not say what the release says"
    elif page is not None and page != _page(card):
        yield f"{CARD_HTML} does not say what {CARD_JSON} says"


def _page(card: dict[str, Any]) -> str | None:
    try:
        return card_html(card)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def _text(path: Path) -> str | None:
    """Return the text of a file; None where there is none, and nothing in particular where it is no text."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
