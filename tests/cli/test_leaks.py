"""Runs on marked records; then every tensor and every string of the release folder is searched for the curator's."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors import safe_open

from torchdpcate.cli.main import main

DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10},
    "covariates": {"age": {"low": 0, "high": 100}, "dose": {"low": 0, "high": 1}},
}
QUICK = ["data=table", "data.path=people.csv", "data.domain=domain.yaml", "nuisance.batch_size=50", "nuisance.epochs=2"]


def marked(n: int = 300) -> pd.DataFrame:
    """Records whose every number has digits that nothing else would have."""
    rng = np.random.default_rng(0)
    treat = rng.integers(0, 2, n)
    age, dose = rng.uniform(1, 99, n), rng.uniform(0.1, 0.9, n)
    return pd.DataFrame({"treat": treat, "age": age, "dose": dose, "pay": 2 + treat + 3 * dose + rng.uniform(0, 2, n)})


def numbers_of(folder: Path) -> torch.Tensor:
    """Every number of every tensor and of every text in the folder."""
    found = []
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                found += [file.get_tensor(k).double().flatten() for k in file.keys()]  # noqa: SIM118
                text = json.dumps(file.metadata())
        elif path.suffix in (".json", ".md"):
            text = path.read_text()
        else:
            continue
        written = re.findall(r"-?\d+\.\d+(?:[eE][-+]?\d+)?", text)
        found.append(torch.tensor([float(word) for word in written], dtype=torch.float64))
    return torch.cat(found)


def hits(numbers: torch.Tensor, secrets: torch.Tensor, relative: float = 4e-15) -> int:
    """How many numbers equal a secret: to the last bits, or as after a trip through float32.

    About 5e5 pairs of a noisy number and a secret meet by chance with a rate near 2 x relative each: less than
    once in 10^8 runs to the last bits, 0.1 times a run to 1e-7, and six times or more less than once in 10^8.
    """
    return int(((numbers[:, None] - secrets[None]).abs() <= relative * secrets.abs()).sum())


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["mechanism=output", "features=representation"],
        ["release=queries", "mechanism=smooth_sensitivity", "queries.count=7"],
        ["release=queries", "mechanism=influence", "queries.count=7", "release.include_nuisances=true"],
        ["second_stage=neural", "second_stage.width=4", "release=queries", "mechanism=influence", "queries.count=5"],
    ],
    ids=lambda words: " ".join(words[:2]) or "default",
)
def test_the_release_folder_holds_nothing_of_the_curators(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = marked()
    frame.to_csv("people.csv", index=False)
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN))
    ridge = [] if "second_stage=neural" in words else ["second_stage.ridge=0.05"]
    assert main(["train", *QUICK, *words, *ridge, "trainer.progress=false", "run_dir=r"]) == 0
    numbers = numbers_of(tmp_path / "r" / "release")
    secrets = torch.from_numpy(frame[["age", "dose", "pay"]].to_numpy().copy()).flatten()
    assert hits(numbers, secrets) == 0
    assert hits(numbers, secrets, relative=1e-7) < 6
    fit = json.loads((tmp_path / "r" / "curator" / "fit.json").read_text())
    assert hits(numbers, torch.tensor([fit["head_gradient_norm"]], dtype=torch.float64)) == 0
    arms = [float(frame["treat"].sum()), float(frame["pay"].mean()), float(frame["treat"].mean())]
    assert hits(numbers, torch.tensor(arms, dtype=torch.float64)) == 0


def test_the_search_finds_a_planted_record(tmp_path):
    (tmp_path / "note.md").write_text(f"outcome {marked()['pay'][3]}")
    assert hits(numbers_of(tmp_path), torch.tensor(marked()["pay"].to_numpy())) == 1
