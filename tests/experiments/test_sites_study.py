"""The study of several sites, in small."""

import math

from experiments.sites import study


def test_all_methods_have_an_error_and_a_line_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "SITES", 2)
    monkeypatch.setattr(study, "LAWS", {"B": "a trial", "C": "a constant effect"})
    path = tmp_path / "table.csv"
    study.run(path, ["B", "C"], {120: 1})
    before = path.read_text()
    study.run(path, ["B", "C"], {120: 1})  # what is done is not done again
    assert path.read_text() == before
    lines = study.read_lines(path)
    assert all(math.isfinite(float(line[method])) for line in lines for method in study.METHODS)
    study.draw(path)
    assert capsys.readouterr().out.count("| 120 |") == 2
