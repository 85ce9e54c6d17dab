"""The tasks of treatment rules as users run them: runs, sweeps, decisions, and one line for each mistake."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.helpers import TABLE, checked, one_line, redomained, summary, table
from tests.registered import shipped
from tests.verify.forgery import write_anew
from torchdpcate.cli.derived import leaks
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.evaluation.comparison import decision_accuracy, policy_value
from torchdpcate.papers.rules import ITR, OWL
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.file import load_release, read_release_file, write_sums

LALONDE = Path(__file__).parents[2].parent / "shared" / "data" / "lalonde" / "nsw_dw.csv"
SMALL = ["data.n=1200", "queries.count=60", "privacy.epsilon=4", "privacy.delta=0"]
CONFOUNDED = ["data.confounded=true"]
TASKS = shipped(
    {
        "owl": ["task=owl"],
        "owl by output": ["task=owl", "rule.mechanism=output", "outcome=shifted", "features=legendre"],
        "two stages": ["task=two_stage_rule", *CONFOUNDED],
        "balanced": ["task=two_stage_rule", *CONFOUNDED, "weights=entropy"],
        "constant": ["task=two_stage_rule", *CONFOUNDED, "weights=constant"],
    }
)


@pytest.fixture
def trained(finished):
    """Folders of runs on generated data."""

    def folder(name: str) -> Path:
        delta = ["privacy.delta=1e-5"] if name == "balanced" else []
        return finished(*SMALL, *TASKS[name], *delta)

    return folder


@pytest.mark.first(1)
@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_verifies_and_leaks_nothing(name, trained):
    checked(trained(name), figures=[] if "legendre" in str(TASKS[name]) else ["rule.png"])
    found = summary(trained(name))
    assert (found["release"], found["level"]) == ("rule", "certified")
    assert found["epsilon"] == pytest.approx(4, rel=1e-4)
    assert found["delta"] == 0  # box noise is pure, whatever delta was allowed


def test_a_summary_tells_accuracy_and_value_of_the_file(trained):
    folder = trained("owl")
    found, release = summary(folder), load_release(folder / "release" / "release.safetensors")
    study = OWL(n=1200, queries=60).load()
    decisions = release.answer(study.queries)
    assert found["accuracy"] == decision_accuracy(decisions, study.effect)
    assert found["accuracy_treat_all"] == float((study.effect > 0).double().mean())
    assert found["accuracy_treat_none"] == pytest.approx(1 - found["accuracy_treat_all"])
    records = study.records
    half = torch.full_like(records.a, 0.5)
    assert found["value"] == policy_value(release.answer(records.x), records.a, records.y, half)
    assert found["value_treat_all"] == pytest.approx(records.y[records.a == 1].mean().item())
    assert found["value_treat_none"] == pytest.approx(records.y[records.a == 0].mean().item())
    assert found["accuracy_nonprivate"] > 0.97
    assert found["value_nonprivate"] > found["value_treat_all"] + 1
    # epsilon = 4 at n = 1,080: the rule agrees with the best one far beyond a coin's 60 tosses (chance below 1e-9)
    assert found["accuracy"] > 0.9
    names = ("task", "learner", "features", "weights", "outcome", "blocks", "n")
    assert [found[name] for name in names] == [
        "owl", "OutcomeWeightedLearner", "identity", "known", "private_residual",
        {"records": 1080}, 1080,
    ]  # fmt: skip


@pytest.mark.slow
def test_values_of_estimated_propensities_use_what_was_paid_for(trained):
    study = ITR(confounded=True, n=1200, queries=60).load()
    truth = study.effect
    assert summary(trained("two stages"))["value"] > 0  # private weights
    assert truth is not None
    for name in ("constant", "balanced"):
        found = summary(trained(name))
        assert found["value"] is found["value_treat_all"] is None
        assert 0 <= found["accuracy"] <= 1


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["owl", "owl by output", "constant"])
def test_coefficients_with_too_little_noise_are_found(name, trained, tmp_path):
    """A millionth of the noise: caught for every law (a false alarm has a chance of 5e-8)."""
    folder = Path(shutil.copytree(trained(name), tmp_path / "r"))
    path = folder / "release" / "release.safetensors"
    clean = load_file(folder / "curator" / "numbers.safetensors")["theta_without_noise"]
    held = read_release_file(path)
    theta = clean + 1e-6 * (held.tensors["theta"] - clean)
    write_anew(path, held.metadata, held.tensors | {"theta": theta})
    write_sums(path.parent)
    assert "less noise than stated" in " ".join(leaks(folder))


def test_predict_writes_decisions(trained, tmp_path, capsys):
    path = trained("owl") / "release" / "release.safetensors"
    release = load_release(path)
    x = release.domain.grid(50).numpy()
    frame = pd.DataFrame(x, columns=list(release.schema.columns))
    frame.to_csv(tmp_path / "in.csv", index=False)
    assert main(["predict", str(path), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.parquet")]) == 0
    assert "50 decisions (certified) written to" in capsys.readouterr().out
    written = pd.read_parquet(tmp_path / "out.parquet")
    assert list(written) == ["decision"]
    assert written["decision"].dtype == np.int64
    np.testing.assert_array_equal(written["decision"], release.decide(frame))
    assert main(["predict", str(path), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    assert set((tmp_path / "out.csv").read_text().splitlines()) == {"decision", "0", "1"}


@pytest.mark.first(1)
@pytest.mark.parametrize("task", [word.partition("=")[2] for word in shipped(["task=owl", "task=two_stage_rule"])])
def test_a_table_becomes_a_rule_and_decisions(task, here):
    redomained(propensity=0.5 if task == "owl" else None)
    assert main(["train", f"task={task}", *TABLE, "privacy.epsilon=8", "run_dir=r"]) == 0
    assert summary("r")["value"] is not None
    assert main(["predict", "r/release/release.safetensors", "people.csv", "-o", "decisions.csv"]) == 0
    decision = pd.read_csv("decisions.csv")["decision"]
    assert set(decision) <= {0, 1}
    assert len(decision) == 400


def test_what_was_paid_for_stays_when_a_fit_is_refused(here, capsys, monkeypatch):
    """What is found after the weights and the outcome were paid for must not remove their ledger."""

    def refuse(learner, records):
        raise InputError("records: refused late")

    monkeypatch.setattr(RuleLearner, "problem", refuse)
    table().to_csv("people.csv", index=False)
    assert main(["train", "task=owl", "weights=private", *TABLE, "run_dir=r"]) == 2
    assert "refused late" in one_line(capsys)
    assert len(Ledger.load(here / "r" / "curator" / "ledger.sqlite").entries) == 2
    assert not (here / "r" / "release").exists()
