"""Blocks of records for the tests of the spillover audit."""

import torch

from torchdpcate.candidates.kinds import Constants, LinearPolicies, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.arms.base import SelectionFacts


def dataset(n: int = 200, q: int = 3, K: int = 2, seed: int = 0, gap: float = 2.0):
    """Two blocks of n records, their facts and a library; nobody gets the last arm where the first covariate is above
    ``gap``."""
    generator = torch.Generator().manual_seed(seed)
    domain = Domain([-1.0] * q, [1.0] * q, 0.0, 1.0, overlap=0.1)
    actions = (0, 1) if K == 2 else tuple(range(1, K + 1))

    def block() -> CausalData:
        x = 2 * torch.rand(n, q, generator=generator, dtype=torch.float64) - 1
        a = torch.randint(K, (n,), generator=generator)
        a = torch.where((x[:, 0] > gap) & (a == K - 1), 0, a)
        y = (0.5 + 0.2 * a * x[:, 1] + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)).clamp(0, 1)
        return CausalData(x, a.double(), y)

    policies = [Constants(actions)]
    if K == 2:
        policies.append(Thresholds("x1", [-0.5, 0.0, 0.5]))
    shape = (5, q) if K == 2 else (5, K, q)
    policies.append(LinearPolicies(torch.randn(shape, generator=generator, dtype=torch.float64)))
    facts = SelectionFacts(domain, actions, 0.1, n, n)
    return block(), block(), facts, PolicyLibrary.of(policies).setup(domain, actions)
