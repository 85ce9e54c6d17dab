"""Tasks and their groups: what a task has no use for is unknown to it, and a task is added by one yaml."""

import shutil

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.cli.helpers import one_line, summary
from torchdpcate import registry
from torchdpcate.cli import overrides
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_tasks, composition, sweep_words
from torchdpcate.cli.task import TaskSpec, data_source, family_of, tasks_of
from torchdpcate.cli.tasks.rules import Rules
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner

COMMON = {"task", "data"}
OWN = {
    "cate": {"second_stage", "learner", "mechanism", "nuisance", "trainer", "features"},
    "owl": {"weights", "outcome", "features"},
    "two_stage_rule": {"weights", "outcome", "features"},
    "rule": {"nuisance", "trainer"},
    "policy_selection": {"policies"},
    "average_effect": {"effect", "features"},
    "subgroups": set(),
}
WITH_ALL = {"cate": {"second_stage": "linear"}, "average_effect": {"effect": "covariate_balancing"}}
"""Choices that have all groups of a task."""


def composed(*words: str) -> dict:
    with initialize_config_dir(str(registry.conf_dir()), version_base="1.3"):
        return OmegaConf.to_container(compose("config", list(words)), resolve=True)


@pytest.mark.first(2)
@pytest.mark.parametrize("task", all_tasks())
def test_a_task_has_its_own_groups_and_no_other(task):
    chosen = {"task": task} | WITH_ALL.get(task, {})
    groups = set(composition(chosen).groups)
    assert groups - {"queries", "experiment"} == COMMON | OWN[task]
    names = set(composed(*(f"{group}={choice}" for group, choice in chosen.items())))
    settings = {"seed", "run_dir", "compare", "force", "privacy", "budget"}
    settings |= {"release", "sites", "rule", "subgroups", "subgroup_effects"}
    assert names - settings == groups
    assert issubclass(family_of(task), TaskSpec)


def test_a_sweep_over_choices_composes_each_run_for_itself():
    words = ["-m", "task=owl,rule", "data.n=300", "data.domain={a: 1}", "x=", "hydra.sweep.dir=a"]
    swept = ["-m", "task=owl,rule", "data.n=choice(300)", "data.domain=choice({a: 1})", *words[4:]]
    assert sweep_words(words) == swept
    assert sweep_words([word.replace(",rule", "") for word in words])[2] == "data.n=300"


KERNEL = ["second_stage=kernel_ridge", "mechanism=gaussian_process"]


@pytest.mark.parametrize(
    ("words", "public"), [([], False), (["release=queries"], True), (KERNEL, True), (["task=owl"], False)]
)
def test_where_answers_are_published_no_person_is_asked_about(words, public):
    config = OmegaConf.create(composed(*words, "data=semi_synthetic", "data.path=x", "data.domain=twins"))
    task = instantiate(config.task)
    task.config = task.checked(config)
    assert task.publishes_queries is public
    assert data_source(config, public_queries=task.publishes_queries).public_queries is public


class Eager(OutcomeWeightedLearner):
    """A learner of a user's."""


@pytest.fixture
def unread():
    """Nothing is remembered of the files of another conf/, before and after."""
    read = overrides._composed, overrides._brought_by, overrides._read
    for each in read:
        each.cache_clear()
    yield
    for each in read:
        each.cache_clear()


@pytest.mark.slow
def test_a_learner_of_a_known_family_needs_a_class_and_a_yaml(tmp_path, monkeypatch, capsys, unread):
    shutil.copytree(registry.conf_dir(), tmp_path / "conf")
    mine = (tmp_path / "conf" / "task" / "owl.yaml").read_text()
    own = "torchdpcate.estimators.rules.learner.OutcomeWeightedLearner"
    mine = mine.replace("name: owl\n", "name: eager\n").replace(own, f"{__name__}.Eager")
    (tmp_path / "conf" / "task" / "eager.yaml").write_text(mine)
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path / "torchdpcate")
    assert {"eager", "owl"} <= set(tasks_of(Rules))
    assert main(["train", "task=eager", "data.n=300", f"run_dir={tmp_path / 'r'}"]) == 0
    found = summary(tmp_path / "r")
    assert (found["task"], found["learner"], found["weights"]) == ("eager", "Eager", "known")
    capsys.readouterr()
    assert main(["train", "weights=constant", f"run_dir={tmp_path / 'x'}"]) == 2
    assert "it is of task=eager, owl" in one_line(capsys)
