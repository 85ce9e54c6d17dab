"""What several runs on one real table have spent together: stated at a sweep's end and in its report."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import TABLE
from torchdpcate.cli.main import main
from torchdpcate.cli.sweep import total_line
from torchdpcate.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

SWEEP = ["train", "-m", "task=average_effect", *TABLE, "run_dir=s"]


def totals(text: str) -> list[str]:
    return [line for line in text.splitlines() if "over the same records" in line and "warning" not in line]


def test_a_sweep_on_a_table_says_what_it_has_spent(here, capsys):
    assert main([*SWEEP, "privacy.epsilon=0.5,1,2", "privacy.delta=0"]) == 0
    (line,) = totals(capsys.readouterr().out)
    spent = [json.loads(path.read_text())["spent"]["total"] for path in Path("s").glob("*/curator/summary.json")]
    epsilon = sum(run["epsilon"] for run in spent)
    assert epsilon == pytest.approx(3.5, abs=1e-6)
    assert line == "sweep: 3 runs over the same records have spent epsilon 3.5, delta 0 together"
    assert main(["report", "s"]) == 0
    assert totals(capsys.readouterr().out) == [line.replace("sweep", "people")]
    assert line.replace("sweep", "people") in Path("s/curator/report.html").read_text()


def test_generated_data_have_nothing_to_protect(tmp_path, capsys):
    words = ["train", "-m", "task=average_effect", "data.n=400", "seed=0,1", f"run_dir={tmp_path / 's'}"]
    assert main(words) == 0
    assert main(["report", str(tmp_path / "s")]) == 0
    assert totals(capsys.readouterr().out) == []
    summary = json.loads((tmp_path / "s" / "0" / "curator" / "summary.json").read_text())
    assert summary["generated"] is True


def test_a_run_that_failed_on_its_way_has_spent_all_the_same(here, capsys, monkeypatch):
    from torchdpcate.cli import run

    def fail(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(run, "write_release", fail)
    assert main([*SWEEP, "privacy.epsilon=0.5,1", "privacy.delta=0"]) == 1
    (line,) = totals(capsys.readouterr().out)
    assert "2 runs over the same records have spent epsilon 1.5, delta 0 together" in line


def test_noise_of_a_fixed_seed_has_no_total(here, capsys):
    assert main([*SWEEP, "seed=0,1", "privacy.noise_seed=1"]) == 0
    (line,) = totals(capsys.readouterr().out)
    assert "no total is known, for 2 of them has no proved claim" in line
    assert Ledger.load("s/0/curator/ledger.sqlite").spent()["total"]["epsilon"] is None


def test_the_composition_of_many_runs_is_that_of_randomized_responses():
    """k runs of (epsilon, delta): 1 - (1 - delta)^k for the lost ones, and the binomial law of the others."""
    k, epsilon, delta = 60, 0.2, 1e-6
    line = total_line([(epsilon, delta)] * k)
    assert "have spent epsilon 12, delta 6e-05 together" in line
    found, at = (float(word) for word in line.split("epsilon ")[-1].split(", delta "))
    lost = 1 - (1 - delta) ** k
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    places = np.arange(k + 1)
    chance = np.array([math.comb(k, i) * p**i * (1 - p) ** (k - i) for i in places])
    loss = (2 * places - k) * epsilon

    def spent(eps: float) -> float:
        return lost + (1 - lost) * float(np.clip(1 - np.exp(eps - loss), 0, None) @ chance)

    assert at == pytest.approx(2 * k * delta, rel=1e-12)
    assert spent(found * 1.01) <= at <= spent(found * 0.97)
