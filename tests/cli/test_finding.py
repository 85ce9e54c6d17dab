"""The end of a run, and what a plan says beforehand, as a clinician reads them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from torchdpcate.cli.main import main

DOMAIN = """
treatment: {name: arm, categories: [placebo, drug]}
outcome: {name: pain, low: 0, high: 10, unit: points, sd: 2%s}
covariates:
  age: {low: 18, high: 90, unit: years}
  sex: {categories: [f, m]}
propensity: 0.5
origin: protocol
"""
TABLE = ["data=table", "data.path=t.csv", "data.domain=d.yaml"]


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A trial of a drug that takes two points off pain."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(4)
    frame = pd.DataFrame({"age": random.integers(18, 91, 900), "sex": random.choice(["f", "m"], 900)})
    frame["arm"] = random.choice(["placebo", "drug"], 900)
    frame["pain"] = (6 - 2 * (frame["arm"] == "drug") + random.normal(0, 1, 900)).clip(0, 10)
    frame.to_csv("t.csv", index=False)
    Path("d.yaml").write_text(DOMAIN % ", better: lower")


@pytest.mark.slow
def test_a_run_ends_with_its_finding_its_claim_and_what_to_do_next(trial, capsys):
    assert main(["train", "task=average_effect", *TABLE, "run_dir=a run"]) == 0
    *_, last = capsys.readouterr().out.partition("\nfinding")
    said = " ".join(last.split())
    assert "drug instead of placebo lowers pain by " in said
    assert "Lower pain is better: this speaks for drug." in said
    assert " claim (1" in said
    assert last.splitlines()[-2:] == ["  torchdpcate report 'a run'", "  torchdpcate sign 'a run' --key FILE"]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "commands"), [("task=average_effect effect=known_propensity", 1), ("task=rule", 2)])
def test_a_run_without_a_claim_names_nothing_that_publishes(trial, words, commands, capsys):
    """It names what answers for people where something does."""
    assert main(["train", *words.split(), *TABLE, "run_dir=r", "privacy.noise_seed=1"]) == 0
    shown = capsys.readouterr().out
    last, said = shown.splitlines(), " ".join(shown.split())
    own = ["  torchdpcate verify r", "  torchdpcate predict r PEOPLE.csv -o ANSWERS.csv"][:commands]
    assert last[-commands:] == own
    assert "publish nothing of it" in said
    assert not any(word in line for line in last for word in ("report r", "sign r", "combine r"))


@pytest.mark.first(1)
@pytest.mark.parametrize("task", ["rule", "owl", "policy_selection"])
def test_a_rule_is_refused_where_nothing_says_what_is_good(trial, task, capsys):
    Path("d.yaml").write_text(DOMAIN % "")
    assert main(["train", f"task={task}", *TABLE, "run_dir=r"]) == 2
    line = capsys.readouterr().err
    assert "add better: higher or better: lower to the outcome in the domain file" in line
    assert line.count("\n") == 1
    assert not Path("r").exists()


def test_a_plan_says_what_a_reader_would_see(trial, capsys):
    assert main(["plan", *TABLE, "n=900", "run_dir=p"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a reader would see of a true effect of 1 points, half a standard deviation, a number from" in said
    assert "noise of the effect for an average person" in said
    assert "(points)" in said
    assert "for noise of 0.2 (sd / 10)" in said
    assert Path("p/plan.png").stat().st_size > 0
    found = json.loads(Path("p/plan.json").read_text())
    assert found["precision"] == 0.2
    assert found["parts"]["sampling"] > 0  # which is counted once
    most = float(f"{1.96 * found['expected_noise']:.2g}")
    assert f"where there is no effect, up to {most:g} points" in said
