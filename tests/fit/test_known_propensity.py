import json

import pytest
import torch

from torchdpcate.causal.score import DRScore, RScore
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.fit.nuisances import NuisanceValues, propensity_at
from torchdpcate.fit.trainable import TrainableNuisances
from torchdpcate.privacy.budget import PrivacyBudget

STRATA = {"x1": {0: 0.3, 1: 0.6}}
BUDGET = PrivacyBudget(1.0, 1e-5)


def domain(propensity=None) -> Domain:
    return Domain([-1, 0], [1, 1], -2.0, 2.0, 0.1, two_levels=[False, True], propensity=propensity)


def drawn(n: int) -> CausalData:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    x[:, 1] = (x[:, 1] > 0).double()
    pi = torch.where(x[:, 1] == 1, 0.6, 0.3).double()
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < pi).double()
    return CausalData(x, a, x[:, 0] * a - 0.5 * x[:, 1])


def test_models_answer_what_the_domain_knows() -> None:
    x = torch.tensor([[0.5, 0.0], [0.5, 1.0]])
    model = Nuisances(domain(STRATA)).double()
    assert model.predict(x.double()).pi.tolist() == [0.3, 0.6]
    again = Nuisances.from_config(json.loads(json.dumps(model.config())))
    assert again.double().predict(x.double()).pi.tolist() == [0.3, 0.6]


def test_records_bring_their_own() -> None:
    records = drawn(5).with_propensity(torch.linspace(0.1, 0.9, 5, dtype=torch.float64))
    model = Nuisances(domain("p")).double()
    assert model.values(records).pi.tolist() == records.propensity.tolist()
    assert model.predict(records.x).pi.tolist() == [0.5] * 5  # points that are no records
    assert propensity_at(records.x, domain()) is None


def test_networks_learn_nothing_about_a_known_propensity() -> None:
    records, module = drawn(64), TrainableNuisances(domain(0.5), width=4)
    batch = tuple(part.float() for part in (records.x, records.a, records.y))
    module.training_step(batch).backward()
    assert all(bool((p.grad == 0).all()) for p in module.propensity.parameters())
    assert any(bool((p.grad != 0).any()) for p in module.outcome.parameters())
    fitted = TrainableNuisances(domain(), width=4)
    fitted.training_step(batch).backward()
    assert any(bool((p.grad != 0).any()) for p in fitted.propensity.parameters())


@pytest.mark.parametrize(("given", "least"), [(None, 0.1), (0.5, 0.5), (0.7, 0.3), (STRATA, 0.3), ("p", 0.1)])
def test_scores_are_bounded_by_it(given, least) -> None:
    facts = domain(given)
    assert facts.least_propensity == pytest.approx(least)
    r, dr = RScore().bounds(facts), DRScore().bounds(facts)
    assert (r.weight, dr.target) == pytest.approx((1 - least, 4.0 / least))
    low, high = (0.1, 0.9) if facts.known_propensity is None else facts.known_propensity.bounds
    ends = [
        (float(a), y, pi, mu0, mu1)
        for a in (0, 1)
        for y in (-2.0, 2.0)
        for pi in (low, high)
        for mu0 in (-2.0, 2.0)
        for mu1 in (-2.0, 2.0)
    ]
    a, y, pi, mu0, mu1 = torch.tensor(ends, dtype=torch.float64).T
    for score, bounds in ((RScore(), r), (DRScore(), dr)):
        s, w = score.regression(a, y, NuisanceValues(pi, mu0, mu1))
        assert s.abs().max().item() == pytest.approx(bounds.target)
        assert w.abs().max().item() == pytest.approx(bounds.weight)
