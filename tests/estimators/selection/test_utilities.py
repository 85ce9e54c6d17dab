"""Utilities against a loop over policies and against exact fractions, and how many decisions they hold."""

from fractions import Fraction

import pytest
import torch

from torchdpcate.candidates.kinds import Constants, LinearPolicies, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.selection import scores as module
from torchdpcate.estimators.selection.scores import utilities
from torchdpcate.privacy.exact_sums import sum_grid

DOMAIN = Domain([-1.0] * 3, [1.0] * 3, 0.0, 1.0, better="higher")


def dataset(n: int, K: int, M: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 3, generator=generator, dtype=torch.float64) - 1
    scores = 11 * (2 * torch.rand(n, K, generator=generator, dtype=torch.float64) - 1)
    shape = (M, 3) if K == 2 else (M, K, 3)
    linear = LinearPolicies(torch.randn(shape, generator=generator, dtype=torch.float64))
    actions = (0, 1) if K == 2 else tuple(range(1, K + 1))
    library = PolicyLibrary.of([Constants(actions), linear]).setup(DOMAIN, actions)
    step = sum_grid(n, 11.0)
    return torch.round(scores / step) * step, library, x


def by_loop(scores, library, x):
    decisions = library.decide(x).long()
    return torch.stack([scores.gather(1, decisions[:, [m]]).sum() for m in range(len(library))])


@pytest.mark.parametrize("K", [2, 3, 5])
@pytest.mark.parametrize("block", [1, 7 * 23, 2**20])
def test_utilities_are_those_of_a_loop_to_the_last_bit(K, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    scores, library, x = dataset(203, K, 20)
    assert torch.equal(utilities(scores, library, x), by_loop(scores, library, x))


@pytest.mark.parametrize("K", [2, 3])
def test_sums_are_exact_in_whatever_order_the_records_come(K):
    scores, library, x = dataset(3000, K, 15)
    found = utilities(scores, library, x)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found, utilities(scores[order], library, x[order]))
    decisions = library.decide(x)
    for m in (0, 1, 9):
        picked = scores.gather(1, decisions[:, [m]].long())[:, 0].tolist()
        assert Fraction(float(found[m])) == sum(map(Fraction, picked), Fraction(0))


def test_memory_does_not_grow_with_policies_times_records(monkeypatch):
    library = PolicyLibrary.of(Thresholds("x0", torch.linspace(-0.9, 0.9, 10_000).tolist())).setup(DOMAIN, (0, 1))
    scores, _, x = dataset(2000, 2, 1)
    rows, decide = [], library.decide
    monkeypatch.setattr(library, "decide", lambda x: rows.append(len(x)) or decide(x))
    utilities(scores, library, x)
    assert sum(rows) == 2000
    assert max(rows) * len(library) <= module._BLOCK
