"""``train --help``: all settings there are, by subject, each with its default and what ``conf/`` says of it."""

import re

import pytest

from torchdpcate.cli.main import main
from torchdpcate.cli.overrides import all_groups, all_tasks, choices_of, composition
from torchdpcate.cli.settings_help import settings_help, settings_of


def listed(text: str) -> dict[str, str]:
    """Return what is said of each word at the beginning of a line."""
    joined = re.sub(r"\n {4,}", " ", text)
    return {name: words.strip() for name, words in re.findall(r"^(\w[\w.]*)=\S*(?: \S+\])*(.*)$", joined, re.MULTILINE)}


@pytest.mark.first(3)
@pytest.mark.parametrize("task", all_tasks())
def test_every_setting_is_listed_with_words(task, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = listed(settings_help([f"task={task}"]))
    made = composition({"task": task, "data": "table"})
    said = settings_of(made.groups)
    for name in (name for name, (value, _) in made.settings.items() if name in all_groups() or not value):
        one = name in all_groups() and len(choices_of(name)) == 1  # nothing to choose
        follows = said.get(name, ("", ""))[0].startswith("${") and not said[name][1]  # another setting, which is listed
        if name != "task.name" and not one and not follows:
            assert found[name], name


def test_subjects_defaults_and_choices_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    for title in ("What is estimated", "Your records", "Privacy", "The run", "The estimator"):
        assert f"\n{title}\n" in out
    assert re.search(r"^privacy\.epsilon=1\.0 +of this run: how much it may show of a record", out, re.MULTILINE)
    assert re.search(r"^data\.separator=comma +between columns of text.*semicolon, tab, bar$", out, re.MULTILINE)
    assert re.search(r"^learner=r +Others: dr$", out, re.MULTILINE)
    assert "data.n_samples" not in out
    assert main(["train", "task=rule", "data=dataset1", "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^rule\.cost=0\.0 +of a treatment, in outcome units$", out, re.MULTILINE)
    assert "data.separator" not in out
    assert main(["plan", "task=subgroups", "-h"]) == 0
    assert "subgroups=null" in capsys.readouterr().out


def test_a_remark_is_read_with_the_lines_that_continue_it():
    said = settings_of({"task": "cate"})
    assert said["sites.path"][1].endswith("null: all records are here")
    assert said["budget.total.filter"] == (
        "null",
        "sums (of a new one), or gaussian: less for runs of Gaussian noise alone, and no others",
    )


def test_a_choice_that_there_is_not_is_refused(capsys):
    assert main(["train", "task=nothing", "--help"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_value_that_another_setting_has_is_named():
    text = settings_help([])
    assert not re.search(r"^\S+=(?: |$)", text, re.M)
    assert "all records. Others: " in " ".join(text.split())
