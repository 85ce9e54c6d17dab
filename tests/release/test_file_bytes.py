import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.verify.forgery import release, rewritten, statement
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.release.file import ReleaseFile, load_release, read_release_file
from torchdpcate.verify.file import verify_release

TABLE = "41,1,0.25;" * 5000
"""Fifty kilobytes of records."""
TWICE = "\0twice"


def parts(path: Path) -> tuple[bytes, bytes]:
    """Return the header of a safetensors file and the bytes of its tensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return data[8:start], data[start:]


def written(path: Path, header: bytes, tensors: bytes) -> Path:
    """Write a safetensors file of these parts."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + tensors)
    return path


def edited(path: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """Edit the header of a file; an entry whose name ends in ``TWICE`` becomes a second one of the name before it."""
    text, tensors = parts(path)
    header = json.loads(text)
    edit(header)
    out = json.dumps(header, sort_keys=True, separators=(",", ":")).replace(json.dumps(TWICE)[1:-1], "")
    return written(path, out.encode().ljust(-(-len(out) // 8) * 8), tensors)


def twice(entries: dict[str, Any], name: str, before: Any) -> None:
    """Put another entry of the same name before one, which readers pass over for the last."""
    entries[name + TWICE], entries[name] = entries[name], before


def entry(header: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of the first tensor."""
    return next(value for name, value in header.items() if name != "__metadata__")


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field of a tensor's entry": lambda header: entry(header).update(note=TABLE),
    "a list in a tensor's entry": lambda header: entry(header).update(note=[[41, 1], [37, 0]]),
    "metadata twice": lambda header: twice(header["__metadata__"], "facts", TABLE),
    "a tensor's entry twice": lambda header: twice(header, "answers", {**header["answers"], "shape": [41, 37]}),
    "a shape twice": lambda header: twice(entry(header), "shape", [41, 37]),
    "all metadata twice": lambda header: twice(header, "__metadata__", {"note": TABLE}),
}
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "blanks after the header": lambda text: text + b" " * 8000,
    "blanks of other kinds": lambda text: text.rstrip() + b"\n\t \r" * 2000,
    "blanks before a name": lambda text: text.replace(b',"', b', "', 8),
    "letters as numbers": lambda text: text.replace(b'"F64"', b'"\\u0046\\u00364"', 1),
    "a number of another form": lambda text: text.replace(b"[0,", b"[0e0,", 1),
}
CONTENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another order": lambda texts: dict(reversed(texts.items())),
    "an entry more": lambda texts: texts | {"note": TABLE},
}


@pytest.fixture
def path(tmp_path) -> Path:
    """A file that verifies."""
    path = release(statement()).save(tmp_path / "release.safetensors")
    verify_release(path)
    return path


def refused(path: Path) -> None:
    """Check that no reader takes a file."""
    for read in (load_release, verify_release):
        with pytest.raises((ReleaseFileError, VerificationError)) as problem:
            read(path)
        assert "\n" not in str(problem.value)
        assert len(str(problem.value)) < 1000


@pytest.mark.parametrize("name", HEADERS)
def test_records_in_the_header_are_refused(name, path) -> None:
    refused(edited(path, HEADERS[name]))


@pytest.mark.parametrize("name", TEXTS)
def test_no_other_spelling_of_the_header_is_read(name, path) -> None:
    text, tensors = parts(path)
    changed = TEXTS[name](text)
    assert changed != text
    refused(written(path, changed.ljust(-(-len(changed) // 8) * 8), tensors))


def test_no_other_order_of_header_or_tensors_is_read(path) -> None:
    text, tensors = parts(path)
    header = json.loads(text)
    other = json.dumps(dict(reversed(header.items())), separators=(",", ":")).encode()
    refused(written(path, other.ljust(len(text)), tensors))
    names = sorted(header.keys() - {"__metadata__"}, key=lambda name: header[name]["data_offsets"])
    (_, middle), (_, end) = (header[name]["data_offsets"] for name in names[:2])
    header[names[1]]["data_offsets"], header[names[0]]["data_offsets"] = [0, end - middle], [end - middle, end]
    turned = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    body = tensors[middle:end] + tensors[:middle] + tensors[end:]
    refused(written(path, turned.ljust(-(-len(turned) // 8) * 8), body))


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("text", ["schema", "privacy"])
def test_records_between_the_entries_are_refused(text, name, path) -> None:
    stated = json.loads(read_release_file(path).metadata[text])
    refused(rewritten(path, **{text: json.dumps(CONTENTS[name](stated))}))


def test_numbers_that_no_release_holds_are_refused(path) -> None:
    """A truth value is a byte, of which safetensors keeps all eight bits."""
    file = read_release_file(path)
    save_file(file.tensors | {"extra": torch.tensor([41, 37], dtype=torch.uint8).view(torch.bool)}, path, file.metadata)
    refused(path)


def test_safetensors_reads_what_is_written(tmp_path) -> None:
    tensors = {
        "b": torch.arange(3, dtype=torch.float64),
        "a": torch.ones(5, dtype=torch.float32),
        "c": torch.tensor([[7], [8]]),
        "none": torch.zeros(0, 4, dtype=torch.float64),
        "one": torch.tensor(2.5, dtype=torch.float64),
    }
    path, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    wide = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float64}
    file = ReleaseFile(path, {"ü": '\u200d"\\', "a": ""}, tensors)
    path.write_bytes(file.to_bytes())
    save_file(wide, theirs, file.metadata)
    with safe_open(path, "pt") as found:
        assert found.metadata() == file.metadata
        assert all(torch.equal(found.get_tensor(name), tensor) for name, tensor in tensors.items())
    path.write_bytes(ReleaseFile(path, file.metadata, wide).to_bytes())
    (ours, mine), (other, data) = parts(path), parts(theirs)
    assert mine == data
    assert json.loads(ours) == json.loads(other)
