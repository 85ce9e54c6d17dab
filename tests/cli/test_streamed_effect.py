"""Effects of files that are read batch by batch: as in memory, and one line for each mistake."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from torchdpcate import load_release
from torchdpcate.cli.audit import leaks
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


@pytest.mark.slow
def test_a_stream_gives_the_effect_that_memory_gives(here):
    for name, stream in (("whole", "false"), ("parts", "true")):
        given = [*WORDS, "privacy.epsilon=4", "privacy.noise_seed=3"]
        assert main(["train", *given, f"data.stream={stream}", f"run_dir={name}"]) == 0
    whole, parts = (load_release(f"{name}/release/release.safetensors") for name in ("whole", "parts"))
    torch.testing.assert_close(parts.theta, whole.theta, rtol=1e-6, atol=1e-6)
    assert parts.privacy.to_dict() == whole.privacy.to_dict()
    assert json.loads(Path("parts/curator/summary.json").read_text())["n"] == 4_000
    assert not list(Path("parts/curator").glob("*.npy"))  # the copy of the records is gone


def test_a_stream_in_a_trial_has_intervals_and_is_verified(here):
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | {"propensity": 0.5}))
    assert main(["train", *WORDS, "data.stream=true", "privacy.epsilon=8", "run_dir=r"]) == 0
    release = load_release("r/release/release.safetensors")
    assert release.law is not None
    effect = release.effect(pd.DataFrame({"x0": [0.0, 1.0], "x1": 0.5, "smoker": "no"}))
    assert effect == pytest.approx([1, 2], abs=0.4)
    assert main(["verify", "r/release/release.safetensors"]) == 0
    assert leaks("r") == ()
