"""Words of ``train`` that name no setting: one line with the nearest names, and nothing is added that is never read."""

from pathlib import Path

import pytest

from tests.cli.helpers import one_line
from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import with_implied_table

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
    "dat/surface=twins": "the nearest is data/surface",
    "+experiment=lalonde": "write experiment=lalonde",
    "+data=dataset1": "write data=dataset1",
    "mechanism=objctive": "objective",
    "trainer.callbacks=[a.B]": "code beside records and losses that nothing paid for; give it in Python",
    "+trainer.default_root_dir=public": "curator/logs alone: nothing pays for them",
    "trainer.max_epochs=3": "give nuisance.epochs or second_stage.epochs",
    "hydra.foo=1": "hydra.foo",
    "+hydra.foo=1": "write hydra.foo=1",
    "+_target_=os.system": "no setting _target_",
    "+foo._target_=os.system": "no setting foo._target_",
    "mechanism=gausian": "there is no such mechanism; the nearest is gaussian_process",
    "task=kate": "there is no such task; the nearest is cate; choose one of average_effect, cate",
    "experiment=lalond": "the nearest is lalonde",
    "task": "write KEY=VALUE, such as task=average_effect",
    "privacy.epsilon": "write KEY=VALUE, such as privacy.epsilon=VALUE",
    "--mulirun": "no such option; the nearest is --multirun",
    "--force": "no such option; settings are words without dashes, as force=VALUE, and -m sweeps",
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
    "data.path=a.csv,b.csv -m": True,
    "data.domain=d.yaml task=owl": True,
    "data.n=30": False,
    "data=tcga data.path=t.tsv": False,
    "data=table data.path=t.csv": False,
    "experiment=lalonde data.path=t.csv": False,
    "experiment=dataset1 data.path=t.csv": False,
    "experiment=dp_cate data.path=t.csv data.domain=d.yaml": True,
    "data/surface=twins data.path=t.csv": False,
}


@pytest.mark.parametrize("words", NAME_A_TABLE)
def test_a_file_or_a_domain_implies_a_table(words):
    first, *rest = words.split()
    assert with_implied_table([first, *rest]) == [first, *["data=table"] * NAME_A_TABLE[words], *rest]


def test_a_table_without_its_domain_is_told_how_to_draft_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data.path=t.csv"]) == 2
    assert "data.domain: has no default; give data.domain=VALUE; torchdpcate domain TABLE" in one_line(capsys)


@pytest.mark.slow
def test_the_folder_of_a_sweep_may_come_before_its_option(tmp_path, capsys):
    assert main(["train", "task=owl", "privacy.epsilon=-1,-2", f"run_dir={tmp_path / 's'}", "-m"]) == 2
    assert "epsilon" in one_line(capsys)
