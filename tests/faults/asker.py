"""Whoever asks an online service, in a process of its own, and writes down each answer that left."""

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.faults.trainee import Journal, Way, kill_this_process
from tests.release.helpers import DOMAIN
from torchdpcate.estimators.cate.online.service import OnlineService
from torchdpcate.estimators.cate.online.state import ServiceFile

QUERIES = DOMAIN.grid(24)

_append = ServiceFile.append


def ask(folder: Path, order: list[int], journal: Journal, size: int = 2) -> None:
    """Request in blocks, and write down each answer that left; what this copy's user was told of stands beside it."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    service = OnlineService.open(folder)
    for start in range(0, len(order), size):
        index = order[start : start + size]
        answers = service.answer(QUERIES[index])
        journal.write(json.dumps(dict(zip(index, answers.tolist(), strict=True))))


def append_late(file: ServiceFile, database: sqlite3.Connection, rows: np.ndarray) -> None:
    """A planted fault: rows are written when the next ones are requested."""
    pending, file.pending = getattr(file, "pending", None), rows  # type: ignore[attr-defined]
    if pending is not None:
        _append(file, database, pending)


def live(folder: Path, kill: int | None, fault: bool, points: Any) -> None:
    """Request in this process, which is to be killed at a point of its way; tell how many there were."""
    torch.set_num_threads(1)
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if fault:
        ServiceFile.append = append_late  # type: ignore[method-assign]
    journal = Journal(folder / "journal.txt")
    way = Way(None if kill is None else ("everywhere", kill), kill_this_process)
    sys.setprofile(way)
    ask(folder, list(range(12)), journal)
    sys.setprofile(None)
    points.value = way.points["everywhere"]
