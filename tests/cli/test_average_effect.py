"""The task ``average_effect`` as users run it: runs, streams, reports, audits, and one line for each mistake."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.helpers import TABLE as PEOPLE
from tests.cli.helpers import leaks, one_line, redomained, summary
from tests.registered import CovariateBalancingEffect
from torchdpcate.cli.main import main
from torchdpcate.cli.tasks.averages import way_of_averages
from torchdpcate.data.censoring import Censoring
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.papers.confounded import Confounded
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import load_release

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
LALONDE = SHARED / "lalonde" / "nsw_dw.csv"
SMALL = ["task=average_effect", "data.n=3000", "privacy.epsilon=4", "compare=true"]
BALANCING = ["effect=covariate_balancing", "privacy.delta=0"]
RUNS = {
    "lines": [],
    "balancing": BALANCING,
    "of the treated": [*BALANCING, "effect.estimand=ATT", "features=legendre"],
    "lines of the treated": ["effect.estimand=ATT"],
}


@pytest.fixture
def trained(finished):
    """Folders of runs on generated data."""

    def folder(name: str) -> Path:
        return finished(*SMALL, *RUNS[name])

    return folder


@pytest.mark.first(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_summary_tells_what_the_file_says(name, trained):
    found, release = summary(trained(name)), load_release(trained(name) / "release" / "release.safetensors")
    estimand = found["estimand"]
    truth = Confounded().average_effect(estimand)
    if isinstance(release, ComposedRelease):
        line = "average" if estimand == "ATE" else estimand
        value = release.average_effect if line == "average" else release.averages.estimate(line)
        ends = list(release.averages.interval(line))
    else:
        assert release.estimand == estimand
        value, ends = release.estimate[0], release.interval(0.95)[0].tolist()
    assert found["estimate"] == value
    assert found["truth"] == pytest.approx(truth)
    assert found["error"] == pytest.approx(abs(value - truth))
    assert found["error_nonprivate"] == pytest.approx(abs(found["estimate_nonprivate"] - truth))
    assert found["error_nonprivate"] < 0.08  # without adjustment 0.09 too much, sampling moves it by 0.02
    assert [found["low"], found["high"]] == ends
    assert found["width"] == pytest.approx(found["high"] - found["low"])
    assert found["covered"] == int(found["low"] <= truth <= found["high"])
    assert found["low"] < found["estimate"] < found["high"]


def test_the_curator_keeps_settings_in_use_and_estimates_that_were_not_released(trained):
    folder = trained("balancing") / "curator"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    common = {"task", "data", "privacy", "seed", "run_dir", "compare", "force", "budget"}
    assert set(config) == {*common, "effect", "features"}
    balance = pd.read_csv(folder / "balance.csv", index_col=0)
    assert list(balance) == ["before", "after"]
    # whom the propensity's slopes favour is more frequent among the treated
    assert np.sign(balance["before"]).tolist() == [1, 1, -1, -1]
    records, release = Confounded(n=3000).load().records, load_release(folder.parent / "release/release.safetensors")
    weights = release.weights.weights(records.x, records.a).numpy()
    pull = (2 * records.a.numpy() - 1) * weights
    np.testing.assert_allclose(balance["after"], pull @ records.x.numpy() / (weights.sum() / 2), atol=1e-12)


@pytest.mark.slow
def test_noise_that_swamps_the_denominator_is_said(tmp_path, capsys):
    # the denominator exceeds three scales of its noise by chance in 2.5 of 100 runs: not with this noise
    words = [
        *BALANCING,
        "data.n=60",
        "effect.estimand=ATT",
        "privacy.epsilon=0.05",
        "privacy.noise_seed=1",
        "force=true",
    ]
    assert main(["train", *SMALL, *words, f"run_dir={tmp_path / 'r'}"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("warning: the denominator of the estimate is dominated by privacy noise") == 1
    said = " ".join(shown.out.split())
    assert "Among those who were treated, nothing can be concluded of the effect" in said
    assert "Noise added for privacy hides any effect" in said


@pytest.mark.slow
@pytest.mark.skipif(not LALONDE.is_file(), reason=f"{LALONDE} is not there")
def test_job_training_whole_and_as_a_stream(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=average_effect", "data=table", f"data.path={LALONDE}", "data.domain=lalonde"]
    words += BALANCING
    words += ["data.out_of_bounds=clip", "privacy.epsilon=20"]
    for name, stream in (("whole", "false"), ("stream", "true")):
        assert main(["train", *words, f"data.stream={stream}", f"run_dir={name}"]) == 0
        found = summary(name)
        assert (found["n"], found["truth"], found["data"]) == (445, None, "nsw_dw")
        # without adjustment 1,794; adjustment takes a little off
        assert found["estimate_nonprivate"] == pytest.approx(1700, abs=200)
        assert leaks(name) == ()
    whole, stream = (pd.read_csv(f"{name}/curator/balance.csv", index_col=0)["before"] for name in ("whole", "stream"))
    np.testing.assert_allclose(whole, stream, rtol=1e-6)


TABLE = ["task=average_effect", *PEOPLE, *BALANCING]


def test_an_overlap_of_a_half_without_a_propensity_is_told_to_state_it(here, capsys):
    redomained(overlap=0.5)
    assert main(["train", *PEOPLE, "task=average_effect", "run_dir=r"]) == 2
    assert "equally likely for everybody" in one_line(capsys)


def test_a_stream_that_fails_after_the_release_was_paid_for_loses_no_release(here, capsys, monkeypatch):
    def spoilt(learner):
        raise OSError("the disk went away")

    monkeypatch.setattr(CovariateBalancingEffect, "nonprivate_estimate", spoilt)
    assert main(["train", *TABLE, "data.stream=true", "privacy.epsilon=8", "run_dir=r"]) == 0
    assert "not written: what is told beside the release, without noise" in capsys.readouterr().err
    assert main(["verify", "r"]) == 0


def test_a_cohort_that_would_be_hardly_adjusted_is_refused_before_anything_is_spent(tmp_path, capsys):
    folder = tmp_path / "r"
    words = ["task=average_effect", "data.n=500", "privacy.epsilon=0.5", f"run_dir={folder}"]
    assert main(["train", *words]) == 2
    assert "no interval: at this budget the propensity's model keeps" in one_line(capsys)
    assert not (folder / "release").exists()


def test_without_delta_the_line_names_what_is_pure(tmp_path, capsys):
    assert main(["train", "task=average_effect", "privacy.delta=0", f"run_dir={tmp_path / 'r'}"]) == 2
    assert "effect=covariate_balancing, which is pure" in one_line(capsys)


def test_a_treatment_by_a_rule_is_said_to_the_curator_and_found_in_the_release(tmp_path, monkeypatch, capsys):
    """Everybody of 60 and older is treated, and nobody else: what is exact stays with the curator."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    age = rng.integers(20, 90, 1_500)
    treat = (age >= 60).astype(int)
    score = (20 + 4 * treat + 0.3 * (age - 50) + rng.normal(0, 5, len(age))).clip(0, 60).round(1)
    pd.DataFrame({"age": age, "treat": treat, "score": score}).to_csv("d.csv", index=False)
    facts = {
        "treatment": "treat",
        "outcome": {"name": "score", "low": 0, "high": 60},
        "covariates": {"age": {"low": 18, "high": 90}},
        "overlap": 0.05,
    }
    Path("domain.yaml").write_text(yaml.safe_dump(facts))
    words = ["task=average_effect", "data.path=d.csv", "data.domain=domain.yaml", "run_dir=r", "privacy.epsilon=8"]
    assert main(["train", *words]) == 0
    shown = capsys.readouterr()
    (said,) = (line for line in shown.err.splitlines() if "beyond the stated overlap" in line)
    assert said.startswith("torchdpcate: warning: curator's, not for publication: ")
    assert Path("r/curator/overlap.png").stat().st_size > 5_000
    assert Path("r/curator/overlap.png").stat().st_mode & 0o077 == 0
    assert not (Path("r") / "release" / "overlap.png").exists()
    release = load_release("r/release/release.safetensors")
    assert release.averages.lacking > 0.3
    low, high = release.averages.interval()
    assert low < 4 < high  # which is the truth
    assert "at least" in " ".join(shown.out.split())
    assert not leaks(Path("r"))


def test_more_than_two_arms_of_a_cohort_have_a_line_each(here, capsys):
    random, n = np.random.default_rng(1), 4_000
    age = random.uniform(20, 80, n)
    chances = np.column_stack([np.ones(n), np.exp((age - 50) / 30), np.exp((50 - age) / 30)])
    arm = (random.random((n, 1)) > (chances / chances.sum(1, keepdims=True)).cumsum(1)[:, :2]).sum(1)
    pay = (4 + np.array([0.0, 0.5, 1.5])[arm] + (age - 50) / 30 + random.normal(0, 1, n)).clip(0, 10)
    names = np.array(["none", "low", "high"])
    pd.DataFrame({"age": age, "arm": names[arm], "pay": pay}).to_csv("arms.csv", index=False)
    domain = {
        "treatment": {"name": "arm", "categories": names.tolist()},
        "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
        "covariates": {"age": {"low": 20, "high": 80}},
        "overlap": 0.1,
    }
    Path("arms.yaml").write_text(yaml.safe_dump(domain))
    run = ["train", "task=average_effect", "data.path=arms.csv", "data.domain=arms.yaml", "privacy.epsilon=8"]
    assert main([*run, "privacy.delta=1e-5", "run_dir=r"]) == 0
    said = capsys.readouterr().out
    cells = summary(here / "r")["cells"]
    assert [cell["cell"] for cell in cells] == ["low instead of none", "high instead of none"]
    for cell, truth in zip(cells, (0.5, 1.5), strict=True):
        middle, half = cell["estimate"], (cell["high"] - cell["low"]) / 2
        assert abs(middle - truth) < 2 * half < 0.6  # four standard errors; unadjusted they are .5 off
        assert cell["cell"] in said
    assert "Nothing unmeasured drives both treatment and outcome." in " ".join(said.split())
    assert main([*run, "privacy.delta=1e-5", "effect.estimand=ATO", "run_dir=s"]) == 2
    assert "estimand = 'ATO': of more than two arms" in one_line(capsys)


TRIAL = {"propensity": 0.5, "outcome_sd": 3.0}


@pytest.mark.parametrize(
    ("facts", "n", "settings", "taken"),
    [
        ({"outcome_sd": 15.0}, 500, {}, KnownPropensityEffect),
        ({"outcome_sd": 15.0}, 500, {"estimand": "ATT"}, KnownPropensityEffect),
        ({}, 500, {}, AverageEffect),  # whose noise follows the deviation, not the bounds
        ({"censoring": Censoring("t", "d", 60.0)}, 500, {}, SubgroupEffects),
        ({"censoring": Censoring("t", "d", 60.0)}, 500, {"estimand": "ATT"}, AverageEffect),
        ({"outcome_sd": 15.0}, 500, {"cells": [{"x0": [0.5]}]}, SubgroupEffects),
        ({}, 500_000, {}, AverageEffect),  # which adjust
        ({}, 500_000, {"cells": [{"x0": [0.5]}]}, AverageEffect),
        ({}, None, {}, AverageEffect),
        ({"propensity": None, "overlap": 0.1}, 500_000, {}, AverageEffect),
    ],
)
def test_the_way_of_least_planned_error_is_taken(facts, n, settings, taken):
    schema = TableSchema.from_domain(Domain([0.0] * 3, [1.0] * 3, 0.0, 60.0, **TRIAL | facts))
    way, why = way_of_averages(schema, PrivacyBudget(1.0, 1e-5), n, **settings)
    assert way.func is taken
    errors = [float(error.rpartition(" ")[2].replace(",", "")) for error in why.split(", ") if error]
    assert errors == sorted(errors)
    assert len(errors) > 1 or taken is AverageEffect


def test_a_small_trial_takes_pure_sums_and_says_so(here, capsys):
    redomained(propensity=0.5)
    words = ["task=average_effect", *PEOPLE]
    assert main(["plan", *words, "n=80"]) == 0
    assert "note: centred outcomes by the known propensity; planned standard errors: " in capsys.readouterr().out
    assert main(["train", *words, "run_dir=run"]) == 0
    shown, found = " ".join(capsys.readouterr().out.split()), summary(Path("run"))
    assert "taken centred outcomes by the known propensity; planned standard errors" in shown
    assert (found["learner"], found["delta"], found["requested"]["delta"]) == ("KnownPropensityEffect", 0.0, 1e-5)
    assert found["planned_error"] == found["planned_noise"]
    assert main(["train", *PEOPLE, "run_dir=effect"]) == 0
    assert "better: task=average_effect by centred outcomes" in capsys.readouterr().out
