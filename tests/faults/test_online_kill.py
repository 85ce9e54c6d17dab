"""Kill -9 of an online service at points spread over its whole way, and several of them at once: one function."""

import json
import os
import shutil
import signal
from pathlib import Path
from unittest import mock

import pytest

from tests.estimators.cate.online.test_service import create
from tests.faults import asker
from tests.faults.asker import QUERIES
from tests.faults.guards import SECONDS
from tests.faults.killing import server
from tests.release.helpers import stage
from torchdpcate.estimators.cate.online.service import OnlineService

KILLS = 16


@pytest.fixture(scope="module")
def context():
    with server() as context:
        yield context


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    """A service that nobody has requested yet."""
    return create(tmp_path_factory.mktemp("fresh") / "online", stage()).folder


def one_life(context, fresh: Path, folder: Path, kill: int | None, fault: bool = False) -> int:
    """Run a service that is killed at a point of its way; return how many points it had, 0 if it was killed."""
    shutil.copytree(fresh, folder)
    points = context.Value("l", 0)
    process = context.Process(target=asker.live, args=(folder, kill, fault, points), daemon=True)
    process.start()
    process.join(SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return points.value


def answered(folder: Path) -> dict[int, float]:
    """Every answer that left, by its query; each must be the only one."""
    known: dict[int, float] = {}
    for path in folder.glob("*.txt"):
        for line in path.read_text().splitlines():
            for index, answer in json.loads(line).items():
                assert known.setdefault(int(index), answer) == answer
    return known


def problems(folder: Path) -> list[str]:
    """Answers that a restarted service does not give again."""
    known = answered(folder)
    with mock.patch.dict(os.environ, XDG_STATE_HOME=str(folder / "state")):
        again, after = (OnlineService.open(folder).answer(QUERIES).tolist() for _ in range(2))
    return [f"query {i}" for i, answer in known.items() if again[i] != answer] + ["restart"] * (again != after)


def spread(points: int) -> list[int]:
    return [1 + (2 * i + 1) * points // (2 * KILLS) for i in range(KILLS)]


def test_no_kill_lets_a_query_have_two_answers(context, fresh, tmp_path):
    points = one_life(context, fresh, tmp_path / "whole", None)
    assert points > 1_000
    assert problems(tmp_path / "whole") == []
    left = set()
    for kill in spread(points):
        folder = tmp_path / str(kill)
        assert one_life(context, fresh, folder, kill) == 0, "it was not killed"
        left.add(len(answered(folder)))
        assert problems(folder) == [], kill
    assert len(left) >= 4, left


def test_the_search_finds_a_planted_fault(context, fresh, tmp_path):
    points = one_life(context, fresh, tmp_path / "whole", None, fault=True)
    found = []
    for kill in spread(points)[KILLS // 2 :]:
        one_life(context, fresh, tmp_path / str(kill), kill, fault=True)
        found += problems(tmp_path / str(kill))
    assert any(problem.startswith("query") for problem in found)
