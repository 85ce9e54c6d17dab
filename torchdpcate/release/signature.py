"""Signatures of release files: who wrote a file, which its checksum cannot say.

A signature is a file of its own beside the release, ``release.safetensors.sig``, so that the release keeps every byte
and is read as if there were none.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from torchdpcate._files import PRIVATE, PUBLIC, write_text
from torchdpcate._text import is_plain
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.release.file import SUMS_FILE, file_sum

ENDING = ".sig"
"""What a signature's name adds to that of the file it signs."""
FORMAT = "torchdpcate-signature"
FORMAT_VERSION = 1

_CONTEXT = b"torchdpcate-signature 1\n"  # so that a key's signatures of other things are none of releases
_NAME = re.compile(r"^Name: (.*)$", re.MULTILINE)
_MOST_BYTES, _LONGEST_NAME, _SIGNED_BYTES = 64 << 10, 200, 64
_P = 2**255 - 19  # the field and the curve of ed25519 (RFC 8032)
_D = -121665 * pow(121666, -1, _P) % _P
_MAKE_ONE = "torchdpcate sign --new-key FILE makes one"


@dataclass(frozen=True)
class Signature:
    """A signature that was found to be right for its file.

    Attributes:
        signer: Name that the signer gave, part of what is signed; empty if none was given.
        public_key: The signer's public key, 32 bytes.
    """

    signer: str
    public_key: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key in DER, as ``openssl pkey -pubin -outform DER | sha256sum`` prints it."""
        return fingerprint(Ed25519PublicKey.from_public_bytes(self.public_key))

    @property
    def words(self) -> str:
        """Who signed, in words: the name is the signer's own, the key is what was checked."""
        name = f"as {self.signer!r}, " if self.signer else ""
        return f"signed {name}by the key with SHA-256 fingerprint {self.fingerprint}"


def signature_path(path: str | Path) -> Path:
    """Return where the signature of a release file lies.

    Example:
        >>> signature_path("release.safetensors").name
        'release.safetensors.sig'
    """
    path = Path(path)
    return path.with_name(path.name + ENDING)


def write_signature(path: str | Path, key: Ed25519PrivateKey, signer: str = "") -> Signature:
    """Sign every byte of a file with ed25519 and write the signature beside it; an older one is replaced.

    Signed are the SHA-256 of the file's bytes and the signer's name, wherever the signature lies.

    Args:
        path: The file.
        key: From ``read_private_key``.
        signer: Name of the signer; one line.

    Raises:
        InputError: A name that is not one line of printable characters.
    """
    path = Path(path)
    public = key.public_key()
    checked_name(signer)
    signature = Signature(signer, public.public_bytes_raw())
    write_text(signature_path(path), _text(signature, key.sign(_message(path, signer))), PUBLIC)
    return signature


def read_signature(path: str | Path, key: Ed25519PublicKey | None = None) -> Signature | None:
    """Return the signature of a file after it was checked; None of a file without one.

    Args:
        path: The signed file.
        key: The public key that it must be signed with; None takes any, and then says only that the holder of the
            key that is named in the signature wrote the file.

    Raises:
        VerificationError: The signature is damaged or is not of these bytes; with a key, there is none, or it is of
            another key.
    """
    path, found = Path(path), signature_path(path)
    if not os.path.lexists(found):
        if key is not None:
            raise VerificationError(f"{path}: unsigned: there is no {found.name} beside it")
        return None
    signature, signed = _stated(found)
    if key is not None and key.public_bytes_raw() != signature.public_key:
        raise VerificationError(
            f"{path}: signed by another key, of fingerprint {signature.fingerprint}, and not by the one of fingerprint "
            f"{fingerprint(key)}"
        )
    try:
        public = Ed25519PublicKey.from_public_bytes(signature.public_key)
        public.verify(signed, _message(path, signature.signer))
    except InvalidSignature:
        raise VerificationError(
            f"{path}: its signature {found.name} is of other contents or another name: file or signature was changed"
        ) from None
    return signature


def read_private_key(path: str | Path, password: bytes | None = None) -> tuple[Ed25519PrivateKey, str]:
    """Read a private key in PEM, and the name that the file gives its holder.

    Args:
        path: A file of ``write_key``, or of ``openssl genpkey -algorithm ed25519``.
        password: Of an encrypted key.

    Returns:
        The key; and the text of a line ``Name: ...`` before it, empty if there is none.

    Raises:
        InputError: No such file, no ed25519 key in it, a public one, or an encrypted one without its password.
    """
    data, word = _key_file(path), f"key = {path}"
    try:
        key = serialization.load_pem_private_key(data, password)
    except TypeError:  # cryptography's, where a password is missing or is too much
        raise InputError(f"{word}: is encrypted; give its password") from None
    except (ValueError, UnsupportedAlgorithm):
        if b"-----BEGIN PUBLIC KEY-----" in data:
            raise InputError(f"{word}: is a public key; signing needs the private one") from None
        if b"ENCRYPTED" in data:
            raise InputError(f"{word}: cannot be decrypted; check its password") from None
        raise InputError(f"{word}: holds no private key in PEM; {_MAKE_ONE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{word}: is a key of another kind than ed25519; {_MAKE_ONE}")
    return key, _name(data)


def is_encrypted(path: str | Path) -> bool:
    """Return whether a key's file needs a password.

    Raises:
        InputError: No such file.
    """
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in _key_file(path)


def read_public_key(path: str | Path) -> Ed25519PublicKey:
    """Read a public key in PEM.

    Args:
        path: A file of ``write_key``, or of ``openssl pkey -pubout``.

    Raises:
        InputError: No such file, no ed25519 key in it, or a private one.
    """
    data, word = _key_file(path), f"key = {path}"
    if b"PRIVATE KEY-----" in data:
        raise InputError(f"{word}: is a private key; verify with its public one, and keep the private one to yourself")
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(f"{word}: holds no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{word}: is a key of another kind than ed25519, with which releases are signed")
    try:
        return _checked(key)
    except ValueError as error:
        raise InputError(f"{word}: is {error}; request the signer's own") from None


def write_key(path: str | Path, name: str = "") -> tuple[Path, Path]:
    """Make a key and write it in PEM: the private one for its owner's eyes alone, the public one beside it.

    Args:
        path: File of the private key, not there yet; the public one's name adds ``.pub``.
        name: Whose key it is, written before both keys and taken for the signer's name.

    Returns:
        Both files, the private one first.

    Raises:
        InputError: One of them is there already, the folder is not, or it holds a release, with which a private key
            would be published.
    """
    private, public = Path(path), Path(f"{path}.pub")
    checked_name(name)
    if not private.parent.is_dir():
        raise InputError(f"key = {path}: the folder {private.parent} does not exist; make it first")
    for there in (private, public):
        if there.exists():
            raise InputError(
                f"key = {there}: exists already; choose another name, for a key that is lost signs no more"
            )
    if (private.parent / SUMS_FILE).exists() or any(private.parent.glob("*.safetensors")):
        raise InputError(
            f"key = {path}: lies beside a release, with which it would be published; choose another folder"
        )
    key, text = Ed25519PrivateKey.generate(), f"Name: {name}\n" if name else ""
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_text(private, text + secret.decode(), PRIVATE)
    write_text(public, text + shown.decode(), PUBLIC)
    return private, public


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key in DER, 64 hexadecimal digits, by which people compare keys."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def checked_name(name: str) -> str:
    """Return a signer's name.

    Raises:
        InputError: It is not one line of printable characters, or is too long.
    """
    if not is_plain(name) or len(name) > _LONGEST_NAME:
        raise InputError(
            f"name = {name[:_LONGEST_NAME]}: give one line of at most {_LONGEST_NAME} printable characters"
        )
    return name


def _message(path: Path, signer: str) -> bytes:
    """Return what is signed: JSON, so that no part of a name can stand for one of the digest."""
    return _CONTEXT + json.dumps({"sha256": file_sum(path), "signer": signer}).encode()


def _text(signature: Signature, signed: bytes) -> str:
    """Return the text of a signature file; there is no other of this signature."""
    stated = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "algorithm": "ed25519",
        "signer": signature.signer,
        "public_key": signature.public_key.hex(),
        "signature": signed.hex(),
    }
    return json.dumps(stated, indent=2) + "\n"


def _stated(path: Path) -> tuple[Signature, bytes]:
    """Return what a signature file says, which holds nothing else: the signer, and the 64 bytes of the signature."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise ValueError
        text = path.read_bytes().decode()
        stated = json.loads(text)
        version = stated["format_version"]
        if not (stated["format"] == FORMAT and type(version) is int and version > FORMAT_VERSION):
            signature = Signature(checked_name(stated["signer"]), bytes.fromhex(stated["public_key"]))
            signed = bytes.fromhex(stated["signature"])
            if len(signed) != _SIGNED_BYTES or text != _text(signature, signed):
                raise ValueError
            _checked(Ed25519PublicKey.from_public_bytes(signature.public_key))
            return signature, signed
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, OSError):
        raise VerificationError(f"{path}: not a signature of a release, or damaged; request it again") from None
    raise VerificationError(
        f"{path}: format version {version} of signatures is newer than this torchdpcate reads ({FORMAT_VERSION}); "
        "upgrade it"
    )


def _checked(key: Ed25519PublicKey) -> Ed25519PublicKey:
    r"""Return a public key that only its holder can sign with.

    On the curve :math:`-x^2 + y^2 = 1 + d x^2 y^2` a point has an order of 1, 2, 4 or 8 where
    :math:`y (y^2 - 1) (d y^4 + 2 y^2 - 1) = 0`; anybody can sign anything with such a key.

    Raises:
        ValueError: A key of small order, or one whose y is written as a number of p or more.
    """
    y = int.from_bytes(key.public_bytes_raw(), "little") % 2**255
    if y >= _P or y * (y * y - 1) * (_D * y**4 + 2 * y * y - 1) % _P == 0:
        raise ValueError("a key with which anybody can sign")
    return key


def _key_file(path: str | Path) -> bytes:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"key = {path}: {'a folder; give a file in it' if path.is_dir() else 'no such file'}")
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise InputError(f"key = {path}: cannot be read ({error.strerror})") from None


def _name(data: bytes) -> str:
    """Return the holder's name that stands before a key."""
    found = _NAME.search(data.partition(b"-----BEGIN")[0].decode("utf-8", "replace"))
    return checked_name(found[1].strip()) if found else ""
