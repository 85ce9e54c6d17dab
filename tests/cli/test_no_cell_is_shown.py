"""Records in the place of any other file: neither an error nor a draft shows a cell of them."""

import re
import shutil
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import PATHS
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.data.table import Table
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

CELL = re.compile(r"SECRET|7777")
"""What every cell below has in it, and nothing else."""
CELLS = [["SECRET1", "7777.5", "SECRET2", "77770"], ["SECRET3", "7777.25", "SECRET4", "77771"]]
WITHOUT_HEADER = {
    name: "\n".join(separator.join(row) for row in CELLS)
    for name, separator in {"commas": ",", "semicolons": ";", "tabs": "\t", "bars": "|", "colons": ": "}.items()
}
YAML = {
    "entries": "SECRET1: 7777\nSECRET2: {SECRET3: SECRET4}\n",
    "open": "SECRET1: ???\n7777: ???\n",
    "list": "- SECRET1\n- SECRET2: 7777\n- [SECRET3]\n- 7777\n",
    "twice": "SECRET1: 1\nSECRET1: 2\n",
    "tag": "!SECRET1 7777\n",
    "quotes": "SECRET1: 'SECRET2\nSECRET3: [7777\n",
    "directive": "%SECRET1 7777\n---\n1\n",
    "indented": "SECRET1: 7777\n  SECRET2: 7777\n",
    "percent": "SECRET1, 7777\n%SECRET2\n@SECRET3: `7777`\n",
    "json": '{"SECRET1": ["SECRET2", 7777], "SECRET3": SECRET4',
}
QUOTED = {"quoted": '"SECRET1","7777\n"SECRET2",7777', "uneven": "SECRET1,7777\nSECRET2,7777,SECRET3\n"}
FORMS = {**WITHOUT_HEADER, **YAML, **QUOTED, "rows": "a,a,b\nSECRET1,7777,1\n", "not UTF-8": "SECRET1,7777,\xff\n"}

SCHEMA = TableSchema.from_dict(
    {
        "treatment": "treat",
        "outcome": {"name": "pay", "low": 0, "high": 10, "better": "higher"},
        "covariates": {"age": {"low": 0, "high": 100}, "site": {"categories": ["n", "s"]}},
    }
)
GOOD = ["data.path=good.csv", "data.domain=good.yaml", "run_dir=r"]
SELECT = ["task=policy_selection", *GOOD]
TRAIN = {
    "data.domain": [["data.path=good.csv", "data.domain=FILE", "run_dir=r"]],
    "subgroups": [["task=subgroups", "subgroups=FILE", *GOOD]],
    "policies.path": [["policies.path=FILE", *SELECT]],
    "data.genes": [["data=tcga", "data.path=matrix.csv", "data.genes=FILE", "run_dir=r"]],
    "data.path": [["data.path=FILE", "data.domain=good.yaml", "run_dir=r"]],
    "queries.path": [["queries.path=FILE", *GOOD]],
    "rule.population": [["task=rule", "rule.share=0.5", "rule.population=FILE", *GOOD]],
    "sites.path": [["sites.path=FILE", "sites.name=a", "sites.socket=s", *GOOD]],
    "sites.socket": [["sites.path=good.yaml", "sites.name=a", "sites.socket=FILE", *GOOD]],
    "budget.shared": [["budget.shared=FILE", *GOOD]],
    "run_dir": [["data.path=good.csv", "data.domain=good.yaml", "run_dir=FILE"]],
    "more of data.path": [
        ["data=mimic", "data.path=FILE", "run_dir=r"],
        ["data=tcga", "data.path=FILE", "run_dir=r"],
        ["data=semi_synthetic", "data.path=FILE", "data.domain=good.yaml", "run_dir=r"],
        ["data.path=FILE", "run_dir=r"],
        ["data.domain=good.yaml", "data.path=[good.csv,FILE]", "run_dir=r"],
        ["task=average_effect", "data.stream=true", "data.path=FILE", "data.domain=good.yaml", "run_dir=r"],
    ],
}
PLAN = [
    ["data.path=good.csv", "data.domain=FILE", "n=100"],
    ["data.path=FILE", "data.domain=FILE", "n=100"],
    ["data.path=FILE", "data.domain=good.yaml", "n=metadata"],
    ["task=subgroups", "subgroups=FILE", "data.path=FILE", "data.domain=good.yaml", "n=100"],
    ["task=policy_selection", "policies.path=FILE", "data.path=FILE", "data.domain=good.yaml", "n=100"],
]
OTHERS = [
    ["domain", "FILE"],
    ["domain", "FILE", "--treatment", "treat", "--outcome", "pay"],
    ["predict", "FILE", "good.csv", "-o", "out.csv"],
    ["verify", "FILE"],
    ["sign", "FILE", "--key", "FILE"],
    ["ledger", "FILE"],
    ["sites", "FILE", "-o", "all"],
    ["report", "FILE"],
    ["report", "FILE", "--reference", "FILE"],
    ["audit", "leak", "FILE"],
]
OF_A_RELEASE = [
    ["predict", "RELEASE", "FILE", "-o", "out.csv"],
    ["verify", "RELEASE", "--key", "FILE"],
    ["sign", "RELEASE", "--key", "FILE"],
    ["report", "RELEASE", "--reference", "FILE"],
]
COMMANDS = [
    *OTHERS,
    *(["train", *words] for settings in TRAIN.values() for words in settings),
    *(["plan", *words] for words in PLAN),
]
QUICK = len(OTHERS) + list(TRAIN).index("queries.path")
"""Commands of the default tier, with the first form: yaml takes it for one word."""


def written(place: Path, form: str) -> None:
    """Write a table's cells where another file is wanted, and the other files as they should be."""
    (place / "FILE.csv").write_bytes(FORMS[form].encode("latin-1"))
    rng = np.random.default_rng(0)
    good = pd.DataFrame({"treat": rng.integers(0, 2, 40), "pay": 5.0, "age": 50, "site": rng.choice(["n", "s"], 40)})
    good.to_csv(place / "good.csv", index=False)
    (place / "matrix.csv").write_text("gene,p1,p2\ng1,1,2\ng2,3,4\n")
    (place / "good.yaml").write_text(yaml.safe_dump(SCHEMA.to_dict()))


def shown(words: list[str], capsys: pytest.CaptureFixture[str], expected: int = 2, **places: str) -> str:
    """Run a command, whose exit code is the expected one, and return all that it printed and wrote."""
    for name, place in {"FILE": "FILE.csv", **places}.items():
        words = [word.replace(name, place) for word in words]
    code, printed = main(words), capsys.readouterr()
    assert code == expected, printed.err
    drafts = [path.read_text() for path in Path().glob("*.yaml") if path.name != "good.yaml"]
    return "\n".join([printed.out, printed.err, *drafts])


@pytest.mark.first(QUICK)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("form", FORMS)
def test_no_command_shows_a_cell_of_a_file_that_is_another(form, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, form)
    drafted = form == "rows" and words == ["domain", "FILE"]  # a table, of whose header a draft is made
    assert not CELL.search(shown(words, capsys, expected=0 if drafted else 2))


@pytest.mark.parametrize("words", OF_A_RELEASE, ids=" ".join)
@pytest.mark.parametrize("form", ["colons", "entries", "commas"])
def test_no_reader_of_a_release_shows_a_cell(words, form, composed, tmp_path, monkeypatch, capsys):
    written(tmp_path, form)
    shutil.copytree(composed / "release", tmp_path / "RUN")
    monkeypatch.chdir(tmp_path)
    assert not CELL.search(shown(words, capsys, RELEASE="RUN"))


@pytest.mark.parametrize("form", FORMS)
def test_no_reader_of_yaml_shows_a_cell(form, tmp_path):
    written(tmp_path, form)
    path = tmp_path / "FILE.csv"
    for read in (
        TableSchema.from_yaml,
        TableSchema.of,
        PolicyLibrary.of,
        lambda path: Subgroups.of(path, SCHEMA),
        lambda path: Subgroups.of(str(path), SCHEMA),
    ):
        with pytest.raises(InputError) as error:
            read(path)
        assert not CELL.search("".join(traceback.format_exception(error.value)).replace(str(path), ""))


def test_records_in_the_place_of_public_facts_are_not_shown():
    frame = pd.DataFrame(CELLS)
    for build in (TableSchema.from_dict, TableSchema.of, lambda given: Table("FILE.csv", given).load()):
        with pytest.raises(Exception) as error:  # a TypeError is as good
            build(frame)
        assert not CELL.search(str(error.value))
    for build in (lambda given: Subgroups.of(given, SCHEMA), PolicyLibrary.of):
        for given in (frame, CELLS, frame.to_dict()):
            with pytest.raises(InputError) as error:
                build(given)
            assert not CELL.search(str(error.value))


def test_every_setting_that_takes_a_path_is_among_those_tried():
    """A comment in ``conf/`` says so of each; one of a table's columns or of a choice is none."""
    kinds = re.compile(r"#.*\b(file|files|folder|yaml|csv|parquet)\b")
    found = set()
    for path in conf_dir().rglob("*.yaml"):
        group = "" if path.parent in (conf_dir(), conf_dir() / "task") else path.parent.name
        for line in path.read_text().splitlines():
            name = re.match(r" *(\w+):", line)
            if name and group not in ("domain", "experiment") and (name[1].endswith("path") or kinds.search(line)):
                found.add(f"{group}.{name[1]}".removeprefix("."))
    blocks = {"shared": "budget.shared", "population": "rule.population"}
    blocks |= {"path": "sites.path", "socket": "sites.socket"}
    assert {blocks.get(name, name) for name in found} - NO_PATH == set(PATHS)
    assert TRAIN.keys() - {"more of data.path"} == set(PATHS)


NO_PATH = {
    "dir",
    "data.most_bytes",
    "policies.allow",
    "queries.count",
    "trainer.logger",
}
"""Settings whose comment speaks of a file or folder that they do not take, and Hydra's own."""
