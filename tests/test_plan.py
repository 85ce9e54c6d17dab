from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError, VerificationError
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.estimators.subgroups.plan import SubgroupPlan
from torchdpcate.plan import Plan
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([0.0], [1.0], -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Silent(Plan):
    """A plan that does not say what it asks."""

    kinds = ("effect",)
    formula = "none"

    n: int = 100
    budget: PrivacyBudget | None = None

    @property
    def name(self) -> str:
        return "silent"

    @cached_property
    def queries(self):
        return {}

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def restated(cls, release):
        return cls()

    def answers(self, release):
        return {}

    def conclude(self, answers, privacy):
        raise NotImplementedError


def learner() -> SubgroupEffects:
    made = SubgroupEffects(DOMAIN, PrivacyBudget(5.0, 0.0), subgroups=[{"x0": [0.5]}], propensity="randomised")
    x, a = torch.rand(2_000, 1, dtype=torch.float64), torch.arange(2_000) % 2
    return made.fit(x, a, x[:, 0])


@pytest.mark.parametrize("level", [Level.CERTIFIED, Level.CONDITIONAL])
def test_a_plan_without_queries_claims_nothing(level, monkeypatch):
    monkeypatch.setattr(Silent, "level", level)
    with pytest.raises(InputError, match=r"mechanism = silent: its plan declares no query.*Silent.queries"):
        Silent(budget=PrivacyBudget(1.0, 0.0)).guarantee()
    monkeypatch.setattr(Silent, "free", True)
    assert Silent(budget=PrivacyBudget(1.0, 0.0)).guarantee().level is level


def test_a_heuristic_needs_none(monkeypatch):
    monkeypatch.setattr(Silent, "level", Level.HEURISTIC)
    assert not Silent(budget=PrivacyBudget(1.0, 0.0)).guarantee().holds_claim


def test_a_learner_whose_plan_has_none_releases_nothing(monkeypatch):
    fitted = learner()
    monkeypatch.setattr(SubgroupPlan, "queries", property(lambda plan: {}))
    with pytest.raises(InputError, match="declares no query"):
        fitted.release()


def test_what_was_charged_to_no_block_claims_nothing(monkeypatch):
    fitted = learner()
    none = property(lambda learner: set(), lambda learner, own: None)
    monkeypatch.setattr(type(fitted), "_entries", none, raising=False)
    with pytest.raises(InputError, match="nothing was charged for this release"):
        fitted.release()


def test_nothing_verifies_that_such_a_plan_would_make(tmp_path, monkeypatch):
    path = learner().release().save(tmp_path / "release.safetensors")
    verify_release(path)
    monkeypatch.setattr(SubgroupPlan, "queries", property(lambda plan: {}))
    with pytest.raises(VerificationError, match="declares no query"):
        verify_release(path)
