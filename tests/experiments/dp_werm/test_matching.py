"""Totals of comparisons against all pairs at once."""

import pytest
import torch

from experiments.dp_werm.matched import AllPairs, CellPairs, GaussianPairs
from torchdpcate.data.domain import Domain
from torchdpcate.fit import feature_maps as features

DOMAIN = Domain([0.0, 0.0], [1.0, 3.0], -1.0, 1.0, names=["age", "sex"], better="higher")
MATCHINGS = [AllPairs(), CellPairs(["sex"]), CellPairs([0, 1]), GaussianPairs(0.4)]


def pairs(matching, x, a, r, sized):
    """The totals from the full matrix of comparisons."""
    z = DOMAIN.scale(x)
    if isinstance(matching, GaussianPairs):
        kappa = (-(z[:, None] - z[None]).square().sum(2) / (2 * matching.bandwidth**2)).exp()
    elif isinstance(matching, CellPairs):
        columns = [DOMAIN.names.index(c) if isinstance(c, str) else c for c in matching.columns]
        kappa = (x[:, None, columns] == x[None, :, columns]).all(2).double()
    else:
        kappa = torch.ones(len(a), len(a), dtype=torch.float64)
    gap = r[:, None] - r[None]
    weight = kappa * (a[:, None] != a[None]) * (gap.abs() if sized else 1)
    label = (2 * a - 1)[:, None] * gap.sign()
    return (weight * (label > 0)).sum(1), (weight * (label < 0)).sum(1)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("matching", MATCHINGS, ids=repr)
@pytest.mark.parametrize("n", [3, 300])
def test_totals_are_those_of_all_pairs(matching, sized, n, monkeypatch):
    monkeypatch.setattr(features, "_CHUNK_ELEMENTS", 1000)  # several blocks, the last one short
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 3.0])
    x[:, 1] = x[:, 1].floor()
    a = (torch.rand(n, generator=generator) < 0.4).double()
    a[:2] = torch.tensor([0.0, 1.0])
    r = ((torch.rand(n, generator=generator, dtype=torch.float64) - 0.5) * 20).round() / 20  # with ties
    totals, expected = matching.totals(x, a, r, DOMAIN, sized), pairs(matching, x, a, r, sized)
    torch.testing.assert_close(totals.treat, expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(totals.leave, expected[1], rtol=1e-12, atol=1e-12)
    assert min(totals.treat.min(), totals.leave.min()) >= 0


@pytest.mark.parametrize("bandwidth", [1e-9, 1e-7, 1e-2, 1.0])
def test_a_gaussian_weight_looks_at_two_records_whatever_the_bandwidth(bandwidth):
    """Twins are compared in full, and no pair's weight changes with the records around it."""
    domain = Domain([0.0] * 3, [1.0] * 3, -1.0, 1.0, better="higher")
    generator = torch.Generator().manual_seed(0)
    half = torch.rand(30, 3, generator=generator).double()
    x, r = half.repeat(2, 1), torch.tensor([1.0, 0.0]).double().repeat_interleave(30)
    a = r.clone()
    totals = GaussianPairs(bandwidth).totals(x, a, r, domain, False)
    assert bool((totals.treat[:30] >= 1 - 1e-15).all())  # a twin of weight one at least
    if bandwidth < 1e-3:
        torch.testing.assert_close(totals.treat, torch.ones(60).double(), rtol=0, atol=1e-12)
    pair = torch.tensor([0, 31])
    alone = GaussianPairs(bandwidth).totals(x[pair], a[pair], r[pair], domain, False)
    others = torch.tensor([0, 31, *range(40, 60)])
    among = GaussianPairs(bandwidth).totals(x[others], a[others], r[others], domain, False)
    rest = torch.tensor([0, *range(40, 60)])
    without = GaussianPairs(bandwidth).totals(x[rest], a[rest], r[rest], domain, False)
    torch.testing.assert_close(among.treat[0] - without.treat[0], alone.treat[0], rtol=1e-12, atol=1e-14)
