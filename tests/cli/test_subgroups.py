"""The task ``subgroups`` as users run it: runs, reports, what a reader sees, and one line for each mistake."""

import html
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.helpers import TABLE, change, redomained, summary
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

SMALL = ["task=subgroups", "data.n=3000", "subgroups=[{x0: [0]}, {x1: [-0.5, 0.5]}]", "privacy.epsilon=4"]


def test_a_run_writes_cells_for_the_reader_and_what_only_the_curator_sees(finished, tmp_path, capsys):
    run = Path(shutil.copytree(finished(*SMALL), tmp_path / "run"))
    found = summary(run)
    labels = ["x0 < 0", "x0 >= 0", "x1 < -0.5", "-0.5 <= x1 < 0.5", "x1 >= 0.5"]
    assert [row["cell"] for row in found["cells"]] == labels
    assert found["level"] == "certified"
    assert (found["weights"], found["partitions"]) == ("composed", [{"x0": [0.0]}, {"x1": [-0.5, 0.5]}])
    assert found["noise"] == pytest.approx(found["noise_planned"], rel=0.5)
    assert found["rmse"] < 0.2
    release = load_release(run / "release" / "release.safetensors")
    assert found["estimate_least"] == min(release.averages.estimate(label) for label in labels)
    assert {"balance.csv", "balance.png", "ledger.sqlite"} <= {file.name for file in (run / "curator").iterdir()}
    assert main(["verify", str(run / "release" / "release.safetensors")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"In (\d|none) of 5 subgroups the effect is", shown)
    assert f"x0 < 0: estimate {release.averages.estimate('x0 < 0'):.6g}, low" in shown
    assert main(["report", str(run)]) == 0
    assert f"{found['estimate_least']:.4g}" in capsys.readouterr().out
    page = (run / "release" / "release.html").read_text()
    assert all(html.escape(label) in page for label in labels)


def test_a_run_closes_with_a_line_for_each_cell(tmp_path, capsys):
    assert main(["train", *SMALL, f"run_dir={tmp_path / 'run'}"]) == 0
    release, shown = load_release(tmp_path / "run"), capsys.readouterr().out
    lines = re.findall(r"^(\S.*?)  +(\S+)  95% interval \[(\S+), (\S+)\]$", shown, re.MULTILINE)
    assert [label for label, *_ in lines] == list(release.averages.cells)
    for label, *numbers in lines:
        stated = [release.averages.estimate(label), *release.averages.interval(label)]
        assert list(map(float, numbers)) == pytest.approx(stated, rel=1e-3)


@pytest.mark.slow
def test_a_trial_with_cells_of_a_file(here, capsys):
    change(pay=lambda frame: 4 + 2 * frame["treat"] * (frame["site"] == "a"))
    redomained(propensity=0.5)
    Path("cells.yaml").write_text("- {site: true}\n- {age: [30, 45]}\n- {site: true, age: [40]}\n")
    words = ["task=subgroups", *TABLE, "subgroups=cells.yaml", "privacy.epsilon=8", "run_dir=run"]
    assert main(["train", *words]) == 0
    assert "site = a" in capsys.readouterr().out
    release = load_release("run")
    for site, truth in (("a", 2.0), ("b", 0.0), ("c", 0.0)):
        low, high = release.lines(1 - 1e-9).set_index("line").loc[f"site = {site}", ["low", "high"]]
        assert low < truth < high
    assert summary("run")["spent"]["total"]["epsilon"] == pytest.approx(8.0)
