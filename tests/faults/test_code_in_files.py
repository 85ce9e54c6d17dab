"""Files that others wrote: no domain, policies, release or run makes Python code run."""

import math
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.faults.guards import Touch
from torchdpcate.cli.main import main
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError


def numbers_that_are_a_pickle(path: Path) -> list[float]:
    """Float64 numbers whose bytes are a pickle that makes a folder."""
    data = pickle.dumps(Touch(str(path)), protocol=0)
    data = data.ljust(-(-len(data) // 8) * 8, b" ")
    values = [struct.unpack("<d", data[at : at + 8])[0] for at in range(0, len(data), 8)]
    assert all(math.isfinite(value) for value in values)
    return values


@pytest.fixture
def attack(tmp_path, monkeypatch) -> Path:
    """A domain whose covariates are each confined to one number, and policies that name a function of the library's."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "made"
    values = numbers_that_are_a_pickle(made)
    columns = {f"c{i}": value for i, value in enumerate(values)}
    near = {name: sorted([value, math.nextafter(value, 0)]) for name, value in columns.items()}
    for file, width in (("constant.yaml", 0), ("narrow.yaml", 1)):
        covariates = {n: {"low": v, "high": v} if width == 0 else dict(zip(("low", "high"), near[n], strict=True))
                      for n, v in columns.items()}  # fmt: skip
        facts = {
            "treatment": "a",
            "outcome": {"name": "y", "low": 0, "high": 1, "better": "higher"},
            "covariates": covariates,
        }
        Path(file).write_text(yaml.safe_dump(facts, sort_keys=False))
    Path("policies.yaml").write_text("- {kind: constants, actions: [0, 1]}\n- pickle:loads\n")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 2, 300), "y": rng.random(300), **columns})
    frame.to_csv("t.csv", index=False, float_format="%.17g")
    return made


WORDS = ["train", "task=policy_selection", "data=table", "data.path=t.csv", "policies.path=policies.yaml", "run_dir=r"]


@pytest.mark.parametrize("domain", ["constant", "narrow"])
def test_a_domain_and_a_policies_file_run_nothing(attack, capsys, domain):
    assert main([*WORDS, f"data.domain={domain}.yaml", "privacy.delta=0"]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert ("both" if domain == "constant" else "at most 1e+18") in error
    assert not attack.exists()
    assert not Path("r").exists()


def test_a_function_of_a_module_that_is_allowed_is_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("guidelines_of_ours.py").write_text("def offer(x):\n    return x[:, 0] > 0\n")
    Path("policies.yaml").write_text("- {kind: constants, actions: [0, 1]}\n- guidelines_of_ours:offer\n")
    words = [
        "train",
        "task=policy_selection",
        "data.n=600",
        "privacy.delta=0",
        "queries.count=5",
    ]
    words += ["policies.path=policies.yaml"]
    assert main([*words, "run_dir=no"]) == 2
    assert "policies.allow=[guidelines_of_ours]" in capsys.readouterr().err
    assert main([*words, "policies.allow=guidelines_of_ours", "run_dir=no"]) == 2
    assert "give a list of names of modules" in capsys.readouterr().err
    assert main([*words, "policies.allow=[guidelines_of_ours]", "run_dir=r"]) == 0
    assert "guidelines_of_ours:offer" in Path("r/curator/policies.csv").read_text()


@pytest.mark.parametrize("text", ["low: !!python/object/apply:os.mkdir [made]", "low: !!python/name:os.mkdir x"])
def test_a_domain_with_a_tag_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("d.yaml").write_text(f"treatment: a\noutcome: {{name: y, high: 1, {text}}}\ncovariates: {{}}")
    with pytest.raises(InputError, match="has a tag"):
        TableSchema.from_yaml("d.yaml")
    assert not Path("made").exists()


CONFIG = {
    "folder of yaml": (["--config-dir=elsewhere", "+experiment=evil"], "--config-dir"),
    "abbreviated": (["--config-d", "elsewhere", "experiment=evil"], "--config-d: no such option"),
    "another folder": (["-cp", "elsewhere"], "-cp: no such option"),
    "another file": (["--config-name=evil"], "--config-name"),
    "search path": (["hydra.searchpath=[elsewhere]"], "hydra.searchpath"),
    "group of another folder": (["+experiment=../../elsewhere/evil"], "experiment=../../elsewhere/evil"),
    "a pickled run": (["--experimental-rerun", "elsewhere/config.pickle"], "--experimental-rerun"),
}


@pytest.mark.parametrize("way", CONFIG)
def test_train_takes_no_configuration_from_elsewhere(tmp_path, way):
    """In a process of its own: Hydra would run the callback before anything of ours."""
    evil = "# @package _global_\nhydra:\n  callbacks:\n    evil: {_target_: os.mkdir, path: made}\n"
    (tmp_path / "elsewhere" / "experiment").mkdir(parents=True)
    for name in ("experiment/evil.yaml", "evil.yaml"):
        (tmp_path / "elsewhere" / name).write_text(evil)
    (tmp_path / "elsewhere" / "config.pickle").write_bytes(pickle.dumps(Touch(str(tmp_path / "made"))))
    words, option = CONFIG[way]
    command = [sys.executable, "-m", "torchdpcate.cli.main", "train", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert option in done.stderr
    assert not (tmp_path / "made").exists()
