import pytest
import torch

from torchdpcate.papers.confounded import Confounded
from torchdpcate.papers.oprescu import Dataset1, Dataset2
from torchdpcate.papers.rules import OWL


@pytest.mark.parametrize("kind", [Confounded, Dataset1, Dataset2, OWL])
def test_samples_follow_the_seed_and_lie_in_the_domain(kind) -> None:
    first, again, other = (kind(n=500, seed=seed).load() for seed in (5, 5, 6))
    assert torch.equal(first.records.y, again.records.y)
    assert not torch.equal(first.records.x, other.records.x)
    first.domain.check_covariates(first.records.x)
    first.domain.check_outcome(first.records.y)
