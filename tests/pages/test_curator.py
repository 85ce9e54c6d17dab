"""The curator's page: what is shown of runs, for whom, and that words of runs are never markup."""

import base64
import html
import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import markupsafe
import numpy as np
import pytest

from tests.cli.test_report import add
from torchdpcate.cli.main import main
from torchdpcate.cli.report import report
from torchdpcate.errors import InputError
from torchdpcate.evaluation.comparison import EffectCurves
from torchdpcate.pages.curator import PageTable, Part, curator_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.ledger import Ledger

HOSTILE = '<script>alert("1")</script>$x_{'
PICTURE = re.compile(r'<img src="data:image/svg\+xml;base64,([^"]*)" alt="([^"]*)">')


def page(folder: Path) -> str:
    report(str(folder))
    return (folder / "curator" / "report.html").read_text()


def pictures(text: str) -> dict[str, str]:
    """The words in each picture, by its description."""
    found = {}
    for data, description in PICTURE.findall(text):
        tree = ET.fromstring(base64.b64decode(data))
        found[html.unescape(description)] = " ".join(tree.itertext())
    return found


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    body = text.split(f"<h3>{heading}</h3>")[1].split("</table>")[0].split("<tbody>")[1]
    return [[html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", row)] for row in body.split("</tr>")[:-1]]


def spend(run: Path) -> None:
    ledger = Ledger(
        {"nuisance": PrivacyBudget(1.0, 1e-5), "second_stage": PrivacyBudget(1.0, 0.0)}, run / "ledger.sqlite"
    )
    ledger.charge("nuisance", "weights", GaussianEvent(8.0))
    ledger.charge("second_stage", "theta", PureEvent(0.75))
    ledger.charge("second_stage", "scale", PureEvent(0.25))


def test_a_sweep_is_on_one_page_for_its_owner_alone(tmp_path, capsys):
    for i, epsilon in enumerate((0.5, 1.0, 4.0)):
        add(tmp_path, f"run{i}", epsilon=epsilon, planned_noise=0.25, noise=0.5, pehe=0.3 / epsilon)
        spend(tmp_path / f"run{i}" / "curator")
    text = page(tmp_path)
    path = tmp_path / "curator" / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert f"page: {path}, curator's, not for publication" in capsys.readouterr().out
    assert text.count("not for publication") >= 2  # in the title, and above everything
    assert '<p class="secret">' in text
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy
    drawn = pictures(text)
    assert {"Error against budget", "Planned and realised: noise of the second stage"} <= set(drawn)
    assert "theta" in drawn["Spent budgets, by block of records and by step"]
    planned = rows(text, "Planned and realised, means over runs")
    assert [row[-3:] for row in planned] == [["0.25", "0.5", "2"]] * 3
    spent = rows(text, "By block of records")
    assert spent[1] == ["run0", "second_stage", "1", "0", "1", "certified", "2"]
    assert float(spent[0][4]) == pytest.approx(0.4344, abs=1e-4)  # of mu = 1/8 at delta = 1e-5, by the closed form
    markdown = (tmp_path / "curator" / "report.md").read_text()
    assert all(cell in markdown for row in rows(text, "Error against budget") for cell in row)


def test_words_of_runs_are_text(tmp_path):
    line = np.linspace(0, 1, 3)
    curves = EffectCurves(HOSTILE, line, line, others={"truth": line})
    words = {"data": HOSTILE, "mechanism": HOSTILE, "settings": {HOSTILE: HOSTILE}, "planned_noise": 0.5}
    for i, epsilon in enumerate((1.0, 2.0)):
        add(tmp_path, f"{HOSTILE[:8]}{i}", curves, epsilon, **words)
        ledger = Ledger(
            {"records": PrivacyBudget(1.0, 0.0)}, tmp_path / f"{HOSTILE[:8]}{i}" / "curator" / "ledger.sqlite"
        )
        ledger.charge("records", HOSTILE, PureEvent(0.5))
    for folder in (tmp_path, tmp_path / f"{HOSTILE[:8]}0"):
        text = page(folder)
        assert "<script" not in text
        assert markupsafe.escape(HOSTILE) in text
        assert HOSTILE in " ".join(pictures(text).values())
        assert not any(b"<script" in base64.b64decode(data) for data, _ in PICTURE.findall(text))
    table = PageTable(HOSTILE, HOSTILE, [HOSTILE], [[HOSTILE]])
    assert "<script" not in curator_page(HOSTILE, [HOSTILE], [Part(HOSTILE, [table], note=HOSTILE)])


def test_what_runs_do_not_have_is_left_out(tmp_path):
    add(tmp_path, "run")
    text = page(tmp_path / "run")
    assert "Planned against realised" not in text
    assert "Spent budgets" not in text
    assert "run: 1 run<" in text


@pytest.mark.parametrize("content", ["{}", "[1"])
def test_a_damaged_ledger_is_named(tmp_path, content):
    add(tmp_path, "run")
    (tmp_path / "run" / "curator" / "ledger.sqlite").write_text(content)
    with pytest.raises(InputError, match=r"ledger\.sqlite"):
        report(str(tmp_path))
    assert not (tmp_path / "curator").exists()


WORDS = {
    "policies.csv": ["task=policy_selection", "data.n=600", "queries.count=20", "privacy.epsilon=4", "privacy.delta=0"],
    "balance.csv": ["task=average_effect", "effect=covariate_balancing", "data.n=1500", "privacy.epsilon=8",
                    "privacy.delta=0"],
}  # fmt: skip
SHOWN = {
    "policies.csv": ("Selection probabilities", "chance of being chosen"),
    "balance.csv": ("Balance of the arms before and after weighting", "after weighting, without noise"),
}


@pytest.mark.slow
@pytest.mark.parametrize("table", WORDS)
def test_a_run_shows_what_was_not_released_of_it(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *WORDS[table], "run_dir=run"]) == 0
    title, words = SHOWN[table]
    assert words in pictures(page(tmp_path / "run"))[title]
    (tmp_path / "run" / "curator" / table).write_text("policy,feature\na,b\n")
    with pytest.raises(InputError, match=table):
        report("run")
