"""Replays of a composition: nothing but charged answers depends on a record, and what would is reported."""

import pytest
import torch

from tests.tools.replay.check import learner_pipeline, neighbours_for_replay, replay
from torchdpcate.composition import covariates
from torchdpcate.composition.linear_fit import NoisyNewton
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.fit.weighted_basis import Standardisation
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.averages import REQUESTS

N = 120


def study(q: int = 2, **facts) -> tuple[CausalData, Domain]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, q, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.5).double()
    y = (a * x[:, 0] + 0.1 * torch.rand(N, generator=generator, dtype=torch.float64)).clamp(-1, 1)
    return CausalData(x, a, y), Domain([0.0] * q, [1.0] * q, -1.0, 1.0, overlap=0.2, **facts, better="higher")


def report(
    q: int = 2, epsilon: float = 4.0, release: str = "function", *, facts=None, delta=1e-5, cells=None, **settings
):
    records, domain = study(q, **(facts or {}))
    if cells is not None:
        settings["cells"] = Subgroups.of(cells, TableSchema.of(domain))
    learner = RLearner(domain, PrivacyBudget(epsilon, delta), second_stage=AdaptiveSecondStage(**settings))
    pipeline = learner_pipeline(learner, release, None)
    return replay(pipeline, records, *neighbours_for_replay(records, domain)[-2:])


CASES = {
    "queries": {"release": "queries"},
    "pure queries": {"epsilon": 60.0, "delta": 0.0, "release": "queries"},
    "lines": {"facts": {"propensity": 0.5}, "lines": REQUESTS, "cells": [{"x0": [0.5]}, {"x1": [0.3, 0.7]}]},
}
"""The other compositions keep the contract of plans, which replays them."""


@pytest.mark.first(1)
@pytest.mark.parametrize("name", CASES)
def test_a_composition_passes(name):
    found = report(**CASES[name])
    assert found.passed, str(found)
    assert found.neighbours == 2
    # every count, sum and gradient is an answer of its own; of pure events those of a step are one
    assert found.outputs >= (7 if name == "pure queries" else 100)


@pytest.mark.slow
def test_spreads_of_the_records_are_reported(monkeypatch):
    def own(rows, moments, steps):
        sums = rows.total(moments)
        return Standardisation(2 * sums[: len(sums) // 2] / rows.n, torch.ones(len(sums) // 2).double())

    monkeypatch.setattr(covariates, "private_moments", own)
    assert not report().passed


@pytest.mark.slow
def test_a_solution_that_looks_at_the_records_is_reported():
    class Impatient(NoisyNewton):
        def solution(self, fit, plan, steps):
            found, start = super().solution(fit, plan, steps), torch.zeros(fit.predictors.shape[1]).double()
            return found._replace(coefficients=found.coefficients - 1e-6 * fit.gradient(start))

    assert not report(solver=Impatient()).passed
