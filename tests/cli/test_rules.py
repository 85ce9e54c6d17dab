"""The tasks of treatment rules as users run them: runs, sweeps, decisions, and one line for each mistake."""

import pytest
import torch

from tests.cli.helpers import TABLE, one_line, summary, table
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import RuleLearner
from torchdpcate.evaluation.comparison import decision_accuracy, policy_value
from torchdpcate.papers.rules import OWL
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.release.file import load_release

OWL_RUN = ["task=owl", "data.n=1200", "queries.count=60", "privacy.epsilon=4", "privacy.delta=0"]


def test_a_summary_tells_accuracy_and_value_of_the_file(finished):
    folder = finished(*OWL_RUN, "compare=true")
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
