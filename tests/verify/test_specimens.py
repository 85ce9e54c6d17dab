"""Files that earlier versions wrote still load, agree with themselves, and answer."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import load_release, read_release_file
from torchdpcate.verify.file import verify_release

FOLDER = Path(__file__).parents[1] / "data" / "specimens"
RELEASES = sorted(FOLDER.glob("*/*.safetensors"))


def test_there_are_some_of_many_kinds():
    kinds = {read_release_file(path).metadata["class"] for path in RELEASES}
    assert kinds >= {"rule", "policy", "average_effect", "composed", "composed_rule"}


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_old_release_is_verified_and_answers(path, tmp_path):
    findings = dict(verify_release(path))
    release = load_release(path)
    assert "matches" in findings["checksum"]
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
