"""The release card: what a data protection officer should know of one release, on its page.

It is made of the release's statement and what it says of its numbers, and of nothing else.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchdpcate._files import PUBLIC, refuse_existing, write_text
from torchdpcate._templates import number
from torchdpcate.data.words import outcome_words
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.blocks import Block
from torchdpcate.release.combination import COMBINED
from torchdpcate.release.file import (
    SUMS_FILE,
    Release,
    check_sums,
    file_sum,
    load_release,
    read_release_file,
    write_sums,
)
from torchdpcate.release.signature import Signature, read_private_key, signature_path, write_signature
from torchdpcate.release.statement import PrivacyStatement
from torchdpcate.verify.statement import check_statement

STATEMENT_JSON, STATEMENT_MD = "privacy.json", "privacy.md"
"""The statement's own files, which a run writes with the release."""
_BY_PERSON = "; blocks and charges are by record, epsilon and delta by {}, with {} of them"
_MOST_COVARIATES = 12


def texts_beside(release: Release) -> dict[str, Callable[[], str]]:
    """Return the texts that may lie beside a release file, by their names; each follows from it.

    Args:
        release: The release.
    """
    return {
        STATEMENT_JSON: lambda: release.privacy.to_json() + "\n",
        STATEMENT_MD: release.privacy.to_markdown,
    }


def card_values(release: Release, path: str | Path | None) -> dict[str, Any]:
    """Return what the template ``card_parts.html`` shows of a release, within its page.

    Where nothing is claimed (a heuristic, a condition that fails, noise of a fixed seed) it holds no epsilon, delta or
    mu, of the release or of any part of it.

    Args:
        release: The release.
        path: Its file, whose name and checksum are shown; None for neither.

    Raises:
        VerificationError: The privacy statement does not agree with itself; nothing of it should be passed on.
    """
    privacy, schema = release.privacy, release.schema
    _, problems = check_statement(privacy)
    if problems:
        raise VerificationError(
            f"release: no card of a statement that does not agree with itself: {'; '.join(problems)}"
        )
    person = _BY_PERSON.format(privacy.protected.name, privacy.protected.records) if privacy.person else ""
    return {
        "release": release,
        "privacy": privacy,
        "words": describe(privacy),
        "level_words": level_in_words(privacy),
        "summary": list(summary_rows(release.summary())),
        "composition": composition_in_words(privacy) + person,
        "blocks": [_charges(block, privacy.claims) for block in privacy.blocks],
        "outcome": outcome_words(schema),
        "schema": schema.to_dict(),
        "origins": schema.origins,
        "most": _MOST_COVARIATES,
        "shares": _split(privacy),
        "file": None if path is None else (Path(path).name, file_sum(Path(path))),
    }


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

    Written are ``<file>.sig`` beside it and its line of a ``SHA256SUMS`` there. The release itself stays as it is. That
    it agrees with itself is ``verify_release``'s to say.

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
        VerificationError: The ``SHA256SUMS`` beside it is no list of checksums.
    """
    private, named = read_private_key(key, password)
    file = read_release_file(path).path
    load_release(file)  # refuses a damaged one
    if not overwrite:
        refuse_existing(signature_path(file), "signature", "give overwrite=True (torchdpcate sign: --overwrite)")
    listed = (file.parent / SUMS_FILE).is_file()
    if listed:
        check_sums(file.parent)  # before anything is written
    signature = write_signature(file, private, named if signer is None else signer)
    written = signature_path(file)
    if listed:
        write_sums(file.parent, [written.name])
    return written, signature


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


_IN_WORDS = {
    Level.CERTIFIED: "a proof covers what the program computed, with public constants",
    Level.CONDITIONAL: "the proof rests on the conditions listed here; the program could not check all of them",
    Level.HEURISTIC: "there is no proof; for research only",
}
_FAILS = "a condition listed here was checked and fails: nothing is claimed"
_ALONE = "this is true of this release alone; what else is published from the same records adds up"
_FALSE_ALARMS = 0.05
_FACTOR_LIMIT = 1e6  # beyond it the factor says nothing any more


def level_in_words(privacy: PrivacyStatement) -> str:
    """Say what the level rests on, or that a condition of it is known to fail."""
    fails = any(condition["holds"] is False for condition in privacy.conditions)
    level = Level(privacy.level)
    return _FAILS if fails and level == Level.CONDITIONAL else _IN_WORDS[level]


def composition_in_words(privacy: PrivacyStatement) -> str:
    """Say how the costs of blocks and charges make the whole."""
    if len(privacy.blocks) == 1:
        return "All charges are on the same records, sequential and adaptive, so that their costs add up"
    return (
        "Parallel over disjoint blocks of records, sequential and adaptive within a block: each record lies in one "
        "block, so that the whole costs the largest of the blocks"
    )


def split_in_words(privacy: PrivacyStatement) -> str:
    """Say which records came into which block."""
    if len(privacy.blocks) == 1:
        return "all records are in one block"
    if privacy.mechanism == COMBINED:
        return "each site has blocks of its own, by its name"
    order = "drawn from the system's entropy and kept nowhere"
    if not privacy.private_noise:
        order = "drawn by the fixed seed of its noise, which a test requests and which protects nobody"
    return (
        f"the records are put into a secret order, {order}; positions in that order, and no values, say which block a "
        "record is in, by the public seed"
    )


def describe(privacy: PrivacyStatement) -> str:
    """Say the guarantee in words, with what it allows the best attacker.

    A test that distinguishes two neighbouring data sets with false alarms alpha detects at most
    min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - alpha - delta)) (Kairouz, Oh & Viswanath 2015).
    """
    if privacy.epsilon is None or privacy.delta is None:
        return _no_claim(privacy)
    condition = "If the conditions hold: " if privacy.level == Level.CONDITIONAL else ""
    factor = math.exp(min(privacy.epsilon, 100.0))
    times = f"{factor:.3g} times" if factor < _FACTOR_LIMIT else "more than a million times"
    chance = f", apart from a chance of 1 in {1 / privacy.delta:,.0f}" if privacy.delta else ""
    named = {"person": ("person", "their", "them")}
    who, place, it = named.get(privacy.protected.name, (privacy.protected.name, "its", "it"))
    detected = 100 * most_detected(privacy.epsilon, privacy.delta, _FALSE_ALARMS)
    return (
        f"{condition}Whatever is concluded from this release is at most {times} as likely with a given {who} as with "
        f"any other {who} in {place} place{chance}: {_ALONE}. An attacker who knows everything else, and may be wrong "
        f"in 5 of 100 cases without the {who}, finds the {who} in at most {detected:.3g} of 100 cases with {it}."
    )


def most_detected(epsilon: float, delta: float, false_alarms: float) -> float:
    """Largest rate at which any test of the given false-alarm rate detects a neighbour.

    Example:
        >>> round(most_detected(1.0, 0.0, 0.05), 4)
        0.1359
    """
    near = math.exp(min(epsilon, 100.0)) * false_alarms + delta
    return max(0.0, min(near, 1 - math.exp(-epsilon) * (1 - false_alarms - delta), 1.0))


def _no_claim(privacy: PrivacyStatement) -> str:
    reason = "a condition of its proof is known to fail"
    if not privacy.private_noise:
        reason = "the noise had a fixed seed, and who knows the seed can take the noise off again"
    elif privacy.level == Level.HEURISTIC:
        reason = "there is no proof for it, or for an earlier release from the same records"
    return f"No privacy guarantee: {reason}. Handle the release as confidentially as the records themselves."


def summary_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return name and value of each entry of a release's summary, in words for people.

    Of a list of mappings it is each one's words in a line.

    Example:
        >>> list(summary_rows({"cells": [{"cell": "sex = f", "estimate": 0.25, "low": 0.125}], "interval_level": 0.9}))
        [('sex = f', 'estimate 0.25, low 0.125'), ('interval level', '0.9')]
    """
    for name, value in summary.items():
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            for entry in value:
                (_, title), *rest = entry.items()
                yield str(title), ", ".join(f"{key.replace('_', ' ')} {_shown(found)}" for key, found in rest)
        else:
            yield name.replace("_", " "), "none" if value is None else _shown(value)
