"""The page, its numbers and the figure, from results that are made up."""

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.audit.shipped import TRUTH, shipped_results
from torchdpcate.audit.attack import AuditResult
from torchdpcate.audit.report import (
    AuditSettings,
    attained,
    in_processes,
    registry,
    write_report,
)
from torchdpcate.errors import ProcessError
from torchdpcate.privacy.worst_case import Target
from torchdpcate.verify.statement import plan_names

DOCS = Path(__file__).parents[2] / "docs" / "guarantees"
RESULT = AuditResult(
    "gaussian", "Neyman-Pearson", "two numbers", "certified", 1.0, 1.0, 1e-5, 0.95, 0.95, 2000, 0.1, 0.2
)
NONE = replace(RESULT, mechanism="influence", level="heuristic", claimed=None, bound=4.0)
BROKEN = replace(RESULT, mechanism="laplace", bound=1.2)


def test_only_a_bound_above_a_claim_refutes():
    assert [r.refuted for r in (RESULT, NONE, BROKEN)] == [False, False, True]


def test_the_page_holds_every_row_and_marks_what_is_broken(tmp_path):
    (tmp_path / "noise.md").write_text("| `gaussian` | certified | pure |\n")
    paths = write_report([RESULT, NONE, BROKEN], AuditSettings(epsilon=1.0, confidence=0.9), tmp_path)
    assert [path.name for path in paths] == ["README.md", "audit.json", "audit.png"]
    page = paths[0].read_text()
    assert "| [gaussian](noise.md) | **certified** | 1, 1e-05 | 0.950 |" in page
    assert "| influence | **heuristic** | none | 4.000 |" in page
    assert page.count("exceeds the claim**") == 1
    assert "`torchdpcate audit --all confidence=0.9`" in page
    numbers = json.loads(paths[1].read_text())
    assert numbers["settings"]["confidence"] == 0.9
    assert [r["refuted"] for r in numbers["results"]] == [False, False, True]
    assert paths[2].read_bytes()[:4] == b"\x89PNG"


def kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def late(name: str) -> None:
    time.sleep(300)


@pytest.mark.usefixtures("listening")
@pytest.mark.faults
def test_a_killed_process_is_one_error_and_an_interrupt_leaves_none():
    with pytest.raises(ProcessError, match="processes = 2: one of them was killed"):
        in_processes(kill, ["a", "b"], 2, lambda *_: None)
    timer = threading.Timer(8.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        in_processes(late, ["a", "b"], 2, lambda *_: None)
    assert multiprocessing.active_children() == []


def test_of_the_plans_the_post_processing_alone_has_no_attack_on_a_claim_of_its_own():
    results = [
        AuditResult(**{key: held for key, held in result.items() if key != "refuted"})
        for result in shipped_results().values()
    ]
    results = [replace(one, attacks=tuple(map(Target.from_dict, one.attacks))) for one in results]
    assert [plan for plan in plan_names() if not attained(results, plan)] == ["plug_in"]


def test_shipped_results_are_those_of_the_guarantees_page():
    shipped = shipped_results()
    heads = json.loads(TRUTH.read_text(encoding="utf-8"))["heads"]
    truth = {head: found["worst_change_over_scale"] for head, found in heads.items()}
    assert all(not result["refuted"] for result in shipped.values())
    assert set(shipped) == set(registry())
    page = (DOCS / "README.md").read_text()
    assert all(f"| {result['bound']:.3f}" in page for result in shipped.values())
    assert truth["neural, made to break"] > 10 > 1 > truth["Legendre, ridge 0.001"]
