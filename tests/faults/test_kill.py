"""Kill -9 at points spread over the whole of a training and its releases: the ledger is never below what was used.

The points are drawn by a fixed seed, one from each of equal parts of the way, and the process kills itself there: the
same places on every run, whatever else the machine does. ``experiments/robustness`` kills whole runs by the clock.
"""

from collections import Counter

import pytest

from tests.faults.killing import journal, one_life, phase, problems, server, spread
from tests.faults.trainee import RELEASES, STEPS

KILLS, FAULTY_KILLS = 10, 10  # everywhere, and as many again in the writing of files


@pytest.fixture(scope="module")
def context():
    with server() as context:
        yield context


@pytest.fixture(scope="module")
def whole(context, tmp_path_factory):
    """A training that nobody kills, and the number of points of its way."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, one_life(context, folder, None)


def test_a_training_that_lives_uses_what_the_ledger_says(whole):
    folder, points = whole
    assert points[0] > 10_000
    assert points[1] > 300
    used = Counter(journal(folder))
    assert (used["step"], used["select"], used["gaussian"]) == (STEPS, 1, len(RELEASES))
    assert phase(folder) == "after the end"
    assert problems(folder) == []


def test_no_kill_leaves_a_ledger_below_what_was_used(context, whole, tmp_path):
    ended = []
    for kill in spread(whole[1], KILLS, seed=0):
        folder = tmp_path / f"{kill[1]} {kill[0]}"
        assert one_life(context, folder, kill) == (0, 0), "it was not killed"
        ended.append(phase(folder))
        assert problems(folder) == [], (kill, phase(folder))
    assert len(set(ended)) >= 5, Counter(ended)
    assert Counter(ended)["DP-SGD"] >= 5


def test_the_search_finds_a_planted_fault(context, whole, tmp_path):
    found = []
    for kill in spread(whole[1], FAULTY_KILLS, seed=1):
        folder = tmp_path / f"{kill[1]} {kill[0]}"
        one_life(context, folder, kill, "late")
        found += problems(folder)
    assert any("x step are in the ledger" in problem for problem in found), found
