"""What the program imports before it answers: mistakes of users, inspection and verification need no trainer."""

import pytest

from tests.fresh_process import TRAINING, fresh_process, of
from torchdpcate.release import rule

FIGURES_AND_TABLES = ("pandas", "pyarrow", "scipy.stats")
MISTAKES = [
    ["privacy.epsilonn=1"],
    ["task=owl", "mechanism=objective"],
    ["privacy.epsilon=-3"],
    ["task=average_effect", "privacy.epsilon=0"],
    ["data=table", "data.path=nowhere.csv", "data.domain=nowhere.yaml"],
    ["task=owl", "data=table", "data.path=nowhere.csv", "data.domain=nowhere.yaml"],
    ["task=policy_selection", "policies.path=nowhere.yaml"],
    ["data.n=100", "release=nothing"],
]


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        yield run


@pytest.mark.slow
def test_a_mistake_in_train_is_answered_without_a_trainer(fresh):
    lines = [f"assert main({['train', *words]!r}) == 2" for words in MISTAKES]
    modules = fresh("\n".join(["from torchdpcate.cli.main import main", *lines]))
    trainers = [name for name in TRAINING if name != "piqp"]
    assert not of(modules, (*trainers, *FIGURES_AND_TABLES, "dp_accounting", "opendp"))


def test_a_release_is_looked_at_without_a_trainer(fresh, tmp_path):
    path = rule._example().save(tmp_path / "rule.safetensors").as_posix()
    lines = [f"main({[*words, path]!r})" for words in (["verify", "--json"], ["verify"])]
    modules = fresh("\n".join(["from torchdpcate.cli.main import main", *lines]))
    assert of(modules, ("torchdpcate.release.rule",))
    assert not of(modules, (*TRAINING, *FIGURES_AND_TABLES, "hydra", "omegaconf"))


NOTES = """
import logging, logging.config, sys
import hydra
from omegaconf import OmegaConf
from torchdpcate.registry import conf_dir
with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
    composed = hydra.compose("config", return_hydra_config=True)
logging.config.dictConfig(OmegaConf.to_container(composed.hydra.hydra_logging))
logging.getLogger("numexpr.utils").info("defaulting to 2 threads")
logging.getLogger("numexpr.utils").warning("a warning")
logging.getLogger("hydra._internal.core_plugins.basic_launcher").info("Launching 3 jobs")
logging.getLogger("hydra_plugins.hydra_joblib_launcher").info("Joblib launches")
shown = sys.stdout.getvalue()
assert "defaulting" not in shown, shown
assert all(words in shown for words in ("a warning", "Launching 3 jobs", "Joblib launches")), shown
"""


@pytest.mark.slow
def test_notes_of_other_libraries_are_not_shown_and_those_of_hydra_are(fresh):
    fresh(NOTES)
