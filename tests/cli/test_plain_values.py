"""Names of files as words of ``train``: each reaches the configuration as it is, and no name chooses an estimator."""

import os
import re
import string
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.cli.helpers import one_line
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import with_implied_table
from torchdpcate.cli.plain_values import PATHS, readable_words
from torchdpcate.cli.train import composed
from torchdpcate.errors import InputError

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
ASKED = ["data.path=d.csv", "data.domain=b.yaml", "nuisance=mlp"]


def value_of(word: str):
    """What a word's value becomes in the configuration."""
    return OverridesParser.create().parse_override(word).value()


def names(meant) -> st.SearchStrategy[str]:
    letters = st.characters(exclude_categories=["C", "Zl", "Zp"]) | st.sampled_from(string.punctuation + " ")
    return st.text(letters, min_size=1, max_size=12).filter(lambda name: meant(name) and name.isprintable())


def plainly_meant(name: str) -> bool:
    """Whether a name is one of a file to us: not quoted, null, a home folder, or a word of OmegaConf's."""
    quoted = len(name) > 1 and name[0] in "'\"" and name[-1] == name[0]
    return not (quoted or "${" in name or name.strip() in ("null", "???", "") or name.startswith("~") or name == "null")


@settings(max_examples=150)
@given(names(plainly_meant), st.sampled_from(sorted(key for key, many in PATHS.items() if not many)))
@example("a\\,b", "run_dir")
def test_any_printable_name_of_a_file_stays_as_it_is_or_is_refused_in_one_line(name, key):
    try:
        (word,) = readable_words([f"{key}={name}"])
    except InputError as refused:
        told = str(refused)
        assert "\\" in name  # a text of Hydra's own with an escape
        assert f"{key}='\"" in told
        assert "\n" not in told
    else:
        assert value_of(word) == name
        assert readable_words([word]) == [word]


@settings(max_examples=50)
@given(names(lambda name: plainly_meant(name) and name[0] not in "[{"), st.sampled_from(["data.path", "subgroups"]))
def test_so_does_one_where_a_list_could_stand(name, key):
    try:
        (word,) = readable_words([f"{key}={name}"])
    except InputError:
        assert set("\\,") & set(name)
    else:
        assert value_of(word) == name


@settings(max_examples=50)
@given(names(plainly_meant))
@example("ä")
@example("a=b")
def test_the_name_of_a_folder_chooses_nothing(name):
    try:
        words = readable_words([*ASKED, f"run_dir={name}"])
    except InputError:
        return
    implied = with_implied_table(words)
    assert [word for word in implied if word != words[-1]] == [
        "data.path=d.csv", "data.domain=b.yaml", "nuisance=mlp", "data=table"
    ]  # fmt: skip


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


HOME = str(Path("/home/ann"))


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data.path=~/x.csv", f"{HOME}/x.csv"),
        ("data.path=[~/x.csv,étude.csv,b.csv]", [f"{HOME}/x.csv", "étude.csv", "b.csv"]),
        ("data.path=[a b#.csv, 'c,d.csv']", ["a b#.csv", "c,d.csv"]),
        ("data.path='a,b.csv'", "a,b.csv"),
        ("data.path=[a.csv,b.csv]", ["a.csv", "b.csv"]),
        ("queries.path=null", None),
        ("subgroups=[{age: [40, 60]}]", [{"age": [40, 60]}]),
        ("subgroups=[{'age=yrs': [40,60]}]", "[{'age=yrs': [40,60]}]"),
        ("figure.covariate=age=yrs", "age=yrs"),
        ("seed=1", 1),
        ("privacy.epsilon=1e-1", 0.1),
    ],
)
def test_a_value_is_what_was_meant(word, value, monkeypatch):
    monkeypatch.setenv("HOME", HOME)
    assert value_of(*readable_words([word])) == value


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "seed=0,1,2", "privacy.epsilon=choice(0.5,1,4)", "data.n=range(100,300,100)"],
        ["-m", "data.path=a.csv,b.csv", "run_dir=out/${seed}"],
        ["--multirun", "data.path=choice('a b.csv','c#.csv')", "task=owl,rule"],
        ["~trainer", "+effect.shares.a=1", "data/surface=twins", "nuisance.width=[8,8]", "x='a,b'"],
        ["--cfg", "job", "figure.profile={age: 40}"],
    ],
)
def test_words_that_hydra_reads_stay(words):
    assert readable_words(words) == words


def test_swept_names_are_quoted_one_by_one():
    assert readable_words(["-m", "data.path=étude.csv,a (1).csv,b.csv", "nuisance=linear,größe"]) == [
        "-m",
        "data.path='étude.csv','a (1).csv',b.csv",
        "nuisance=linear,'größe'",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["data.path=a,b.csv"],
            """write data.path=[a,b.csv] for a list, data.path='"a,b.csv"' for one text""",
        ),
        (["seed=0,1"], "add -m for a run with each"),
        (["privacy.epsilon=range(1,3)"], "add -m for a run with each"),
        (["run_dir=a\\,b"], """write run_dir='"a\\,b"'"""),
        (["figure.profile={age: 40"], """write figure.profile='"..."' for a plain text"""),
        (["figure.profile={größe: 170}"], "cannot be read"),
        (["dätä.path=x.csv"], "there is no setting dätä.path"),
        (["-m", "privacy.epsilon=rang(1,3)"], "cannot be read"),
    ],
)
def test_what_cannot_be_guessed_is_one_line_of_ours(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    error = one_line(capsys)
    assert told in error
    assert not re.search("hydra.cc|expecting|Lexer|mismatched", error)
    assert os.listdir(tmp_path) == []
