"""``torchdpcate plan`` as users run it: every task, no record read, its files; and what ``train`` says and refuses."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.cli.helpers import DOMAIN, one_line
from tests.registered import shipped
from torchdpcate import PrivacyBudget
from torchdpcate.cli.main import main
from torchdpcate.cli.run import verdict
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.papers.oprescu import Dataset1

TABLE = ["data=table", "data.path=nowhere.csv", "data.domain=domain.yaml"]
TASKS = shipped(
    {
        "cate": [],
        "cate blocks": ["second_stage=linear"],
        "owl": ["task=owl", "weights=constant"],
        "two_stage_rule": ["task=two_stage_rule"],
        "policy_selection": ["task=policy_selection"],
        "average_effect": ["task=average_effect"],
        "subgroups": ["task=subgroups", "subgroups=[{black: true}]"],
        "rule": ["task=rule"],
        "smooth": ["second_stage=linear", "mechanism=smooth_sensitivity", "release=queries"],
        "influence": ["second_stage=linear", "mechanism=influence", "release=queries"],
        "neural": ["second_stage=neural", "mechanism=influence", "release=queries"],
        "plug-in": ["second_stage=plug_in"],
    }
)
KEYS = {
    *("task", "mechanism", "n", "epsilon", "delta", "expected_noise", "outcome_range", "feasible"),
    *("table", "least_n", "least_epsilon", "precision", "targets", "parts", "level"),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A domain file, and no table."""
    monkeypatch.chdir(tmp_path)
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN))
    return tmp_path


@pytest.fixture
def no_records(monkeypatch):
    """Nothing may be loaded."""

    def refuse(*args, **settings):
        raise AssertionError("a record was read")

    monkeypatch.setattr(Table, "load", refuse)
    monkeypatch.setattr(Table, "open", refuse)
    monkeypatch.setattr(Dataset1, "load", refuse)


def plan(*words: str) -> dict:
    assert main(["plan", *words, "run_dir=p"]) == 0
    return json.loads(Path("p/plan.json").read_text())


@pytest.mark.parametrize(
    "name",
    [name if name == "cate" else pytest.param(name, marks=pytest.mark.slow) for name in TASKS],
)
def test_every_task_is_planned_without_a_record(name, here, no_records, capsys):
    found = plan(*TASKS[name], *TABLE, "n=4000", "privacy.epsilon=2")
    assert set(found) >= KEYS
    assert (found["n"], found["epsilon"], found["delta"], found["outcome_range"]) == (4000, 2.0, 1e-5, 10.0)
    assert found["task"] == name.split()[0] or name not in ("cate", "owl", "rule")
    assert Path("p/plan.png").stat().st_size > 10_000
    shown = capsys.readouterr().out
    assert "no record was read" in shown
    noise = found["expected_noise"]
    assert noise > 0
    assert found["feasible"] == (noise <= 10)
    assert ("train would refuse" in shown) == (noise > 10)
    here_too = [row for row in found["table"] if (row["n"], row["epsilon"]) == (4000, 2.0)]
    assert here_too[0]["expected_noise"] == pytest.approx(noise, rel=1e-9)
    assert len(found["table"]) == 35
    assert [target["task"] for target in found["targets"]][-1] == "cate"


REFUSED = {
    "no n": ([], "give n=NUMBER"),
    "no precision": (["n=100", "precision=-1"], "precision = -1: give a positive number"),
    "a sweep": (["-m", "n=100", "privacy.epsilon=1,2"], "a plan has no sweeps"),
    "metadata of csv": (["n=metadata"], "is no parquet file"),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_one_line_and_leave_nothing(mistake, here, capsys):
    words, message = REFUSED[mistake]
    assert main(["plan", *TABLE, *words, "run_dir=p"]) == 2
    assert message in one_line(capsys)
    assert sorted(path.name for path in here.iterdir()) == ["domain.yaml"]


SAME = {
    "no delta": ["privacy.delta=0", "second_stage=linear"],
    "a mechanism": ["second_stage=linear", "mechanism=influence"],
    "an estimand": ["task=average_effect", "effect=covariate_balancing", "effect.estimand=none"],
    "a folder": ["run_dir=."],
}


@pytest.mark.first(1)
@pytest.mark.parametrize("mistake", SAME)
def test_a_plan_refuses_what_train_refuses_in_the_same_words(mistake, here, capsys):
    words = ["data=dataset1", "data.n=300", *SAME[mistake]]
    assert main(["plan", *words]) == 2
    planned = one_line(capsys)
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err.strip() == planned


@pytest.mark.slow
def test_a_known_propensity_of_the_domain_is_planned_with(here, no_records):
    words = ["task=average_effect", *TABLE, "n=1000", "privacy.delta=0"]
    unknown = plan(*words, "effect=covariate_balancing")
    Path("p").rename("q")
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | {"propensity": 0.5}))
    known = plan(*words, "effect=known_propensity")
    assert known["expected_noise"] < unknown["expected_noise"] / 4
    assert [target["task"] for target in known["targets"]] == ["average_effect", "subgroups", "rule", "cate"]
    assert known["targets"][-1]["expected_noise"] > 0  # of pure events


def test_a_plan_and_a_run_say_where_one_average_serves_as_well(here, no_records, capsys):
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | {"propensity": 0.5}))
    words = plan(*TABLE, "n=400")["targets"][-1]["worth_asking"]
    assert words == "no: one average effect serves as well"
    assert words in " ".join(capsys.readouterr().out.split())
    task = SimpleNamespace(name="cate", study=SimpleNamespace(schema=TableSchema.from_domain(Domain([0], [1], 0, 10))))
    planned = PlannedNoise(0.5, "the effect", 10.0, 400, PrivacyBudget(1.0, 1e-5), relative=0.97)
    assert verdict(task, planned) == "; not worth asking at this n and budget (one average effect serves as well)"
    assert verdict(task, replace(planned, relative=0.5)) == ""


HOPELESS = [
    "task=average_effect",
    "effect=covariate_balancing",
    "data=confounded",
    "data.n=600",
    "privacy.epsilon=0.02",
]


def test_train_says_its_plan_and_refuses_noise_beyond_the_range(here, capsys):
    found = plan(*HOPELESS)
    assert found["feasible"] is False
    planned = capsys.readouterr().out
    assert main(["train", *HOPELESS, "run_dir=r"]) == 2
    out, error = capsys.readouterr()
    assert out.startswith("plan: expected noise ")
    assert "(outcome units) of a range of 1 at n = 540, epsilon = 0.02" in out
    assert "exceeds the outcome's range of 1" in error
    assert "force=true" in error
    assert error.removeprefix("torchdpcate: ").strip() in planned
    assert not Path("r").exists()
    assert main(["train", *HOPELESS, "run_dir=r", "force=true"]) == 0
    summary = json.loads(Path("r/curator/summary.json").read_text())
    assert summary["planned_noise"] == found["expected_noise"] > 1
    assert "force" not in summary["requested"]["settings"]
