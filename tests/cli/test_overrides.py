"""Words of ``train`` that name no setting: one line with the nearest names, and nothing is added that is never read."""

from pathlib import Path

import pytest
import yaml

from tests.cli.helpers import one_line, refused
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import (
    all_groups,
    all_tasks,
    checked_overrides,
    choices_of,
    composition,
    with_implied_table,
)
from torchdpcate.errors import InputError
from torchdpcate.registry import conf_dir

WRONG = {
    "foo=1": "no setting foo; no name is near it",
    "+foo=1": "no setting foo",
    "++foo=1": "no setting foo",
    "privacy.epsilo=1": "the nearest is privacy.epsilon",
    "+privacy.epsilo=1": "the nearest is privacy.epsilon",
    "second_stag=linear": "the nearest is second_stage",
    "second_stage.rigde=1": "the nearest is second_stage.ridge",
    "ridge=1": "second_stage.ridge",
    "nuisance.wdith=3": "the nearest is nuisance.width",
    "+nuisance.depth=3": "no setting nuisance.depth",
    "+experiment=dp_cate": "write experiment=dp_cate",
    "+data=dataset1": "write data=dataset1",
    "mechanism=objctive": "objective",
    "trainer.callbacks=[a.B]": "there is no setting trainer.callbacks",
    "hydra.foo=1": "of Hydra's own there are hydra/launcher, ",
    "+hydra.foo=1": "of Hydra's own there are hydra/launcher, ",
    "+_target_=os.system": "would run code that the word names by _target_",
    "+foo._target_=os.system": "would run code that the word names by _target_",
    "mechanism=gausian": "there is no such mechanism; the nearest is gaussian_process",
    "task=kate": "there is no such task; the nearest is cate; choose one of average_effect, cate",
    "experiment=dp_cat": "the nearest is dp_cate",
    "task": "write KEY=VALUE, such as task=average_effect",
    "privacy.epsilon": "write KEY=VALUE, such as privacy.epsilon=VALUE",
    "--mulirun": "no such option; the nearest is --multirun",
    "--epsilon=2": "no such option; settings are words without dashes, KEY=VALUE",
    "privacy.epsilon=[1": "cannot be read; write privacy.epsilon='\"...\"' for a plain text",
}


@pytest.mark.first(2)
@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1", "data=dataset1,dataset2"]], ids=["one run", "sweep"])
@pytest.mark.parametrize("word", WRONG)
def test_a_word_that_names_no_setting_is_one_line(word, sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if sweep and word == "+data=dataset1":
        sweep = sweep[:2]
    assert main(["train", *sweep, "second_stage=linear", word, f"run_dir={tmp_path / 'r'}"]) == 2
    error = one_line(capsys)
    assert WRONG[word] in error
    assert "append" not in error
    assert not list(Path(tmp_path).rglob("*.json"))


def test_a_wrong_setting_of_a_block_is_told_the_nearest_of_its_task(tmp_path, capsys):
    assert main(["train", "task=rule", "rule.shar=1", f"run_dir={tmp_path / 'r'}"]) == 2
    assert "there is no setting rule.shar; the nearest is rule.share" in one_line(capsys)


@pytest.mark.slow
def test_a_setting_of_any_swept_choice_is_known(tmp_path, capsys):
    words = [
        "-m",
        "data=dataset1,owl",
        "seed=0",
        "second_stage=linear",
        "+second_stage.rigde=1",
        f"run_dir={tmp_path / 'r'}",
    ]
    assert main(["train", *words]) == 2
    assert "second_stage.ridge" in one_line(capsys)
    words = ["second_stage=kernel_ridge,linear", "+second_stage.bandwidth=0.5", "+second_stage.bandwith=0.5"]
    assert main(["train", "-m", *words, f"run_dir={tmp_path / 'r'}"]) == 2
    assert "no setting second_stage.bandwith; the nearest is second_stage.bandwidth" in one_line(capsys)


@pytest.mark.slow
def test_a_setting_that_is_there_may_have_a_plus(tmp_path, capsys):
    words = ["data=dataset1", "data.n=300", "+privacy.epsilon=-2", f"run_dir={tmp_path / 'r'}"]
    assert main(["train", *words]) == 2
    assert "epsilon" in one_line(capsys)


NAME_A_TABLE = {
    "data.path=t.csv": True,
    "data.path=t.csv data.domain=d.yaml privacy.epsilon=2": True,
    "-m data.path=a.csv,b.csv": True,
    "data.domain=d.yaml task=owl": True,
    "data.n=30": False,
    "data=tcga data.path=t.tsv": False,
    "data=table data.path=t.csv": False,
    "experiment=dp_cate data.path=t.csv data.domain=d.yaml": True,
}


@pytest.mark.parametrize("words", NAME_A_TABLE)
def test_a_file_or_a_domain_implies_a_table(words):
    assert with_implied_table(words.split()) == [*words.split(), *["data=table"] * NAME_A_TABLE[words]]


def test_a_table_without_its_domain_is_told_how_to_draft_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data.path=t.csv"]) == 2
    assert "data.domain: has no default; give data.domain=VALUE; torchdpcate domain TABLE" in one_line(capsys)


@pytest.mark.slow
def test_the_folder_of_a_sweep_may_come_before_its_option(tmp_path, capsys):
    assert main(["train", "task=owl", "privacy.epsilon=-1,-2", f"run_dir={tmp_path / 's'}", "-m"]) == 2
    assert "epsilon" in one_line(capsys)


REFUSED = {
    "trainer=../../elsewhere/evil": "there is no such trainer",
    "data.n={_target_: os.mkdir}": "would run code that the word names by _target_",
    "seed=${oc.env:HOME}": "only ${SETTING} and ${now:FORMAT} are looked up",
    "~privacy.delta": "a setting cannot be taken away",
    "~data": "a setting cannot be taken away",
    "seed=abc": "seed = abc: give a whole number",
    "seed=1.5": "seed = 1.5: give a whole number",
    "seed=null": "seed = None: give a whole number",
    "-m seed=0,abc": "seed = abc: give a whole number",
    "force=yes": "force = yes: give true or false",
    "second_stage.ridge=abc": "second_stage.ridge = abc: give a number",
    "second_stage={ridge: abc}": "there is no such second_stage",
    "second_stage.features=abc": "second_stage.features = abc: is what features=CHOICE chooses",
    "data.n=abc": "data.n = abc: give a whole number",
    "-m privacy.epsilon=interval(1,3)": "write its values, as privacy.epsilon=A,B",
    "-m seed=glob(*)": "write its values, as seed=A,B",
    "-m data=glob(*)": "write its values, as data=A,B",
    "-m seed=range(3,1)": "has no value, so that nothing would run",
    "-m seed=range(1,3,0)": "seed=range(1,3,0): ",
    "trainer=null": "trainer=null: there is no such trainer",
    "experiment=null": "there is no such experiment",
    "seed=${nothing}": "seed = ${nothing}: there is no other setting nothing",
    "seed=${seed}": "there is no other setting seed",
    "privacy.noise_seed=abc": "privacy.noise_seed = abc: give a whole number",
    "budget.total.epsilon=abc": "budget.total.epsilon = abc: give a number",
    "data=[dataset1,dataset2]": "there is no such data",
    "=3": "write KEY=VALUE, such as privacy.epsilon=2",
    "--resolve": "--resolve is for --cfg",
    "-m --cfg=job": "--cfg shows one run, without -m",
    "-m hydra/launcher=basic,basic": "is the same for all runs; give one value",
    "-m hydra.launcher.n_jobs=2": "shows the settings of one",
    "-m hydra/sweeper=optuna": "not to be chosen; of Hydra's own there are",
    "-m hydra/launcher=joblb": "launchers are packages of their own",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_word_that_hydra_would_answer_is_one_line_of_ours(word, tmp_path, capsys):
    assert REFUSED[word] in refused(word, ["second_stage=linear", f"run_dir={tmp_path / 'r'}"], capsys)
    assert not list(tmp_path.iterdir())


def settings(block: dict, place: str = ""):
    """Yield the name and the value of each setting of a yaml file."""
    for key, value in block.items():
        if isinstance(value, dict):
            yield from settings(value, f"{place}{key}.")
        elif key != "defaults" and not key.startswith("_"):
            yield f"{place}{key}", value


BASES = [*({"task": task} for task in all_tasks()), {"task": "cate", "second_stage": "linear"}, {"data": "table"}]


@pytest.mark.parametrize("group", sorted(all_groups() - {"task", "experiment"}))
def test_each_number_of_conf_is_a_number(group):
    base = next(base for base in BASES if group in composition(base).groups)
    for choice in choices_of(group):
        words = [f"{key}={value}" for key, value in (base | {group: choice}).items()]
        for name, default in settings(yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text("utf-8"))):
            if isinstance(default, bool | int | float):
                told = rf"^{group}.{name} = abc: give (true or false|a whole number|a number)$"
                with pytest.raises(InputError, match=told), checked_overrides([*words, f"{group}.{name}=abc"]):
                    pass
                with checked_overrides([*words, f"{group}.{name}={str(default).lower()}"]):
                    pass


def test_settings_may_stand_on_both_sides_of_an_option(tmp_path, capsys):
    words = ["task=owl", "privacy.epsilon=-1,-2", "-m", "data.n=300,400", f"run_dir={tmp_path / 's'}"]
    assert main(["train", *words]) == 2
    assert "epsilon = -1" in one_line(capsys)
