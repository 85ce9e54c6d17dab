"""Verification of a release file: does it agree with itself, with public facts, and with the files beside it?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from torchdpcate.errors import InputError, ReleaseFileError, VerificationError
from torchdpcate.plan import UNFIT, StatedPlan
from torchdpcate.privacy.exact_sums import alike_problems, decimal_problems
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.combination import combine, statement_of
from torchdpcate.release.combined import Combined
from torchdpcate.release.composed import ComposedRelease, ComposedRule
from torchdpcate.release.file import (
    NO_SIGNATURE,
    SUMS_FILE,
    ReleaseFile,
    check_sums,
    file_sum,
    read_release_file,
)
from torchdpcate.release.release import QueryRelease, Release
from torchdpcate.release.signature import Signature, read_public_key, read_signature
from torchdpcate.verify.card import CARD_HTML, CARD_JSON, card_texts, make_card, statement_page
from torchdpcate.verify.statement import check_statement, plan_of, size_problems, stated, statement_problems

_PUBLIC = (
    "queries",
    "noise_scales",
    "features.",
    "feature_weights",
    "scale",
    "curvatures",
    "law.",
    "interval.nuisances.",
    "standardisation.",  # drawn, clipped and found by halving: levels that nobody has may be alike
    "units.correlations",
)
# follow from others, which their mechanism works out anew: a bisection's grid, a plan, deviations
_FOLLOWS = (
    "main",
    "scores",
    "balance.expected",
    "balance.expected_sd",
)
_BITS = 14  # float32 weights near one with noise of a thousandth


def number_problems(release: Release) -> Iterator[str]:
    """Return what in the released numbers of a release that claims something no noise leaves; see ``recompute``.

    A number at a public bound, to which it is clipped, is not judged, nor a coefficient that is shrunk to zero.

    Args:
        release: As read from its file.
    """
    known = stated(release.privacy.mechanism)
    if not release.privacy.claims or (known is not None and known.free):
        return
    for name, tensor in release.tensors().items():
        public = name.startswith(_PUBLIC) or name in _FOLLOWS or name.endswith(".median")  # of a public grid
        if tensor.is_floating_point() and not public and name != "answers":
            values = _judged(release, name, tensor.flatten().double())
            yield from alike_problems(name, values, _BITS)
            yield from decimal_problems(name, values)
    if isinstance(release, QueryRelease):
        yield from _answers(release)


def _answers(release: QueryRelease) -> Iterator[str]:
    """Problems of answers; equal ones may be of a constant effect, which their plan knows."""
    answers, bound = release.answers, release.domain.outcome_range
    if not bool((answers.abs() <= bound).all()):
        yield "an answer is larger than the outcome's range"
    inside = answers.abs() != bound
    yield from decimal_problems("answers", answers[inside])


def _judged(release: Release, name: str, values: Tensor) -> Tensor:
    """Return the numbers that are at no bound."""
    if name == "nuisances.propensity" and release.domain.known_propensity is not None:
        return values[:0]  # none was fitted
    if isinstance(release, ComposedRelease | ComposedRule):
        values = values[(values != 0) & (values.abs() != 1)]  # shrunk, or clipped
    if isinstance(release, AverageEffectRelease) and name == "numbers":
        values = values[(values * 2**12).round() != values * 2**12]
        values = values[: 0 if len(values) < 2 else None]  # a single one may be a public centre
    return values


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
            problems.append(f"{SUMS_FILE} is missing, which a run writes beside {own[0]}; request the complete folder")
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
    own, folder = release.privacy.to_json() + "\n", file.path.parent
    text = _text(folder / STATEMENT_JSON)
    if text is not None and text != own:
        yield f"{STATEMENT_JSON} does not say what the release says"
    text = _text(folder / STATEMENT_MD)
    if text is not None and text != statement_page(release):
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
        return
    try:
        texts = card_texts(card)
    except (AttributeError, LookupError, TypeError, ValueError):
        texts = {}
    if text != texts.get(CARD_JSON):
        yield f"{CARD_JSON} is not written as cards are"
    elif page is not None and page != texts[CARD_HTML]:
        yield f"{CARD_HTML} does not say what {CARD_JSON} says"


def _text(path: Path) -> str | None:
    """Return the text of a file; None where there is none, and nothing in particular where it is no text."""
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


NOT_SIGNED = (
    "not signed: numbers that any run might have released are as the file says; compare its SHA-256 with one that the "
    "curator published elsewhere, or request a signed release"
)

_MOST_SAID = 4000  # letters of all problems together


def verify_release(path: str | Path, key: str | Path | None = None) -> list[tuple[str, str]]:
    """Check a release file against itself, public facts and the files beside it; audits ask what the mechanisms did.

    Recomputed are the cost of every block from its events; the total over the blocks, the level and the sentence of the
    claim; constants, noise scales and bands of the mechanism from bounds, records, settings and charges; block sizes
    from the split; and the checksums of the file and of a ``SHA256SUMS`` beside it. Compared are names of mechanisms,
    charges, constants and tensors with those that the library writes, its texts, and the statement and the card beside
    the file.

    A signature beside the file is checked: with ``key`` it must be there and of that key; without it any key will do,
    and then it says only that the holder of that key wrote the file. An unsigned file forged entirely, each constant
    by the formulas and each number on its grid, passes; so does a number moved by a step of its grid, and what no
    statement has: the noise of DP-SGD where plan and charges are changed together, scales of noise that are secret,
    and the spread of scores by private nuisances that score policies, which is compared with public bounds alone.

    Args:
        path: Release file, or the run folder that holds it.
        key: File of the public key in PEM that must have signed it.

    Returns:
        What was checked and what came out, for people to read.

    Raises:
        InputError: No public key in ``key``.
        ReleaseFileError: No such file, a damaged one, one of another format, or not a release.
        VerificationError: The file is not signed as ``key`` says, was changed, or does not agree with itself or the
            files beside it; says where.
    """
    public = None if key is None else read_public_key(key)
    file = read_release_file(path)
    signature = read_signature(file.path, public)
    problems: list[str] = [] if file.fault is None else [file.fault]
    try:
        release = file.build()
    except ReleaseFileError:
        if not problems:
            raise
        raise VerificationError(f"{file.path}: changed or damaged: {problems[0]}") from None
    try:
        findings, wrong = check_statement(release.privacy)
        problems += [*file.problems(release), *wrong, *_problems(release)]
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        # a list where a word should stand, and whatever else Python cannot compare
        raise VerificationError(
            f"{file.path}: changed or inconsistent: its contents are not those of one release ({type(error).__name__})"
        ) from error
    folder, others = beside(file, release, cards=not problems)
    problems += others
    if problems:
        said = "; ".join(dict.fromkeys(map(_shortened, problems)))
        raise VerificationError(f"{file.path}: changed or inconsistent: {_shortened(said, _MOST_SAID)}")
    return [
        *_checksums(file),
        _signed(signature, public is not None),
        *findings,
        *_sites(release),
        _numbers(signature),
        _told(release),
        folder,
    ]


def _shortened(text: str, most: int = 400) -> str:
    """Return a problem in so many letters: a file may hold long words."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _problems(release: Release) -> Iterator[str]:
    """Problems of the release beyond its costs."""
    privacy = release.privacy
    if isinstance(release, Combined):
        yield from _combined(release)
    yield from statement_problems(privacy, release.kind, release.domain)
    yield from number_problems(release)
    known, kind = stated(privacy.mechanism), plan_of(privacy.mechanism)
    if privacy.claims and kind is not None and known is not None and release.kind in known.kinds:
        yield from _planned(kind, release)


def _combined(release: Combined) -> Iterator[str]:
    """What is wrong with the sites of a combination, or does not follow from them."""
    if many := size_problems([site.privacy for site in release.sites]):
        yield from many
        return
    for file, site in zip(release.files, release.sites, strict=True):
        _, wrong = check_statement(site.privacy)
        yield from (f"site {file.path}: {problem}" for problem in [*wrong, *_problems(site)])
    try:
        made = combine(release.sites, release.names, release.between)
    except InputError as error:
        yield f"its sites cannot be combined ({error})"
        return
    versions = release.privacy.versions
    statement = statement_of(release.sites, release.names, release.between, made.schema, versions)
    for name, one, other in (("statement", release.privacy, statement), ("schema", release.schema, made.schema)):
        if one.to_dict() != other.to_dict():
            yield f"its {name} does not follow from those of its sites"


def _planned(kind: type[StatedPlan], release: Release) -> Iterator[str]:
    """What is not as the plan makes it that the release's own public facts describe."""
    try:
        yield from kind.restated(release).problems(release)
    except (*UNFIT, AssertionError) as problem:
        why = f" ({problem})" if isinstance(problem, InputError) else ""
        yield f"its public constants, its charges and its numbers are not those of one release by its plan{why}"


def _checksums(file: ReleaseFile) -> Iterator[tuple[str, str]]:
    """The two checksums: of what the file says, which it carries, and of its bytes, which others state."""
    yield "checksum", f"of what the file says, in the file itself, matches ({NO_SIGNATURE}): {file.stated_digest}"
    yield "SHA-256", f"of the file's bytes, as sha256sum, {SUMS_FILE} and the card have it: {file_sum(file.path)}"


def _signed(signature: Signature | None, by_given_key: bool) -> tuple[str, str]:
    """Whether the file is signed, and what that proves."""
    if signature is None:
        return "signature", "none: unsigned, so that nothing proves who wrote the file"
    proof = (
        "which is the key that was given: its holder wrote this file, every byte of it"
        if by_given_key
        else "which nothing connects with anybody yet: compare the fingerprint with the curator's, or give --key PUBLIC"
    )
    return "signature", f"{signature.words}, {proof}"


def _sites(release: Release) -> Iterator[tuple[str, str]]:
    """What each site of a combination guarantees, with the checksum by which its own file is known."""
    if isinstance(release, Combined):
        for file, site in zip(release.files, release.sites, strict=True):
            yield f"site {file.path}", f"{site.privacy.claim}; agrees with itself; checksum {file.stated_digest}"


def _numbers(signature: Signature | None) -> tuple[str, str]:
    if signature is None:
        return "numbers", NOT_SIGNED
    return "numbers", "numbers that any run might have released are as the signer says"


def _told(release: Release) -> tuple[str, str]:
    """What no public fact can show, whoever signed."""
    unit = "each person has that many of the records" if release.privacy.person else "each person has one record"
    return (
        "as the file says",
        f"names of columns and levels, their order, who chose the budget, where bounds come from, that they hold, that "
        f"{unit}, that n records were read, which outcomes are better and their standard deviation, the propensity of "
        "the design, size and correlation of clusters, and what is under conditions and tuning: nothing here follows "
        "from public facts",
    )
