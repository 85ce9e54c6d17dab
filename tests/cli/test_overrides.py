"""Words of ``train``: what names no setting or cannot be read is one line; names of files stay as they are."""

import os
import re
import string
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.cli.helpers import one_line, refused
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import (
    PATHS,
    all_groups,
    all_tasks,
    checked_overrides,
    choices_of,
    composition,
    readable_words,
    with_implied_table,
)
from torchdpcate.cli.train import composed
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

REFUSED = {
    "foo=1": "no setting foo; no name is near it",
    "++foo=1": "no setting foo",
    "+privacy.epsilo=1": "the nearest is privacy.epsilon",
    "second_stag=linear": "the nearest is second_stage",
    "second_stage.rigde=1": "the nearest is second_stage.ridge",
    "ridge=1": "second_stage.ridge",
    "+privacy.epsilon=-2": "the setting is there; write it without +",
    "+nuisance.depth=3": "no setting nuisance.depth",
    "+experiment=dp_cate": "write experiment=dp_cate",
    "mechanism=gausian": "there is no such mechanism; the nearest is gaussian_process",
    "task=kate": "there is no such task; the nearest is cate; choose one of average_effect, cate",
    "task": "write KEY=VALUE, such as task=average_effect",
    "--mulirun": "no such option; the nearest is --multirun",
    "--epsilon=2": "no such option; settings are words without dashes, KEY=VALUE",
    "privacy.epsilon=[1": "cannot be read; write privacy.epsilon='\"...\"' for a plain text",
    "-m second_stage.bandwith=0.5": "no setting second_stage.bandwith",
    "hydra.foo=1": "of Hydra's own there are hydra/launcher, ",
    "seed=${oc.env:HOME}": "only ${SETTING} and ${now:FORMAT} are looked up",
    "~data": "a setting cannot be taken away",
    "seed=1.5": "seed = 1.5: give a whole number",
    "seed=null": "seed = None: give a whole number",
    "-m seed=0,abc": "seed = abc: give a whole number",
    "force=yes": "force = yes: give true or false",
    "second_stage.ridge=abc": "second_stage.ridge = abc: give a number",
    "second_stage={ridge: abc}": "there is no such second_stage",
    "second_stage.features=abc": "second_stage.features = abc: is what features=CHOICE chooses",
    "-m privacy.epsilon=interval(1,3)": "write its values, as privacy.epsilon=A,B",
    "-m seed=glob(*)": "write its values, as seed=A,B",
    "-m seed=range(3,1)": "has no value, so that nothing would run",
    "-m seed=range(1,3,0)": "seed=range(1,3,0): ",
    "experiment=null": "there is no such experiment",
    "seed=${nothing}": "seed = ${nothing}: there is no other setting nothing",
    "seed=${seed}": "there is no other setting seed",
    "budget.total.epsilon=abc": "budget.total.epsilon = abc: give a number",
    "data=[dataset1,dataset2]": "there is no such data",
    "=3": "write KEY=VALUE, such as privacy.epsilon=2",
    "--resolve": "--resolve is for --cfg",
    "-m --cfg=job": "--cfg shows one run, without -m",
    "-m hydra/launcher=basic,basic": "is the same for all runs; give one value",
    "-m hydra.launcher.n_jobs=2": "shows the settings of one",
    "-m hydra/sweeper=optuna": "not to be chosen; of Hydra's own there are",
    "-m hydra/launcher=joblb": "launchers are packages of their own",
    "seed=0,1": "add -m for a run with each",
    "privacy.epsilon=range(1,3)": "add -m for a run with each",
    "-m privacy.epsilon=rang(1,3)": "cannot be read",
    "dätä.path=x.csv": "cannot be read",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_word_that_names_no_setting_or_cannot_be_read_is_one_line_of_ours(word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    error = refused(word, ["second_stage=linear"], capsys)
    assert REFUSED[word] in error
    assert not re.search("append|hydra.cc|expecting|Lexer|mismatched", error)
    assert os.listdir(tmp_path) == []


def test_an_experiment_of_another_task_is_one_line_of_ours(capsys):
    assert main(["train", "task=rule", "experiment=dp_cate"]) == 2
    assert one_line(capsys) == "torchdpcate: experiment=dp_cate: is of task=cate; leave task=rule out"


@pytest.mark.slow
def test_settings_may_stand_on_both_sides_of_an_option(tmp_path, capsys):
    words = ["task=owl", "privacy.epsilon=-1,-2", "-m", "data.n=300,400", f"run_dir={tmp_path / 's'}"]
    assert main(["train", *words]) == 2
    assert "epsilon = -1" in one_line(capsys)


NAME_A_TABLE = {
    "data.path=t.csv data.domain=d.yaml privacy.epsilon=2": True,
    "-m data.path=a.csv,b.csv": True,
    "data.domain=d.yaml task=owl": True,
    "data.n=30": False,
    "data=tcga data.path=t.tsv": False,
    "experiment=dp_cate data.path=t.csv data.domain=d.yaml": True,
}


@pytest.mark.parametrize("words", NAME_A_TABLE)
def test_a_file_or_a_domain_implies_a_table(words):
    assert with_implied_table(words.split()) == [*words.split(), *["data=table"] * NAME_A_TABLE[words]]


def test_a_table_without_its_domain_is_told_how_to_draft_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data.path=t.csv"]) == 2
    assert "data.domain: has no default; give data.domain=VALUE; torchdpcate domain TABLE" in one_line(capsys)


def given_in(block: dict, place: str = ""):
    """Yield the name and the value of each setting of a yaml file."""
    for key, value in block.items():
        if isinstance(value, dict):
            yield from given_in(value, f"{place}{key}.")
        elif key != "defaults" and not key.startswith("_"):
            yield f"{place}{key}", value


BASES = [*({"task": task} for task in all_tasks()), {"task": "cate", "second_stage": "linear"}, {"data": "table"}]


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted(all_groups() - {"task", "experiment", "data/surface"}))
def test_each_number_of_conf_is_a_number(group):
    base = next(base for base in BASES if group in composition(base).groups)
    for choice in choices_of(group):
        words = [f"{key}={value}" for key, value in (base | {group: choice}).items()]
        for name, default in given_in(yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text("utf-8"))):
            if isinstance(default, bool | int | float):
                told = rf"^{group}.{name} = abc: give (true or false|a whole number|a number)$"
                with pytest.raises(InputError, match=told), checked_overrides([*words, f"{group}.{name}=abc"]):
                    pass
                with checked_overrides([*words, f"{group}.{name}={str(default).lower()}"]):
                    pass


def value_of(word: str):
    """What a word's value becomes in the configuration."""
    return OverridesParser.create().parse_override(word).value()


def plainly_meant(name: str) -> bool:
    """Whether a name is one of a file to us: no quotes, brackets, null, home folder or reference."""
    return not (name[0] in "'\"[{~" or "${" in name or name == "null")


LETTERS = st.characters(exclude_categories=["C", "Zl", "Zp"]) | st.sampled_from(string.punctuation + " ")


@settings(max_examples=50)
@given(st.text(LETTERS, min_size=1, max_size=12).filter(plainly_meant), st.sampled_from(sorted(PATHS)))
def test_any_printable_name_of_a_file_stays_as_it_is(name, key):
    (word,) = readable_words([f"{key}={name}"])
    assert value_of(word) == name
    assert readable_words([word]) == [word]


ODD = [
    "data (1).csv",
    "a=b.csv",
    "o'brien.csv",
    "x[1].csv",
    "größe 2.csv",
    "{a}.csv",
    "1e5",
    "007",
    "true",
    " a ",
    "-x",
]
ODD += ["'x.csv", "it's 'here'.csv", "a%b@c:d+e", "=", "a\\'b", "str(7)", "a b\\", "a,b.csv"]
"""Names that are no word of Hydra's grammar, or another value than a text."""
MEANT = {f"run_dir={name}": name for name in ODD} | {
    "run_dir=~/a b": "/home/x y/a b",
    "data.path='a,b.csv'": "a,b.csv",
    "data.path=[a.csv,b.csv]": ["a.csv", "b.csv"],
    "queries.path=null": None,
    "subgroups=[{age: [40, 60]}]": [{"age": [40, 60]}],
    "run_dir=out/${seed}": "out/${seed}",
    "seed=1": 1,
}


@pytest.mark.parametrize("word", MEANT)
def test_a_value_is_what_was_meant(word, monkeypatch):
    monkeypatch.setenv("HOME", "/home/x y")
    assert value_of(*readable_words([word])) == MEANT[word]


def test_odd_names_reach_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = dict(zip(("run_dir", "data.path", "data.domain", "subgroups"), ODD, strict=False)) | {
        "budget.shared": "007"
    }
    found = []
    composed("plan", ["task=subgroups", *(f"{key}={name}" for key, name in named.items())], found.append)
    assert {key: OmegaConf.select(found[0], key) for key in named} == named


@pytest.mark.slow
def test_a_sweep_runs_in_a_folder_of_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    words = ["-m", "run_dir=o'brien (1)/größe", "data.path=a b#1.csv,ü.csv", "data.domain=b.yaml"]
    composed("train", words, lambda config: seen.append((config.data.path, config.run_dir)))
    name = "o'brien (1)/größe"
    assert seen == [("a b#1.csv", name), ("ü.csv", name)]
    assert sorted(path.name for path in Path(name).iterdir() if path.is_dir()) == ["0", "1"]
