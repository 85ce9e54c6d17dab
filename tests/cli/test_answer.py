"""``torchdpcate answer``: as often as wanted, the same answers, whole files or none."""

import numpy as np
import pandas as pd
import pytest

from tests.estimators.cate.online.test_service import create
from tests.release.helpers import DOMAIN
from torchdpcate.cli.answer import ONLINE, answer
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.cate.online.state import SERVICE_FILE

POINTS = DOMAIN.grid(30).numpy()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "run" / ONLINE)
    frame = pd.DataFrame(POINTS, columns=["x0", "x1"])
    frame.assign(name="nobody").to_csv("a.csv", index=False)
    frame[10:].to_parquet("b.parquet")
    return tmp_path / "run"


def test_answers_are_written_and_stay(run, tmp_path, capsys):
    answer("run", "a.csv", "a_out.csv")
    assert "30 effects (certified) written to a_out.csv" in capsys.readouterr().out
    answer("run", "b.parquet", "b_out.parquet")
    first = pd.read_csv("a_out.csv")
    assert list(first.columns) == ["effect"]
    np.testing.assert_array_equal(pd.read_parquet("b_out.parquet")["effect"], first["effect"][10:])
    service = OnlineService.open(run / ONLINE)
    np.testing.assert_array_equal(first["effect"], service.answer(POINTS))
    assert service.requested == 30
    assert not (run / "release").exists()


def test_without_an_output_it_prints_csv(run, tmp_path, capsys):
    answer("run", "a.csv")
    (tmp_path / "printed.csv").write_text(capsys.readouterr().out)
    answer("run", "a.csv", "written.csv")
    np.testing.assert_array_equal(pd.read_csv("printed.csv"), pd.read_csv("written.csv"))


def test_a_run_without_a_service_says_how_to_get_one(tmp_path):
    with pytest.raises(InputError, match="release=function mechanism=gaussian_process"):
        answer(str(tmp_path), "a.csv", "out.csv")


BAD = {
    "x0,x1\n0.5,0.5\n7.0,0.5\n": "outside its declared bounds",
    "x0,x1\n0.5,\n": "missing",
    "x0\n0.5\n": "x1",
    "x0,x1\n": "no rows",
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("output", ["out.csv", None])
def test_bad_queries_are_answered_by_one_line_and_no_file(run, tmp_path, capsys, text, output):
    (tmp_path / "bad.csv").write_text(text)
    before = (run / ONLINE / SERVICE_FILE).read_bytes()
    if output is None or "no rows" not in BAD[text]:
        with pytest.raises(InputError, match=BAD[text]):
            answer("run", "bad.csv", output)
        assert not (tmp_path / "out.csv").exists()
    assert capsys.readouterr().out == ""
    assert (run / ONLINE / SERVICE_FILE).read_bytes() == before


def test_the_output_is_never_the_queries(run):
    with pytest.raises(InputError, match="holds the queries"):
        answer("run", "a.csv", "a.csv")


def test_an_output_that_is_there_is_overwritten_by_a_word_alone(run, tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    before = (run / ONLINE / SERVICE_FILE).read_bytes()
    with pytest.raises(InputError, match=r"output = out.csv: exists already; .*add --overwrite"):
        answer("run", "a.csv", "out.csv")
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert (run / ONLINE / SERVICE_FILE).read_bytes() == before
    answer("run", "a.csv", "out.csv", overwrite=True)
    assert len(pd.read_csv(tmp_path / "out.csv")) == 30


def test_a_file_cut_short_is_refused_and_nothing_is_written(run, tmp_path):
    answer("run", "a.csv", "out.csv")
    path = run / ONLINE / SERVICE_FILE
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(InputError, match="second release"):
        answer("run", "b.parquet", "more.csv")
    assert not (tmp_path / "more.csv").exists()
