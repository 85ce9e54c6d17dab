"""A domain file with a log scale and a typical range, from ``train`` to ``predict``."""

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

COVARIATES = {
    "crp": {"low": 0, "high": 10_000, "scale": "log", "typical": [1, 100]},
    "pay": {"low": 0, "high": 10_000, "typical": [0, 300]},
    "sex": {"categories": [0, 1]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, draws, n = tmp_path_factory.mktemp("scales"), np.random.default_rng(0), 3000
    frame = pd.DataFrame({"treat": draws.integers(0, 2, n), "sex": draws.integers(0, 2, n)})
    frame["crp"] = np.exp(draws.normal(2.3, 1.2, n)).clip(0, 10_000)
    frame["pay"] = draws.exponential(120, n).clip(0, 10_000)
    gain = np.tanh(np.log(frame["crp"] / 10))
    frame["score"] = (5 + frame["treat"] * gain + draws.normal(0, 1, n)).clip(0, 10)
    frame.to_csv(folder / "trial.csv", index=False)
    outcome = {"name": "score", "low": 0, "high": 10, "better": "higher"}
    domain = {"treatment": "treat", "outcome": outcome, "covariates": COVARIATES, "propensity": 0.5}
    (folder / "trial.yaml").write_text(yaml.safe_dump(domain, sort_keys=False))
    return folder


@pytest.mark.slow
@pytest.mark.first(1)
@pytest.mark.parametrize("words", [[], ["task=rule"], ["data.stream=true"]])
def test_a_release_answers_by_the_map_it_was_fitted_with(folder, tmp_path, words, capsys) -> None:
    paths = [f"data.path={folder / 'trial.csv'}", f"data.domain={folder / 'trial.yaml'}"]
    assert main(["train", *paths, f"run_dir={tmp_path / 'run'}", *words]) == 0
    assert main(["verify", str(tmp_path / "run" / "release")]) == 0
    release = load_release(tmp_path / "run")
    domain = release.schema.domain
    assert release.schema.to_dict()["covariates"] == COVARIATES
    assert domain.scales == ("log", "linear", "linear")
    people = pd.DataFrame(
        {"crp": [0.0, 1.0, 10.0, 100.0, 9000.0], "pay": [0.0, 300.0, 100.0, 50.0, 10_000.0], "sex": 1}
    )
    people.to_csv(tmp_path / "people.csv", index=False)
    answers = tmp_path / "answers.csv"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "people.csv"), "-o", str(answers)]) == 0
    x = torch.tensor(people.to_numpy(dtype=float))
    np.testing.assert_allclose(pd.read_csv(answers)[release.column], release.answer(x).numpy(), rtol=1e-6)
    z = domain.scale(x)[:, 0]
    assert z.tolist() == pytest.approx([-1, -2 / 3, 2 / 3 * (np.log(11) - np.log(2)) / np.log(101 / 2) * 2 - 2 / 3,
                                        2 / 3, z[4].item()])  # fmt: skip
    if not words:  # of a trial with a propensity, effects grow along the logarithm
        effect = release.effect(people)
        assert effect[3] > effect[1] + 0.3
    capsys.readouterr()
