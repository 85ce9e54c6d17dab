"""``torchdpcate sign``: who released it, and the keys that prove it."""

import getpass
import os
import sys
from pathlib import Path

from torchdpcate._files import PRIVATE
from torchdpcate._text import plain
from torchdpcate.errors import InputError
from torchdpcate.release.signature import fingerprint, is_encrypted, read_public_key, write_key


def sign(
    release: str | None = None,
    key: str | None = None,
    name: str | None = None,
    new_key: str | None = None,
    overwrite: bool = False,
) -> None:
    """Sign a release with a private key, or make a pair of keys.

    Args:
        release: Release file, or the run folder that holds it.
        key: File of the private key in PEM.
        name: Name of the signer, signed with the file; that of the key's file if left out.
        new_key: File of a private key to be made, with its public one beside it.
        overwrite: Whether the signature may take the place of one that is there.

    Raises:
        InputError: Neither or both of a release and a new key, or no ed25519 key.
        ReleaseFileError: Not a release, changed or damaged.
    """
    if (release is None) == (new_key is None):
        raise InputError("sign: give a release with --key FILE, or --new-key FILE to make a key")
    if new_key is not None:
        if key is not None:
            raise InputError("sign: --new-key makes a key and --key names one; choose one")
        private, public = write_key(new_key, name or "")
        print(f"private key: {private} (keep it to yourself: whoever has it signs in your name)")
        print(f"public key: {public} (publish it; torchdpcate verify RELEASE --key {public})")
        print(f"fingerprint: {fingerprint(read_public_key(public))}")
        return
    if key is None:
        raise InputError("sign: --key FILE is needed, a private key in PEM; torchdpcate sign --new-key FILE makes one")
    from torchdpcate.verify.card import sign_release

    assert release is not None
    password = _password(key) if is_encrypted(key) else None
    written, signature = sign_release(release, key, name, password, overwrite)
    if os.name == "posix" and Path(key).stat().st_mode & 0o777 & ~PRIVATE:
        print(f"torchdpcate: warning: others can read the private key {plain(key)}; chmod 600 it", file=sys.stderr)
    print(plain(signature.words))
    print(f"written: {written}")


def _password(key: str) -> bytes:
    """Request for the password of an encrypted key."""
    if not sys.stdin.isatty():
        raise InputError(f"key = {key}: is encrypted, and its password can only be requested at a terminal")
    return getpass.getpass(f"password of {key}: ").encode()
