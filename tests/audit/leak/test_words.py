"""Words beyond ASCII: public levels are no leak, however they are written, and cells of the records are one."""

import html
import json
import unicodedata
from html.entities import codepoint2name

import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from torchdpcate.audit.leak.files import read_curator, read_folder
from torchdpcate.audit.leak.search import word_findings

LEVELS = [
    "Müller",
    "größer",
    "Île-de-France",
    "O'Brien",
    'say "so"',
    "back\\slash",
    "女性患者",
    "हिन्दी",
    "Ελλάδα",
    "🙂 smile",
]
SECRET = ["Westflügel", "Jürgen Öztürk", "王小明", "Владимир", 'Zoë\'s "place"', "Ño\\ño"]


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.fixture(params=[str, decomposed], ids=["NFC", "NFD"])
def curator(request, tmp_path):
    """The curator's files of a run on a table with these levels, as NFC, and with cells that no other file has."""
    run, written = tmp_path / "run", request.param
    for name in ("release", "curator"):
        (run / name).mkdir(parents=True)
    site = [unicodedata.normalize("NFC", level) for level in LEVELS]
    table = pd.DataFrame(
        {"treat": [0, 1] * 30, "pay": 5.0, "site": site * 6, "name": [written(w) for w in SECRET * 10]}
    )
    table.to_csv(run / "curator" / "people.csv", index=False)
    domain = {
        "treatment": "treat",
        "outcome": {"name": "pay", "low": 0, "high": 10},
        "covariates": {"site": {"categories": site}},
    }
    (run / "curator" / "domain.yaml").write_text(yaml.safe_dump(domain, allow_unicode=True), encoding="utf-8")
    data = {"_target_": "torchdpcate.data.Table"}
    data |= {"path": str(run / "curator" / "people.csv"), "domain": str(run / "curator" / "domain.yaml")}
    OmegaConf.save({"data": data}, run / "curator" / "config.yaml")
    return run


def found(run, text: str, name: str = "privacy.md") -> list[str]:
    (run / "release" / name).write_text(text, encoding="utf-8")
    curator = read_curator(run)
    assert not [note for note in curator.notes if "records" in note]
    return [finding.value for finding in word_findings(read_folder(run / "release"), curator)]


def by_name(word: str) -> str:
    """Return a word with the names that HTML has for letters, such as ``&auml;``."""
    letters = unicodedata.normalize("NFC", html.escape(word))
    return "".join(f"&{codepoint2name[ord(c)]};" if ord(c) in codepoint2name and ord(c) > 127 else c for c in letters)


WRITTEN = {
    "text": ("privacy.md", lambda word: f"mostly {word}, they say"),
    "NFC": ("privacy.md", lambda word: unicodedata.normalize("NFC", f"mostly {word}.")),
    "NFD": ("privacy.md", lambda word: unicodedata.normalize("NFD", f"mostly {word}.")),
    "JSON": ("privacy.json", lambda word: json.dumps({"note": [word]}, ensure_ascii=False)),
    "escaped JSON": ("privacy.json", lambda word: json.dumps({"note": [word]})),
    "JSON in a page": ("release.html", lambda word: f"<script>{json.dumps({'note': word})}</script>"),
    "a page": ("release.html", lambda word: f"<td>{word}</td>".replace("'", "&#x27;").replace('"', "&quot;")),
    "letters by name": ("release.html", lambda word: f"<td>{by_name(word)}</td>"),
    "named in a page": ("release.html", lambda word: f"<td>{word}</td>".encode("ascii", "xmlcharrefreplace").decode()),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("form", WRITTEN)
def test_public_levels_are_no_leak(form, curator):
    name, write = WRITTEN[form]
    for level in LEVELS:
        assert found(curator, write(level), name) == []


@pytest.mark.parametrize("form", WRITTEN)
def test_a_cell_of_the_records_is_one(form, curator):
    name, write = WRITTEN[form]
    for word in SECRET:
        assert found(curator, write(word), name) == [word]


def test_a_cell_within_a_text_without_spaces_is_found(curator):
    assert found(curator, "主要是王小明的数据") == ["王小明"]
    assert found(curator, "Westflügelbau") == []


@pytest.mark.parametrize("form", WRITTEN)
def test_a_table_in_latin_1_with_semicolons_is_read_as_training_reads_it(form, tmp_path):
    run = tmp_path / "run"
    for name in ("release", "curator"):
        (run / name).mkdir(parents=True)
    sex = ["Männer", "Frauen"]
    table = pd.DataFrame({"arzt": [0, 1] * 30, "pay": 5.25, "sex": sex * 30, "name": ["Jürgen Özil", "Zoë"] * 30})
    path = run / "curator" / "people.csv"
    table.to_csv(path, index=False, sep=";", decimal=",", encoding="latin-1")
    domain = {"treatment": "arzt", "outcome": {"name": "pay", "low": 0, "high": 10}}
    domain |= {"covariates": {"sex": {"categories": sex}}}
    data = {"_target_": "torchdpcate.data.Table", "path": str(path), "domain": domain}
    data |= {"separator": "semicolon", "decimal": "comma", "encoding": "latin-1"}
    OmegaConf.save({"data": data}, run / "curator" / "config.yaml")
    name, write = WRITTEN[form]
    assert found(run, write("Männer"), name) == []
    assert found(run, write("Jürgen Özil"), name) == ["Jürgen Özil"]
    assert set(read_curator(run).records["table's pay"]) == {5.25}
