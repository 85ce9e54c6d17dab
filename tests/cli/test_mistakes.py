"""One line with exit code 2 for each mistake in the words or files of ``train``, and nothing is left behind."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
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
LINEAR = {  # of second_stage=linear and the few steps of ``QUICK``
    "privacy.epsilon=abc": "epsilon",
    "privacy.epsilon=0": "epsilon",
    "privacy.epsilon=-1": "epsilon",
    "privacy.delta=1": "delta",
    "privacy.delta=-0.1": "delta",
    "privacy.delta=1e-13": ".",
    "privacy.delta=0": r"private nuisances \(nuisance=convex, mlp and others\) are only \(epsilon, delta\)",
    "nuisance.width=-1": "width",
    "nuisance.batch_size=5000": "batch_size",
    f"{NEURAL} second_stage.width=0": "width = 0",
    f"{NEURAL} second_stage.ridge=0": "ridge = 0",
    f"{NEURAL} features=fourier": "features",
    "second_stage=neural": "second_stage=linear",
    "second_stage.rigde=1": "rigde",
    "second_stage.ridge=1e-9": "ridge",
    "second_stage.ridge=-1": "ridge",
    "second_stage.loss=squared": "loss = squared",
    "trainer.accelerator=abc": "invalid accelerator name",
    "release=foo": r"release = foo",
    "release=queries queries.count=0": r"queries\.count = 0",
    "queries.path=queries.csv": "query",
    "mechanism=magic": "magic",
    "mechanism=influence": "release=queries",
    f"{INFLUENCE} split=cross_fit": "split=disjoint",
    "data.out_of_bounds=ignore": "ignore",
}
EFFECTS = {
    "second_stage=kernel_ridge": "has no sensitivity bound for this second stage",
    f"{KERNEL} features=fourier": "of second_stage=linear",
    f"{KERNEL} second_stage.bandwidth=-1": "bandwidth",
    f"{STREAM} second_stage=linear": "all records are needed at once: blocks.*second_stage=adaptive",
    f"{STREAM} nuisance=wide_and_deep": "all records are needed at once: nuisance WideAndDeep.*nuisance=auto",
    f"{STREAM} data.n=100": "data.n is 100; a stream has all records",
    f"{STREAM} task=two_stage_rule": "all records are needed at once: TwoStageRule.*task=rule",
    f"{STREAM} task=owl": "all records are needed at once: OutcomeWeightedLearner.*task=rule",
}
BALANCING = "effect=covariate_balancing"
AVERAGES = {
    "effect.overlap=0.2": "the domain's overlap is the public clip",
    "effect.estimand=LATE": "estimand = 'LATE': choose one of ATE",
    f"{BALANCING} effect.fitter=magic": "fitter = 'magic'",
    "effect=magic": "magic",
    f"{BALANCING} effect.fitter=noisy_gradient": "delta",
    "effect.eeta=0.1": "effect.eeta",
    "features=representation": "nuisances",
    "privacy.epsilon=0": "epsilon",
    f"{STREAM} data.n=100": "data.n is 100; a stream has all records",
}
POLICIES = {
    "policies.path=nowhere.yaml": "nowhere.yaml: no such file",
    "policies.shares=[0.5]": "write thresholds of your own",
    "selection.overlap=0.6": "the domain's overlap",
    "privacy.epsilon=0": "epsilon",
    "mechanism=objective": "mechanism: not used by task=policy_selection",
}
EQUAL = "weights=constant"
RULES = {
    f"{EQUAL} privacy.epsilon=0.003": "expect an accuracy of 0.5",
    f"{EQUAL} privacy.epsilon=0.001": "epsilon = 0.001.*give more eps",
    f"{EQUAL} rule.ridge=1e-6": "ridge of at least",
    f"{EQUAL} rule.ridge=-1": "ridge = -1",
    "weights.propensity=0.5": "state propensity: in the domain file",
    f"{EQUAL} features=representation": "features = representation",
    f"{EQUAL} rule.gama=1": "rule.gama",
    f"{EQUAL} rule.mechanism=magic": "mechanism = magic",
    "task=rule rule.share=1.5 rule.population=public.csv": "budget = 1.5",
    "task=rule rule.share=0.5": "give population=",
    "task=subgroups subgroups.by=[sex]": "there is no setting subgroups.by",
    "task=rule rule.share=0.5 rule.population=sample.csv": "query 'age'",
    "task=rule nuisance=convex": "takes auto, additive, wide_and_deep or mlp",
}
CELLS = "subgroups=[{dose:[0.5]}]"
SUBGROUPS = {
    "seed=1": "subgroups is missing: give public cuts",
    "subgroups=[{height:true}]": "'height' is no covariate",
    "subgroups=[{dose:[2]}]": "leaves a cell empty",
    "subgroups=gone.yaml": "no such file",
    f"{CELLS} privacy.delta=0": "delta above 0",
    f"{CELLS} subgroup_effects.propensity=fitted": "doubly robust scores of one composition",
}
OF_OTHERS = {
    "mechanism=output": "not for second_stage = adaptive.*kernel_ridge, linear, neural and tangent",
    "second_stage=linear mechanism=composed": "not for second_stage = linear; composed is of second_stage=adaptive",
    "split=cross_fit": "of second_stage=kernel_ridge, linear, neural and tangent",
    "features=fourier features.pairs=7": "features: .*of second_stage=linear",
    "second_stage=neural features=fourier": "features: not used by task=cate with second_stage=neural",
    "second_stage.threshold=9": "of second_stage=kernel_ridge, linear and tangent",
    "second_stage.width=9": "of second_stage=neural",
    "nuisance=convex": "not for second_stage = adaptive; adaptive takes",
    "weights=ipw": "weights: not used by task=cate; it is of task=owl",
    "+weights=ipw": "write weights=ipw",
    "rule.ridge=3": "rule.ridge: not used by task=cate.*it is of task=owl",
    "effect=covariate_balancing": "effect: not used.*task=average_effect",
    "policies.path=policies.yaml": "policies.path: not used by task=cate",
    "mechanism=permute_and_flip": "the scores decide",
    "task=none": "none",
    "task=average_effect mechanism=output": "mechanism: not used by task=average_effect; it is of task=cate",
    "task=average_effect effect=composed features=legendre": "it is of effect=auto and covariate_balancing",
    "task=average_effect learner=dr": "learner: not used.*it is of task=cate",
    "task=average_effect queries.count=5": "queries.count: not used by task=average_effect",
    "task=policy_selection nuisance=mlp": "nuisance: not used by task=policy_selection",
    "task=policy_selection trainer=default": "trainer: not used",
    "task=owl mechanism=output": r"mechanism: not used.*use rule\.mechanism",
    "task=owl rule.share=0.2": "rule.share: not used by task=owl; it is of task=rule",
    "task=owl rule=two_stage": "the task says which rule; choose a task of owl, rule, two_stage_rule",
    "task=owl effect.estimand=ATT": "effect.estimand: not used by task=owl; it is of effect=auto",
    "task=two_stage_rule nuisance.width=3": "nuisance.width: not used by task=two_stage_rule; it is of nuisance=mlp",
    "task=rule weights=private": "weights: not used by task=rule; it is of task=owl",
}
WORDS = [
    *((["task=cate", *QUICK], *row) for row in LINEAR.items()),
    *((["task=cate"], *row) for row in EFFECTS.items()),
    *((["task=average_effect", "privacy.delta=0"], *row) for row in AVERAGES.items()),
    *((["task=policy_selection"], *row) for row in POLICIES.items()),
    *((["task=owl"], *row) for row in RULES.items()),
    *((["task=subgroups"], *row) for row in SUBGROUPS.items()),
    *((["task=cate"], *row) for row in OF_OTHERS.items()),
]


def named(words: list[str]) -> set[str]:
    return {word.lstrip("+").split("=")[0] for word in words}


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
    Path("policies.yaml").write_text(yaml.safe_dump([{"kind": "constants", "actions": [0, 1]}]))
    usual = [word for word in usual if not named([word]) & named(given)]
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


def policies(*entries) -> None:
    Path("policies.yaml").write_text(yaml.safe_dump(list(entries)))


def blank_three(frame: pd.DataFrame, name: str) -> pd.Series:
    return frame[name].astype(float).mask(frame.index < 3)


def three_arms() -> None:
    redomained(treatment={"name": "treat", "categories": [0, 1, 2]})
    change(treat=np.arange(400) % 3)


def bounds(**facts) -> None:
    redomained(covariates=DOMAIN["covariates"] | {"age": DOMAIN["covariates"]["age"] | facts})


CATE = ["task=cate", *QUICK]
AVERAGE, OWL = ["task=average_effect", "privacy.delta=0"], ["task=owl", EQUAL]
SELECT = ["task=policy_selection", "policies.path=policies.yaml"]
ONE_ARM = "treat.*no record with value 0"
FILES = {
    "no table": (lambda: Path("people.csv").unlink(), CATE, "people.csv"),
    "no domain file": (lambda: Path("domain.yaml").unlink(), CATE, "domain.yaml"),
    "no column": (lambda: table().drop(columns="age").to_csv("people.csv", index=False), CATE, "age"),
    "words for numbers": (lambda: change(age="old"), CATE, "age"),
    "missing values": (lambda: change(age=lambda f: blank_three(f, "age")), CATE, "'age'.*3"),
    "missing outcomes": (lambda: change(pay=lambda f: blank_three(f, "pay")), CATE, "pay.*3"),
    "a treatment not 0/1": (lambda: change(treat=lambda f: f["treat"] + 1), CATE, "treat"),
    "a covariate outside": (lambda: change(age=lambda f: f["age"] + 50), CATE, "age.*out_of_bounds=clip"),
    "an unknown category": (lambda: change(site="z"), CATE, "site"),
    "inverted bounds": (lambda: bounds(low=99), CATE, "age.*inverted"),
    "missing bounds": (lambda: redomained(outcome={"name": "pay", "low": 0}), CATE, "high"),
    "too few records": (lambda: table(6).to_csv("people.csv", index=False), CATE, "."),
    "three arms of an average": (three_arms, AVERAGE, "3 arms"),
    **{f"one arm, {words[0]}": (lambda: change(treat=1), words, ONE_ARM) for words in (CATE, AVERAGE, OWL, SELECT[:1])},
    **{
        f"an outcome outside, {words[0]}": (lambda: change(pay=11), words, "pay.*out_of_bounds=clip")
        for words in (CATE, AVERAGE, OWL, SELECT[:1])
    },
    "one arm of a stream": (
        lambda: change(treat=1),
        [*AVERAGE, STREAM],
        "people.csv: treatment column 'treat' has no record with value 0",
    ),
    "an outcome of a stream outside": (
        lambda: change(pay=11),
        [*AVERAGE, STREAM],
        "people.csv, rows 1 to 400: outcome 'pay' has 400 values",
    ),
    "no policies": (policies, SELECT, "policies is empty"),
    "no list of policies": (
        lambda: Path("policies.yaml").write_text("kind: constants"),
        SELECT,
        "policies.yaml.*holds no list",
    ),
    "a policy twice": (
        lambda: policies(
            {"kind": "constants", "actions": [1, 0]}, {"kind": "constants", "actions": [1], "names": ["t"]}
        ),
        SELECT,
        "'always 1' and 't' are the same policy",
    ),
    "a name twice": (
        lambda: policies(*({"kind": "constants", "actions": [0, 1]} for _ in range(2))),
        SELECT,
        "'always 0' is there twice",
    ),
    "an action outside": (
        lambda: policies({"kind": "constants", "actions": [0, 7]}),
        SELECT,
        "action 7 is none of 0, 1",
    ),
    "a policy of no covariate": (
        lambda: policies({"kind": "thresholds", "covariate": "height", "cuts": [1]}),
        SELECT,
        "'height' is no covariate",
    ),
    "no kind of policy": (
        lambda: policies({"kind": "oracle"}),
        SELECT,
        r"policies\[0\] is no policy; .*kind: .*thresholds",
    ),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("mistake", FILES)
def test_a_file_that_cannot_be(mistake, here, capsys):
    prepare, words, message = FILES[mistake]
    prepare()
    assert re.search(message, said([*TABLE, *words], here, capsys))


@pytest.mark.parametrize("task", all_tasks())
@pytest.mark.parametrize("high", [1e19, 1e300, 1e308, 1e-19, 5e-324])
def test_bounds_whose_arithmetic_overflows(task, high, here, capsys):
    """They are refused before anything is spent, by whatever task."""
    redomained(outcome=DOMAIN["outcome"] | {"low": 0, "high": high})
    assert "outcome 'pay' are" in (shown := said([*TABLE, f"task={task}"], here, capsys))
    assert "must not overflow" in shown
    redomained(outcome=DOMAIN["outcome"], covariates=DOMAIN["covariates"] | {"age": {"low": 0, "high": high}})
    assert "covariate 'age' are" in (shown := said([*TABLE, f"task={task}"], here, capsys))
    assert "must not overflow" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.first(1)
@pytest.mark.parametrize(
    "words",
    [
        "second_stage=linear nuisance=mlp",
        "second_stage=linear trainer.progress=false",
        "nuisance=additive",
        "task=rule",
    ],
)
def test_a_gpu_that_is_not_there(words, here, capsys):
    assert "trainer: " in said([*TABLE, *words.split(), "force=true", "trainer.accelerator=gpu"], here, capsys)


def test_torchrun(here, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "torchrun: each of its 2 processes" in said([*TABLE, *QUICK], here, capsys)


def test_a_run_folder_that_is_there(here, capsys):
    Path("r").mkdir()
    assert "run_dir = r: exists already" in said([*TABLE, *QUICK], here, capsys)
    assert list(Path("r").iterdir()) == []


@pytest.mark.first(1)
@pytest.mark.parametrize("words", ["", "data.n=300"])
@pytest.mark.parametrize("task", ["owl", "two_stage_rule weights=known"])
def test_the_propensity_of_a_table_is_never_guessed(task, words, here, capsys):
    shown = said([f"task={task.split()[0]}", *task.split()[1:], *TABLE, *words.split()], here, capsys)
    for way in ("propensity: 0.5 in the domain", "weights=private"):
        assert way in shown


def test_nor_is_that_of_generated_records_whose_treatment_depends_on_covariates(here, capsys):
    words = ["task=owl", "data=itr", "data.n=400", "data.confounded=true"]
    assert "weights=private" in said(words, here, capsys)


def test_faults_of_a_table_are_told_at_once(tmp_path, monkeypatch, capsys):
    """One line each, with its remedy: nobody mends a table five times."""
    monkeypatch.chdir(tmp_path)
    redomained()
    wrong = {"treat": "x", "pay": 99, "age": None, "black": 7, "site": "z"}
    table(40).astype(object).assign(**{name: [value] * 40 for name, value in wrong.items()}).to_csv("people.csv")
    assert main(["train", *TABLE]) == 2
    first, *lines = capsys.readouterr().err.strip().splitlines()
    assert first == "torchdpcate: people.csv: 5 columns are not as the domain file says:"
    assert len(lines) == 5
    assert all(line.startswith("- ") and "; " in line and name in line for line, name in zip(lines, wrong, strict=True))
