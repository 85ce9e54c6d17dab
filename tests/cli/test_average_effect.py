"""The task ``average_effect`` as users run it: runs, streams, reports, audits, and one line for each mistake."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from torchdpcate.estimators.average.automatic import AverageEffect

from tests.cli.helpers import TABLE as PEOPLE
from tests.cli.helpers import leaks, one_line, redomained, summary, table
from torchdpcate.cli.main import main
from torchdpcate.papers.confounded import Confounded
from torchdpcate.release.file import load_release

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
LALONDE = SHARED / "lalonde" / "nsw_dw.csv"
SMALL = ["task=average_effect", "data.n=3000", "privacy.epsilon=4", "privacy.delta=0"]
BALANCING = "effect=covariate_balancing"
RUNS = {
    "balancing": [BALANCING],
    "of the treated": [BALANCING, "effect.estimand=ATT", "features=legendre"],
    "chosen": [],
    "composed": ["effect=composed", "privacy.delta=1e-5"],
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
    assert found["estimand"] == release.estimand
    assert found["estimate"] == release.estimate
    truth = Confounded().average_effect(release.estimand)
    assert found["truth"] == pytest.approx(truth)
    assert found["error"] == pytest.approx(abs(release.estimate - truth))
    assert found["error_nonprivate"] == pytest.approx(abs(found["estimate_nonprivate"] - truth))
    assert found["error_nonprivate"] < 0.08  # without adjustment 0.09 too much, sampling moves it by 0.02
    assert [found["low"], found["high"]] == release.interval(0.95).tolist()
    assert found["width"] == pytest.approx(found["high"] - found["low"])
    assert found["covered"] == int(found["low"] <= truth <= found["high"])
    assert found["low"] < found["estimate"] < found["high"]


def test_the_curator_keeps_settings_in_use_and_estimates_that_were_not_released(trained):
    folder = trained("balancing") / "curator"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    common = {"task", "data", "privacy", "seed", "run_dir", "force", "budget"}
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
    words = ["data.n=60", "effect.estimand=ATT", "privacy.epsilon=0.05", "privacy.noise_seed=1", "force=true"]
    assert main(["train", *SMALL, *words, f"run_dir={tmp_path / 'r'}"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("warning: the denominator of the estimate is dominated by privacy noise") == 1
    said = " ".join(shown.out.split())
    assert "Among those who were treated, nothing can be said of the effect" in said
    assert "any effect up to 1.00 fits" in said


@pytest.mark.slow
@pytest.mark.skipif(not LALONDE.is_file(), reason=f"{LALONDE} is not there")
def test_job_training_whole_and_as_a_stream(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=average_effect", "data=table", f"data.path={LALONDE}", "data.domain=lalonde", "privacy.delta=0"]
    words += [BALANCING]
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


TABLE = ["task=average_effect", *PEOPLE, "privacy.delta=0"]


def paid(n: int = 400) -> pd.DataFrame:
    """Return the table, with an effect of 2 for everybody."""
    frame = table(n)
    pay = 3 + 2 * frame["treat"] + 2 * frame["dose"] + np.random.default_rng(1).normal(0, 1, n)
    return frame.assign(pay=pay.clip(0, 10))


def test_a_trial_is_estimated_by_its_propensity_and_the_summary_says_why(here, capsys):
    paid().to_csv("people.csv", index=False)
    redomained(propensity=0.5)
    assert main(["train", *TABLE, "effect.estimand=ATT", "privacy.epsilon=8", "run_dir=r"]) == 0
    found = summary("r")
    assert found["chosen_by"] == "auto"
    assert found["effect"] == found["mechanism"]
    assert found["estimate"] == pytest.approx(2, abs=1)
    assert f"effect={found['effect']}: {found['chosen_because']}" in capsys.readouterr().out
    assert main(["verify", "r/release/release.safetensors"]) == 0
    assert load_release("r/release/release.safetensors").privacy.public["planned_error"] == found["planned_error"]
    assert leaks("r") == ()


def test_an_overlap_of_a_half_without_a_propensity_is_told_to_state_it(here, capsys):
    redomained(overlap=0.5)
    assert main(["train", *PEOPLE, "task=average_effect", "run_dir=r"]) == 2
    assert "equally likely for everybody" in one_line(capsys)


def test_a_stream_that_fails_after_the_release_was_paid_for_loses_no_release(here, capsys, monkeypatch):
    def spoilt(learner):
        raise OSError("the disk went away")

    monkeypatch.setattr(AverageEffect, "nonprivate_estimate", spoilt)
    assert main(["train", *TABLE, "data.stream=true", "privacy.epsilon=8", "run_dir=r"]) == 0
    assert "not written: what is told beside the release, without noise" in capsys.readouterr().err
    assert main(["verify", "r"]) == 0
