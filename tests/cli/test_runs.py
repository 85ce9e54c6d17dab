"""Every choice that releases something: it trains, verifies, answers, and its release folder follows from its file."""

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.cli.helpers import QUICK, checked, released, summary, table
from tests.registered import shipped
from torchdpcate.cli.main import main
from torchdpcate.evaluation.comparison import pehe
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.release.file import load_release

BLOCKS = ("data=dataset1", "data.n=1200", "queries.count=25", *QUICK)
AVERAGE = ("task=average_effect", "data.n=3000", "privacy.epsilon=4")
PURE_AVERAGE = ("effect=covariate_balancing", "privacy.delta=0")
RULES = ("data.n=1200", "queries.count=60", "privacy.epsilon=4", "privacy.delta=0")
POLICY = ("task=policy_selection", "data.n=2000", "queries.count=60", "privacy.epsilon=4", "privacy.delta=0")
RULE = ("task=rule", "data.n=1200", "queries.count=60")
GAUSSIAN = "mechanism=gaussian_process"
CONFOUNDED = ("task=two_stage_rule", *RULES)
WIDE = "privacy.epsilon=35"  # else so few records are answered by bounds alone
RUNS = shipped(
    {
        "composed": [],
        "objective": [*BLOCKS, "compare=true"],
        "average": [*AVERAGE],
        "rule": [*RULE],
        "owl": ["task=owl", *RULES],
        "policy": [*POLICY, "data=confounded", "privacy.delta=1e-5"],
        "output": [*BLOCKS, "mechanism=output", "features=representation"],
        "gaussian process": [*BLOCKS, GAUSSIAN, "second_stage.loss=huber"],
        "plug-in": ["second_stage=plug_in", "nuisance.epochs=1"],
        "kernel": [*BLOCKS, "second_stage=kernel_ridge", GAUSSIAN],
        "kernel queries": [*BLOCKS, "second_stage=kernel_ridge", GAUSSIAN, "release=queries"],
        "doubly robust": [*BLOCKS, "learner=dr", "features=fourier", "features.pairs=20"],
        "queries": [*BLOCKS, "mechanism=output", "release=queries"],
        "smooth": [*BLOCKS, "release=queries", "mechanism=smooth_sensitivity", WIDE],
        "influence": [*BLOCKS, "release=queries", "mechanism=influence", WIDE],
        "neural": [*BLOCKS, "second_stage=neural", "second_stage.width=4", "release=queries", "mechanism=influence"],
        "balancing": [*AVERAGE, *PURE_AVERAGE],
        "of the treated": [*AVERAGE, *PURE_AVERAGE, "effect.estimand=ATT", "features=legendre"],
        "constant rule": [*RULE, "privacy.epsilon=0.05"],
        "pure rule": [*RULE, "privacy.delta=0"],
        "owl by output": ["task=owl", *RULES, "rule.mechanism=output", "outcome=shifted", "features=legendre"],
        "two stages": [*CONFOUNDED],
        "constant weights": [*CONFOUNDED, "weights=constant"],
        "pure policy": [*POLICY, "data=confounded"],
        "known propensity": [*POLICY],
        "policy of arms": [*POLICY, "policies=constants"],
    }
)
LEVELS = {"influence": "conditional", "neural": "heuristic"}
PURE = {"owl", "owl by output", "two stages", "constant weights"}
"""Box noise is pure, whatever delta was allowed."""


@pytest.fixture
def ran(finished, composed):
    """Return the folder of a finished run by its name."""

    def folder(name: str) -> Path:
        given = {word.partition("=")[0]: word for word in RUNS[name]}  # the last of each setting
        if "second_stage=neural" in RUNS[name]:
            given.pop("second_stage.ridge")
        return composed if name == "composed" else finished(*given.values())

    return folder


def run(*words: object) -> int:
    """Return the exit code of a command whose words nobody reads."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return main([str(word) for word in words])


@pytest.mark.first(6)
@pytest.mark.parametrize("name", RUNS)
def test_every_choice_trains_verifies_and_leaks_nothing(name, ran):
    folder = ran(name)
    checked(folder)
    found = summary(folder)
    assert found["level"] == LEVELS.get(name, "certified")
    if name == "neural":
        statement = json.loads((folder / "release" / "privacy.json").read_text())
        assert "heuristic" in statement["claim"]
        assert {found["epsilon"], found["delta"], statement["epsilon"], statement["delta"]} == {None}
        assert all("event" not in charge for block in statement["blocks"] for charge in block["charges"])
        return
    asked = found["requested"]
    assert 0 < found["epsilon"] <= asked["epsilon"] * (1 + 1e-6)
    assert found["delta"] == (0 if name in PURE else pytest.approx(asked["delta"], rel=1e-6))


@pytest.mark.first(6)
@pytest.mark.parametrize("name", RUNS)
def test_a_reader_asks_every_release(name, ran, tmp_path):
    release, people, answers = load_release(released(ran(name))), tmp_path / "in.csv", tmp_path / "out.csv"
    rows = release.queries if release.kind == "queries" else release.domain.grid(8)
    frame = table(8) if name == "composed" else pd.DataFrame(rows.numpy(), columns=list(release.schema.columns))
    frame.to_csv(people, index=False)
    code = run("predict", released(ran(name)), people, "-o", answers)
    assert code == (2 if release.kind == "lines" else 0)
    assert answers.exists() == (code == 0)
    if code == 0:
        assert pd.read_csv(answers)[release.column].notna().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian process", "kernel"])
def test_the_curator_answers_as_often_as_wanted_and_always_the_same(name, ran, tmp_path):
    folder, outs = shutil.copytree(ran(name), tmp_path / "r"), [tmp_path / f"{k}.csv" for k in (0, 1)]
    pd.DataFrame(np.random.default_rng(0).random((5, 2)), columns=["x0", "x1"]).to_csv(tmp_path / "in.csv", index=False)
    ledger = (folder / "curator" / "ledger.sqlite").read_bytes()
    for out in outs:
        assert run("predict", folder / "curator" / "online", tmp_path / "in.csv", "-o", out) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert (folder / "curator" / "ledger.sqlite").read_bytes() == ledger  # paid for once


def test_the_curators_settings_are_those_in_use(ran):
    config = yaml.safe_load((ran("objective") / "curator" / "config.yaml").read_text())
    assert {"data", "nuisance", "second_stage", "mechanism", "trainer"} <= set(config)
    assert not {"rule", "weights", "outcome", "loss"} & set(config)


def test_a_summary_of_an_effect_tells_what_the_file_says(ran):
    found, release = summary(ran("objective")), load_release(released(ran("objective")))
    names = ("task", "mechanism", "n", "seed", "second_stage")
    assert [found[name] for name in names] == ["cate", "objective", 1080, 0, "linear"]
    assert set(found["spent"]) == {"nuisance", "second_stage", "total"}
    assert all(found[name] > 0 for name in ("pehe", "pehe_nonprivate", "pehe_plug_in", "seconds"))
    study = Dataset1(n=1200, queries=25).load()
    assert pehe(release.effect_tensor(study.queries), study.effect) == pytest.approx(found["pehe"], rel=1e-12)


@pytest.mark.first(1)
@pytest.mark.parametrize(("name", "form"), [("rule", "linear"), ("constant rule", "constant"), ("pure rule", "linear")])
def test_a_summary_of_a_rule_tells_its_form(name, form, ran):
    folder = ran(name)
    found = summary(folder)
    assert (found["release"], found["learner"], found["form"]) == ("composed", "EffectRule", form)
    assert {"accuracy", "value", "regret_constant", "planned_noise", "nuisance"} <= found.keys()
    assert found["regret"] >= 0
    assert (folder / "release" / "rule.png").exists() is (form == "linear")


def test_costs_and_budgets_of_treatments_are_choices_of_a_run(tmp_path):
    population = tmp_path / "public.csv"
    pd.DataFrame([[0.1 * i, 0.5, 0.5, 0.5] for i in range(10)], columns=[f"x{j}" for j in range(4)]).to_csv(population)
    chosen = ["rule.cost=0.5", "rule.share=0.3", f"rule.population={population}", f"run_dir={tmp_path / 'r'}"]
    assert main(["train", *RULE, "privacy.epsilon=4", *chosen]) == 0
    rule = load_release(released(tmp_path / "r"))
    assert (rule.cost, rule.budget) == (0.5, 0.3)
    assert rule.decide(pd.read_csv(population)).sum() <= 3


@pytest.mark.slow
def test_real_covariates_are_never_published_as_queries(here):
    quick = [word for word in QUICK if "ridge" not in word]
    words = ["data=semi_synthetic", "data.path=people.csv", "data.domain=domain.yaml", "release=queries"]
    assert main(["train", *words, *quick, "second_stage.ridge=0.05", "queries.count=9", "run_dir=r"]) == 0
    release = load_release(released(Path("r")))
    rows = release.schema.encode(pd.read_csv("people.csv"))
    assert (release.queries[:, None] == rows[None]).all(-1).sum() == 0
