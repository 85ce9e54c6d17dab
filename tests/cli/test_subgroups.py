"""The task ``subgroups`` as users run it: runs, reports, what a reader sees, and one line for each mistake."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

SMALL = ["task=subgroups", "data.n=3000", "subgroups=[{x0: [0]}, {x1: [-0.5, 0.5]}]", "privacy.epsilon=4"]
DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
    "covariates": {"age": {"low": 16, "high": 60}, "site": {"categories": ["a", "b", "c"]}},
    "propensity": 0.5,
}


def test_a_run_writes_cells_for_the_reader_and_what_only_the_curator_sees(finished, tmp_path, capsys):
    run = Path(shutil.copytree(finished(*SMALL), tmp_path / "run"))
    summary = json.loads((run / "curator" / "summary.json").read_text())
    labels = ["x0 < 0", "x0 >= 0", "x1 < -0.5", "-0.5 <= x1 < 0.5", "x1 >= 0.5"]
    assert [row["cell"] for row in summary["cells"]] == labels
    assert summary["level"] == "certified"
    assert (summary["weights"], summary["partitions"]) == ("composed", [{"x0": [0.0]}, {"x1": [-0.5, 0.5]}])
    assert summary["noise"] < 4 * summary["noise_planned"]  # scores are wider than a prior has them
    assert summary["rmse"] < 0.2
    release = load_release(run / "release" / "release.safetensors")
    table = pd.read_csv(run / "release" / "subgroups.csv")
    assert np.allclose(table["estimate"], release.estimate)
    assert {"forest.png", "subgroups.csv", "SHA256SUMS"} <= {file.name for file in (run / "release").iterdir()}
    assert {"forest.png", "plan.txt", "ledger.sqlite"} <= {file.name for file in (run / "curator").iterdir()}
    assert main(["verify", str(run / "release" / "release.safetensors")]) == 0
    assert "x0 < 0: estimate" in capsys.readouterr().out
    assert main(["report", str(run)]) == 0
    assert f"{summary['estimate_least']:.4g}" in capsys.readouterr().out


def trial(folder: Path) -> list[str]:
    """Words for a table of a trial in a folder."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"age": generator.integers(16, 61, 900), "site": generator.choice(list("abc"), 900)})
    frame["treat"] = generator.integers(0, 2, 900)
    frame["pay"] = 4 + 2 * frame["treat"] * (frame["site"] == "a")
    frame.to_csv(folder / "trial.csv", index=False)
    (folder / "trial.yaml").write_text(yaml.safe_dump(DOMAIN))
    paths = [f"data.path={folder / 'trial.csv'}", f"data.domain={folder / 'trial.yaml'}"]
    return ["train", "task=subgroups", "data=table", *paths, f"run_dir={folder / 'run'}"]


@pytest.mark.slow
def test_a_trial_with_cells_of_a_file(tmp_path, capsys):
    (tmp_path / "cells.yaml").write_text("- {site: true}\n- {age: [30, 45]}\n- {site: true, age: [40]}\n")
    words = [*trial(tmp_path), f"subgroups={tmp_path / 'cells.yaml'}", "privacy.epsilon=8"]
    assert main(words) == 0
    assert "site = a" in capsys.readouterr().out
    release = load_release(tmp_path / "run" / "release" / "release.safetensors")
    assert release.privacy.public["weights"] == "equal"  # the domain states the propensity: nothing is fitted
    truth = [2.0, 0.0, 0.0]
    low, high = release.interval(1 - 1e-9)[:3].T
    assert ((low < truth) & (truth < high)).all()
    summary = json.loads((tmp_path / "run" / "curator" / "summary.json").read_text())
    assert summary["spent"]["total"]["epsilon"] == pytest.approx(8.0)
