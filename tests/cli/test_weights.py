"""Records that do not all count alike on the command line: what a plan says, and what a run makes of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import TABLE, change, one_line, redomained
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

WEIGHTS = {"weights": {"name": "w", "high": 2}}
DROPPED = {
    "treatment": {"name": "treat", "missing": "drop"},
    "outcome": {"name": "pay", "low": 0, "high": 10, "missing": "drop"},
}
MEANS = ["task=average_effect", *TABLE, "privacy.epsilon=20", "run_dir=run"]


def weighted(frame):
    return np.where(frame["dose"] > 0.5, 2.0, 0.0)


@pytest.mark.slow
def test_a_plan_says_how_records_count_and_what_it_costs(here, capsys):
    redomained(propensity=0.5, **WEIGHTS, **DROPPED)
    assert main(["plan", "task=average_effect", *TABLE, "n=400", "run_dir=plan"]) == 0
    said = capsys.readouterr().out
    assert "note: weights: a record counts w / 2 times" in said
    assert "note: missing: records without treatment or outcome count nothing" in said
    assert "they count as about 200 records" in said
    assert any("w / 2 times" in remark for remark in json.loads(Path("plan/plan.json").read_text())["remarks"])


def test_a_run_has_the_effect_of_the_weighted_records(here):
    """The effect is 8 dose - 4 among all, 2 on average where the dose is above a half."""
    change(w=weighted)
    redomained(propensity=0.5, **WEIGHTS)
    assert main(["train", *MEANS]) == 0
    assert json.loads(Path("run/curator/summary.json").read_text())["estimate"] == pytest.approx(2, abs=1)
    assert "w / 2 times" in Path("run/release/privacy.md").read_text()
    assert "w / 2 times" in load_release("run/release/release.safetensors").assumptions


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["data.stream=true"]])
def test_records_without_an_outcome_count_nothing(here, more):
    change(
        pay=lambda frame: frame["pay"].where(frame["dose"] > 0.5),
        treat=lambda frame: frame["treat"].where(frame["age"] > 20).astype("Int64"),
    )
    redomained(propensity=0.5, **DROPPED)
    assert main(["train", *MEANS, *more]) == 0
    assert json.loads(Path("run/curator/summary.json").read_text())["estimate"] == pytest.approx(2, abs=1)
    assert "count nothing" in Path("run/release/privacy.md").read_text()


def test_a_task_that_takes_no_weights_says_so_in_a_line(here, capsys):
    change(w=weighted)
    redomained(propensity=0.5, **WEIGHTS)
    assert main(["train", "task=owl", *TABLE, "run_dir=run"]) == 2
    assert "weights: OutcomeWeightedLearner takes none; records may have weights in task=cate" in one_line(capsys)
