"""One line with exit code 2 for each mistake in the words or files of ``train``, and nothing is left behind."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.cli.helpers import DOMAIN, QUICK, TABLE, change, one_line, redomained, table
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_tasks

STREAM = "data.stream=true"
INFLUENCE = "release=queries mechanism=influence"
NEURAL = f"second_stage=neural {INFLUENCE}"
KERNEL = "second_stage=kernel_ridge mechanism=gaussian_process"
BALANCING = "effect=covariate_balancing"
EQUAL = "weights=constant"
CELLS = "subgroups=[{dose:[0.5]}]"
LINEAR = {  # of second_stage=linear and the few steps of ``QUICK``
    "privacy.epsilon=0": "epsilon",
    "privacy.delta=1": "delta",
    "privacy.delta=0": r"private nuisances \(nuisance=mlp and others\) are only \(epsilon, delta\)",
    "nuisance.width=-1": "width",
    "nuisance.batch_size=5000": "batch_size",
    f"{NEURAL} second_stage.width=0": "width = 0",
    f"{NEURAL} second_stage.ridge=0": "ridge = 0",
    f"{NEURAL} features=fourier": "features",
    "second_stage=neural": "second_stage=linear",
    "second_stage.ridge=1e-9": "ridge",
    "second_stage.loss=squared": "loss = squared",
    "trainer.accelerator=abc": "invalid accelerator name",
    "release=queries queries.count=0": r"queries\.count = 0",
    "queries.path=queries.csv": "query",
    "mechanism=influence": "release=queries",
    "data.out_of_bounds=ignore": "ignore",
}
OF_TASKS = {
    "second_stage=kernel_ridge": "has no sensitivity bound for this second stage",
    f"{KERNEL} features=fourier": "of second_stage=linear",
    f"{KERNEL} second_stage.bandwidth=-1": "bandwidth",
    f"{STREAM} second_stage=linear": "all records are needed at once: blocks.*second_stage=adaptive",
    f"{STREAM} nuisance=mlp second_stage=adaptive": "needed at once: nuisance WideAndDeep.*nuisance=auto",
    f"{STREAM} compare=true": "compare = true: fits all records once more",
    f"{STREAM} data.n=100": "data.n is 100; a stream has all records",
    f"{STREAM} task=two_stage_rule": "all records are needed at once: TwoStageRule.*task=rule",
    f"{STREAM} task=owl": "all records are needed at once: OutcomeWeightedLearner.*task=rule",
    "task=average_effect effect.estimand=LATE": "estimand = 'LATE': choose one of ATE",
    "task=average_effect features=representation privacy.delta=0": "features: not used",
    "task=policy_selection policies.path=nowhere.yaml": "nowhere.yaml: no such file",
    "task=policy_selection policies.shares=[0.5]": "write thresholds of your own",
    f"task=owl {EQUAL} privacy.epsilon=0.003": "expect an accuracy of 0.5",
    f"task=owl {EQUAL} privacy.epsilon=0.001": "epsilon = 0.001.*give more eps",
    f"task=owl {EQUAL} rule.ridge=1e-6": "ridge of at least",
    f"task=owl {EQUAL} features=representation": "features = representation",
    "task=rule rule.share=1.5 rule.population=public.csv": "budget = 1.5",
    "task=rule rule.share=0.5": "give population=",
    "task=rule rule.share=0.5 rule.population=sample.csv": "query 'age'",
    "task=rule nuisance=recurrent": "takes auto, additive or mlp",
    "task=subgroups": "subgroups is missing: give public cuts",
    "task=subgroups subgroups=[{height:true}]": "'height' is no covariate",
    "task=subgroups subgroups=[{dose:[2]}]": "leaves a cell empty",
    f"task=subgroups {CELLS} privacy.delta=0": "delta above 0",
    f"task=subgroups {CELLS} subgroup_effects.propensity=fitted": "subgroups are lines of one composition",
}
NOT_USED = {
    "mechanism=output": "not for second_stage = adaptive.*kernel_ridge, linear and neural",
    "second_stage=linear mechanism=composed": "not for second_stage = linear; composed is of second_stage=adaptive",
    "features=fourier features.pairs=7": "features: .*of second_stage=linear",
    "second_stage=neural features=fourier": "features: not used by task=cate with second_stage=neural",
    "second_stage.threshold=9": "of second_stage=kernel_ridge and linear",
    "nuisance=recurrent": "not for second_stage = adaptive; adaptive takes",
    "+weights=constant": "write weights=constant",
    "rule.ridge=3": "rule.ridge: not used by task=cate.*it is of task=owl",
    "mechanism=permute_and_flip": "the scores decide",
    "task=average_effect mechanism=output": "mechanism: not used by task=average_effect; it is of task=cate",
    "task=average_effect effect=composed": "effect=composed",
    "task=policy_selection trainer.accelerator=cpu": "trainer.*: not used",
    "task=owl mechanism=output": r"mechanism: not used.*use rule\.mechanism",
    "task=owl rule=two_stage": "the task says which rule; choose a task of owl, rule, two_stage_rule",
    "task=two_stage_rule nuisance.width=3": "nuisance.width: not used.* is of nuisance=mlp, of task=cate and rule",
}
WORDS = [*(([*QUICK], *row) for row in LINEAR.items()), *(([], *row) for row in (OF_TASKS | NOT_USED).items())]


def said(words: list[str], folder: Path, capsys) -> str:
    """Return the line that a refused run says, which leaves nothing in the folder."""
    before = {path.name for path in folder.iterdir()}
    assert main(["train", *words, "run_dir=r"]) == 2
    assert {path.name for path in folder.iterdir()} == before
    return one_line(capsys)


@pytest.mark.parametrize(
    ("usual", "words", "message"),
    [row if place % 10 == 0 else pytest.param(*row, marks=pytest.mark.slow) for place, row in enumerate(WORDS)],
)
def test_a_word_that_cannot_be(usual, words, message, here, capsys):
    given, sample = words.split(), table(50).assign(age=99)
    for name, frame in (("queries", sample), ("sample", sample), ("public", table(50))):
        frame.to_csv(f"{name}.csv", index=False)
    named = {word.partition("=")[0] for word in given}
    usual = [word for word in usual if word.partition("=")[0] not in named]
    if "second_stage=neural" in given:
        usual = [word for word in usual if "ridge" not in word]
    assert re.search(message, said([*TABLE, *usual, *given], here, capsys))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "task"),
    [("task=owl,two_stage_rule release=queries", "owl"), ("seed=0,1 weights=known,private", "cate")],
)
def test_a_choice_of_another_task_in_a_sweep(words, task, tmp_path, capsys):
    assert main(["train", "-m", *words.split(), f"run_dir={tmp_path / 'r'}"]) == 2
    assert f": not used by task={task}" in one_line(capsys)
    assert not list(tmp_path.rglob("*.json"))


def three_arms() -> None:
    redomained(treatment={"name": "treat", "categories": [0, 1, 2]})
    change(treat=np.arange(400) % 3)


CATE, AVERAGE = ["task=cate", *QUICK], ["task=average_effect", "effect=covariate_balancing", "privacy.delta=0"]
FILES = {
    "no table": (lambda: Path("people.csv").unlink(), CATE, "people.csv"),
    "no domain file": (lambda: Path("domain.yaml").unlink(), CATE, "domain.yaml"),
    "an unknown category": (lambda: change(site="z"), CATE, "site"),
    "too few records": (lambda: table(6).to_csv("people.csv", index=False), CATE, "."),
    "three arms of an average": (three_arms, AVERAGE, "3 arms"),
    "one arm": (lambda: change(treat=1), ["task=owl", EQUAL], "treat.*no record with value 0"),
    "an outcome outside": (lambda: change(pay=11), ["task=policy_selection"], "pay.*out_of_bounds=clip"),
    "one arm of a stream": (lambda: change(treat=1), [*AVERAGE, STREAM], "'treat' has no record with value 0"),
    "an outcome outside, of a stream": (lambda: change(pay=11), [*AVERAGE, STREAM], "rows 1 to 400: outcome 'pay' has"),
    "no list of policies": (
        lambda: Path("policies.yaml").write_text("kind: constants"),
        ["task=policy_selection", "policies.path=policies.yaml"],
        "policies.yaml.*holds no list",
    ),
    "no kind of policy": (
        lambda: Path("policies.yaml").write_text(yaml.safe_dump([{"kind": "oracle"}])),
        ["task=policy_selection", "policies.path=policies.yaml"],
        r"policies\[0\] is no policy; .*kind: .*thresholds",
    ),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("mistake", FILES)
def test_a_file_that_cannot_be(mistake, here, capsys):
    prepare, words, message = FILES[mistake]
    prepare()
    assert re.search(message, said([*TABLE, *words], here, capsys))


@pytest.mark.first(1)
@pytest.mark.parametrize("task", all_tasks())
@pytest.mark.parametrize("high", [1e300, 5e-324])
def test_bounds_whose_arithmetic_overflows(task, high, here, capsys):
    """They are refused before anything is spent, by whatever task."""
    redomained(outcome=DOMAIN["outcome"] | {"low": 0, "high": high})
    assert re.search("outcome 'pay' are.*must not overflow", said([*TABLE, f"task={task}"], here, capsys))
    redomained(outcome=DOMAIN["outcome"], covariates=DOMAIN["covariates"] | {"age": {"low": 0, "high": high}})
    assert re.search("covariate 'age' are.*must not overflow", said([*TABLE, f"task={task}"], here, capsys))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.first(1)
@pytest.mark.parametrize("words", ["second_stage=linear nuisance=mlp", "nuisance=additive", "task=rule"])
def test_a_gpu_that_is_not_there(words, here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdpcate.cli.run", None)  # nor is what a run imports, which takes seconds
    told = said([*TABLE, *words.split(), "force=true", "trainer.accelerator=gpu"], here, capsys)
    assert "trainer.accelerator=gpu: torch finds no GPU here; use trainer.accelerator=cpu" in told


def test_torchrun(here, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "torchrun: each of its 2 processes" in said([*TABLE, *QUICK], here, capsys)


def test_a_run_folder_that_is_there(here, capsys):
    Path("r").mkdir()
    assert "run_dir = r: exists already" in said([*TABLE, *QUICK], here, capsys)
    assert list(Path("r").iterdir()) == []


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [TABLE, [*TABLE, "data.n=300"], ["data=confounded", "data.n=400"]])
@pytest.mark.parametrize("task", ["owl", "two_stage_rule weights=known"])
def test_the_propensity_of_records_is_never_guessed(task, words, here, capsys):
    shown = said([*f"task={task}".split(), *words], here, capsys)
    assert "weights=private" in shown
    assert "propensity: 0.5 in the domain" in shown or "data=confounded" in words
