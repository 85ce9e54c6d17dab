"""The clip of residuals where most outcomes are one number: it is not nothing, and the effect is not lost."""

import math
from collections import Counter

import pytest
import torch

from tests.registered import AverageEffect, EffectRule, RLearner
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.summaries import OUTCOME, RESIDUAL, OutcomeScale, outcome_scale, residual_scale
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent, PureEvent
from torchdpcate.privacy.filters import FilterCost, GaussianFilter, SumFilter
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)
DOMAIN = Domain([-1] * 4, [1] * 4, 0.0, 10.0, overlap=0.1, better="higher")
PLAN = plan_within(5_000, BUDGET, DOMAIN)


def costs(n: int = 5_000, seed: int = 0) -> tuple[CausalData, torch.Tensor]:
    """Three in four have no costs, the others exponential ones of mean 1; the effect is on who has some."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 4, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    share = [torch.sigmoid(-1.5 + 0.6 * x[:, 3] + arm * (0.8 + 0.4 * x[:, 0])) for arm in (0.0, 1.0)]
    some = torch.rand(n, generator=generator) < torch.where(a > 0.5, share[1], share[0])
    y = some * -torch.rand(n, generator=generator).double().log()
    return CausalData(x, a, y.clamp(0, 10)), share[1] - share[0]


def answers(**by_step: float):
    """A quantile that answers as told, and what it was requested."""
    requested = []

    def quantile(q: float, step: str) -> float:
        requested.append((q, step))
        return by_step[step.split()[0]]

    return quantile, requested


def test_an_ordinary_outcome_has_two_scales():
    quantile, requested = answers(outcome=0.7, residual=0.5)
    about = outcome_scale(quantile, PLAN, 10.0)
    assert about == OutcomeScale(0.7)
    assert residual_scale(quantile, PLAN, 10.0, about) == 0.5
    assert requested == [(PLAN.huber_quantile, OUTCOME), (PLAN.huber_quantile, RESIDUAL)]
    quantile, _ = answers(outcome=0.7, residual=0.001)
    assert residual_scale(quantile, PLAN, 10.0, about) == 10.0 / 200


def test_outcomes_that_are_mostly_one_number_have_one_scale_by_a_higher_quantile():
    quantile, requested = answers(outcome=0.002, residual=1.6)
    about = outcome_scale(quantile, PLAN, 10.0)
    assert about == OutcomeScale(1.6, few=True)
    assert residual_scale(quantile, PLAN, 10.0, about) == 1.6
    assert requested == [(PLAN.huber_quantile, OUTCOME), (0.95, RESIDUAL)]  # each step asks once, as is paid for


def charged(make, budget, y, seed=1):
    """Events of a fit in their order, each once."""
    n = len(y)
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(n, 4, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    learner = make(DOMAIN, budget, noise=NoiseSource.fixed(seed)).fit(x.numpy(), a.numpy(), y.numpy())
    return [(e.charge.part, e.event, e.count) for e in learner.ledger_.entries]


BRANCHES = {
    "ordinary": lambda u: 10 * u,
    "few": lambda u: 10 * u * (u > 0.9),
    "fewer": lambda u: 10 * u * (u > 0.999),
    "one number": lambda u: 0 * u,
}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("make", "budget"),
    [
        (RLearner, BUDGET),
        (RLearner, PrivacyBudget(4.0, 0.0)),
        (EffectRule, PrivacyBudget(4.0, 1e-5)),
        (EffectRule, PrivacyBudget(4.0, 0.0)),
        (AverageEffect, PrivacyBudget(4.0, 1e-5)),
    ],
)
def test_every_branch_is_charged_the_same_events_and_stays_within_the_filter(make, budget):
    """What was released decides when the residual's scale is requested; not what is paid, nor what comes last."""
    u = torch.rand(2_000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    branches = {name: charged(make, budget, outcome(u)) for name, outcome in BRANCHES.items()}
    first = branches["ordinary"]
    orders = {tuple(part for part, *_ in events) for events in branches.values()}
    # by pure events a scale is chosen among those that are above nothing
    assert len(orders) == (1 if budget.delta == 0 else 2)
    limit = compose([(event, count) for _, event, count in first], budget.delta)
    for events in branches.values():
        assert Counter(events) == Counter(first)
        gaussian = [(event, count) for _, event, count in events if isinstance(event, GaussianEvent)]
        others = [(event, count) for _, event, count in events[len(gaussian) :]]
        assert all(isinstance(event, PureEvent) for event, _ in others)  # so all Gaussian events come before
        if gaussian:
            total = math.sqrt(sum(count / event.noise_multiplier**2 for event, count in gaussian))
            rule, reserve, costs = GaussianFilter(), FilterCost(total, 0.0), []
            for event, count in gaussian:  # each fits into what the ones before it leave of M
                costs.append(rule.cost(event, count, reserve))
                assert rule.fits(reserve, costs)
            pair = [(GaussianEvent(1 / total), 1), *others]
            assert compose(pair, budget.delta) == pytest.approx(limit, rel=1e-6)
        else:
            costs = [FilterCost(count * event.epsilon, 0.0) for event, count in others]
            assert SumFilter().total(costs).size <= budget.epsilon * (1 + 1e-12)
    assert limit <= budget.epsilon * (1 + 1e-9)
