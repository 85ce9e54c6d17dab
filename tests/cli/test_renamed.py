"""Old names of settings and choices: read as the new ones, with one line of warning."""

import pytest
import yaml

from torchdpcate.cli import renamed
from torchdpcate.registry import conf_dir


def test_old_names_are_read_as_new_ones_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr(renamed, "OPTIONS", {"rule.gamma": "rule.ridge", "old": "new", "old.part": "new.piece"})
    monkeypatch.setattr(renamed, "CHOICES", {"new": {"first": "second"}})
    words = ["-m", "+rule.gamma=3", "rule.gamma_bound=4", "old=a,first,first_b", "old.part.low=1", "old.rest=2", "~old"]
    assert renamed.new_words(words) == [
        "-m", "+rule.ridge=3", "rule.gamma_bound=4", "new=a,second,first_b", "new.piece.low=1", "new.rest=2", "~new",
    ]  # fmt: skip
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "+rule.gamma=3 is now +rule.ridge=3; old=a,first,first_b is now new=a,second,first_b" in error


def test_today_s_names_pass_without_a_word(capsys):
    words = ["-m", "task=owl", "data.path='a=b.csv'", "x y", "--cfg", "data.domain={treatment: treat}", "seed=0,1"]
    assert renamed.new_words(words) == words
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("group", [name for name in renamed.CHOICES if "." not in name])
def test_new_choices_are_there_and_old_ones_are_not(group):
    for old, new in renamed.CHOICES[group].items():
        assert (conf_dir() / group / f"{new}.yaml").is_file()
        assert not (conf_dir() / group / f"{old}.yaml").exists()


def settings_of(yaml_file) -> set[str]:
    """Return the dotted names of a yaml's settings, its group first; of a task's, as they are."""
    found: set[str] = set()

    def add(values: object, name: str) -> None:
        for key, inner in values.items() if isinstance(values, dict) else ():
            found.add(f"{name}{key}")
            add(inner, f"{name}{key}.")

    group = yaml_file.parent.name
    add(yaml.safe_load(yaml_file.read_text()), "" if group == "task" else f"{group}.")
    return found


def test_new_settings_are_there_and_old_ones_are_not():
    known = set().union(*map(settings_of, conf_dir().rglob("*.yaml")))
    groups = {path.parent.name for path in conf_dir().rglob("*.yaml")}
    assert set(renamed.OPTIONS.values()) <= known | groups
    assert not set(renamed.OPTIONS) & (known | groups)


def test_a_summary_of_an_earlier_version_is_read_by_its_old_keys():
    assert (
        renamed.by_any_name({"nuisance_guarantee": "fixed", "certificate": "frozen"}, "nuisance_guarantee") == "fixed"
    )
    assert renamed.by_any_name({"certificate": "frozen"}, "nuisance_guarantee") == "frozen"
    assert renamed.by_any_name({}, "nuisance_guarantee") is None
