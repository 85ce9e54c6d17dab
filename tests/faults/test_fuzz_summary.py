"""``report``: a damaged summary is refused in a line and leaves nothing; a sound one is shown as it is."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from tests.faults.guards import answered
from tests.faults.mutations import byte_faults, json_faults, met_both, without
from torchdpcate.cli.report import report
from torchdpcate.errors import InputError

pytestmark = pytest.mark.usefixtures("no_pickle")

SUMMARY = {
    "task": "cate",
    "mechanism": "objective",
    "level": "certified",
    "epsilon": 1.0,
    "delta": 1e-5,
    "requested": {"epsilon": 1.0, "delta": 1e-5, "settings": {}},
    "spent": {"total": {"epsilon": 1.0, "delta": 1e-5}},
    "generated": True,
    "n": 100,
    "seed": 0,
    "pehe": 0.3,
    "pehe_plug_in": 0.4,
    "seconds": 1.5,
}
OUTPUTS = ("curator/report.csv", "curator/pehe_against_budget.png")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A folder with one sound run; a second one is what the tests damage."""
    folder = tmp_path_factory.mktemp("sweep")
    for name in ("0", "1"):
        (folder / name / "curator").mkdir(parents=True)
    other = SUMMARY | {"requested": {"epsilon": 2, "settings": {}}}
    (folder / "0" / "curator" / "summary.json").write_text(json.dumps(other))
    return folder


def reported(sweep) -> bool:
    """Report on the sweep: everything is written and holds numbers, or nothing is; tell which."""
    for name in OUTPUTS:
        (sweep / name).unlink(missing_ok=True)
    shown = answered(lambda: report(str(sweep)))
    if shown:
        runs = pd.read_csv(sweep / "curator" / "report.csv")
        estimates = runs.filter(regex="^pehe").to_numpy(np.float64)
        assert len(runs) == 2
        assert not np.isinf(estimates).any()
        assert (runs["requested_epsilon"].nunique() > 1) == (sweep / "curator" / "pehe_against_budget.png").exists()
    else:
        assert not any((sweep / name).exists() for name in OUTPUTS)
    return shown


@pytest.mark.parametrize("faults", [json_faults(SUMMARY).map(str.encode), byte_faults(json.dumps(SUMMARY).encode())])
def test_replaced_values_and_damaged_bytes_are_refused_or_shown(sweep, faults):
    def shown(data):
        (sweep / "1" / "curator" / "summary.json").write_bytes(data)
        return reported(sweep)

    met_both(faults, 40, shown)


@pytest.mark.parametrize("name", ["requested", "seed", "n", "mechanism", "level"])
def test_a_summary_that_lacks_what_every_run_has_is_refused(sweep, name):
    (sweep / "1" / "curator" / "summary.json").write_text(without(SUMMARY, (name,)))
    with pytest.raises(InputError, match=r"summary\.json: not a summary of a run, or damaged"):
        report(str(sweep))


def test_a_run_of_real_data_has_no_error_and_is_shown(sweep):
    """Without known truth there is no PEHE; the others are still drawn."""
    (sweep / "1" / "curator" / "summary.json").write_text(without(SUMMARY, ("pehe",)))
    assert reported(sweep)
    assert pd.read_csv(sweep / "curator" / "report.csv")["pehe"].isna().sum() == 1


def test_names_of_folders_are_text_and_no_markup(tmp_path, capsys):
    for name in (b"[bold]a[/x]", b"\xff", "né".encode()):
        folder = os.path.join(os.fsencode(tmp_path), name, b"curator")
        os.makedirs(folder)
        with open(os.path.join(folder, b"summary.json"), "w", encoding="utf-8") as file:
            json.dump(SUMMARY, file)
    report(str(tmp_path))
    assert "x]" in capsys.readouterr().out
    runs = pd.read_csv(tmp_path / "curator" / "report.csv")["run"]
    assert {"x]", "\\xff", "né"} == set(runs)
