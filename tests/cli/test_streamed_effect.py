"""Effects of files that are read batch by batch: as in memory, and one line for each mistake."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from torchdpcate import load_release
from torchdpcate.audit.leak.scan import scan
from torchdpcate.cli.main import main

DOMAIN = {
    "treatment": "a",
    "outcome": {"name": "y", "low": -2, "high": 4},
    "covariates": {"x0": {"low": 0, "high": 1}, "x1": {"low": 0, "high": 1}, "smoker": {"categories": ["no", "yes"]}},
    "overlap": 0.1,
}
WORDS = ["data=table", "data.path=people.parquet", "data.domain=domain.yaml", "trainer.progress=false"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 2, 4_000), "x0": rng.random(4_000), "x1": rng.random(4_000)})
    frame["smoker"] = rng.choice(["no", "yes"], 4_000)
    frame["y"] = (frame.a * (1 + frame.x0) + 0.1 * rng.normal(size=4_000)).clip(-2, 4)
    frame.to_parquet("people.parquet", row_group_size=1_000)
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN))


TASKS = {
    "effect": ([], lambda release: release.theta),
    "doubly robust": (["learner=dr"], lambda release: release.theta),
    "pure": (["privacy.delta=0"], lambda release: release.theta),
    "queries": (["release=queries"], lambda release: release.answers),
    "rule": (["task=rule"], lambda release: release.effect.theta),
    "average": (["task=average_effect", "effect=composed"], lambda release: torch.tensor(release.estimate)),
    "subgroups": (["task=subgroups", "subgroups=[{x0: [0.5]}]"], lambda release: release.effects.estimate),
    "policies": (["task=policy_selection"], lambda release: torch.tensor(list(release.name.encode()))),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_stream_gives_what_memory_gives(here, task):
    words, numbers = TASKS[task]
    for name, stream in (("whole", "false"), ("parts", "true")):
        given = [*WORDS[:3], *words, "privacy.epsilon=4", "privacy.noise_seed=3"]
        assert main(["train", *given, f"data.stream={stream}", f"run_dir={name}"]) == 0
    whole, parts = (load_release(f"{name}/release/release.safetensors") for name in ("whole", "parts"))
    torch.testing.assert_close(numbers(parts), numbers(whole), rtol=1e-6, atol=1e-6)
    assert parts.privacy.to_dict() == whole.privacy.to_dict()
    assert json.loads(Path("parts/summary.json").read_text())["n"] == 4_000
    assert not list(Path("parts/curator").glob("*.npy"))  # the copy of the records is gone


def test_a_stream_in_a_trial_has_intervals_and_is_verified(here):
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | {"propensity": 0.5}))
    assert main(["train", *WORDS, "data.stream=true", "privacy.epsilon=8", "run_dir=r"]) == 0
    release = load_release("r/release/release.safetensors")
    assert release.law is not None
    effect = release.effect(pd.DataFrame({"x0": [0.0, 1.0], "x1": 0.5, "smoker": "no"}))
    assert effect == pytest.approx([1, 2], abs=0.4)
    assert main(["verify", "r/release/release.safetensors"]) == 0
    assert scan("r").leaks == ()


MISTAKES = {
    "blocks": (["second_stage=linear"], "all records are needed at once: blocks.*second_stage=adaptive"),
    "network": (["nuisance=wide_and_deep"], "all records are needed at once: nuisance WideAndDeep.*nuisance=auto"),
    "part of it": (["data.n=100"], "data.n is 100; a stream has all records"),
    "weighted rule": (["task=two_stage_rule"], "all records are needed at once: TwoStageRule.*task=rule"),
    "trained scores": (
        ["task=policy_selection", "nuisance_guarantee=stability"],
        "all records are needed at once: nuisance_guarantee = stability.*nuisance_guarantee=composed",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_a_stream_does_not_allow_is_one_line(here, capsys, name):
    words, expected = MISTAKES[name]
    assert main(["train", *WORDS[:3], "data.stream=true", *words, "run_dir=r"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(expected, line), line
    assert not Path("r").exists()
