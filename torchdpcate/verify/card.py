"""The release card: what a data protection officer should know of one release, on a page.

It is made of the release's statement, its findings and its signature, and of nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdpcate._files import PUBLIC, refuse_existing, write_text
from torchdpcate._templates import number, render
from torchdpcate.data.words import outcome_words
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.release.blocks import Block
from torchdpcate.release.file import (
    SUMS_FILE,
    Release,
    check_sums,
    file_sum,
    load_release,
    read_release_file,
    write_sums,
)
from torchdpcate.release.signature import Signature, read_private_key, read_signature, signature_path, write_signature
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.verify.card_words import (
    composition_in_words,
    describe,
    level_in_words,
    split_in_words,
    summary_rows,
)
from torchdpcate.verify.finding import findings
from torchdpcate.verify.statement import check_statement

STATEMENT_JSON, STATEMENT_MD = "privacy.json", "privacy.md"
"""The statement's own files, which a run writes with the release."""
CARD = "card.html"
UNSIGNED = "unsigned: anyone could have written it"
_BY_PERSON = "; blocks and charges are by record, epsilon and delta by person, who has {} of them"
_MOST_COVARIATES = 12


def texts_beside(release: Release, path: Path) -> dict[str, Callable[[], str]]:
    """Return the texts that may lie beside a release file, by their names; each follows from it and its signature.

    Args:
        release: The release.
        path: Its file.
    """
    return {
        STATEMENT_JSON: lambda: release.privacy.to_json() + "\n",
        STATEMENT_MD: release.privacy.to_markdown,
        CARD: lambda: card_html(release, path),
    }


def card_html(release: Release, path: str | Path | None = None) -> str:
    """Return the card of a release: one self-contained file, no script, two sheets of A4.

    Where nothing is claimed (a heuristic, a condition that fails, noise of a fixed seed) it holds no epsilon, delta or
    mu, of the release or of any part of it.

    Args:
        release: The release; everything in it is text to show, never markup.
        path: Its file, whose name, checksum and signer go into the card.

    Raises:
        VerificationError: The privacy statement does not agree with itself, or the file's signature is of another
            file; nothing of it should be passed on.

    Example:
        >>> from torchdpcate.release.rule import _example
        >>> card = card_html(_example())
        >>> "Release card" in card, "script" in card
        (True, False)
    """
    return render("card.html", title="Release card", **card_values(release, path, signed=path is not None))


def card_values(release: Release, path: str | Path | None, heading: str = "h1", signed: bool = False) -> dict[str, Any]:
    """Return what the template ``card_parts.html`` shows of a release.

    Args:
        release: The release.
        path: Its file, whose name and checksum are shown; None for neither.
        heading: Element of the title.
        signed: Whether the signer of the file is shown.

    Raises:
        VerificationError: See ``card_html``.
    """
    privacy, schema = release.privacy, release.schema
    _, problems = check_statement(privacy)
    if problems:
        raise VerificationError(
            f"release: no card of a statement that does not agree with itself: {'; '.join(problems)}"
        )
    person = _BY_PERSON.format(privacy.protected.records) if privacy.person else ""
    return {
        "heading": heading,
        "release": release,
        "privacy": privacy,
        "words": describe(privacy),
        "level_words": level_in_words(privacy),
        "found": findings(release),
        "summary": [(name, _shown(value)) for name, value in summary_rows(release.summary())],
        "composition": composition_in_words(privacy) + person,
        "blocks": [_charges(block, privacy.claims) for block in privacy.blocks],
        "outcome": outcome_words(schema),
        "schema": schema.to_dict(),
        "origins": schema.origins,
        "most": _MOST_COVARIATES,
        "shares": _split(privacy),
        "file": None if path is None else (Path(path).name, file_sum(Path(path))),
        "signature": signed_by(path) if signed and path is not None else None,
    }


def write_card(path: str | Path, folder: str | Path | None = None) -> Path:
    """Write the card of a release file, completely or not at all; its line of a ``SHA256SUMS`` there is renewed.

    Args:
        path: The release's file.
        folder: Made if it does not exist; None writes beside the release.

    Returns:
        The card.

    Raises:
        InputError: The folder cannot be written to.
        ReleaseFileError: Not a release, changed or damaged.
        VerificationError: See ``card_html``; or the folder's ``SHA256SUMS`` is no list of checksums.
    """
    path = Path(path)
    return write_beside(path.parent if folder is None else Path(folder), CARD, card_html(load_release(path), path))


def write_beside(folder: Path, name: str, text: str) -> Path:
    """Write a text into a folder, made if it does not exist, and renew its line of a ``SHA256SUMS`` there.

    Args:
        folder: The folder.
        name: Of the file.
        text: What it holds.

    Raises:
        InputError: The folder cannot be written to.
        VerificationError: Its ``SHA256SUMS`` is no list of checksums; nothing is written then.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        listed = (folder / SUMS_FILE).is_file()
        if listed:
            check_sums(folder)
        write_text(folder / name, text, PUBLIC)
        if listed:
            write_sums(folder, [name])
    except OSError as error:
        raise InputError(f"output = {folder}: cannot be written to ({error.strerror}); choose another folder") from None
    return folder / name


def sign_release(
    path: str | Path,
    key: str | Path,
    signer: str | None = None,
    password: bytes | None = None,
    overwrite: bool = False,
) -> tuple[Path, Signature]:
    """Sign a release with ed25519: the signature covers every byte of the file, the privacy statement among them.

    Written are ``<file>.sig`` beside it and its line of a ``SHA256SUMS`` there; its card there is made anew. The
    release itself stays as it is. That it agrees with itself is ``verify_release``'s to say.

    Args:
        path: Release file, or the run folder that holds it.
        key: File of the private key in PEM.
        signer: Name of the signer, which is signed too; None takes the one in the key's file, if there is one.
        password: Of an encrypted key.
        overwrite: Whether the signature may take the place of one that is there.

    Returns:
        The signature's file, and the signature.

    Raises:
        InputError: No ed25519 key, no name of one line, or a signature that is there.
        ReleaseFileError: Not a release, changed or damaged.
        VerificationError: The ``SHA256SUMS`` beside it is no list of checksums, or a card is to be made anew of a
            statement that does not agree with itself.
    """
    private, named = read_private_key(key, password)
    file = read_release_file(path).path
    release = load_release(file)  # refuses a damaged one
    if not overwrite:
        refuse_existing(signature_path(file), "signature", "give overwrite=True (torchdpcate sign: --overwrite)")
    listed, carded = (file.parent / SUMS_FILE).is_file(), (file.parent / CARD).is_file() and is_alone(file)
    if listed:
        check_sums(file.parent)  # before anything is written, as the next
    if carded:
        card_html(release)
    signature = write_signature(file, private, named if signer is None else signer)
    written = signature_path(file)
    if listed:
        write_sums(file.parent, [written.name])
    if carded:
        write_card(file)
    return written, signature


def is_alone(path: Path) -> bool:
    """Return whether a release is the only one in its folder, so that a card there is its own."""
    return len(list(path.parent.glob(f"*{path.suffix}"))) == 1


def signed_by(path: str | Path) -> str:
    """Return by whom a release file is signed, in words.

    Raises:
        VerificationError: Its signature is of another file, or damaged.
    """
    signature = read_signature(path)
    return UNSIGNED if signature is None else signature.words


def _shown(value: Any) -> str:
    """Return a number, an interval or words as a page shows them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(map(number, value)) if isinstance(value, list) else number(value)


def _charges(block: Block, claims: bool) -> tuple[Block, list[tuple[Any, dict[str, Any] | None]]]:
    """Return a block with its charges, and the event of each where something is claimed."""
    return block, [(c, c.event.to_dict() if claims and c.event is not None else None) for c in block.charges]


def _split(privacy: PrivacyStatement) -> str:
    """Say in a line which records came into which block, with the share and the seed where there are several."""
    stated = {"share of the first": "split", "public seed": "seed"} if len(privacy.blocks) > 1 else {}
    known = [(words, privacy.public[key]) for words, key in stated.items() if key in privacy.public]
    return "; ".join([*(f"{words} {value}" for words, value in known), split_in_words(privacy)])
