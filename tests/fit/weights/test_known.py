import pytest
import torch

from tests.sessions import noted
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.weights import KnownWeights
from torchdpcate.privacy.noise import NoiseSource

STRATA = {"z": {0: 0.2, 1: 0.6}}


def domain(propensity=None) -> Domain:
    return Domain([0, 0], [1, 1], -1.0, 1.0, 0.1, ["x", "z"], two_levels=[False, True], propensity=propensity)


RECORDS = CausalData(
    torch.tensor([[0.5, 0.0], [0.1, 1.0], [0.8, 1.0]], dtype=torch.float64),
    torch.tensor([1.0, 0.0, 1.0]),
    torch.ones(3),
    torch.tensor([0.2, 0.6, 0.6], dtype=torch.float64),
)


def fitted(facts: Domain, scheme: KnownWeights | None = None):
    def unpaid(*payment) -> None:
        raise AssertionError(payment)

    return (scheme or KnownWeights()).fit(RECORDS, facts, budget=None, session=noted(NoiseSource.fixed(0), unpaid))


@pytest.mark.parametrize(("given", "most"), [(STRATA, 2.5), ("p", 5.0)])
def test_the_domain_tells_it(given, most) -> None:
    weights = fitted(domain(given))
    assert weights.weights(RECORDS).tolist() == pytest.approx([0.5 / 0.2, 0.5 / 0.4, 0.5 / 0.6])
    assert weights.bounds.most == pytest.approx(most)
    assert weights.bounds.own
    assert weights.of(RECORDS).tolist() == [0.2, 0.6, 0.6]
    assert (weights.propensity(RECORDS.x) is None) == (given == "p")


def test_a_trial_of_one_coin() -> None:
    weights = fitted(domain(0.5))
    assert weights.bounds.most == 1.0
    assert weights.public == {"propensity": 0.5}


@pytest.mark.parametrize(("given", "most"), [(0.5, 1.0), (STRATA, 2.5), ("p", 5.0)])
def test_verification_finds_the_bounds_again(given, most) -> None:
    weights = fitted(domain(given))
    bounds, public = KnownWeights.restated(weights.public, 3, domain(given))
    assert (bounds.most, public) == (pytest.approx(most), weights.public)
    assert bounds == weights.bounds
