"""The spread of one record's scores: closed forms and random nuisances."""

import pytest
import torch

from torchdpcate.causal.score import dr_scores, score_spread
from torchdpcate.data.domain import Domain
from torchdpcate.errors import NumericalError

DOMAIN = Domain([0.0, -2.0], [1.0, 3.0], outcome_low=-1.0, outcome_high=3.0, overlap=0.1)


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_what_floor_and_domain_allow_is_range_over_floor(arms):
    e = torch.tensor([[0.1, 1 - 0.1 * (arms - 1)]]).expand(arms, 2).double()
    assert score_spread(DOMAIN, e, torch.tensor([[-1.0, 3.0]]).expand(arms, 2)) == pytest.approx(40)


def test_constants():
    half, middle = torch.full((2, 2), 0.5), torch.ones(2, 2)
    assert score_spread(DOMAIN, half, middle) == 4.0
    # the middle one of three arms apart: an untreated record's scores differ by 3 - (-1)
    apart = torch.tensor([[-1.0, -1.0], [3.0, 3.0], [3.0, 3.0]])
    assert score_spread(DOMAIN, torch.ones(3, 2), apart) == 4.0


def test_intervals_that_are_not_finite_are_no_spread():
    with pytest.raises(NumericalError, match="not finite"):
        score_spread(DOMAIN, torch.tensor([[0.5, float("nan")], [0.5, 0.5]]), torch.zeros(2, 2))


@pytest.mark.parametrize("arms", [2, 3])
def test_random_records_stay_within_and_come_near(arms):
    generator = torch.Generator().manual_seed(0)
    mu = (4 * torch.rand(arms, 2, generator=generator, dtype=torch.float64) - 1).sort().values
    e = (0.1 + 0.2 * torch.rand(arms, 2, generator=generator, dtype=torch.float64)).sort().values
    n = 200_000
    sides = [torch.randint(2, (n, arms), generator=generator) for _ in range(2)]
    values = [part.gather(1, which.T).T for part, which in zip((mu, e), sides, strict=True)]
    y = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 3.0).double()
    phi = dr_scores(torch.randint(arms, (n,), generator=generator), y, values[1], values[0])
    assert (phi.amax(1) - phi.amin(1)).max().item() == pytest.approx(score_spread(DOMAIN, e, mu))
