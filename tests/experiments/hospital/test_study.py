"""The study of one fit: laws whose true effects are theirs, rows of a release, and what is worked out of them."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from experiments.hospital import study
from experiments.hospital.cases import PEOPLE, Case, Estimate, ratio
from experiments.hospital.laws import CLUSTER, LAWS
from experiments.hospital.methods import (
    CONSTANT,
    DOUBLEML,
    EFFECT,
    FREE,
    NUMBER,
    ONE_FIT,
    PEERS,
    PERSONS,
    REQUESTED,
    found,
    ours,
)
from experiments.hospital.study import COLUMNS, lacks, missing, rows_of, run
from experiments.hospital.tables import END, START, paste, renewed, short, summary, tables

MANY = 200_000


@pytest.mark.parametrize("law", ["trial", "trial, costs", "trial, days", "trial, deaths", "trial, clusters"])
def test_the_true_average_of_a_trial_is_what_its_arms_differ_by(law: str) -> None:
    draw = LAWS[law](np.random.default_rng(5), MANY)
    size = CLUSTER if law == "trial, clusters" else 1
    a, y = draw.a[::size], draw.y.reshape(-1, size).mean(1)  # clusters are independent, their records are not
    error = np.sqrt(sum(y[a == arm].var() / (a == arm).sum() for arm in (0, 1)))
    assert abs(y[a == 1].mean() - y[a == 0].mean() - draw.effect.mean()) < 5 * error


@pytest.mark.parametrize("law", LAWS)
def test_draws_are_within_their_public_bounds(law: str) -> None:
    draw = LAWS[law](np.random.default_rng(1), 500)
    domain = draw.schema.domain
    assert (draw.x >= domain.covariate_low.numpy()).all()
    assert (draw.x <= domain.covariate_high.numpy()).all()
    assert draw.y.min() >= domain.outcome_low
    assert draw.y.max() <= domain.outcome_high
    assert (draw.propensity.min() >= draw.overlap - 1e-12) == (law != "near violation")
    assert all(said or len(set(column)) > 2 for said, column in zip(domain.two_levels, draw.x.T, strict=True))
    assert set(draw.a) <= set(range(draw.arms))
    below, above = Case(draw, draw).cells(draw)
    assert 25 < below.sum() < 475
    assert (below + above == 1).all()


def test_a_near_violation_has_a_cell_that_is_hardly_treated() -> None:
    draw = LAWS["near violation"](np.random.default_rng(2), MANY)
    assert draw.overlap == 0.1
    assert draw.a[draw.x[:, -1] == 1].mean() == pytest.approx(0.02, abs=0.003)


def test_who_adjusts_for_a_collider_is_biased_and_who_does_not_is_not() -> None:
    draw = LAWS["collider"](np.random.default_rng(2), MANY)
    left = draw.y - draw.a * draw.effect
    a, seen, one = draw.a, draw.x[:, 0], np.ones(MANY)
    naive, adjusted = (np.linalg.lstsq(np.column_stack(c), left)[0][1] for c in ((one, a), (one, a, seen)))
    assert abs(naive) < 0.03
    assert adjusted < -0.15


def test_what_is_missing_depends_on_its_value_and_the_effect_on_what_is_seen() -> None:
    draw = LAWS["missing"](np.random.default_rng(2), MANY)
    names = draw.schema.domain.names
    for name in ("x1", "x2"):
        value, gone = draw.x[:, names.index(name)], draw.x[:, names.index(f"{name}=missing")]
        assert 0.1 < gone.mean() < 0.5
        assert value[gone == 0].mean() < -0.05  # large ones are missing
        assert (value[gone == 1] == 0).all()
    seen = np.column_stack([np.ones(MANY), draw.x])
    assert np.abs(draw.effect - seen @ np.linalg.lstsq(seen, draw.effect)[0]).max() < 1e-9


def test_records_of_a_cluster_are_correlated_as_is_stated_of_them() -> None:
    draw = LAWS["trial, clusters stated"](np.random.default_rng(2), MANY)
    residual = (draw.y - draw.a * draw.effect - np.mean(draw.y)).reshape(-1, CLUSTER)
    between = residual.mean(1).var() - residual.var(1, ddof=1).mean() / CLUSTER
    assert 0.03 < between / residual.var() < 0.1 == draw.schema.cluster.correlation
    assert (draw.a.reshape(-1, CLUSTER).std(1) == 0).all()


def test_the_estimate_without_privacy_is_aipw() -> None:
    row = Case.of("linear", 1_000, 20_000).average(Estimate(0.0, -1.0, 1.0))
    assert abs(row["np"] - row["truth"]) < 5 * row["np_error"]
    assert row["width"] == pytest.approx(1 / (1.959964 * row["np_error"]))
    assert row["held"] == (abs(row["truth"]) <= 1)


def test_the_error_of_a_ratio_is_the_deviation_of_its_repeats() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.normal([1.0, 2.0], [1.0, 0.5], (2_000, 400, 2))
    many = [ratio(one[:, 0], one[:, 1]) for one in pairs]
    assert np.std([value for value, _ in many]) == pytest.approx(np.mean([error for _, error in many]), rel=0.06)


def test_persons_are_judged_by_their_own_effects() -> None:
    case = Case.of("trial", 1_001, 400)
    tau = case.people.effect
    known = case.persons(tau, tau - tau.std(), tau + tau.std())
    assert (known["error"], known["regret"], known["held"]) == (0, 0, 1)
    assert known["width"] == pytest.approx(1)
    assert case.persons(-tau, tau + 1, tau + 2)["held"] == 0
    assert case.persons(-tau)["regret"] == pytest.approx(2)


@pytest.mark.studies
def test_a_row_a_line_with_its_truth_and_width() -> None:
    lines = ("ATT", "ATC", "ATO", "slope", "rule")
    rows = pd.concat(rows_of("linear", 1_000, 5_000, 8.0, ours(lines)))
    by_method = rows.groupby("method")["line"].apply(set)
    groups = {"average", "group 1", "group 2", "group 3", "persons"}
    assert by_method[ONE_FIT] == groups
    assert by_method[REQUESTED] == {*lines[:-1], "cell 1", "cell 2", "rule over none", "rule over all"}
    assert by_method[PERSONS] == {"persons"}
    assert by_method[CONSTANT] == {"average", "persons"}
    own = rows[rows["line"] != "persons"]
    assert own[["estimate", "low", "high", "truth", "np", "np_error", "held"]].notna().all().all()
    assert ((own["np"] - own["truth"]).abs() < 6 * own["np_error"]).all()  # models are right
    effect = rows[(rows["line"] == "persons") & (rows["method"] == ONE_FIT)]
    assert (effect["error"] < 0.6).all()


@pytest.mark.studies
def test_each_of_several_arms_is_judged_by_its_own_effect() -> None:
    case = Case.of("three arms", 1_000, 8_000)
    rows = pd.DataFrame(found(ours()[ONE_FIT], case, 8.0, 0))
    assert rows["line"].tolist() == ["arm 1", "arm 2"]
    assert rows["truth"].tolist() == pytest.approx(case.people.effect.mean(0))
    assert ((rows["np"] - rows["truth"]).abs() < 5 * rows["np_error"]).all()
    assert ((rows["estimate"] - rows["truth"]).abs() < 6 * rows["np_error"]).all()


@pytest.mark.studies
def test_stated_clusters_have_the_average_of_the_task() -> None:
    case = Case.of("trial, clusters stated", 1_000, 4_000)
    rows = found(ours()[ONE_FIT], case, 1.0, 0)
    unstated = replace(case, records=replace(case.records, clusters=None))
    width = found(ours()[ONE_FIT], unstated, 1.0, 0)[0]["width"]
    assert [row["line"] for row in rows] == ["average", "persons"]
    assert rows[0]["width"] > 1.3 * width
    assert "clusters" in found(ours()[REQUESTED], case, 1.0, 0)[0]["refused"]


@pytest.mark.studies
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_near_the_truth_within_its_interval(name: str) -> None:
    if lacks(PEERS[name]):
        pytest.skip(f"extra peers-{PEERS[name].library} is not installed")
    rows = pd.DataFrame(found(PEERS[name], Case.of("trial", 1_000, 2_000), 30.0, 0))
    average = rows[rows["line"] == "average"].iloc[0]
    assert average["low"] < average["truth"] < average["high"]
    persons = rows[rows["line"] == "persons"]
    assert len(persons) == (name in {"LinearDML", "CausalForestDML"})
    assert (persons["held"] > 0.7).all()


def test_what_a_file_has_is_not_made_again(tmp_path, monkeypatch) -> None:
    path, made = tmp_path / "found.csv", []
    of = {name: method for name, method in ours().items() if name in (ONE_FIT, CONSTANT)} | {DOUBLEML: PEERS[DOUBLEML]}
    monkeypatch.setattr(study, "found", lambda method, *_: made.append(method) or [{"line": "average", "held": 1.0}])
    run(path, range(2), ["trial"], [300], 1.0, {ONE_FIT: of[ONE_FIT]})
    run(path, range(3), ["trial"], [300], 1.0, of)
    assert len(made) == 2 + 7
    run(path, range(3), ["trial"], [300], 1.0, of)
    assert len(made) == 9
    assert missing(path, "trial", 0, 300, 4.0, of).keys() == {ONE_FIT, CONSTANT}  # DoubleML spends nothing
    assert len(pd.read_csv(path)) == 9
    assert list(pd.read_csv(path)) == COLUMNS


def rows(method: str, line: str, law: str, held: list[float], **given: float) -> pd.DataFrame:
    common = {"method": method, "line": line, "law": law, "n": 5_000}
    found = pd.DataFrame({"seed": range(1_000, 1_000 + len(held)), "held": held})
    return found.assign(**common, **{"epsilon": 1.0, "truth": 0.0, "np": 0.1, "np_error": 0.1, **given}).reindex(
        columns=COLUMNS
    )


def test_tables_say_what_rows_say() -> None:
    own = [rows(ONE_FIT, "average", "linear", [1, 1, 0, np.nan], width=2.0, estimate=0.2)]
    own += [rows(CONSTANT, "average", "linear", [1, 0, 0, 0], width=3.0, estimate=0.0)]
    own += [rows(REQUESTED, "cell 1", "linear", [1, 0, 1, 0], width=4.0, estimate=0.0)]
    own += [rows(PERSONS, "persons", "linear", [0.9, 0.8, 0.9, 0.8], width=1.5, error=0.4)]
    own += [rows(DOUBLEML, "average", "linear", [1, 0], width=1.1, estimate=0.1)]
    found = summary(pd.concat(own))
    told = found.loc[(ONE_FIT, 5_000, 1.0, "average", "linear")]
    expected = {"draws": 4, "shown": 0.75, "held": 0.667, "width": 2, "bias": 2, "rms": 2, "np_held": 1}
    assert told[list(expected)].to_dict() == expected
    page = tables(renewed(None, found))
    assert "| linear | 4 | .75 | .67 | 2.00 | 2.00 | 1.00 | .25 | 3.00 |" in page
    assert "| linear |  |  | .50 | 4.00 |  |  | 1.00 | .85 | 1.50 |  |  |" in page
    assert "| linear | .67, 2.00 |" in page
    assert "| DoubleMLIRM | models right | 2 | 1.00 | .50 | 1.10 | 1.00 |" in page


def test_effects_are_told_as_squared_errors_with_geometric_means_over_laws_that_have_all() -> None:
    errors = {("linear", EFFECT): [0.4, 0.6], ("linear", FREE): [0.2], ("trial", EFFECT): [1], ("trial", FREE): [0.8]}
    errors |= {("hump", EFFECT): [0.1], ("linear", NUMBER): [1], ("trial", NUMBER): [1.1]}
    own = [
        rows(method, "persons", law, [np.nan] * len(error), error=error, epsilon=np.inf if method == FREE else 1.0)
        for (law, method), error in errors.items()
    ]
    page = tables(renewed(None, summary(pd.concat([rows(ONE_FIT, "average", "linear", [1.0]), *own]))))
    assert "### Effects, 5,000 records\n\n| law | draws | effect, 1 | one number, 1 | effect without privacy |" in page
    assert "| linear | 1 | .25 | 1.00 | .04 |" in page
    assert "| hump | 1 | .01 |  |  |" in page
    assert "| geometric mean |  | .50 | 1.10 | .16 |" in page


def test_new_summaries_take_the_place_of_those_of_the_same_and_others_stay() -> None:
    first = [rows(ONE_FIT, line, law, [1.0, 1.0]) for law in ("linear", "trial") for line in ("average", "group 1")]
    found = renewed(None, summary(pd.concat([*first, rows(DOUBLEML, "average", "linear", [1.0])])))
    assert found["law"].tolist() == ["trial", "trial", "linear", "linear", "linear"]
    again = renewed(found, summary(rows(ONE_FIT, "average", "linear", [0.0, 0.0, 0.0])))
    assert again[["method", "line", "law", "draws", "held"]].to_numpy().tolist() == [
        [ONE_FIT, "average", "trial", 2, 1.0],
        [ONE_FIT, "group 1", "trial", 2, 1.0],
        [ONE_FIT, "average", "linear", 3, 0.0],  # a group that is shown no more is gone
        [DOUBLEML, "average", "linear", 1, 1.0],
    ]


def test_the_page_has_the_tables_of_what_was_found() -> None:
    page = study.FOUND.with_name("README.md").read_text()
    assert tables(pd.read_csv(study.FOUND)) in page


def test_tables_are_pasted_between_their_comments(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{START}\n\nold\n\n{END}\nafter\n")
    paste(page, "new")
    assert page.read_text() == f"before\n\n{START}\n\nnew\n{END}\nafter\n"
    paste(page, "newer")
    assert page.read_text() == f"before\n\n{START}\n\nnewer\n{END}\nafter\n"
    assert short(-0.04) == "-.04"


def test_libraries_that_are_absent_are_told(monkeypatch) -> None:
    monkeypatch.setattr(study, "find_spec", lambda name: None if name == "econml" else find_spec(name))
    assert lacks(PEERS["LinearDML"])
    assert not lacks(PEERS["covariate balancing"])


def test_people_are_none_of_the_records() -> None:
    case = Case.of("linear", 3, 700)
    assert (len(case.records.a), len(case.people.a)) == (700, PEOPLE)
    assert not set(case.records.x[:, 0]) & set(case.people.x[np.abs(case.people.x[:, 0]) < 2, 0])
