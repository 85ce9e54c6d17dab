"""Verification of a release file: does it agree with itself, with public facts, and with the files beside it?"""

from collections.abc import Iterator
from pathlib import Path

from torchdpcate.errors import InputError, ReleaseFileError, VerificationError
from torchdpcate.plan import UNFIT, StatedPlan
from torchdpcate.release.digest import NO_SIGNATURE, SUMS_FILE, file_sum
from torchdpcate.release.file import ReleaseFile, read_release_file
from torchdpcate.release.release import Release
from torchdpcate.release.signature import Signature, read_public_key, read_signature
from torchdpcate.verify.beside import beside
from torchdpcate.verify.contents import contents_problems
from torchdpcate.verify.known import plan_of, stated
from torchdpcate.verify.numbers import number_problems
from torchdpcate.verify.statement import statement_problems
from torchdpcate.verify.statement_problems import check_statement

NOT_SIGNED = (
    "not signed: numbers that any run might have released are as the file says; compare its SHA-256 with one that the "
    "curator published elsewhere, or ask for a signed release"
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
        problems += [*wrong, *_problems(file, release)]
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
        _numbers(signature),
        _told(release),
        folder,
    ]


def _shortened(text: str, most: int = 400) -> str:
    """Return a problem in so many letters: a file may hold long words."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _problems(file: ReleaseFile, release: Release) -> Iterator[str]:
    """Problems of the release beyond its costs."""
    yield from contents_problems(file, release)
    privacy = release.privacy
    yield from statement_problems(privacy, release.kind, release.domain)
    yield from number_problems(release)
    known, kind = stated(privacy.mechanism), plan_of(privacy.mechanism)
    if privacy.claims and kind is not None and known is not None and release.kind in known.kinds:
        yield from _planned(kind, release)


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


def _numbers(signature: Signature | None) -> tuple[str, str]:
    if signature is None:
        return "numbers", NOT_SIGNED
    return "numbers", "numbers that any run might have released are as the signer says"


def _told(release: Release) -> tuple[str, str]:
    """What no public fact can show, whoever signed."""
    unit = "each person has that many of the records" if release.privacy.person else "each person has one record"
    return (
        "as the file says",
        f"names of columns and levels, where bounds come from, that they hold, that {unit}, that n records were read, "
        "and what is under conditions and tuning: nothing here follows from public facts",
    )
