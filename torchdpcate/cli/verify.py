"""``torchdpcate verify``: does a release agree with itself, and is it as it was written?"""

from torchdpcate.verify.file import verify_release


def verify(release: str) -> None:
    """Print what was recomputed.

    Args:
        release: Release file.

    Raises:
        ReleaseFileError: Not a release, damaged, or of a newer format.
        VerificationError: It was changed, or does not agree with itself.
    """
    findings = verify_release(release)
    print(f"{release}: agrees with itself")
    width = max(len(name) for name, _ in findings)
    for name, text in findings:
        print(f"  {name:<{width}}  {text}")
