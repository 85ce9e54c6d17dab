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
]


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        yield run


@pytest.mark.slow
def test_a_mistake_in_train_is_answered_without_a_trainer(fresh):
    lines = [f"assert main({['train', *words]!r}) == 2" for words in MISTAKES]
    modules = fresh("\n".join(["from torchdpcate.cli.main import main", *lines]))
    assert not of(modules, (*TRAINING, *FIGURES_AND_TABLES, "dp_accounting", "opendp"))


def test_a_release_is_looked_at_without_a_trainer(fresh, tmp_path):
    path = rule._example().save(tmp_path / "rule.safetensors").as_posix()
    lines = [f"main({[*words, path]!r})" for words in (["verify", "--json"], ["verify"])]
    modules = fresh("\n".join(["from torchdpcate.cli.main import main", *lines]))
    assert of(modules, ("torchdpcate.release.rule",))
    assert not of(modules, (*TRAINING, *FIGURES_AND_TABLES, "hydra", "omegaconf"))
