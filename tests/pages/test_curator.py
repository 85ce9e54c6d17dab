import base64
import html
import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import markupsafe

from tests.cli.helpers import add
from torchdpcate.cli.report import PageTable, Part, curator_page, report

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
    assert next(row[-3:] for row in rows(text, "PEHE against budget")) == ["0.6", "0.3", "0.075"]


def test_words_of_runs_are_text(tmp_path):
    words = {"data": HOSTILE, "mechanism": HOSTILE, "settings": {HOSTILE: HOSTILE}, "planned_noise": 0.5}
    for i, epsilon in enumerate((1.0, 2.0)):
        add(tmp_path, f"{HOSTILE[:8]}{i}", epsilon, **words)
    for folder in (tmp_path, tmp_path / f"{HOSTILE[:8]}0"):
        text = page(folder)
        assert "<script" not in text
        assert markupsafe.escape(HOSTILE) in text
        assert not any(b"<script" in base64.b64decode(data) for data, _ in PICTURE.findall(text))
    table = PageTable(HOSTILE, HOSTILE, [HOSTILE], [[HOSTILE]])
    assert "<script" not in curator_page(HOSTILE, [HOSTILE], [Part(HOSTILE, [table], note=HOSTILE)])
