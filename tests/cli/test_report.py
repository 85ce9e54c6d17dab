"""``report``: means over seeds, methods told apart by what varies, figures, and a table of a real sweep."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from tests.faults.guards import answered
from tests.faults.mutations import examples, json_faults
from torchdpcate.cli.comparison import budget_table, compare, markdown, method_of
from torchdpcate.cli.main import main
from torchdpcate.cli.report import report
from torchdpcate.errors import InputError
from torchdpcate.evaluation import EffectCurves
from torchdpcate.release import load_release

SUMMARY = {
    "task": "cate",
    "data": "dataset1",
    "learner": "RLearner",
    "release": "function",
    "mechanism": "objective",
    "level": "certified",
    "epsilon": 1.0,
    "delta": 1e-5,
    "requested": {"epsilon": 1.0, "delta": 1e-5, "settings": {"second_stage.ridge": "0.02"}},
    "spent": {"nuisance": {"epsilon": 1.0}, "total": {"epsilon": 0.99}},
    "n": 1350,
    "seed": 0,
    "noise": 0.5,
    "second_stage": "linear",
    "features": "legendre",
    "split": "disjoint",
    "nuisance": "mlp",
    "pehe": 0.3,
    "pehe_nonprivate": 0.1,
    "pehe_plug_in": 0.4,
    "pehe_constant": 0.7,
    "seconds": 1.5,
}


def add(folder: Path, name: str, curves: EffectCurves | None = None, epsilon: float = 1.0, **changes) -> None:
    """Write a run with other values than ``SUMMARY``'s."""
    (folder / name / "curator").mkdir(parents=True)
    settings = changes.pop("settings", {})
    changes["requested"] = {"epsilon": epsilon, "delta": 1e-5, "settings": settings}
    (folder / name / "summary.json").write_text(json.dumps(SUMMARY | changes))
    if curves is not None:
        curves.save(folder / name / "curator" / "curves.json")


def frame(*runs: dict) -> pd.DataFrame:
    """Runs as ``report`` reads them."""
    given = {"varied": "", "requested_epsilon": 1.0, "spent_epsilon": 0.99}
    table = pd.DataFrame([SUMMARY | given | run for run in runs])
    return table.assign(method=method_of(table))


def test_means_and_standard_errors_over_seeds():
    table = compare(frame({"pehe": 0.2}, {"pehe": 0.4, "noise": 0.7, "spent_epsilon": 0.5, "seed": 1}))
    assert table.to_dict("records") == [
        {
            "data": "dataset1",
            "n": "1,350",
            "mechanism": "objective",
            "epsilon": "1",
            "runs": "2",
            "PEHE": "0.3 ± 0.1",
            "plug-in": "0.4",
            "non-private": "0.1",
            "constant effect": "0.7",
            "noise": "0.6",
            "level": "certified",
            "spent": "0.99",
        }
    ]


def test_what_is_secret_or_unknown_is_a_dash():
    row = compare(frame({"noise": None, "spent_epsilon": None, "pehe": np.nan, "level": "heuristic"})).iloc[0]
    assert (row["noise"], row["spent"], row["PEHE"], row["level"]) == ("-", "-", "-", "heuristic")


def test_rows_of_one_budget_stand_together():
    runs = [{"mechanism": m, "requested_epsilon": e} for m in ("output", "objective") for e in (10.0, 0.5)]
    table = compare(frame(*runs))
    assert table[["epsilon", "mechanism"]].to_numpy().tolist() == [
        ["0.5", "objective"],
        ["0.5", "output"],
        ["10", "objective"],
        ["10", "output"],
    ]


def test_methods_are_named_by_what_tells_them_apart():
    runs = frame(
        {"mechanism": "objective", "release": "function", "learner": "RLearner"},
        {"mechanism": "objective", "release": "function", "learner": "DRLearner"},
        {"mechanism": "gaussian_process", "release": "queries", "learner": "RLearner"},
    )
    assert runs["method"].tolist() == ["objective RLearner", "objective DRLearner", "gaussian_process RLearner"]
    table = compare(runs)
    assert "release" not in table  # the mechanism says it
    assert table["learner"].tolist() == ["DRLearner", "RLearner", "RLearner"]


def test_errors_by_method_and_budget():
    runs = [
        {"mechanism": m, "requested_epsilon": e, "pehe": p, "data": d}
        for d in ("b", "a")
        for m, e, p in (("output", 5.0, 0.2), ("output", 0.5, 0.9), ("plug_in", 5.0, 0.4))
    ]
    table = budget_table(frame(*runs))
    assert list(table.columns) == ["data", "n", "method", "eps = 0.5", "eps = 5"]
    assert table["data"].tolist() == ["a"] * 4 + ["b"] * 4
    assert table.iloc[:4, 2:].to_numpy().tolist() == [
        ["output", "0.9", "0.2"],
        ["plug_in", "-", "0.4"],
        ["non-private", "0.1", "0.1 ± 0"],
        ["constant effect", "0.7", "0.7 ± 0"],
    ]
    assert budget_table(frame({"pehe": None})) is None


def test_markdown_keeps_its_columns_whatever_a_cell_holds():
    assert markdown(pd.DataFrame({"a|b": ["c|d"]})) == "| a\\|b |\n| --- |\n| c\\|d |"


GRID = np.linspace(0, 1, 5)


def curves(shift: float = 0.0, covariate: str = "x0") -> EffectCurves:
    return EffectCurves(covariate, GRID, GRID + shift, None, 0.95, {"truth": GRID})


def test_a_sweep_becomes_tables_and_figures(tmp_path, capsys):
    for i, (mechanism, epsilon, seed) in enumerate(
        (m, e, s) for m in ("objective", "output") for e in (0.5, 5.0) for s in (3, 4)
    ):
        add(tmp_path, str(i), curves(i), epsilon, mechanism=mechanism, seed=seed, settings={"a.b": "1"})
    report(str(tmp_path))
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {"report.csv", "report.md", "error_against_budget.png", "effect_dataset1_n1350.png"}
    runs = pd.read_csv(tmp_path / "report.csv")
    assert len(runs) == 8
    assert {"data", "learner", "second_stage", "features", "split", "nuisance", "noise", "level"} <= set(runs)
    assert set(runs["settings"]) == {"a.b=1"}
    assert runs["spent_epsilon"].tolist() == [0.99] * 8
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("Curator only")
    assert "| dataset1 | 1,350 | objective | 0.3 ± 0 | 0.3 ± 0 |" in page
    assert "settings" not in page  # all runs share them
    assert "output" in capsys.readouterr().out


def test_settings_that_vary_tell_methods_apart(tmp_path):
    for name, ridge in (("a", "0.1"), ("b", "0.2")):
        add(tmp_path, name, settings={"second_stage.ridge": ridge, "nuisance.epochs": "2"})
    report(str(tmp_path))
    page = (tmp_path / "report.md").read_text()
    assert "| objective second_stage.ridge=0.1 |" in page
    assert "epochs" not in page
    assert "nuisance.epochs=2" in (tmp_path / "report.csv").read_text()


def drawn(folder: Path, monkeypatch) -> dict:
    """The curves that ``report`` draws on a folder, by title."""
    seen = {}

    def figure(runs, title):
        from torchdpcate.evaluation import curves_figure

        seen[title] = runs
        return curves_figure(runs, title)

    monkeypatch.setattr("torchdpcate.cli.report.curves_figure", figure)
    report(str(folder))
    return seen


def test_the_smallest_seed_is_drawn_along_one_covariate(tmp_path, monkeypatch):
    for i, (mechanism, seed) in enumerate((m, s) for m in ("objective", "output") for s in (7, 2)):
        add(tmp_path, str(i), curves(i), mechanism=mechanism, seed=seed)
    add(tmp_path, "old", mechanism="plug_in", seed=2)  # a run without curves
    add(tmp_path, "queer", curves(covariate="x1"), mechanism="statistics", seed=2)
    add(tmp_path, "alone", curves(), data="dataset2")
    (title, runs), *others = drawn(tmp_path, monkeypatch).items()
    assert not others
    assert title == "dataset1, n = 1,350, seed 2"
    assert set(runs) == {1.0}
    assert {name: found.released[0] for name, found in runs[1.0].items()} == {"objective": 1.0, "output": 3.0}


def test_runs_of_one_method_and_seed_alone_get_no_figure(tmp_path):
    add(tmp_path, "a", curves())
    report(str(tmp_path))
    assert not list(tmp_path.glob("*.png"))


def test_names_of_data_are_safe_as_names_of_files(tmp_path):
    for name, mechanism in (("a", "objective"), ("b", "output")):
        add(tmp_path, name, curves(), data="../é $_{ [b]", mechanism=mechanism)
    report(str(tmp_path))
    (path,) = tmp_path.glob("*.png")
    assert path.name == "effect_.._é___b__n1350.png"


def test_damaged_curves_are_refused_before_anything_is_written(tmp_path):
    for name, mechanism in (("a", "objective"), ("b", "output")):
        add(tmp_path, name, curves(), mechanism=mechanism)
    (tmp_path / "a" / "curator" / "curves.json").write_text("{}")
    with pytest.raises(InputError, match="no curves of a run, or damaged"):
        report(str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


@examples(40)
@given(json_faults(SUMMARY))
def test_damaged_summaries_are_refused_or_shown(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "damaged_summaries"
    if not folder.exists():
        add(folder, "0", epsilon=2.0)
        add(folder, "1")
    (folder / "1" / "summary.json").write_text(text, encoding="utf-8")
    for path in folder.glob("report.*"):
        path.unlink()
    assert answered(lambda: report(str(folder))) == (folder / "report.md").exists()


QUICK = ["data=dataset1", "data.n=700", "queries.count=10", "nuisance.batch_size=50", "nuisance.epochs=2"]
QUICK += ["second_stage.ridge=0.02", "trainer.progress=false"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two mechanisms, one budget, one seed."""
    folder = tmp_path_factory.mktemp("report") / "sweep"
    assert main(["train", "-m", *QUICK, "mechanism=output,plug_in", "features=fourier", f"run_dir={folder}"]) == 0
    return folder


def test_train_writes_what_report_needs(sweep):
    output, plug_in = (json.loads((sweep / name / "summary.json").read_text()) for name in ("0", "1"))
    release = load_release(sweep / "0" / "release" / "release.safetensors")
    assert output["noise"] == pytest.approx(release.noise_scale, rel=1e-12)  # Fourier features have norm one
    assert plug_in["noise"] is None
    for name, choice in (("second_stage", "linear"), ("features", "fourier"), ("split", "disjoint")):
        assert output[name] == choice
    assert output["requested"]["settings"] == {
        "queries.count": "10",
        "nuisance.batch_size": "50",
        "nuisance.epochs": "2",
        "second_stage.ridge": "0.02",
    }


def test_curves_of_a_run_are_its_releases_and_the_truth(sweep):
    release = load_release(sweep / "0" / "release" / "release.safetensors")
    found = EffectCurves.load(sweep / "0" / "curator" / "curves.json")
    x = np.stack([found.grid, np.full_like(found.grid, 0.5)], 1)
    np.testing.assert_allclose(found.released, release.effect(x))
    np.testing.assert_allclose(found.band, release.interval(x))
    np.testing.assert_allclose(found.others["truth"], np.exp(2 * found.grid) + 3 * np.sin(4 * found.grid))
    assert set(found.others) == {"truth", "non-private", "head without noise", "plug-in"}
    assert EffectCurves.load(sweep / "1" / "curator" / "curves.json").band is None
    assert not list(sweep.glob("*/release/curves*"))


def test_report_of_a_real_sweep(sweep, capsys):
    assert main(["report", str(sweep)]) == 0
    shown = capsys.readouterr().out
    assert "plug_in" in shown
    assert f"figure: {sweep / 'effect_dataset1_n630.png'}" in shown
    assert "| plug_in |" in (sweep / "report.md").read_text()
