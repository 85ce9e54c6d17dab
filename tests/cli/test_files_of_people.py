"""Tables as people have them, by the command line: each is read as it should be, or refused in a line with a remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release

DOMAIN = """
treatment: treat
outcome: {name: y, low: 0, high: 10}
covariates:
  age: {low: 18, high: 80}
  sex: {categories: [F, M]}
overlap: 0.1
propensity: 0.5
origin: protocol
"""


def records(n: int = 400) -> pd.DataFrame:
    """Return a trial's records; the effect is 1."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 81, n), "sex": rng.choice(["F", "M"], n), "treat": np.arange(n) % 2})
    frame["y"] = (3 + frame["treat"] + rng.uniform(-1, 1, n)).round(2)
    return frame


@pytest.fixture
def train(tmp_path, capsys) -> Any:
    """Return a function that trains on a table and returns the exit status, what was printed, and the errors."""

    def run(table: pd.DataFrame | str | Path, *words: str, domain: str = DOMAIN, task: str = "average_effect") -> Any:
        if isinstance(table, pd.DataFrame):
            table.to_csv(tmp_path / "t.csv", index=False)
        path = tmp_path / "t.csv" if isinstance(table, pd.DataFrame) else table
        (tmp_path / "d.yaml").write_text(domain)
        given = [f"task={task}", "data=table", f"data.path={path}", f"data.domain={tmp_path / 'd.yaml'}"]
        rc = main(["train", *given, f"run_dir={tmp_path / 'run'}", "privacy.delta=0", *words])
        out, err = capsys.readouterr()
        assert rc == 0 or (rc == 2 and len(err.splitlines()) == 1 and not (tmp_path / "run").exists())
        return rc, out, err

    return run


def test_one_person_in_two_files_and_types_is_one(train, tmp_path) -> None:
    """A csv has her number as text, a parquet file as an integer: her two records cost what two records do."""
    frame = records().assign(pid=np.arange(400))
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "b.parquet")
    paths = f"[{tmp_path / 'a.csv'},{tmp_path / 'b.parquet'}]"
    assert "400 persons with 2 of the records each" in train(paths, "data.person=pid", "data.per_person=2")[1]


def test_a_person_is_named_by_two_columns(train, tmp_path) -> None:
    frame = records().assign(center=np.arange(400) // 200, id=np.arange(400) % 100)
    words = ["data.person=[center,id]", "data.per_person=2"]
    _, out, err = train(frame, *words)
    assert "unit: person (center + id), 200 persons with 2 of the records each" in out
    assert err == ""
    privacy = load_release(tmp_path / "run" / "release" / "release.safetensors").privacy
    assert privacy.person == {"column": "center + id", "records": 2}
