"""The private centre of the outcome in scores of a trial: what it costs, what is requested, and where it lies."""

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.private import CentredNuisances, CentrePlan, centres, clips
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, TRAINING
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

DOMAIN = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=100.0, overlap=0.1, propensity=0.4)


def facts(n: int, domain: Domain = DOMAIN) -> SelectionFacts:
    return SelectionFacts(domain, (0, 1), domain.overlap, n)


def records(n: int) -> CausalData:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    y = 5 + torch.randn(n, generator=generator, dtype=torch.float64).clamp(-4, 4)
    return CausalData(x, (torch.arange(n) % 5 < 2).double(), y)


@pytest.mark.parametrize(
    ("n", "epsilon", "centre", "clip"),
    [(1_000, 1.0, 0.06, 0.1), (100, 1.0, 0.1, 0.1), (4_000, 1.0, 0.015, 0.0), (100_000, 4.0, 0.04, 0.0)],
)
def test_costs_follow_from_n_and_epsilon(n, epsilon, centre, clip):
    plan = CentrePlan(n, epsilon)
    assert (plan.centre, plan.clip) == (pytest.approx(centre), pytest.approx(clip))
    assert plan.cost == plan.centre + plan.clip <= 0.2 * epsilon
    assert 0.5 <= plan.quantile < 1
    budget = PrivacyBudget(epsilon, 0.0)
    assert CentredNuisances().planned_epsilon(facts(n), budget) == pytest.approx(epsilon - centre - clip)
    quarter = CentredNuisances().planned_range(facts(n), budget) == pytest.approx(2 * 25.0 / 0.4)
    assert quarter == (clip > 0)


@pytest.mark.parametrize("n", [1_200, 4_000])
def test_one_pure_event_pays_for_centre_and_clip(n):
    session = FitSession.open({"records": n}, PrivacyBudget(1.0, 0.0), NoiseSource.fixed(1))
    found = CentredNuisances().fit(records(n), facts(n), session=session.charging(["records"], TRAINING))
    (entry,) = session.ledger.entries
    plan = CentrePlan(n, 1.0)
    assert (entry.charge, entry.event) == (OUTCOME, PureEvent(plan.cost))
    assert found.public["centre"] in centres(DOMAIN).tolist()
    assert found.public["centre"] == pytest.approx(5.0, abs=1.0)
    assert found.clip in clips(DOMAIN).tolist()
    assert found.clip < 10.0 if plan.clip else found.clip == 50.0
    assert found.range_sensitivity == 2 * found.clip / 0.4
    assert found.nuisances.outcome(torch.zeros(3, 1)).unique().tolist() == [found.public["centre"]]


def test_without_privacy_it_is_the_median_and_nothing_is_clipped():
    found = CentredNuisances().fit(records(101), facts(101))
    assert found.public["centre"] == records(101).y.median().item()
    assert found.clip == 100.0


def test_an_unknown_propensity_is_refused():
    unknown = Domain([0.0], [1.0], outcome_low=0.0, outcome_high=100.0, overlap=0.1)
    with pytest.raises(InputError, match="the domain knows no propensity"):
        CentredNuisances().check(facts(100, unknown), PrivacyBudget(1.0, 0.0))
