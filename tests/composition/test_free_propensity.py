"""A known propensity is part of the record, and free of its covariates: no step asks more of such neighbours."""

from dataclasses import replace

import pytest
import torch

from tests.sessions import noted
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.constants import PlanConstants, RuleConstants
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.steps import NoisySteps
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(4.0, 1e-5)
FEW = PlanConstants(step_bounds=(5, 5), quantile_levels=3)
N, OVERLAP = 60, 0.1


class Answers:
    """What each step requests and its sensitivity; answers are those of the first run, or noise where there is none."""

    def __init__(self):
        self.requested, self.given, self.at = [], [], 0
        self.random = torch.Generator().manual_seed(1)

    def __call__(self, steps, values, sensitivity, event):
        values = values.detach().double()
        self.requested.append((values.flatten(), sensitivity))
        if self.at == len(self.given):
            noise = torch.randn(values.shape, generator=self.random, dtype=torch.float64)
            self.given.append(values + 0.3 * sensitivity * noise)
        self.at += 1
        return self.given[self.at - 1]

    def again(self):
        self.requested, self.at, requested = [], 0, self.requested
        return requested


def drawn(size: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Records whose propensity has nothing to do with anything else; many numbers are at an end of their bounds."""
    random = torch.Generator().manual_seed(seed)

    def ends(*shape):
        return (1.6 * torch.rand(*shape, generator=random, dtype=torch.float64) - 0.3).clamp(0, 1)

    a = (torch.rand(size, generator=random) < 0.5).double()
    return 2 * ends(size, 3) - 1, a, 10 * ends(size), OVERLAP + (1 - 2 * OVERLAP) * ends(size)


def r_learner(plan, domain, session, x, a, y, pi):
    fit_composition(rows_of(CausalData(x, a, y, pi), domain), domain, plan, session, domain.two_levels)


def domain_of(kind: str) -> Domain:
    high = 1.0 if kind == "binary" else 10.0
    return Domain([-1.0] * 3, [1.0] * 3, 0.0, high, overlap=OVERLAP, propensity="pi", outcome_kind=kind)


WHOLE = 50_000
PLANS = {
    "effect": (r_learner, lambda d: plan_within(WHOLE, BUDGET, d, constants=FEW)),
    "intervals": (r_learner, lambda d: plan_within(WHOLE, BUDGET, d, constants=FEW, intervals=True)),
    "rule": (r_learner, lambda d: plan_within(WHOLE, BUDGET, d, constants=RuleConstants(step_bounds=(5, 5)))),
    "wide": (r_learner, lambda d: plan_within(WHOLE, BUDGET, d, constants=replace(FEW, most=2))),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["continuous", "binary"])
@pytest.mark.parametrize("name", PLANS)
def test_no_step_asks_more_of_records_whose_propensity_is_free(name, kind, monkeypatch):
    run, plan_of = PLANS[name]
    domain = domain_of(kind)
    plan = plan_of(domain)
    assert plan.wide is name.startswith("wide")
    monkeypatch.setattr("torchdpcate.composition.covariates.gumbel_top_k", lambda _, count, *given: range(count))
    x, a, y, pi = drawn(N, seed=2)
    others = drawn(6, seed=3)
    if kind == "binary":
        y, others = y > 5, (*others[:2], others[2] > 5, others[3])
    answers = Answers()
    for patched in ("noisy", "noisy_gradient"):
        monkeypatch.setattr(NoisySteps, patched, lambda steps, *given: answers(steps, *given))
    session = noted(NoiseSource.fixed(0), lambda *_: None)
    run(plan, domain, session, x, a, y.double(), pi)
    first, most = answers.again(), 0.0
    for k in range(6):
        for retained in range(4):  # whether all of the record is another, or one part of it alone
            other = [part.clone().double() for part in (x, a, y, pi)]
            for place, part in enumerate(other):
                if retained in (0, place):
                    part[0] = others[place][k]
            run(plan, domain, session, *other)
            found = answers.again()
            assert len(found) == len(first)
            for (here, sensitivity), (there, same) in zip(first, found, strict=True):
                assert same == sensitivity
                share = float((here - there).norm()) / sensitivity
                assert share <= 1 + 1e-9, (k, retained, sensitivity)
                most = max(most, share)
    assert most > 0.5
