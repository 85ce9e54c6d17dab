"""Signing a release, with what lies beside it: the list of checksums and the card."""

from pathlib import Path

from torchdpcate._files import refuse_existing
from torchdpcate.release.file import SUMS_FILE, check_sums, load_release, read_release_file, write_sums
from torchdpcate.release.signature import Signature, read_private_key, signature_path, write_signature
from torchdpcate.verify.card import renew_signature


def sign_release(
    path: str | Path,
    key: str | Path,
    signer: str | None = None,
    password: bytes | None = None,
    overwrite: bool = False,
) -> tuple[Path, Signature]:
    """Sign a release with ed25519: the signature covers every byte of the file, the privacy statement among them.

    Written are ``<file>.sig`` beside it, its line of a ``SHA256SUMS`` there, and by whom it is signed into a card
    there. The release itself stays as it is. That it agrees with itself is ``verify_release``'s to say.

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
    renew_signature(file)
    return written, signature
