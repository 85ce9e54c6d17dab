"""Outcomes by a horizon on the command line, against Kaplan-Meier, on a table of our own and on a public one."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.composition.test_censoring import kaplan_meier
from torchdpcate.cli.main import main

TABLE = ["data=table", "data.path=t.csv", "data.domain=t.yaml"]


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Write a trial of 3,000 with exponential times to an event and to the end of follow-up."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, arm = rng.uniform(20, 80, 3_000), rng.integers(0, 2, 3_000)
    event, end = rng.exponential(8 * np.exp(0.6 * arm)), rng.exponential(25, 3_000)
    frame = pd.DataFrame({"age": age, "arm": arm, "months": np.minimum(event, end), "died": (event <= end).astype(int)})
    frame.to_csv("t.csv", index=False)
    facts("event_by_horizon", {"age": {"low": 18, "high": 90}}, "months", "died", 12)
    return frame


def facts(kind: str, covariates: dict, time: str, event: str, horizon: float, **more) -> None:
    outcome = {
        "time": time,
        "event": event,
        "horizon": horizon,
        "kind": kind,
        "censoring": {"floor": 0.4},
        "better": "higher",
    }
    found = {"treatment": "arm", "outcome": outcome, "covariates": covariates, "propensity": 0.5, **more}
    Path("t.yaml").write_text(yaml.safe_dump(found))


def survival(frame: pd.DataFrame, arm: int, time: str, event: str, horizon: float) -> float:
    own = frame[frame["arm"] == arm]
    at, found = kaplan_meier(own[time].to_numpy(), own[event].to_numpy())
    return float(found[at <= horizon][-1])


def test_an_average_effect_is_that_of_kaplan_meier(trial):
    assert main(["train", "task=average_effect", *TABLE, "privacy.epsilon=20", "run_dir=run"]) == 0
    expected = survival(trial, 0, "months", "died", 12) - survival(trial, 1, "months", "died", 12)
    found = json.loads(Path("run/curator/summary.json").read_text())
    assert found["estimate"] == pytest.approx(expected, abs=0.03)
    assert "by a released curve of 10 parts" in Path("run/release/privacy.md").read_text()


@pytest.mark.slow
def test_a_public_trial_has_its_restricted_means(tmp_path, monkeypatch):
    """ACTG 175 (Hammer et al. 1996): zidovudine alone, or with another drug, or another drug, by days without event."""
    datasets = pytest.importorskip("lifelines.datasets", reason="lifelines, which has the table, is not installed")
    lifelines, utils = pytest.importorskip("lifelines"), pytest.importorskip("lifelines.utils")
    monkeypatch.chdir(tmp_path)
    frame = pd.read_csv(Path(datasets.__file__).parent / "ACTG175.csv").rename(columns={"treat": "arm"})
    frame.to_csv("t.csv", index=False)
    covariates = {"age": {"low": 12, "high": 80}, "cd40": {"low": 0, "high": 1500}, "symptom": {"categories": [0, 1]}}
    facts("restricted_mean", covariates, "days", "cens", 900, propensity=0.75, overlap=0.2)
    assert main(["train", "task=average_effect", *TABLE, "privacy.epsilon=8", "run_dir=run"]) == 0
    arms = []
    for arm in (0, 1):
        own = frame[frame["arm"] == arm]
        fitted = lifelines.KaplanMeierFitter().fit(own["days"], own["cens"])
        arms.append(utils.restricted_mean_survival_time(fitted, t=900))
    found = json.loads(Path("run/curator/summary.json").read_text())
    assert found["low"] < arms[1] - arms[0] < found["high"]
    assert found["estimate"] == pytest.approx(arms[1] - arms[0], abs=25)
