"""The reader of releases, against files that somebody made on purpose: each carries a checksum that fits."""

import contextlib
import json
import pickle
import struct
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from tests.faults.guards import Touch, answered
from tests.faults.mutations import examples, json_faults, met_both
from tests.release.helpers import QUERIES, nuisances
from tests.release.test_file import function_release, query_release
from tests.verify.forgery import write_file
from torchdpcate.errors import ReleaseFileError
from torchdpcate.release.file import DIGEST_KEY, load_release, release_digest

pytestmark = [
    pytest.mark.usefixtures("no_pickle"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
]

RELEASES = {
    "legendre": lambda: function_release("legendre"),
    "fourier": lambda: function_release("fourier"),
    "representation": lambda: function_release("representation"),
    "queries": lambda: query_release(
        nuisances=nuisances(), noise_scales=torch.full((len(QUERIES),), 0.1, dtype=torch.float64)
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("releases")


def parts(data: bytes) -> tuple[dict, bytes]:
    """Header and tensors' bytes of a safetensors file."""
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header: str, body: bytes) -> bytes:
    text = header.encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


@pytest.fixture(scope="module", params=RELEASES)
def sound(request, folder):
    """Header and body of a release of each kind."""
    path = folder / f"{request.param}.safetensors"
    RELEASES[request.param]().save(path)
    header, body = parts(path.read_bytes())
    return path, header, body


def signed(path, header: dict, body: bytes) -> None:
    """Write a file in the one form that is read, with a checksum that fits, if the file can be opened at all."""
    metadata = {key: text for key, text in header["__metadata__"].items() if key != DIGEST_KEY}
    path.write_bytes(joined(json.dumps({**header, "__metadata__": metadata}), body))
    # What cannot be opened cannot be signed either.
    with contextlib.suppress(SafetensorError, OSError, RuntimeError, ReleaseFileError), safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        write_file(tensors, path, metadata | {DIGEST_KEY: release_digest(metadata, tensors)})


def read(path) -> None:
    """Load a release and use all of it, as the commands do."""
    release = load_release(path)
    shown = release.privacy.to_markdown() + release.privacy.headline
    assert all(letter.isprintable() or letter == "\n" for letter in shown)  # nothing that moves a cursor
    json.loads(release.privacy.to_json(), parse_constant=pytest.fail)
    json.dumps(release.schema.to_dict())
    assert release.effect(QUERIES).shape == (len(QUERIES),)
    answered(lambda: release.noise_band(QUERIES))


def test_a_sound_file_is_read(sound):
    path, header, body = sound
    signed(path, header, body)
    read(path)


@pytest.mark.parametrize("key", ["facts", "schema", "privacy"])
def test_replaced_values_are_refused_or_read(sound, key):
    path, header, body = sound

    def reads(text):
        signed(path, {**header, "__metadata__": {**header["__metadata__"], key: text}}, body)
        return answered(lambda: read(path))

    met_both(json_faults(json.loads(header["__metadata__"][key])), 60, reads)


def test_replaced_headers_are_refused_or_read(sound):
    path, header, body = sound
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}

    @examples(60)
    @given(json_faults(tensors))
    def check(text):
        with contextlib.suppress(ValueError, RecursionError):  # some faults are in the JSON itself
            faulty = json.loads(text)
            if isinstance(faulty, dict):
                signed(path, {**faulty, "__metadata__": header["__metadata__"]}, body)
                answered(lambda: read(path))
        path.write_bytes(joined(text, body))
        assert not answered(lambda: read(path))

    check()


DTYPES = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "U64", "I8", "U8", "BOOL", "C64", "F4", "X", ""]


def test_other_types_and_shapes_are_refused_or_read(sound):
    path, header, body = sound
    names = [name for name in header if name != "__metadata__"]

    @examples(60)
    @given(
        st.sampled_from(names),
        st.sampled_from(DTYPES),
        st.lists(st.sampled_from([-1, 0, 1, 2, 8, 2**31, 2**63 - 1, 2**64]), max_size=4),
        st.booleans(),
    )
    def check(name, dtype, shape, keep):
        entry = header[name] | {"dtype": dtype} | ({} if keep else {"shape": shape})
        signed(path, header | {name: entry}, body)
        answered(lambda: read(path))

    check()


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1])
def test_a_header_larger_than_the_file_is_refused(sound, size):
    path, _, body = sound
    path.write_bytes(struct.pack("<Q", size) + body)
    assert not answered(lambda: read(path))


def test_a_pickle_under_the_name_of_a_release_is_not_loaded(folder):
    made, path = folder / "made", folder / "release.safetensors"
    stored = pickle.dumps(Touch(made))
    for data in (stored, struct.pack("<Q", len(stored)) + stored):
        path.write_bytes(data)
        assert not answered(lambda: read(path))
    with zipfile.ZipFile(path, "w") as archive:  # as torch.save writes it
        archive.writestr("archive/data.pkl", stored)
        archive.writestr("archive/version", "3\n")
    assert not answered(lambda: read(path))
    assert not made.exists()
