"""Effects of three arms as users run them: a run, its answers, its page, and one line for what compares two."""

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

DOMAIN = {
    "treatment": {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"},
    "outcome": {"name": "pay", "low": 0, "high": 10},
    "covariates": {"age": {"low": 16, "high": 60}, "sex": {"categories": ["f", "m"]}},
    "propensity": [0.25, 0.25, 0.5],
}


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    arm, sex = rng.choice(["low", "high", "placebo"], 1500, p=[0.25, 0.25, 0.5]), rng.choice(["f", "m"], 1500)
    pay = (5 + (arm == "low") + 3 * (arm == "high") * (sex == "m") + rng.normal(0, 1, 1500)).clip(0, 10)
    frame = pd.DataFrame({"arm": arm, "pay": pay, "age": rng.uniform(16, 60, 1500), "sex": sex})
    frame.to_csv(tmp_path / "trial.csv", index=False)
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(DOMAIN))
    return ["data=table", f"data.path={tmp_path / 'trial.csv'}", f"data.domain={tmp_path / 'trial.yaml'}"]


@pytest.mark.slow
def test_a_run_answers_for_each_arm(data, tmp_path, capsys):
    run, answers = tmp_path / "run", tmp_path / "answers.csv"
    assert main(["train", *data, "privacy.epsilon=8", f"run_dir={run}"]) == 0
    release = load_release(run / "release" / "release.safetensors")
    assert release.effect([[30, 0], [30, 1]]) == pytest.approx(np.array([[1, 0], [1, 3]]), abs=0.6)
    assert (run / "release" / "effect.png").is_file()
    assert main(["verify", str(run / "release" / "release.safetensors")]) == 0
    assert main(["predict", str(run), str(tmp_path / "trial.csv"), "-o", str(answers)]) == 0
    assert list(pd.read_csv(answers)) == ["effect_low", "effect_high"]
    assert main(["report", str(run)]) == 0
    assert "high instead of placebo changes pay by" in (run / "release" / "release.html").read_text()
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "trial.csv"), "-o", str(tmp_path / "no.csv"), "--interval"]) == 2
    assert "intervals of effects by covariates compare two arms" in capsys.readouterr().err
    assert main(["plan", *data, "n=1500"]) == 0


@pytest.mark.parametrize(
    "word", ["learner=dr", "second_stage=linear", "release=queries", "privacy.delta=0", "task=rule"]
)
def test_what_compares_two_arms_is_refused_before_anything_is_spent(word, data, tmp_path, capsys):
    assert main(["train", *data, word, f"run_dir={tmp_path / 'no'}"]) == 2
    assert " arms" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
