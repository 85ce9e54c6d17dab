"""Words of ``train``, and files that others wrote: none makes code run that ``conf/`` does not name."""

import math
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.helpers import one_line, refused
from tests.faults.guards import Touch
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.cli import overrides
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_groups
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.registry import check_classes, conf_dir

RUN = ["train", "data.n=300", "run_dir=r"]
SCHEMA = TableSchema.from_dict(
    {
        "treatment": "a",
        "outcome": {"name": "y", "low": 0, "high": 1, "better": "higher"},
        "covariates": {"x": {"low": 0, "high": 1}},
    }
)


@pytest.fixture
def made(tmp_path, monkeypatch) -> Path:
    """The folder that evil code makes: a module on Python's path, and a yaml file that names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("evil_of_theirs.py").write_text("import os\n\n\ndef run(*given, **named):\n    os.mkdir('made')\n")
    Path("evil.yaml").write_text("_target_: evil_of_theirs.run\n")
    return tmp_path / "made"


WAYS = ["[{}]", "-m {},null", "-m choice({})", "absolute"]


@pytest.mark.parametrize(
    ("group", "way"), [*((group, "{}") for group in sorted(all_groups())), *(("trainer", way) for way in WAYS)]
)
def test_a_choice_is_one_of_its_groups(group, way, made, capsys):
    evil = os.path.abspath("evil")
    path = evil if way == "absolute" else os.path.relpath(evil, conf_dir() / group)
    *option, value = way.replace("absolute", "{}").format(path).split()
    assert main([*RUN, *option, f"{group}={value}"]) == 2
    assert f"there is no such {group}" in one_line(capsys)
    assert not made.exists()
    assert not Path("r").exists()


WORDS = {
    "data.person={_target_: evil_of_theirs.run}": "would run code",
    "data.n=[1, {a: {_target_: evil_of_theirs.run}}]": "would run code",
    "-m data.n=1,{_target_: evil_of_theirs.run}": "would run code",
    "trainer._target_=evil_of_theirs.run": "would run code",
    "++trainer.sub._target_=evil_of_theirs.run": "would run code",
    "trainer._args_=[1]": "would run code",
    "trainer._partial_=false": "would run code",
    "rule={_target_: evil_of_theirs.run}": "would run code",
    "seed=${oc.decode:'{_target_: evil_of_theirs.run}'}": "cannot be read",
    "seed='${oc.create:{_target_: evil_of_theirs.run}}'": "write the value itself",
    "run_dir='$${seed}{oc.env:HOME}'": "write the value itself",
    "hydra.callbacks={a: {_target_: evil_of_theirs.run}}": "not to be chosen",
    "+hydra.callbacks.a._target_=evil_of_theirs.run": "not to be chosen",
    "hydra.job_logging.handlers.console.class=evil_of_theirs.run": "not to be chosen",
    "hydra/job_logging=../../../evil": "not to be chosen",
    "+hydra/callbacks=../../../evil": "not to be chosen",
    "hydra={searchpath: [file://.]}": "not to be chosen",
    "hydra.searchpath=[file://.]": "not to be chosen",
    "hydra.job.env_set.MPLBACKEND='module://evil_of_theirs'": "not to be chosen",
    "-m hydra.sweeper.params.trainer=../../evil": "not to be chosen",
    "-m hydra/launcher=../../../evil": "launchers are packages of their own",
    "-m hydra.launcher._target_=evil_of_theirs.run": "would run code",
    "trainer@trainer=../../evil": "without @",
    "+evil@_global_=evil": "without @",
    "+defaults=[{trainer: evil}]": "there is no setting defaults",
    "task.name=../evil": "is chosen by task=NAME",
}


@pytest.mark.parametrize("word", WORDS)
def test_no_word_names_code(word, made, capsys):
    assert WORDS[word] in refused(word, RUN[1:], capsys)
    assert not made.exists()
    assert not Path("r").exists()


CONFIG = {
    "folder of yaml": (["--config-dir=elsewhere", "+experiment=evil"], "--config-dir"),
    "abbreviated": (["--config-d", "elsewhere", "experiment=evil"], "--config-d: no such option"),
    "another file": (["--config-name=evil"], "--config-name"),
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
    command = [sys.executable, "-m", "torchdpcate", "train", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert option in done.stderr
    assert not (tmp_path / "made").exists()


def test_the_composed_configuration_is_looked_at_too(made, monkeypatch, capsys):
    monkeypatch.setattr(overrides, "_check_word", lambda override: None)
    assert main([*RUN, f"trainer={os.path.relpath('evil', conf_dir() / 'trainer')}"]) == 2
    assert "_target_ = 'evil_of_theirs.run': no shipped choice of conf/; no other code is run" in one_line(capsys)
    assert not made.exists()


@pytest.mark.parametrize("node", [{"a": [{"b": {"_target_": "os.mkdir"}}]}, {"_target_": ["os"]}, {"_target_": None}])
def test_a_class_in_any_depth_is_one_of_conf(node):
    with pytest.raises(InputError, match="no shipped choice"):
        check_classes(node)
    check_classes({"a": [{"_target_": "torchdpcate.fit.feature_maps.Legendre"}], "b": 1})


def test_files_that_words_name_run_nothing(made):
    call = "{_target_: evil_of_theirs.run, kind: constants, low: 0, high: 1}"
    Path("d.yaml").write_text(f"treatment: a\noutcome: {{name: y, low: 0, high: 1}}\ncovariates: {{x: {call}}}\n")
    Path("list.yaml").write_text(f"- {call}\n")
    for read in (
        lambda: TableSchema.from_yaml("d.yaml"),
        lambda: PolicyLibrary.of(Path("list.yaml")),
        lambda: Subgroups.of("list.yaml", SCHEMA),
    ):
        with pytest.raises(InputError):
            read()
    assert not made.exists()


def numbers_that_are_a_pickle(path: Path) -> list[float]:
    """Float64 numbers whose bytes are a pickle that makes a folder."""
    data = pickle.dumps(Touch(str(path)), protocol=0)
    data = data.ljust(-(-len(data) // 8) * 8, b" ")
    values = [struct.unpack("<d", data[at : at + 8])[0] for at in range(0, len(data), 8)]
    assert all(math.isfinite(value) for value in values)
    return values


@pytest.mark.parametrize("width", ["both", "at most 1e+18"])
def test_a_domain_whose_numbers_are_a_pickle_and_a_policies_file_run_nothing(width, made, capsys):
    """Covariates that are each confined to one number, and policies that name a function of the library's."""
    columns = {f"c{i}": value for i, value in enumerate(numbers_that_are_a_pickle(made))}
    covariates = {}
    for name, value in columns.items():
        low, high = (value, value) if width == "both" else sorted([value, math.nextafter(value, 0)])
        covariates[name] = {"low": low, "high": high}
    Path("d.yaml").write_text(yaml.safe_dump(SCHEMA.to_dict() | {"covariates": covariates}, sort_keys=False))
    Path("policies.yaml").write_text("- {kind: constants, actions: [0, 1]}\n- pickle:loads\n")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 2, 300), "y": rng.random(300), **columns})
    frame.to_csv("t.csv", index=False, float_format="%.17g")
    words = ["task=policy_selection", "data.path=t.csv", "data.domain=d.yaml", "policies.path=policies.yaml"]
    assert main(["train", *words, "privacy.delta=0", "run_dir=r"]) == 2
    assert width in one_line(capsys)
    assert not made.exists()
    assert not Path("r").exists()


def test_a_function_of_a_module_that_is_allowed_is_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("guidelines_of_ours.py").write_text("def offer(x):\n    return x[:, 0] > 0\n")
    Path("policies.yaml").write_text("- {kind: constants, actions: [0, 1]}\n- guidelines_of_ours:offer\n")
    words = ["train", "task=policy_selection", "data.n=600", "privacy.delta=0"]
    words += ["queries.count=5", "policies.path=policies.yaml"]
    assert main([*words, "run_dir=no"]) == 2
    assert "policies.allow=[guidelines_of_ours]" in one_line(capsys)
    assert main([*words, "policies.allow=guidelines_of_ours", "run_dir=no"]) == 2
    assert "give a list of names of modules" in one_line(capsys)
    assert main([*words, "policies.allow=[guidelines_of_ours]", "run_dir=r"]) == 0
    assert "guidelines_of_ours:offer" in Path("r/curator/policies.csv").read_text()
