import math

import pytest
import torch

from experiments.designs.rules import RareRegion
from tests.papers.moments import near

N = 200_000


def tail(t: float) -> float:
    return math.erfc(t / math.sqrt(2)) / 2


@pytest.fixture(scope="module")
def gaussian():
    return RareRegion(n=N, train_fraction=0.99, seed=1).load().records


def test_records_follow_the_stated_law(gaussian) -> None:
    study, (x, a, y) = RareRegion(), (gaussian.x, gaussian.a, gaussian.y)
    domain, pi, mean = study.domain(), study.propensity(gaussian.x), study.outcome(gaussian.x)
    domain.check_covariates(x)
    domain.check_outcome(y)
    assert float(torch.minimum(pi, 1 - pi).min()) >= domain.overlap
    assert near(study.inside(x).double(), tail(0.7) ** 2)
    density = math.exp(-4.5) / math.sqrt(2 * math.pi)
    assert near(x[:, 5] ** 2, 1 - 6 * density + 16 * tail(3.0))  # second moment of a normal clipped at 3
    assert near(a - pi, 0.0)
    residual = y - torch.where(a == 1, mean[:, 1], mean[:, 0])
    assert near(residual, 0.0)
    assert near(residual**2, 0.07**2 / 3)
    torch.testing.assert_close(mean[:, 1] - mean[:, 0], study.effect(x))
    inside = torch.tensor([[0.71, 0.8, *[0.0] * 18], [0.8, 0.7, *[0.0] * 18]], dtype=torch.float64)
    assert study.effect(inside).tolist() == [0.5, -0.06]  # the region is open
    assert study.propensity(inside).tolist() == [0.1, 0.5]


def test_the_outcome_stays_in_its_bounds_whatever_is_drawn() -> None:
    for study in (RareRegion(), RareRegion(region={"x2": 0.0})):
        domain = study.domain()
        x = torch.stack([domain.covariate_low, domain.covariate_high])
        assert float(study.outcome(x).min()) - 0.07 >= domain.outcome_low
        assert float(study.outcome(x).max()) + 0.07 <= domain.outcome_high
