"""What a newcomer does with tables as they come: a domain file, a plan, runs of every task, and pages of the release.

The finding that a run prints is held against the truth that made its table.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.newcomer.made_tables import Made, extract, survival, trial
from torchdpcate.cli.main import main
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import noise_of

EPSILON = "privacy.epsilon=2"
ROWS = {"trial": trial, "extract": extract, "survival": survival}


@pytest.fixture
def table(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[Made, Callable[..., str]]]:
    """Write a table and its domain file, and return what runs a command on it and returns what was printed."""
    monkeypatch.chdir(tmp_path)

    def made(name: str) -> tuple[Made, Callable[..., str]]:
        found = ROWS[name](tmp_path)
        Path("domain.yaml").write_text(yaml.safe_dump(found.domain, allow_unicode=True))

        def run(task: str, *words: str, command: str = "train") -> str:
            given = [f"task={task}", "data=table", f"data.path={found.path}", "data.domain=domain.yaml", EPSILON]
            given += [*found.settings, *words, *([f"run_dir={task}"] if command == "train" else [])]
            assert main([command, *given]) == 0, capsys.readouterr().err
            return capsys.readouterr().out

        return found, run

    return made


def finding(said: str) -> str:
    """Return the finding that ends a run, in one line."""
    found = re.search(r"^finding (.*?)^claim ", said, re.DOTALL | re.MULTILINE)
    assert found is not None, said
    return " ".join(found[1].split()).replace("\N{MINUS SIGN}", "-")


def interval(words: str) -> tuple[float, float]:
    """Return the ends of a finding's interval, of which words say the direction."""
    found = re.search(r"95% interval ([-+\d.,]+) to ([-+\d.,]+?)\)", words)
    assert found is not None, words
    low, high = (float(end.replace(",", "")) for end in found.groups())
    return (-high, -low) if " lowers " in words else (low, high)


def test_a_trial_with_missing_values_words_and_dates(table) -> None:
    made, run = table("trial")
    said = run("cate", "n=1800", command="plan")
    assert "missing" in said
    found = finding(run("cate"))
    low, high = interval(found)
    assert ("drug instead of placebo lowers pain by " in found) is (high < 0)
    assert low - 6 < made.effects[0] < high + 6  # the noise is drawn anew: five standard errors and more
    assert high - low < 15
    assert ("Lower pain is better: this speaks for drug." in found) is (high < 0)
    verify_release("cate/release/release.safetensors")
    assert main(["predict", "cate", str(made.path), "-o", "effects.csv"]) == 0
    assert len(Path("effects.csv").read_text().splitlines()) == 1_801


@pytest.mark.slow
def test_an_extract_in_another_countrys_form_with_costs(table) -> None:
    made, run = table("extract")
    found = finding(run("average_effect"))
    assert "Euro" in found
    low, high = interval(found)
    assert ("Programm = ja instead of nein lowers Kosten by " in found) is (high < 0)
    assert low - 150 < made.effects[0] < high + 150
    assert high - low < 250
    assert ("Lower Kosten is better" in found) is (high < 0)
    rule = finding(run("rule", "privacy.epsilon=8"))
    assert "For low Kosten, the rule gives Programm = ja to " in rule


@pytest.mark.slow
def test_survival_in_three_arms(table) -> None:
    made, run = table("survival")
    found = finding(run("cate", "privacy.epsilon=1000"))
    for arm in ("low", "high"):
        assert f"{arm} instead of placebo raises the mean time without the event (died = yes) within 24 by " in found
    release = load_release("cate/release/release.safetensors")
    assert release.arms == ("low", "high")
    means, noise = release.average_effects.tolist(), noise_of(release)
    assert all(abs(mean - truth) < 1.2 for mean, truth in zip(means, made.effects, strict=True))
    assert noise is not None
    assert noise < 1
