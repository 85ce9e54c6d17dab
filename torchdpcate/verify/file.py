"""Verification of a release file: does it agree with itself, with public facts, and with the files beside it?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchdpcate.errors import InputError, ReleaseFileError, VerificationError
from torchdpcate.plan import UNFIT, StatedPlan
from torchdpcate.release.combination import combine, statement_of
from torchdpcate.release.file import (
    NO_SIGNATURE,
    SUMS_FILE,
    Release,
    ReleaseFile,
    check_sums,
    file_sum,
    read_release_file,
)
from torchdpcate.release.signature import Signature, read_public_key, read_signature
from torchdpcate.verify.card import texts_beside
from torchdpcate.verify.statement import check_statement, plan_of, size_problems, stated, statement_problems


def _beside(file: ReleaseFile, release: Release) -> tuple[tuple[str, str], list[str]]:
    """Return a finding and the problems of what lies beside a release: its texts, and the checksums of all files."""
    folder, problems = file.path.parent, []
    for name, make in texts_beside(release).items():
        if (folder / name).is_file() and (folder / name).read_bytes() != make().encode():
            problems.append(f"{name} does not say what the release says")
    if not (folder / SUMS_FILE).is_file():
        return ("files beside", f"no {SUMS_FILE}, so this file alone was looked at"), problems
    report = check_sums(folder)
    text = f"{len(report.matching)} files match"
    text += f"; not here: {', '.join(report.absent)}" if report.absent else ""
    text += f"; not listed: {', '.join(report.unlisted)}" if report.unlisted else ""
    problems += [f"{name} is not as in {SUMS_FILE}" for name in report.changed]
    if file.path.name in report.unlisted:
        problems.append(f"{file.path.name} is not listed in {SUMS_FILE}")
    return (SUMS_FILE, text), problems


def verify_release(path: str | Path, key: str | Path | None = None) -> list[tuple[str, str]]:
    """Check a release file against itself, public facts and the files beside it; audits ask what the mechanisms did.

    The file has the bytes that the library writes for what it says, its checksum, and a signature if there is one. The
    cost of every block is worked out anew from its events, and so are total, level and the sentence of the claim. The
    plan is made anew from public facts: the statement has its constants, scales, charges, levels, conditions and
    assumptions, and what follows from the released numbers follows by it. The statement beside the file says what it
    says.

    A signature beside the file is checked: with ``key`` it must be there and of that key; without it any key will do,
    and then it says only that the holder of that key wrote the file. Anyone can write an unsigned file that agrees
    with itself: nothing in the released numbers tells which mechanism drew them, or whether any did.

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
    folder, others = _beside(file, release) if not problems else (("files beside", ""), [])
    problems += others
    if problems:
        said = "; ".join(dict.fromkeys(map(_shortened, problems)))
        raise VerificationError(f"{file.path}: changed or inconsistent: {_shortened(said, _MOST_SAID)}")
    unit = (
        f"each {release.privacy.protected.name} has that many of the records"
        if release.privacy.person
        else "each person has one record"
    )
    return [
        ("checksum", f"of what the file says, in the file itself, matches ({NO_SIGNATURE}): {file.stated_digest}"),
        ("SHA-256", f"of the file's bytes, as sha256sum, {SUMS_FILE} and the card have it: {file_sum(file.path)}"),
        _signed(signature, public is not None),
        *findings,
        *_sites(release),
        (
            "as the file says" if signature is None else "as the signer says",
            "released numbers, names of columns and levels, their labels and order, who chose the budget, where bounds "
            f"come from, that they hold, that {unit}, that n records were read, which outcomes are better and their "
            "standard deviation, the propensity of the design, how it was assigned, and what is under "
            "conditions and tuning: nothing here follows from public facts",
        ),
        folder,
    ]


_MOST_SAID = 4000  # letters of all problems together


def _shortened(text: str, most: int = 400) -> str:
    """Return a problem in so many letters: a file may hold long words."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _problems(release: Release) -> Iterator[str]:
    """Problems of the release beyond its costs."""
    privacy = release.privacy
    if release.between is not None:
        yield from _combined(release)
    yield from statement_problems(privacy, release.kind, release.domain)
    known, kind = stated(privacy.mechanism), plan_of(privacy.mechanism)
    if privacy.claims and kind is not None and known is not None and release.kind in known.kinds:
        yield from _planned(kind, release)


def _combined(release: Any) -> Iterator[str]:
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


def _planned(kind: type[StatedPlan[Release]], release: Release) -> Iterator[str]:
    """What is not as the plan makes it that the release's own public facts describe."""
    try:
        yield from kind.restated(release).problems(release)
    except (*UNFIT, AssertionError) as problem:
        why = f" ({problem})" if isinstance(problem, InputError) else ""
        yield f"its public constants, its charges and its numbers are not those of one release by its plan{why}"


def _signed(signature: Signature | None, by_given_key: bool) -> tuple[str, str]:
    """Whether the file is signed, and what that proves."""
    if signature is None:
        return "signature", "none: the file is consistent; anyone could have written it; a signature says who"
    proof = (
        "which is the key that was given: its holder wrote this file, every byte of it"
        if by_given_key
        else "which nothing connects with anybody yet: compare the fingerprint with the curator's, or give --key PUBLIC"
    )
    return "signature", f"{signature.words}, {proof}"


def _sites(release: Any) -> Iterator[tuple[str, str]]:
    """What each site of a combination guarantees, with the checksum by which its own file is known."""
    if release.between is not None:
        for file, site in zip(release.files, release.sites, strict=True):
            yield f"site {file.path}", f"{site.privacy.claim}; agrees with itself; checksum {file.stated_digest}"
