"""Replays of a composition: nothing but charged answers depends on a record, and what would is reported."""

import pytest
import torch

from torchdpcate.audit.replay.check import learner_pipeline, neighbours_for_replay, replay
from torchdpcate.composition import covariates
from torchdpcate.composition.linear_fit import LightningFit, NoisyNewton
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.cate.learner import DRLearner, RLearner
from torchdpcate.features.weighted_basis import Standardisation
from torchdpcate.privacy.budget import PrivacyBudget

N = 120


def study(q: int = 2, **facts) -> tuple[CausalData, Domain]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, q, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.5).double()
    y = (a * x[:, 0] + 0.1 * torch.rand(N, generator=generator, dtype=torch.float64)).clamp(-1, 1)
    return CausalData(x, a, y), Domain([0.0] * q, [1.0] * q, -1.0, 1.0, overlap=0.2, **facts)


def report(
    q: int = 2, epsilon: float = 4.0, release: str = "function", *, kind=RLearner, facts=None, delta=1e-5, **settings
):
    records, domain = study(q, **(facts or {}))
    learner = kind(domain, PrivacyBudget(epsilon, delta), second_stage=AdaptiveSecondStage(**settings))
    pipeline = learner_pipeline(learner, release, None)
    return replay(pipeline, records, *neighbours_for_replay(records, domain)[-2:])


CASES = {
    "function": {},
    "queries": {"release": "queries"},
    "small budget": {"epsilon": 0.2},
    "large budget": {"epsilon": 60.0},
    "one number": {"constant_only": True},
    "chosen covariates": {"q": 13},
    "trial": {"facts": {"propensity": 0.5}},
    "scores": {"kind": DRLearner},
}


@pytest.mark.parametrize("name", CASES)
def test_a_composition_passes(name):
    found = report(**CASES[name])
    assert found.passed, str(found)
    assert found.neighbours == 2
    assert found.outputs > 100  # every count, sum and gradient is an answer of its own


PURE = {
    "function": {"epsilon": 60.0},
    "small budget": {},
    "queries": {"epsilon": 60.0, "release": "queries"},
    "chosen covariates": {"q": 13, "epsilon": 120.0},
    "trial": {"epsilon": 60.0, "facts": {"propensity": 0.5}},
}


@pytest.mark.parametrize("name", PURE)
def test_a_composition_of_pure_events_passes(name):
    found = report(delta=0.0, **PURE[name])
    assert found.passed, str(found)
    assert found.outputs >= {"small budget": 4, "trial": 6}.get(name, 7)  # of each step one


@pytest.mark.slow
def test_a_composition_in_lightning_passes():
    found = report(solver=LightningFit())
    assert found.passed, str(found)


def test_spreads_of_the_records_are_reported(monkeypatch):
    def own(rows, moments, steps, drawn):
        sums = rows.total(moments)
        return Standardisation(2 * sums[: len(sums) // 2] / rows.n, torch.ones(len(sums) // 2).double())

    monkeypatch.setattr(covariates, "private_standardisation", own)
    assert not report().passed


def test_a_solution_that_looks_at_the_records_is_reported():
    class Impatient(NoisyNewton):
        def solution(self, fit, plan, steps):
            found, start = super().solution(fit, plan, steps), torch.zeros(fit.predictors.shape[1]).double()
            return found._replace(coefficients=found.coefficients - 1e-6 * fit.gradient(start))

    assert not report(solver=Impatient()).passed
