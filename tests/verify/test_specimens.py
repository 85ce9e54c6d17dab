"""Files that earlier versions wrote still load, agree with themselves, and answer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.privacy.charge import Purpose, charge_of_label
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.digest import DIGEST_KEY, release_digest
from torchdpcate.release.file import FORMAT_VERSION, load_release, read_release_file
from torchdpcate.verify.file import verify_release

FOLDER = Path(__file__).parents[1] / "data" / "specimens"
RELEASES = sorted(FOLDER.glob("*/*.safetensors"))


def test_there_is_one_of_every_kind():
    kinds = {read_release_file(path).metadata["class"] for path in RELEASES}
    assert kinds >= {
        "function",
        "queries",
        "statistics",
        "rule",
        "policy",
        "average_effect",
        "composed",
        "composed_rule",
    }


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_old_release_is_verified_and_answers(path, tmp_path):
    findings = dict(verify_release(path))
    release = load_release(path)
    assert "matches" in findings["checksum"]
    version, format_4 = read_release_file(path).version, path.parent.name == "v4"
    assert version == 4 if format_4 else version < 4
    assert version <= FORMAT_VERSION
    assert all(charge.purpose is not Purpose.OTHER for charge in release.privacy.charges)
    if isinstance(release, AverageEffectRelease):
        assert np.isfinite(release.estimate)
    else:
        points = getattr(release, "queries", torch.full((3, release.domain.dimension), 0.5, dtype=torch.float64))
        assert np.isfinite(np.asarray(release.answer(points), dtype=np.float64)).all()
    again = load_release(release.save(tmp_path / "again.safetensors"))
    assert again.privacy == release.privacy
    verify_release(tmp_path / "again.safetensors")


def test_an_old_ledger_goes_on_where_it_was(tmp_path):
    path = Path(shutil.copy(FOLDER / "v1" / "ledger.json", tmp_path))
    ledger = Ledger.load(path)
    purposes = [entry.charge.purpose for entry in ledger.entries]
    assert purposes == [Purpose.NUISANCES] * 2 + [Purpose.THRESHOLD] * 2 + [Purpose.RELEASE] * 4
    spent = ledger.spent()
    ledger.charge("fold_1", "more", PureEvent(1e-6)) if ledger.remaining("fold_1") else None
    assert Ledger.load(path).spent()["fold_2"] == spent["fold_2"]


def test_an_old_online_service_answers_as_before(tmp_path):
    folder = Path(shutil.copytree(FOLDER / "v1" / "online", tmp_path / "online"))
    folder.chmod(0o700)
    for file in folder.iterdir():
        file.chmod(0o600)
    service = OnlineService.open(folder)
    assert service.asked == 5
    assert service.privacy.charges[-1].is_release("gaussian_process", "")
    assert np.isfinite(service.answer([[0.5, 0.5]])).all()


def _as(path: Path, to: Path, change, version: str = "3") -> Path:
    """Write a release as one of another format version, its statement changed, with the checksum that this needs."""
    file = read_release_file(path)
    privacy = json.loads(file.metadata["privacy"])
    change(privacy)
    metadata = {**file.metadata, "privacy": json.dumps(privacy), "format_version": version}
    del metadata[DIGEST_KEY]
    save_file(file.tensors, to, metadata={**metadata, DIGEST_KEY: release_digest(metadata, file.tensors)})
    return to


@pytest.mark.parametrize("field", ["conditions", "assumptions", "tuning", "adjacency", "versions"])
def test_a_field_that_format_3_had_may_not_be_left_out_of_it(field, tmp_path):
    old = FOLDER / "v1" / "cate_function_objective.safetensors"
    forged = _as(old, tmp_path / "forged.safetensors", lambda privacy: privacy.pop(field))
    with pytest.raises(VerificationError):
        verify_release(forged)


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_an_older_format_has_labels_and_no_typed_charges(version, tmp_path):
    old = FOLDER / "v1" / "cate_function_objective.safetensors"

    def add(privacy):  # what is read would not be what the label says
        for block in privacy["blocks"]:
            for charge in block["charges"]:
                charge |= charge_of_label(charge["label"]).to_dict()
                charge["label"] = "words that nobody would see"

    def instead(privacy):
        add(privacy)
        for block in privacy["blocks"]:
            for charge in block["charges"]:
                del charge["label"]

    for change in (add, instead):
        forged = _as(old, tmp_path / "forged.safetensors", change, version)
        with pytest.raises(ReleaseFileError):
            verify_release(forged)
    with pytest.raises(ReleaseFileError):  # and the present one has no labels
        verify_release(_as(old, tmp_path / "forged.safetensors", lambda privacy: None, "4"))


@pytest.mark.parametrize(
    ("name", "effect"), [("function", -0.13181978), ("binary", 0.18710472), ("trial", -0.11651806)]
)
def test_an_old_composition_answers_as_when_it_was_written(name, effect):
    release = load_release(FOLDER / "v4" / f"composed_{name}.safetensors")
    assert isinstance(release, ComposedRelease)
    assert release.effect([[0.25, 0.75]]) == pytest.approx([effect], abs=1e-7)
    if name == "trial":
        assert release.interval([[0.25, 0.75]]) == pytest.approx(np.array([[-0.22611406, -0.05391425]]), abs=1e-7)
        assert release.average() == pytest.approx([0.24326299, 0.49347716], abs=1e-7)
