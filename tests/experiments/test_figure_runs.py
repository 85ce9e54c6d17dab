"""Figures 6 and 7 of the DP-CATE paper: their runs are made once, and continue after an interruption."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.dp_cate import expression, medical
from tests.papers.layouts import extract_tables, write_extract


def test_the_medical_figure_is_drawn_of_a_run_a_budget(tmp_path, monkeypatch, capsys):
    """Figure 6, on invented stays; kernel ridge is the study's, whose cells the study tries."""
    monkeypatch.setattr(medical, "EPSILONS", (5,))
    monkeypatch.setattr(medical, "METHODS", dict(list(medical.METHODS.items())[:1]))
    path = write_extract(tmp_path / "extract", *extract_tables(persons=60))
    words = ["--path", str(path), "--label", "demo", "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr("sys.argv", ["medical", *words])
    medical.main()
    table = pd.read_csv(tmp_path / "runs" / "medical_demo.csv")
    assert (table["epsilon"].tolist(), table["level"].tolist()) == ([5], ["certified"])
    assert "60 records" in capsys.readouterr().out
    assert (tmp_path / "runs" / "medical_demo.png").stat().st_size > 5_000


def test_the_figure_of_gene_expression_is_drawn_of_a_run_a_budget(tmp_path, monkeypatch, capsys):
    """Figure 7, on an invented matrix of 20 genes, by the default and by kernel ridge at public points."""
    monkeypatch.setattr(expression, "EPSILONS", (5,))
    monkeypatch.setattr(expression, "METHODS", dict(list(expression.METHODS.items())[:2]))
    monkeypatch.setattr(expression, "QUERIES", 50)
    people = [f"TCGA-{place:02d}-{number:04d}-01" for place in range(20) for number in range(20)]
    values = np.random.default_rng(0).uniform(0, 15, (20, len(people)))
    pd.DataFrame(values, [f"G{j}" for j in range(20)], people).to_csv(
        tmp_path / "m.tsv", sep="\t", index_label="sample"
    )
    words = ["--path", str(tmp_path / "m.tsv"), "--label", "demo", "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr("sys.argv", ["expression", *words, "--words", "data.low=0", "data.high=15"])
    expression.main()
    table = pd.read_csv(tmp_path / "runs" / "expression_demo.csv")
    assert (table["epsilon"].tolist(), table["level"].tolist()) == ([5, 5], ["certified", "conditional"])
    assert "360 patients, 20 genes" in capsys.readouterr().out
    assert (tmp_path / "runs" / "expression_demo.png").stat().st_size > 5_000


def test_each_command_of_a_page_of_the_docs_is_there():
    docs = Path(__file__).parents[2] / "docs"
    text = "\n".join(path.read_text(encoding="utf-8") for path in docs.rglob("*.md"))
    studies = set(re.findall(r"torchdpcate study (\w+)", text)) - {"NAME"}
    modules = {f"experiments.{name}.study" for name in studies}
    modules |= set(re.findall(r"python -m (experiments[\w.]+\w)", text))
    for name in modules:
        place = importlib.util.find_spec(name)
        assert place is not None, name
        assert re.search(r"^STUDY = |__main__", Path(place.origin).read_text(encoding="utf-8"), re.MULTILINE), name
    assert {"experiments.dp_cate.medical", "experiments.niu.study"} <= modules
