import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

GOOD = """
import numpy as np
import pandas as pd
import torch

from torchdpcate import AverageEffect, EffectRule, PrivacyBudget, RLearner, TableSchema, load_release
from torchdpcate.typing import Covariates, Outcome, Treatment


def effects(X: Covariates, A: Treatment, Y: Outcome) -> np.ndarray:
    learner = RLearner(TableSchema.from_yaml("domain.yaml"), PrivacyBudget(epsilon=1.0, delta=1e-5))
    return learner.fit(X, Y, treatment=A).effect(X)


frame = pd.DataFrame({"age": [40.0, 50.0]})
effects(frame, np.array([0, 1]), np.array([1.0, 2.0]))
effects(torch.zeros(2, 1), torch.tensor([0, 1]), torch.zeros(2))
effects({"age": [40.0, 50.0]}, ["a", "b"], [1.0, 2.0])
low, high = load_release("release.safetensors").summary(), 0.0
schema, budget = TableSchema.from_yaml("domain.yaml"), PrivacyBudget(1.0, 0.0)
average: float = AverageEffect(schema, budget).fit(frame, [0, 1], [1.0, 2.0]).ate()
actions: np.ndarray = EffectRule(schema, budget).fit(frame, [0, 1], [1.0, 2.0]).decide(frame)
"""
BAD = """
from torchdpcate import PrivacyBudget, RLearner, TableSchema

learner = RLearner(TableSchema.from_yaml("domain.yaml"), PrivacyBudget(1.0, 1e-5))
number: str = learner.ate([[1.0]])
learner.effect(learner)
"""


def check(path: Path, text: str) -> subprocess.CompletedProcess:
    path.write_text(text)
    words = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    cache = ["--cache-dir", str(path.parent / "cache")]
    return subprocess.run([*words, *cache, str(path)], capture_output=True, text=True, check=False)


def test_the_package_says_that_it_has_types() -> None:
    assert (files("torchdpcate") / "py.typed").is_file()


@pytest.mark.slow
def test_a_script_of_a_users_is_checked(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    good = check(tmp_path / "good.py", GOOD)
    assert good.returncode == 0, good.stdout
    bad = check(tmp_path / "bad.py", BAD)
    assert bad.returncode == 1
    assert 'expression has type "float", variable has type "str"' in bad.stdout
    assert 'Argument 1 to "effect"' in bad.stdout
