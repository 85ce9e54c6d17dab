"""The recipes of docs/extend.md are true: each addition is the files that it names and no other.

A copy of the library gets the files of ``tests/recipes``; a process of its own then uses them as users do. The second
half is about classes of a user's, registered by name: they claim nothing without a condition.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchdpcate.audit.report import find
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.estimators.cate.head import LEARNERS
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS
from torchdpcate.estimators.cate.mechanisms.perturbation import OutputPerturbation
from torchdpcate.fit.nuisance_config import NuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.papers.oprescu import Dataset1
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.worst_case import WORST_CASES
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

PROJECT, RECIPES = Path(__file__).parents[1], Path(__file__).parent / "recipes"

MECHANISM = {
    "mechanism.py": "torchdpcate/estimators/cate/mechanisms/coarse_output.py",
    "mechanism.yaml": "conf/mechanism/coarse_output.yaml",
}
LEARNER = {"learner.py": "torchdpcate/estimators/cate/half.py", "learner.yaml": "conf/learner/half.yaml"}
RULE_MECHANISM = {
    "rule_mechanism.py": "torchdpcate/estimators/rules/coarse.py",
    "rule_mechanism.yaml": "conf/rule_mechanism/coarse.yaml",
}
FILES = MECHANISM | LEARNER | RULE_MECHANISM
ESTIMAND = "torchdpcate/causal/estimand.py"
"""An estimand is one class, and its entry, beside the others."""

ATM = '''

class ATM(Estimand):
    """Records weighed by the root of the overlap: weights between those of the ATE and of the ATO."""

    name = "ATM"
    powers = (-0.5, -0.5)


ESTIMANDS[ATM.name] = ATM
'''


@pytest.fixture(scope="module")
def used(tmp_path_factory) -> dict:
    """What one process found that used all of them."""
    folder = tmp_path_factory.mktemp("library")
    for part in ("torchdpcate", "conf"):
        shutil.copytree(PROJECT / part, folder / part)
    for name, place in FILES.items():
        assert not (folder / place).exists()
        shutil.copy(RECIPES / name, folder / place)
    with (folder / ESTIMAND).open("a") as file:
        file.write(ATM)
    shutil.copy(RECIPES / "use.py", folder / "use.py")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["mechanism", "learner", "estimand", "rule_mechanism"])
def test_an_addition_is_trained_released_verified_and_audited(what, used):
    assert used[what]["codes"] == [0] * (2 if what == "estimand" else 3)
    assert used[what]["level"] == "certified"


@pytest.mark.slow
def test_statements_call_them_by_their_names(used):
    assert used["learner"]["public"]["learner"] == "HalfLearner"
    assert used["estimand"]["public"]["estimand"] == "ATM"


@pytest.mark.slow
def test_a_forged_release_by_a_new_mechanism_is_refused_by_its_own_recomputation(used):
    assert used["forgery"]


STUDY = Dataset1(n=600).load()
BUDGET = PrivacyBudget(6.0, 1e-5)


@pytest.fixture(scope="module")
def mechanism():
    """A user's mechanism; its declaration to audits is withdrawn when the tests of this file are over."""
    from tests.recipes.mechanism import CoarseOutput

    yield CoarseOutput
    del WORST_CASES[CoarseOutput.name]


def learner(kind, loss="huber"):
    second_stage = LinearSecondStage(loss=loss)
    return kind(
        STUDY.domain, BUDGET, nuisance=NuisanceConfig(width=0, batch_size=50, epochs=1), second_stage=second_stage
    )


def fitted(kind, loss="huber"):
    return learner(kind, loss).fit(STUDY.records.x, STUDY.records.a, STUDY.records.y)


@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_a_user_s_mechanism_is_conditional_and_verified_where_it_is_registered(loss, mechanism, tmp_path, monkeypatch):
    path = fitted(RLearner, loss).release_function(mechanism()).save(tmp_path / "release.safetensors")
    privacy = load_release(path).privacy
    assert (privacy.level, privacy.claims) == ("conditional", True)
    assert [(c["name"], c["holds"]) for c in privacy.conditions] == [("mechanism", None)]
    assert {charge.level for charge in privacy.charges} == {"certified", "conditional"}
    assert find("coarse_output").of is mechanism  # declared by its class
    with pytest.raises(VerificationError, match="'coarse_output' is none of the library's, so it may claim nothing"):
        verify_release(path)
    monkeypatch.setitem(MECHANISMS, mechanism.name, mechanism)
    assert verify_release(path)


def test_a_registered_mechanism_of_a_user_s_is_never_certified(mechanism, tmp_path, monkeypatch):
    monkeypatch.setitem(MECHANISMS, mechanism.name, mechanism)
    monkeypatch.setattr("torchdpcate.estimators.cate.mechanisms.base.user_code", lambda *_: ())
    release = fitted(RLearner).release_function("coarse_output")
    assert release.privacy.level == "certified"
    with pytest.raises(VerificationError, match="'coarse_output' is conditional at most, but the level is certified"):
        verify_release(release.save(tmp_path / "release.safetensors"))


@pytest.mark.parametrize("stated", [math.inf, 1j])
def test_a_release_that_would_not_load_is_not_handed_out(stated, mechanism):
    class Unreadable(mechanism):
        def public(self, head, law):
            return {**super().public(head, law), "sensitivity": stated}

    fit = fitted(RLearner)
    with pytest.raises(VerificationError, match=r"would not load from its file .*nothing is released"):
        fit.release_function(Unreadable())
    assert not hasattr(fit, "release_")
    assert fit.ledger_.entries[-1].charge == Charge(Purpose.RELEASE, "coarse_output")


def test_a_mechanism_that_no_audit_attacks_is_refused_before_it_spends(monkeypatch):
    fit = fitted(RLearner)
    paid = len(fit.ledger_.entries)
    for name in ("output", "output_squared"):
        monkeypatch.delitem(WORST_CASES, name)
    with pytest.raises(InputError, match="mechanism = output: declares no worst-case neighbours"):
        learner(RLearner).check(STUDY.records.n, "output")
    with pytest.raises(InputError, match=r"give OutputPerturbation a method under @worst_case"):
        fit.release_function(OutputPerturbation())
    assert len(fit.ledger_.entries) == paid


def test_a_user_s_learner_is_conditional_and_verified_where_it_is_registered(tmp_path, monkeypatch):
    from tests.recipes.learner import HalfLearner

    path = fitted(HalfLearner).release_function().save(tmp_path / "release.safetensors")
    privacy = load_release(path).privacy
    assert privacy.level == "conditional"
    assert [c["name"] for c in privacy.conditions] == ["learner", "score"]
    assert {charge.level for charge in privacy.charges} == {"conditional"}
    with pytest.raises(VerificationError, match="its learner is called HalfLearner, which is none of the library's"):
        verify_release(path)
    monkeypatch.setitem(LEARNERS, "half", HalfLearner)
    assert verify_release(path)
