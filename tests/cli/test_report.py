"""``report``: means over seeds, methods distinguished by what varies, figures, and a table of a real sweep."""

import html
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.helpers import SUMMARY, add
from torchdpcate.cli.main import main
from torchdpcate.cli.report import compare, method_of, report
from torchdpcate.cli.tasks.effects import Effects


def frame(*runs: dict) -> pd.DataFrame:
    """Runs as ``report`` reads them."""
    given = {"varied": "", "requested_epsilon": 1.0, "spent_epsilon": 0.99}
    table = pd.DataFrame([SUMMARY | given | run for run in runs])
    return table.assign(method=method_of(table, Effects))


def test_means_and_standard_errors_over_seeds():
    table = compare(frame({"pehe": 0.2}, {"pehe": 0.4, "noise": 0.7, "spent_epsilon": 0.5, "seed": 1}), Effects)
    assert table.to_dict("records") == [
        {
            "data": "dataset1",
            "n": "1,350",
            "mechanism": "objective",
            "epsilon": "1",
            "runs": "2",
            "PEHE": "0.3 ± 0.1",
            "plug-in": "0.4",
            "non-private": "0.1",
            "noise": "0.6",
            "level": "certified",
            "spent": "0.99",
        }
    ]


@pytest.fixture(scope="module")
def averages(tmp_path_factory):
    """A sweep of average effects over two budgets."""
    folder = tmp_path_factory.mktemp("averages") / "sweep"
    words = ["task=average_effect", "effect=covariate_balancing", "data.n=900", "privacy.delta=0"]
    words += ["privacy.epsilon=1,4"]
    assert main(["train", "-m", *words, f"run_dir={folder}"]) == 0
    files = {path.name for path in (folder / "curator").iterdir()}  # by itself, without report
    assert files >= {"report.csv", "report.html"}
    return folder


def reported(folder: Path) -> dict[Path, str]:
    """The text of every file that ``report`` writes, by its path."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    report(str(folder))
    written = {path for path in folder.rglob("*") if path.is_file() and path.stat().st_mtime_ns != before.get(path)}
    return {path: path.read_text() for path in written}


@pytest.mark.slow
def test_what_is_the_curators_of_a_report_is_in_the_curators_folder_and_says_so(averages):
    texts = reported(averages)
    folder = averages / "curator"
    assert folder.stat().st_mode & 0o777 == 0o700
    written = [path for path in folder.iterdir() if path.is_file()]
    assert {"report.csv", "report.html"} == {path.name for path in written}
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o600, path.name
        assert "curator's, not for publication" in html.unescape(texts[path]).lower(), path.name
    page = texts[folder / "report.html"]
    for heading in ("Estimate against budget", "Error against budget", "side by side", "coverage: Share of runs"):
        assert heading in page
    assert all(name in page for name in ("non-private", "balanced_difference"))
    assert len(table := pd.read_csv(folder / "report.csv")) == 2
    assert set(table["covered"]) <= {0, 1}
    statements = [json.loads(path.read_text()) for path in sorted(averages.glob("[0-9]/release/privacy.json"))]
    assert [statement["tuning"]["text"][:7] for statement in statements] == ["run 0 (", "run 1 ("]


@pytest.mark.slow
def test_a_run_of_its_own_keeps_its_curators_files(averages, tmp_path):
    folder = Path(shutil.copytree(averages / "0", tmp_path / "run"))
    os.chmod(folder / "curator", 0o755)
    before = {path.name for path in (folder / "curator").iterdir()}
    texts = reported(folder)
    assert {path.name for path in (folder / "curator").iterdir()} - before == {"report.csv", "report.html"}
    assert {path.name for path in texts if path.parent == folder / "release"} == {"release.html", "SHA256SUMS"}
    assert (folder / "curator").stat().st_mode & 0o777 == 0o700


@pytest.mark.faults
@pytest.mark.parametrize("data", ["../../x", "/../../x", "a/b"])
def test_a_summary_cannot_lead_out_of_the_folder(averages, tmp_path, data):
    folder = Path(shutil.copytree(averages, tmp_path / "a" / "sweep"))
    changed = folder / "1" / "curator" / "summary.json"
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"data": data}))
    before = set(tmp_path.rglob("*"))
    report(str(folder))
    places = {path.parent for path in set(tmp_path.rglob("*")) - before}
    assert places <= {folder / "curator", *(folder / run / "release" for run in "01")}


def test_a_cell_that_a_spreadsheet_would_run_is_text(tmp_path):
    for name in ("=cmd|'C calc'!A0", "+1", "-2", "@x"):
        add(tmp_path, name, settings={"a": "=1+1"})
    report(str(tmp_path))
    table = pd.read_csv(tmp_path / "curator" / "report.csv")
    assert sorted(table["run"]) == ["'+1", "'-2", "'=cmd|'C calc'!A0", "'@x"]
    assert not table.select_dtypes(exclude="number").map(lambda cell: str(cell)[0] in "=+@").any(axis=None)


def test_a_link_in_place_of_the_curators_folder_is_refused(tmp_path, capsys):
    add(tmp_path, "runs/0")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "curator").symlink_to(tmp_path / "elsewhere")
    assert main(["report", str(tmp_path / "runs")]) == 2
    assert "is a link to elsewhere" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())
