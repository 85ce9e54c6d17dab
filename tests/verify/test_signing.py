import json
import os
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.verify.forgery import release, statement
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.release.file import check_sums, load_release, write_sums
from torchdpcate.release.signature import (
    fingerprint,
    read_private_key,
    read_public_key,
    read_signature,
    signature_path,
    write_key,
)
from torchdpcate.verify.card import sign_release
from torchdpcate.verify.file import verify_release


@pytest.fixture
def path(tmp_path):
    """A release's file in the folder of a run."""
    folder = tmp_path / "run" / "release"
    folder.mkdir(parents=True)
    made = release(statement())
    made.save(folder / "release.safetensors")
    (folder / "privacy.json").write_text(made.privacy.to_json() + "\n")
    (folder / "privacy.md").write_text(made.privacy.to_markdown())
    write_sums(folder)
    return folder / "release.safetensors"


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    return write_key(folder / "hospital.pem", "City hospital")


def test_a_signature_that_is_there_is_overwritten_by_a_word_alone(path, keys, tmp_path, capsys):
    sign_release(path, keys[0])
    theirs, words = other_key(tmp_path, "Another"), ["sign", str(path), "--key"]
    with pytest.raises(InputError, match=r"exists already; .* overwrite=True"):
        sign_release(path, theirs[0])
    assert main([*words, str(theirs[0])]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert read_signature(path).signer == "City hospital"
    assert main([*words, str(theirs[0]), "--overwrite"]) == 0
    assert read_signature(path).signer == "Another"


def other_key(tmp_path, name=""):
    folder = tmp_path / "others"
    folder.mkdir(exist_ok=True)
    return write_key(folder / "other.pem", name)


def test_a_signed_release_keeps_its_bytes_and_is_read_as_before(path, keys):
    before = path.read_bytes()
    written, signature = sign_release(path.parent.parent, keys[0])
    assert written == signature_path(path)
    assert path.read_bytes() == before
    assert signature == read_signature(path, read_public_key(keys[1]))
    assert signature.signer == "City hospital"
    assert load_release(path).privacy == load_release(path.parent.parent).privacy
    assert check_sums(path.parent).changed == check_sums(path.parent).unlisted == []
    found = dict(verify_release(path, keys[1]))
    assert signature.fingerprint in found["signature"]
    assert "City hospital" in found["signature"]
    assert "its holder wrote this file" in found["signature"]
    assert "nothing connects with anybody" in dict(verify_release(path))["signature"]


def test_every_byte_is_covered(path, keys):
    sign_release(path, keys[0])
    public, whole = read_public_key(keys[1]), path.read_bytes()
    for place in [*range(0, len(whole), max(1, len(whole) // 60)), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(VerificationError, match="was changed"):
            read_signature(path, public)
    for changed in (whole[:-1], whole + b"\0"):
        path.write_bytes(changed)
        with pytest.raises(VerificationError, match="was changed"):
            read_signature(path)
    path.write_bytes(whole)
    assert read_signature(path, public) is not None


def test_a_statement_that_was_rewritten_with_its_checksum_has_no_signature(path, keys, capsys):
    sign_release(path, keys[0])
    weaker = statement(gaussian=True)
    release(weaker).save(path, overwrite=True)  # another statement, complete and with a checksum of its own
    for name, text in (("privacy.json", weaker.to_json() + "\n"), ("privacy.md", weaker.to_markdown())):
        (path.parent / name).write_text(text)
    write_sums(path.parent)
    assert load_release(path).privacy.formula == weaker.formula
    for words in ([], ["--key", str(keys[1])]):
        assert main(["verify", str(path), *words]) == 1
        line = capsys.readouterr().err
        assert "was changed" in line
        assert line.count("\n") == 1


@pytest.mark.parametrize("field", ["signer", "public_key", "signature"])
def test_a_signature_that_was_edited_is_refused(path, keys, tmp_path, field):
    sign_release(path, keys[0])
    file = signature_path(path)
    stated = json.loads(file.read_text())
    other = read_private_key(other_key(tmp_path)[0])[0]
    swapped = {
        "signer": "Another hospital",
        "public_key": other.public_key().public_bytes_raw().hex(),
        "signature": other.sign(path.read_bytes()).hex(),
    }
    file.write_text(json.dumps(stated | {field: swapped[field]}, indent=2) + "\n")
    with pytest.raises(VerificationError, match="was changed"):
        read_signature(path)
    with pytest.raises(VerificationError, match=r"was changed|another key"):
        read_signature(path, read_public_key(keys[1]))


def test_another_key_is_no_proof_whatever_name_it_signs(path, keys, tmp_path, capsys):
    forged = other_key(tmp_path, "City hospital")
    _, signature = sign_release(path, forged[0])
    assert signature.signer == "City hospital"
    assert main(["verify", str(path), "--key", str(keys[1])]) == 1
    line = capsys.readouterr().err
    assert signature.fingerprint in line
    assert fingerprint(read_public_key(keys[1])) in line


def test_an_unsigned_release_is_called_so(path, keys, capsys):
    assert dict(verify_release(path))["signature"].startswith("none: the file is consistent")
    assert main(["verify", str(path), "--key", str(keys[1])]) == 1
    assert "unsigned" in capsys.readouterr().err
    assert main(["verify", str(path)]) == 0
    assert "unsigned" in capsys.readouterr().out


REWRITTEN = {
    "empty": lambda text: "",
    "no text": lambda text: "\udcff",
    "a name twice": lambda text: text.replace("{", '{\n  "signer": "41,1,0.25",', 1),
    "a field more": lambda text: text.replace("{", '{\n  "note": "41,1,0.25",', 1),
    "another algorithm": lambda text: text.replace('"ed25519"', '"none"'),
    "blanks": lambda text: text + " " * 100,
    "another order": lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=2) + "\n",
    "nested": lambda text: text.replace('"City hospital"', "[" * 20_000 + "]" * 20_000),
}


@pytest.mark.parametrize("how", REWRITTEN)
def test_a_signature_has_one_form(path, keys, how):
    """What else a file of the same signature may hold is nothing that anybody signed."""
    sign_release(path, keys[0])
    file = signature_path(path)
    changed = REWRITTEN[how](file.read_text())
    assert changed != file.read_text()
    file.write_bytes(changed.encode(errors="surrogateescape"))
    for given in ((), (keys[1],)):
        with pytest.raises(VerificationError, match="not a signature of a release, or damaged"):
            verify_release(path, *given)


PRIME = 2**255 - 19
ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL = [y | sign << 255 for y in (0, 1, ORDER_8, PRIME - ORDER_8, PRIME - 1, PRIME, PRIME + 1) for sign in (0, 1)]
"""Encodings of the eight points of small order, those that are no reduced numbers or have a sign of zero among them."""


def test_eight_points_have_an_order_of_eight_at_most():
    """By the law of addition of the curve (RFC 8032): thrice doubled, each is the neutral element (0, 1)."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME
    root = pow(2, (PRIME - 1) // 4, PRIME)
    points = set()
    for y in {code % 2**255 % PRIME for code in SMALL}:
        square = (y * y - 1) * pow(d * y * y + 1, -1, PRIME) % PRIME
        x = pow(square, (PRIME + 3) // 8, PRIME)
        x = x if x * x % PRIME == square else x * root % PRIME
        assert x * x % PRIME == square
        points |= {(x, y), (-x % PRIME, y)}
    assert len(points) == 8
    for x, y in points:
        for _ in range(3):
            t = d * x * x * y * y
            x, y = 2 * x * y * pow(1 + t, -1, PRIME) % PRIME, (y * y + x * x) * pow(1 - t, -1, PRIME) % PRIME
        assert (x, y) == (0, 1)


@pytest.mark.parametrize("y", SMALL)
def test_a_key_with_which_anybody_can_sign_is_refused(path, tmp_path, y):
    """R = s B is a signature by the neutral element of every message, and by the others of one in eight at least."""
    raw = y.to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes(raw)
    anybody = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    stated = {"format": "torchdpcate-signature", "format_version": 1, "algorithm": "ed25519", "signer": "City hospital"}
    stated |= {"public_key": raw.hex(), "signature": (anybody + bytes(32)).hex()}
    signature_path(path).write_text(json.dumps(stated, indent=2) + "\n")
    with pytest.raises(VerificationError, match="not a signature of a release"):
        verify_release(path)
    public = tmp_path / "public.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_bytes(encoding, form))
    with pytest.raises(InputError, match=r"public\.pem: is a key with which anybody can sign; request the"):
        verify_release(path, public)


def test_a_link_to_nowhere_or_a_newer_format_is_no_unsigned_release(path, keys):
    sign_release(path, keys[0])
    file = signature_path(path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2, "more": 1}))
    with pytest.raises(VerificationError, match="newer"):
        read_signature(path)
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(VerificationError, match="not a signature"):
        read_signature(path)


def test_keys_are_pem_that_openssl_reads_and_private_ones_are_their_owners(keys):
    assert keys[0].stat().st_mode & 0o777 == 0o600
    assert keys[1].stat().st_mode & 0o777 == 0o644
    private, name = read_private_key(keys[0])
    assert name == "City hospital"
    assert private.public_key() == read_public_key(keys[1])
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to compare with")
    found = subprocess.run(["openssl", "pkey", "-in", keys[0], "-pubout"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("this openssl knows no ed25519")
    assert found.stdout.decode() in keys[1].read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sign", "run"], "--key FILE is needed"),
        (["sign", "run", "--key", "keys/hospital.pem.pub"], "is a public key"),
        (["sign", "run", "--key", "run/release/release.safetensors"], "holds no private key"),
        (["sign", "run", "--key", "curve.pem"], "another kind"),
        (["sign", "run", "--key", "keys/hospital.pem", "--name", "a\nb"], "one line"),
        (["sign", "--new-key", "keys/hospital.pem"], "exists already"),
        (["sign", "--new-key", "run/release/new.pem"], "beside a release"),
        (["verify", "run", "--key", "keys/hospital.pem"], "is a private key"),
    ],
)
def test_a_mistake_is_one_line_and_code_2_and_writes_nothing(path, keys, tmp_path, monkeypatch, capsys, words, why):
    monkeypatch.chdir(tmp_path)
    curve = ec.generate_private_key(ec.SECP256R1())
    encoding, formats = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "curve.pem").write_bytes(
        curve.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "curve.pem.pub").write_bytes(curve.public_key().public_bytes(encoding, formats))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert main(words) == 2
    line = capsys.readouterr().err
    assert why in line
    assert line.count("\n") == 1
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_the_command_makes_a_key_signs_and_verifies(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sign", "--new-key", "k.pem", "--name", "City hospital"]) == 0
    shown = capsys.readouterr().out
    assert "BEGIN" not in shown
    assert fingerprint(read_public_key("k.pem.pub")) in shown
    assert main(["sign", "run", "--key", "k.pem"]) == 0
    assert "City hospital" in capsys.readouterr().out
    assert main(["verify", "run", "--key", "k.pem.pub"]) == 0
    assert "its holder wrote this file" in capsys.readouterr().out
    assert "signed as" in (main(["verify", "run", "--json"]), json.loads(capsys.readouterr().out))[1]["signature"]
    os.chmod("k.pem", 0o644)
    assert main(["sign", "run", "--key", "k.pem", "--name", "The trust", "--overwrite"]) == 0
    assert "others can read the private key" in capsys.readouterr().err
    assert read_signature(path).signer == "The trust"


def test_signing_refuses_a_damaged_release_and_a_wrong_list_of_checksums(path, keys):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match="changed or damaged"):
        sign_release(path, keys[0])
    path.write_bytes(whole)
    (path.parent / "SHA256SUMS").write_text("nothing\n")
    with pytest.raises(VerificationError, match="line 1 is not the checksum"):
        sign_release(path, keys[0])
    assert not signature_path(path).exists()
