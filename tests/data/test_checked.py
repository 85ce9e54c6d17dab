from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.registered import CovariateBalancingEffect, PolicySelector, RLearner, TwoStageRule
from torchdpcate import Domain, LinearSecondStage, NoiseSource, NuisanceConfig, PrivacyBudget, TableSchema
from torchdpcate.candidates.kinds import Constants
from torchdpcate.data.checked import checked_records
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.privacy.noise import SystemNoise

DOMAIN = Domain([0.0], [1.0], 0.0, 1.0, overlap=0.1, better="higher")
SCHEMA = TableSchema.from_domain(DOMAIN)
N = 400
BUDGET, PURE = PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0, 0.0)


class Given(SystemNoise):
    """System noise whose order of records is given, and which counts how often it is requested one."""

    def __init__(self, order: Tensor) -> None:
        self.order, self.requested = order, 0

    def permutation(self, n: int) -> Tensor:
        self.requested += 1
        return self.order


def table() -> tuple[Tensor, Tensor, Tensor]:
    """Records sorted by their outcomes."""
    random = torch.Generator().manual_seed(4)
    x = torch.rand(N, 1, generator=random, dtype=torch.float64)
    a = (torch.rand(N, generator=random) < 0.5).double()
    y = torch.rand(N, generator=random, dtype=torch.float64).sort().values
    return x, a, (y > 0.5).double() * 0.999 + y * 1e-3


def fitted(make: Callable[..., Any], records: tuple[Tensor, ...], noise: NoiseSource | None) -> Any:
    return make(noise).fit(*records)


SPLIT: dict[str, tuple[Callable[..., Any], Callable[[Any], Tensor]]] = {
    "cate": (
        lambda noise: RLearner(
            DOMAIN,
            BUDGET,
            nuisance=NuisanceConfig(width=0, batch_size=50, epochs=1),
            second_stage=LinearSecondStage(),
            noise=noise,
        ),
        lambda learner: learner.stage_.block.x[:, 0],
    ),
    "owl": (lambda noise: TwoStageRule(DOMAIN, PURE, noise=noise), lambda rule: rule.problem_.psi[:, 1]),
    "selection": (
        lambda noise: PolicySelector(
            DOMAIN, PURE, policies=[Constants([0, 1])], nuisance=FixedNuisances(), noise=noise
        ),
        lambda selector: selector.utilities_,
    ),
    "balancing": (lambda noise: CovariateBalancingEffect(DOMAIN, PURE, noise=noise), lambda e: e._records.batch.y),
}


@pytest.mark.parametrize("name", SPLIT)
def test_every_private_fit_asks_for_one_random_order(name):
    make, look = SPLIT[name]
    backwards, kept = Given(torch.arange(N).flip(0)), Given(torch.arange(N))
    one, other = (look(fitted(make, table(), noise)) for noise in (backwards, kept))
    assert (backwards.requested, kept.requested) == (1, 1)
    if name not in ("selection", "tuned"):  # a sum has no order, and the tuned rule may have chosen another candidate
        assert one.shape == other.shape
        assert not torch.equal(one, other)


def test_orders_of_two_fits_owe_nothing_to_the_file_or_the_seed():
    orders = [fitted(SPLIT["balancing"][0], table(), None)._records.batch.y for _ in range(2)]
    assert not torch.equal(*orders)
    for order in orders:
        assert not torch.equal(order, table()[2])
        assert torch.equal(order.sort().values, table()[2])


def test_rows_stay_whole():
    x, a, y = table()
    records = checked_records(SCHEMA, x, a, y, NoiseSource.system())
    found = torch.cat([records.x, records.a[:, None], records.y[:, None]], 1)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, torch.stack([x[:, 0], a, y], 1).tolist()))
