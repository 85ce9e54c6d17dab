"""Runs of every mechanism and head: all that is in their release folders follows from their releases."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.registered import shipped
from torchdpcate.cli.derived import leaks
from torchdpcate.cli.main import main

DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
    "covariates": {"age": {"low": 0, "high": 100}, "dose": {"low": 0, "high": 1}},
}
QUICK = ["data=table", "data.path=people.csv", "data.domain=domain.yaml", "nuisance.batch_size=50", "nuisance.epochs=2"]
TABLE = ["data.path=people.csv", "data.domain=domain.yaml"]
LINEAR = ["second_stage=linear", "second_stage.ridge=0.05"]
WIDE = "privacy.epsilon=35"  # else so few records are answered by bounds alone


def marked(n: int = 300) -> pd.DataFrame:
    """Records whose every number has digits that nothing else would have."""
    rng = np.random.default_rng(0)
    treat = rng.integers(0, 2, n)
    age, dose = rng.uniform(1, 99, n), rng.uniform(0.1, 0.9, n)
    return pd.DataFrame({"treat": treat, "age": age, "dose": dose, "pay": 2 + treat + 3 * dose + rng.uniform(0, 2, n)})


def test_one_composition_leaves_nothing_of_the_curators_in_the_release_folder(finished):
    files = {"people.csv": marked(2000).to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    words = ["data=table", "data.path=people.csv", "data.domain=domain.yaml", "trainer.progress=false"]
    run = finished(*words, files=files)
    assert leaks(run) == ()
    assert not (run / "curator" / "effect.png").exists()  # it would be the reader's once more


@pytest.fixture
def trained(finished, tmp_path):
    """A copy of a run by its words."""
    files = {"people.csv": marked().to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}

    def folder(*words: str) -> Path:
        run = finished(*QUICK, *words, "trainer.progress=false", files=files)
        return Path(shutil.copytree(run, tmp_path / "r"))

    return folder


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "words",
    shipped(
        [
            [],
            ["learner=dr", "features=fourier", "features.pairs=20"],
            ["mechanism=output", "features=representation"],
            ["mechanism=output", "release=queries", "queries.count=40"],
            ["release=queries", "mechanism=smooth_sensitivity", "queries.count=7", WIDE],
            ["release=queries", "mechanism=influence", "queries.count=7", WIDE],
            ["second_stage=neural", "second_stage.width=4", "release=queries", "mechanism=influence", WIDE],
        ]
    ),
    ids=lambda words: " ".join(words[:2]) or "default",
)
def test_the_release_folder_holds_nothing_of_the_curators(words, trained):
    ridge = [] if "second_stage=neural" in words else LINEAR
    run = trained(*words, *ridge)
    summary = json.loads((run / "curator" / "summary.json").read_text())
    weaker = "heuristic" if "second_stage=neural" in words else "conditional"
    assert summary["level"] == (weaker if "mechanism=influence" in words else "certified")
    assert (summary["epsilon"] is None) is ("mechanism=influence" in words)
    assert leaks(run) == ()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["average_effect", "rule", "subgroups", "policy_selection"])
def test_a_run_with_its_pages_holds_nothing_of_the_curators(task, finished, tmp_path):
    files = {"people.csv": marked(2000).to_csv(index=False), "domain.yaml": yaml.safe_dump(DOMAIN)}
    more = {"subgroups": ["subgroups=[{dose: [0.5]}]"]}.get(task, [])
    run = Path(shutil.copytree(finished(f"task={task}", *more, "data=table", *TABLE, files=files), tmp_path / "r"))
    assert main(["report", str(run)]) == 0
    assert main(["verify", str(run), "--card"]) == 0
    assert leaks(run) == ()
