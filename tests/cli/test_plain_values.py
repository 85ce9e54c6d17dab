"""Names of files as words of ``train``: each reaches the configuration as it is; what cannot be read is one line."""

import os
import re
import string
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.cli.helpers import one_line
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import PATHS, readable_words
from torchdpcate.cli.train import composed

ODD = [
    "data (1).csv",
    "a=b.csv",
    "data#1.csv",
    "o'brien.csv",
    'say "a".csv',
    "x[1].csv",
    "étude.csv",
    "größe 2.csv",
    "数据.csv",
    "e\u0301tude.csv",
    "a;b&c!.csv",
    "{a}.csv",
    "a~b.csv",
    "(1).csv",
    "1e5",
    "007",
    "1_0",
    "true",
    "nan",
    " a ",
    "'x.csv",
    "it's 'here'.csv",
    "a%b@c:d+e",
    "-x",
    "=",
    "`a`",
    "a\\'b",
    "str(7)",
    "a b\\",
    "a,b.csv",
]
"""Names that are no word of Hydra's grammar, or another value than a text."""


def value_of(word: str):
    """What a word's value becomes in the configuration."""
    return OverridesParser.create().parse_override(word).value()


def plainly_meant(name: str) -> bool:
    """Whether a name is one of a file to us: no quotes, brackets, null, home folder or reference."""
    return not (name[0] in "'\"[{~" or "${" in name or name == "null")


LETTERS = st.characters(exclude_categories=["C", "Zl", "Zp"]) | st.sampled_from(string.punctuation + " ")


@settings(max_examples=100)
@given(st.text(LETTERS, min_size=1, max_size=12).filter(plainly_meant), st.sampled_from(sorted(PATHS)))
def test_any_printable_name_of_a_file_stays_as_it_is(name, key):
    (word,) = readable_words([f"{key}={name}"])
    assert value_of(word) == name
    assert readable_words([word]) == [word]


def test_names_that_are_quoted_in_a_sweep_stay():
    words = ["-m", "data.path='a,b.csv','c d.csv'", "seed=0,1"]
    assert readable_words(words) == words


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_is_quoted(name):
    assert value_of(*readable_words([f"run_dir={name}"])) == name


def test_odd_names_reach_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = dict(zip(("run_dir", "data.path", "data.domain", "subgroups"), ODD, strict=False))
    given["budget.shared"] = "007"
    found = []
    words = ["task=subgroups", *(f"{key}={name}" for key, name in given.items())]
    composed("plan", words, found.append)
    assert {key: OmegaConf.select(found[0], key) for key in given} == given


@pytest.mark.slow
def test_a_sweep_runs_in_a_folder_of_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    words = ["-m", "run_dir=o'brien (1)/größe", "data.path=a b#1.csv,ü.csv", "data.domain=b.yaml"]
    composed("train", words, lambda config: seen.append((config.data.path, config.run_dir)))
    name = "o'brien (1)/größe"
    assert seen == [("a b#1.csv", name), ("ü.csv", name)]
    assert sorted(path.name for path in Path(name).iterdir() if path.is_dir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("run_dir=~/a b", "/home/x y/a b"),
        ("data.path=~/a.csv", "/home/x y/a.csv"),
        ("data.path=a,b.csv", "a,b.csv"),
        ("data.path='a,b.csv'", "a,b.csv"),
        ("data.path=[a.csv,b.csv]", ["a.csv", "b.csv"]),
        ("queries.path=null", None),
        ("subgroups=[{age: [40, 60]}]", [{"age": [40, 60]}]),
        ("run_dir=out/${seed}", "out/${seed}"),
        ("seed=1", 1),
    ],
)
def test_a_value_is_what_was_meant(word, value, monkeypatch):
    monkeypatch.setenv("HOME", "/home/x y")
    assert value_of(*readable_words([word])) == value


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["seed=0,1"], "add -m for a run with each"),
        (["privacy.epsilon=range(1,3)"], "add -m for a run with each"),
        (["privacy.chosen={age: 40"], """write privacy.chosen='"..."' for a plain text"""),
        (["privacy.chosen={größe: 170}"], "cannot be read"),
        (["dätä.path=x.csv"], "cannot be read"),
        (["-m", "privacy.epsilon=rang(1,3)"], "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_line_of_ours(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    error = one_line(capsys)
    assert told in error
    assert not re.search("hydra.cc|expecting|Lexer|mismatched", error)
    assert os.listdir(tmp_path) == []
