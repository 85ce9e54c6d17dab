import hashlib
import subprocess

import pytest
import torch

from torchdpcate.errors import VerificationError
from torchdpcate.release.file import check_sums, file_sum, release_digest, write_sums

METADATA = {"format": "f", "privacy": "{}"}
TENSORS = {
    "a": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "b": torch.tensor(True),
    "empty": torch.zeros(0, 4, dtype=torch.float32),
}


def test_it_does_not_depend_on_order_memory_layout_or_itself():
    one = release_digest(METADATA, TENSORS)
    turned = {name: TENSORS[name] for name in reversed(TENSORS)}
    turned["a"] = TENSORS["a"].t().contiguous().t()
    assert not turned["a"].is_contiguous()
    assert release_digest(dict(reversed(METADATA.items())) | {"sha256": one}, turned) == one


def test_it_is_the_hash_of_length_prefixed_parts():
    parts = [b"[1, 1]", b"k", b"v", b'["t", "torch.uint8", [2]]', bytes([7, 9])]
    expected = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
    assert release_digest({"k": "v"}, {"t": torch.tensor([7, 9], dtype=torch.uint8)}) == expected


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        ({"format": "f", "privacy": "{} "}, TENSORS),
        ({"format": "f"}, TENSORS),
        (METADATA | {"more": ""}, TENSORS),
        ({"formatf": "", "privacy": "{}"}, TENSORS),
        (METADATA, TENSORS | {"a": TENSORS["a"].reshape(3, 2)}),
        (METADATA, TENSORS | {"a": TENSORS["a"].float()}),
        (METADATA, TENSORS | {"a": TENSORS["a"].view(torch.int64)}),
        (METADATA, TENSORS | {"b": torch.tensor(False)}),
        (METADATA, TENSORS | {"c": torch.zeros(0)}),
        (METADATA, {"A" if name == "a" else name: t for name, t in TENSORS.items()}),
        (METADATA, TENSORS | {"empty": torch.zeros(4, 0, dtype=torch.float32)}),
        (METADATA, TENSORS | {"a": -TENSORS["a"]}),  # minus zero is another number
    ],
)
def test_every_change_changes_it(metadata, tensors):
    assert release_digest(metadata, tensors) != release_digest(METADATA, TENSORS)


@pytest.fixture
def folder(tmp_path):
    for name in ("release.safetensors", "privacy.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".hidden").write_text("not listed")
    (tmp_path / "within").mkdir()
    return tmp_path


def test_sums_are_what_sha256sum_reads(folder):
    path = write_sums(folder)
    assert path.read_text().splitlines()[0] == f"{file_sum(folder / 'privacy.md')}  privacy.md"
    subprocess.run(["sha256sum", "--check", "--strict", path.name], cwd=folder, check=True, capture_output=True)
    assert check_sums(folder) == (["privacy.md", "release.safetensors"], [], [], [])


def test_changes_absences_and_additions_are_told_apart(folder):
    write_sums(folder)
    (folder / "privacy.md").write_text("changed")
    (folder / "release.safetensors").unlink()
    (folder / "release.html").write_text("new")
    assert check_sums(folder) == ([], ["privacy.md"], ["release.safetensors"], ["release.html"])


def test_renewing_one_line_does_not_bless_another(folder):
    write_sums(folder)
    (folder / "privacy.md").write_text("changed")
    (folder / "release.html").write_text("new")
    write_sums(folder, ["release.html"])
    assert check_sums(folder) == (["release.html", "release.safetensors"], ["privacy.md"], [], [])


@pytest.mark.parametrize(
    "line",
    [
        "not a checksum",
        f"{'0' * 64}  ../secret",
        f"{'0' * 64}  /etc/passwd",
        f"{'0' * 64}  SHA256SUMS",
        f"{'0' * 64}  .hidden",
        f"{'0' * 64}  privacy.md\n{'1' * 64}  privacy.md",
    ],
)
def test_a_list_that_is_none_is_refused(folder, line):
    (folder / "SHA256SUMS").write_text(line + "\n")
    with pytest.raises(VerificationError, match=r"SHA256SUMS: line \d is not the checksum"):
        check_sums(folder)


SPELLINGS = {
    "another order": lambda text: "".join(reversed(text.splitlines(keepends=True))),
    "a star": lambda text: text.replace("  ", " *", 1),
    "lines of Windows": lambda text: text.replace("\n", "\r\n"),
    "no last line end": lambda text: text[:-1],
}


@pytest.mark.parametrize("how", SPELLINGS)
def test_a_list_of_checksums_has_one_form(how, tmp_path):
    for name in ("a.json", "b.json", "c.json"):
        (tmp_path / name).write_text(name)
    path = write_sums(tmp_path)
    changed = SPELLINGS[how](path.read_text())
    assert changed != path.read_text()
    path.write_bytes(changed.encode())
    with pytest.raises(VerificationError, match=r"not written as a run writes it|is not the checksum of a file"):
        check_sums(tmp_path)
