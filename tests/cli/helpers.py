"""Tables, words and what is read of runs, which tests of several commands share."""

import json
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from tests.registered import shipped
from torchdpcate.cli.audit import leaks
from torchdpcate.cli.main import main

DOMAIN = {
    "treatment": "treat",
    "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
    "covariates": {
        "age": {"low": 16, "high": 60},
        "black": {"categories": [0, 1]},
        "dose": {"low": 0, "high": 1},
        "site": {"categories": list("abc")},
    },
    "overlap": 0.2,
}
TABLE = ["data=table", "data.path=people.csv", "data.domain=domain.yaml"]
QUICK = [
    "nuisance.batch_size=50",
    "nuisance.epochs=2",
    "second_stage=linear",
    "second_stage.ridge=0.02",
    "trainer.progress=false",
]
EACH = shipped(
    {
        "cate": [*TABLE, *QUICK],
        "composed": ["data.n=600", "privacy.epsilon=8", "queries.count=5"],
        "online": [*TABLE, *QUICK, "mechanism=gaussian_process", "second_stage.loss=huber", "queries.count=5"],
        "average effect": ["task=average_effect", "effect=covariate_balancing", "data.n=600"],
        "subgroups": ["task=subgroups", "data.n=1500", "subgroups=[{x0: [0]}]", "privacy.epsilon=8"],
        "rule": ["task=rule", "data.n=600", "privacy.epsilon=8"],
        "weighted rule": ["task=owl", "data.n=400", "queries.count=5"],
        "two stages": ["task=two_stage_rule", "data.n=400", "queries.count=5"],
        "policy": ["task=policy_selection", "data.n=600", "privacy.delta=0", "queries.count=5"],
    }
)
"""Words of a quick run of every task, in a folder that has ``people.csv`` and ``domain.yaml``."""
STATEMENT = {"release.safetensors", "privacy.json", "privacy.md", "SHA256SUMS"}
"""What every release's folder holds."""

SUMMARY = {
    "task": "cate",
    "data": "dataset1",
    "generated": True,
    "learner": "RLearner",
    "release": "function",
    "mechanism": "objective",
    "level": "certified",
    "epsilon": 1.0,
    "delta": 1e-5,
    "requested": {"epsilon": 1.0, "delta": 1e-5, "settings": {"second_stage.ridge": "0.02"}},
    "spent": {"nuisance": {"epsilon": 1.0}, "total": {"epsilon": 0.99, "delta": 1e-5}},
    "n": 1350,
    "seed": 0,
    "noise": 0.5,
    "second_stage": "linear",
    "features": "legendre",
    "nuisance": "mlp",
    "pehe": 0.3,
    "pehe_nonprivate": 0.1,
    "pehe_plug_in": 0.4,
    "seconds": 1.5,
}
"""What a run that is made up says of itself."""


def table(n: int = 400) -> pd.DataFrame:
    """Return records of a trial, whose effect is -2 to 2 by the dose."""
    rng = np.random.default_rng(0)
    treat, age, dose = rng.integers(0, 2, n), rng.integers(16, 61, n), rng.uniform(0, 1, n)
    frame = pd.DataFrame({"name": "nobody", "treat": treat, "age": age, "dose": dose})
    frame["black"], frame["site"] = rng.integers(0, 2, n), rng.choice(list("abc"), n)
    return frame.assign(pay=np.clip(5 + (2 * treat - 1) * (4 * dose - 2) + rng.normal(0, 1, n), 0, 10))


def change(**columns) -> None:
    """Write the table with other columns, or functions of the frame."""
    table().assign(**columns).to_csv("people.csv", index=False)


def redomained(**facts) -> None:
    """Write the domain file with other facts."""
    Path("domain.yaml").write_text(yaml.safe_dump(DOMAIN | facts))


def one_line(capsys) -> str:
    """Return the complaint, if stderr holds exactly one line, or one more for each of several faults of a table."""
    error = capsys.readouterr().err.strip()
    assert all(line.startswith("- ") for line in error.splitlines()[1:]), error
    assert error.startswith("torchdpcate: ")
    return error


def refused(word: str, words: list[str], capsys) -> str:
    """Return the line that ``train`` refuses a word with, given after others; ``-m`` before it sweeps."""
    option, given = (["-m"], word.removeprefix("-m ")) if word.startswith("-m ") else ([], word)
    assert main(["train", *words, *option, given]) == 2
    return one_line(capsys)


def summary(folder: str | Path) -> dict:
    """Return a run's summary."""
    return json.loads((Path(folder) / "curator" / "summary.json").read_text())


def released(folder: Path) -> Path:
    """Return the path of a run's release."""
    return folder / "release" / "release.safetensors"


def checked(folder: Path, *kept: str) -> None:
    """Require that a run wrote its files, verifies, and has nothing in its release that does not follow from it.

    Args:
        folder: The run's.
        *kept: Files that the curator keeps.
    """
    assert {path.name for path in (folder / "release").iterdir()} >= STATEMENT
    kept = ("config.yaml", "summary.json", "ledger.sqlite", *kept)
    assert {path.name for path in (folder / "curator").iterdir()} >= set(kept)
    assert main(["verify", str(released(folder))]) == 0
    assert leaks(folder) == ()


def add(folder: Path, name: str, epsilon: float = 1.0, **changes) -> None:
    """Write a run with other values than ``SUMMARY``'s."""
    (folder / name / "curator").mkdir(parents=True)
    settings = changes.pop("settings", {})
    changes["requested"] = {"epsilon": epsilon, "delta": 1e-5, "settings": settings}
    (folder / name / "curator" / "summary.json").write_text(json.dumps(SUMMARY | changes))


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)
