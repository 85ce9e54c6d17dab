"""What only the curator knows: a template that a command writes, and title, date and site on the page."""

import re
import shutil
from pathlib import Path

import pytest

from torchdpcate.cli.main import main
from torchdpcate.verify.deployments import FIELDS, read_facts

DOCS = Path(__file__).parents[2] / "docs"
WORDS = ("task=average_effect", "data.n=600", "privacy.delta=0")
FILLED = {
    "name": "Effect of a school meal",
    "data_product_region": "Basel",
    "publication_date": "2026-01-31",
    "data_curators": "[{data_curator_name: Hospital of Basel, data_curator_type: Government}]",
}


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished(*WORDS), tmp_path / "run")


def test_the_template_has_every_field_of_the_curators(run, capsys):
    assert main(["inspect", "run", "--new-facts", "facts.yaml"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^tier 1 wants url_slug, basic\.name, ", said, re.MULTILINE)
    assert read_facts("facts.yaml") == {}
    text = Path("facts.yaml").read_text()
    keys = re.findall(r"^ *(\w+):  # tier", text, re.MULTILINE)
    assert keys == [name.rpartition(".")[2] for name, field in FIELDS.items() if field.by_curator]
    assert main(["inspect", "run", "--new-facts", "facts.yaml"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_file_on_the_page_of_runs_is_one(tmp_path):
    (shown,) = re.findall(r"```yaml\n(deployment:.*?)```", (DOCS / "runs.md").read_text(), re.DOTALL)
    (tmp_path / "facts.yaml").write_text(shown)
    assert read_facts(tmp_path / "facts.yaml")["basic.name"] == "Effect of a school meal"


def test_the_page_shows_title_date_and_site(run, capsys):
    assert main(["inspect", "run", "--new-facts", "facts.yaml"]) == 0
    text = Path("facts.yaml").read_text()
    for key, value in FILLED.items():
        text = re.sub(rf"^( *{key}:)  #", rf"\1 {value}  #", text, count=1, flags=re.MULTILINE)
    Path("facts.yaml").write_text(text)
    assert main(["report", "run", "--facts", "facts.yaml"]) == 0
    page = Path("run/release/release.html").read_text()
    assert "<h1>Effect of a school meal</h1><p>Hospital of Basel, Basel, published 2026-01-31</p>" in page
    assert "Tier 1 still wants" in page
    assert main(["verify", "run"]) == 0
    assert main(["report", "run"]) == 0
    assert "Hospital of Basel" not in Path("run/release/release.html").read_text()
