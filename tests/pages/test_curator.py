import base64
import html
import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import markupsafe
import numpy as np
import pandas as pd
import yaml

from tests.cli.helpers import add
from torchdpcate.cli.main import main
from torchdpcate.cli.report import Part, curator_page, report

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


def test_a_sweep_is_on_one_page_for_its_owner_alone(tmp_path, capsys):
    for i, epsilon in enumerate((0.5, 1.0, 4.0)):
        add(tmp_path, f"run{i}", epsilon=epsilon, planned_noise=0.25, noise=0.5, pehe=0.3 / epsilon)
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
    assert set(drawn) == {"PEHE against budget"}
    means = rows(text, "Means and standard errors over runs")
    assert [cells[-6] for cells in means] == ["0.6", "0.3", "0.075"]


def test_words_of_runs_are_text(tmp_path):
    words = {"data": HOSTILE, "mechanism": HOSTILE, "settings": {HOSTILE: HOSTILE}, "planned_noise": 0.5}
    words["planned_of"] = HOSTILE
    for i, epsilon in enumerate((1.0, 2.0)):
        add(tmp_path, f"{HOSTILE[:8]}{i}", epsilon, **words)
    for folder in (tmp_path, tmp_path / f"{HOSTILE[:8]}0"):
        text = page(folder)
        assert "<script" not in text
        assert markupsafe.escape(HOSTILE) in text
        assert not any(b"<script" in base64.b64decode(data) for data, _ in PICTURE.findall(text))
    part = Part(HOSTILE, [HOSTILE], tables={HOSTILE: ([HOSTILE], [[HOSTILE]])}, whence=HOSTILE)
    assert "<script" not in curator_page(HOSTILE, [HOSTILE], [part])


QUESTIONS = {
    "What was clipped?": "unreleased",
    "Could either arm reach everybody?": "unreleased",
    "Are the arms alike after weighting?": "unreleased",
    "How many scores reach their clip?": "released",
    "Is the noise as planned?": "released",
    "How much of the propensity was kept?": "unreleased",
    "What was spent, and what is left?": "public",
}


def test_a_run_answers_a_question_after_the_other_and_marks_what_is_unreleased(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    age, a = random.integers(20, 99, 3_000), random.integers(0, 2, 3_000)
    pd.DataFrame({"years": age, "a": a, "y": age / 9 + a}).to_csv("d.csv", index=False)
    facts = {"treatment": "a", "outcome": {"name": "y", "low": 0, "high": 20}, "out_of_bounds": "clip", "overlap": 0.1}
    facts["covariates"] = {"years": {"low": 18, "high": 90, "label": "age at entry"}}
    Path("domain.yaml").write_text(yaml.safe_dump(facts))
    ledger = ["budget.shared=l", "budget.total.epsilon=3", "budget.total.delta=3e-5"]
    assert main(["train", "data.path=d.csv", "data.domain=domain.yaml", "run_dir=r", *ledger]) == 0
    text = page(Path("r"))
    found = re.findall(r'<h2>([^<]*) <span class="whence">(\w+)<', text)
    assert found == list(QUESTIONS.items())
    drawn = re.findall(r'<img src="data:image/[^;]*;base64,[^"]*" alt="([^"]*)">', text)
    assert drawn == [name for name in QUESTIONS if "scores" not in name]
    assert "age at entry" in pictures(text)["What was clipped?"]
    assert f"Most often age at entry: {(age > 90).sum()} of 3,000 ({100 * (age > 90).mean():.3g} %) values" in text
    assert "Left of the shared total: epsilon 2, delta 2e-05." in text
    sentences = re.findall(r"[^.<>]+", re.sub("<style>.*?</style>|<img[^>]*>", "", text, flags=re.DOTALL))
    assert max(len(sentence.split()) for sentence in sentences) <= 25
    Path("r/curator/arms.json").write_text("{")
    assert main(["report", "r"]) == 2
