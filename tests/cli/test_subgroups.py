"""The task ``subgroups`` as users run it: runs, reports, what a reader sees, and one line for each mistake."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
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
    assert found["noise"] < 4 * found["noise_planned"]  # scores are wider than a prior has them
    assert found["rmse"] < 0.2
    release = load_release(run / "release" / "release.safetensors")
    table = pd.read_csv(run / "release" / "subgroups.csv")
    assert np.allclose(table["estimate"], release.estimate)
    assert {"forest.png", "subgroups.csv", "SHA256SUMS"} <= {file.name for file in (run / "release").iterdir()}
    assert {"forest.png", "plan.txt", "ledger.sqlite"} <= {file.name for file in (run / "curator").iterdir()}
    assert main(["verify", str(run / "release" / "release.safetensors")]) == 0
    assert "x0 < 0: estimate" in capsys.readouterr().out
    assert main(["report", str(run)]) == 0
    assert f"{found['estimate_least']:.4g}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_trial_with_cells_of_a_file(here, capsys):
    change(pay=lambda frame: 4 + 2 * frame["treat"] * (frame["site"] == "a"))
    redomained(propensity=0.5)
    Path("cells.yaml").write_text("- {site: true}\n- {age: [30, 45]}\n- {site: true, age: [40]}\n")
    words = ["task=subgroups", *TABLE, "subgroups=cells.yaml", "privacy.epsilon=8", "run_dir=run"]
    assert main(["train", *words]) == 0
    assert "site = a" in capsys.readouterr().out
    release = load_release("run")
    assert release.privacy.public["weights"] == "equal"  # the domain states the propensity: nothing is fitted
    truth = [2.0, 0.0, 0.0]
    low, high = release.interval(1 - 1e-9)[:3].T
    assert ((low < truth) & (truth < high)).all()
    assert summary("run")["spent"]["total"]["epsilon"] == pytest.approx(8.0)
