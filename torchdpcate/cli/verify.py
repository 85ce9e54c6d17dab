"""``torchdpcate verify``: does a release agree with itself, is it as it was written, and by whom?"""

from torchdpcate.cli.tables import facts
from torchdpcate.verify.file import verify_release


def verify(release: str, key: str | None = None) -> None:
    """Print what was recomputed.

    Args:
        release: Release file, or the run folder that holds it.
        key: File of the public key that must have signed it.

    Raises:
        InputError: No public key in the file.
        ReleaseFileError: Not a release, damaged, or of a newer format.
        VerificationError: It was changed, does not agree with itself, or is not signed by the key.
    """
    findings = verify_release(release, key)
    print(f"{release}: agrees with itself")
    for line in facts(findings).splitlines():
        print(line)
