"""Words of ``train``: none makes code run that ``conf/`` does not name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import one_line, refused
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.cli import overrides
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_groups
from torchdpcate.data._yaml import shipped
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.registry import check_classes, conf_dir


@pytest.fixture
def made(tmp_path, monkeypatch) -> Path:
    """The folder that evil code makes: a module on Python's path, and a yaml file that names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("evil_of_theirs.py").write_text("import os\n\n\ndef run(*given, **named):\n    os.mkdir('made')\n")
    Path("evil.yaml").write_text("_target_: evil_of_theirs.run\n")
    return tmp_path / "made"


RUN = ["train", "data.n=300", "run_dir=r"]


WAYS = ["{}", "[{}]", "-m {},null", "-m choice({})", "absolute"]


@pytest.mark.parametrize(
    ("group", "way"), [*((group, "{}") for group in sorted(all_groups())), *(("trainer", way) for way in WAYS[1:])]
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
    "hydra/hydra_logging=../../../evil": "not to be chosen",
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
        lambda: Subgroups.of("list.yaml", TableSchema.from_yaml(shipped("domain", "lalonde"))),
    ):
        with pytest.raises(InputError):
            read()
    assert not made.exists()


PLUGIN = """
from dataclasses import dataclass

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore


@dataclass
class Settings:
    _target_: str = "hydra_plugins.ours.ours.Ours"
    part: str = "os"


ConfigStore.instance().store(group="hydra/launcher", name="ours", node=Settings, provider="ours")


class Ours(BasicLauncher):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def launch(self, *given, **named):
        __import__(self.part)
        return super().launch(*given, **named)
"""


@pytest.mark.slow
def test_a_launcher_that_is_installed_runs_and_one_without_its_parts_says_so(tmp_path):
    """In processes of their own: Hydra looks for plugins once."""
    folder = tmp_path / "hydra_plugins" / "ours"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "ours.py").write_text(PLUGIN)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}
    command = [sys.executable, "-m", "torchdpcate.cli.main", "train", "-m", "hydra/launcher=ours", "task=owl"]
    command += ["data.n=300", "privacy.delta=0", "force=true", "seed=0,1", "run_dir=s"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = run("hydra.launcher.part=none_such_part")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert "hydra/launcher=ours: No module named 'none_such_part'" in done.stderr
    done = run()
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "s").glob("*/curator/summary.json"))) == 2
