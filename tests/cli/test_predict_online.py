"""``torchdpcate predict`` of a run's online service: always the same answers, whole files, nothing more spent."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.helpers import one_line
from tests.estimators.cate.online.test_service import create
from tests.release.helpers import DOMAIN
from torchdpcate.cli.main import main
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.cate.online.state import SERVICE_FILE

POINTS = DOMAIN.grid(30).numpy()
ONLINE = Path("run/curator/online")


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    """A run's folder with a service, and tables of queries beside it."""
    monkeypatch.chdir(tmp_path)
    create(ONLINE)
    frame = pd.DataFrame(POINTS, columns=["x0", "x1"])
    frame.assign(name="nobody").to_csv("a.csv", index=False)
    frame[10:].to_parquet("b.parquet")


def asked(table: str, output: str, *words: str) -> int:
    return main(["predict", str(ONLINE), table, "-o", output, *words])


def test_answers_are_written_and_stay(capsys):
    assert asked("a.csv", "a_out.csv") == 0
    printed = capsys.readouterr().out
    assert "30 effects (certified) written to a_out.csv" in printed
    assert "has paid for all answers together, and nothing more was spent" in printed
    assert asked("b.parquet", "b_out.parquet", "--keep", "x0") == 0
    first = pd.read_csv("a_out.csv")
    assert list(first.columns) == ["effect"]
    np.testing.assert_array_equal(pd.read_parquet("b_out.parquet")["effect"], first["effect"][10:])
    service = OnlineService.open(ONLINE)
    np.testing.assert_array_equal(first["effect"], service.answer(POINTS))
    assert service.requested == 30


def test_a_reader_s_path_never_asks_the_service(tmp_path):
    """Neither the run's folder nor its release file, which is all that a reader has, leads to the service."""
    Path("run/release").mkdir()
    OnlineService.open(ONLINE).release(POINTS[:10]).save("run/release/release.safetensors")
    pd.read_csv("a.csv")[:10].to_csv("ten.csv", index=False)

    def kept() -> dict[Path, str]:
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in ONLINE.rglob("*") if path.is_file()}

    before = kept()
    for release in ("run", "run/release", "run/release/release.safetensors"):
        assert main(["predict", release, "ten.csv", "-o", "out.csv", "--overwrite"]) == 0
    assert kept() == before
    assert asked("a.csv", "out.csv", "--overwrite") == 0
    assert kept() != before  # what the comparison would have found


REFUSED = {
    "outside": ("x0,x1\n0.5,0.5\n7.0,0.5\n", [], "outside its declared bounds"),
    "itself": ("x0,x1\n0.5,0.5\n", ["-o", "bad.csv"], "is the input"),
    "interval": ("x0,x1\n0.5,0.5\n", ["--interval"], "is an online service, which has no interval"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_one_line_and_no_file(case, capsys):
    text, words, told = REFUSED[case]
    Path("bad.csv").write_text(text)
    before, names = (ONLINE / SERVICE_FILE).read_bytes(), sorted(Path().iterdir())
    assert asked("bad.csv", "out.csv", *words) == 2
    assert told in one_line(capsys)
    assert sorted(Path().iterdir()) == names
    assert (ONLINE / SERVICE_FILE).read_bytes() == before
