"""Which neighbours are tried: one record differs, and where rare places are they are found."""

import pytest
import torch

from experiments.spillover.replacements import (
    Replacements,
    any_neighbours,
    in_region,
    random_neighbours,
    targeted_neighbours,
)
from tests.experiments.spillover.datasets import dataset
from torchdpcate.errors import InputError

pytestmark = pytest.mark.studies


def flat(K: int, n: int = 200):
    return torch.full((n, K), 1 / K, dtype=torch.float64)


def test_a_neighbour_differs_in_one_record():
    train, score, _, _ = dataset()
    pairs = random_neighbours(train, score, 20, torch.Generator().manual_seed(0))
    for k in range(20):
        other = pairs.neighbour(train, k)
        differs = (other.x != train.x).any(1) | (other.a != train.a) | (other.y != train.y)
        assert differs.nonzero()[:, 0].tolist() == [int(pairs.index[k])]
        assert torch.equal(other.x[pairs.index[k]], pairs.x[k])
        assert float(other.a[pairs.index[k]]) == float(pairs.arm[k])


@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_targeted_neighbours_stay_in_the_domain_and_have_extreme_outcomes(K, count):
    train, score, facts, _ = dataset(K=K)
    pairs = targeted_neighbours(train, score, facts, flat(K), count)
    assert count <= len(pairs) <= count + 2 * K
    facts.domain.check_covariates(pairs.x)
    assert set(pairs.y.tolist()) <= {0.0, 1.0}
    if count == 40:
        assert set(pairs.arm.tolist()) == set(range(K))


def test_the_record_of_the_least_likely_action_is_turned_first_or_second():
    train, score, facts, _ = dataset()
    propensity = flat(2)
    propensity[17] = torch.tensor([0.9, 0.1]) if train.a[17] == 1 else torch.tensor([0.1, 0.9])
    assert 17 in targeted_neighbours(train, score, facts, propensity, 16).index.tolist()


def test_newcomers_go_where_their_arm_is_missing():
    train, score, facts, _ = dataset(n=400, gap=0.2)
    pairs = targeted_neighbours(train, score, facts, flat(2, 400), 8)
    moved = pairs[torch.arange(len(pairs) - 4, len(pairs))]
    assert moved.arm.tolist() == [1] * 4
    assert bool((moved.x[:, 0] > 0.2).all())


def test_a_named_region_is_where_the_search_looks():
    train, score, facts, _ = dataset(n=400)
    region = {"x2": (0.8, 1.0)}
    pairs = targeted_neighbours(train, score, facts, flat(2, 400), 16, region)
    assert bool(in_region(pairs.x, facts.domain, region).all())
    with pytest.raises(InputError, match="'age' is no covariate"):
        targeted_neighbours(train, score, facts, flat(2, 400), 16, {"age": (0, 1)})
    with pytest.raises(InputError, match="no scoring record"):
        targeted_neighbours(train, score, facts, flat(2, 400), 16, {"x2": (5.0, 6.0)})


def test_starts_have_every_action_and_outcome():
    train, score, facts, _ = dataset(K=3)
    starts = any_neighbours(train, score, facts, 12, torch.Generator().manual_seed(0))
    assert len({(int(a), float(y)) for a, y in zip(starts.arm, starts.y, strict=True)}) == 6
    assert isinstance(Replacements.join([starts, starts]), Replacements)
