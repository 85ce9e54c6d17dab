"""Stage two by a weighted outcome table."""

import math

import pytest
import torch

from experiments.covariate_balancing.largest import weight_bounds
from experiments.covariate_balancing.outcome_table import CELLS, OutcomeTable, _Means, _variances
from experiments.covariate_balancing.root_polytope import root_norm
from tests.estimators.average.eight import ETA, PHI, THETA, Y, Z
from torchdpcate.causal.estimand import ESTIMANDS, Estimand, make_estimand
from torchdpcate.estimators.average.weighted import EffectFacts, Weighted

EPSILONS = {"table": 0.6, "variance": 0.1}
# T_11, T_10, T_01, T_00 and the Hajek contrast of the note's section 7
TABLES = {
    "ATE": ([5.81554807, 3.60408016, 5.84365444, 6.94318542], 0.16038079),
    "ATT": ([2.5, 1.5, 3.84365444, 4.94318542], 0.18756692),
}


def _weighted(estimand: Estimand, copies: int = 1) -> Weighted:
    w = estimand.weights(PHI @ THETA, Z)[None]
    return Weighted(*(part.repeat(1, copies) for part in (Z[None], Y[None], w, torch.full_like(w, 0.5))))


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_note(name: str) -> None:
    estimand = make_estimand(name, ETA)
    found = OutcomeTable(EffectFacts(8, estimand), EPSILONS).without_noise(lambda exact: exact(_weighted(estimand)))
    table, contrast = TABLES[name]
    for name, value in zip(CELLS, table, strict=True):
        assert abs(found.released[name].item() - value) < 5e-9
    assert abs(found.estimate.item() - contrast) < 5e-9


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_one_record_moves_the_scaled_table_by_at_most_one(estimand: str) -> None:
    """In the norm of the root polytope, either arm's cells in units of its own largest weight."""
    estimand = make_estimand(estimand, ETA)
    ends = torch.linspace(0, 1, 3, dtype=torch.float64)
    z, y, e = (part.flatten() for part in torch.meshgrid(ends[::2], ends, ends, indexing="ij"))
    one = Weighted(*(part[:, None] for part in (z, y, estimand.at(ETA + (1 - 2 * ETA) * e, z), z)))
    found = OutcomeTable(EffectFacts(1, estimand), EPSILONS).without_noise(lambda exact: exact(one)).released
    table = torch.stack([found[name] for name in CELLS], 1)
    moved = (table[:, None] - table) / weight_bounds(EffectFacts(1, estimand)).repeat_interleave(2, -1)
    norm = root_norm(moved)
    assert norm.max().item() <= 1 + 1e-12
    assert norm.max().item() >= 1 - 1e-12


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_the_variance_moves_by_no_more_than_its_bound(estimand: str) -> None:
    estimand = make_estimand(estimand, ETA)
    means = _Means(torch.tensor([[0.8, 0.3]]).double(), torch.tensor([[50.0, 80.0]]).double())
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    z, y, e = (part.flatten() for part in torch.meshgrid(ends, ends, ends, indexing="ij"))
    w = estimand.at(ETA + (1 - 2 * ETA) * e, z)
    bounds = weight_bounds(EffectFacts(1, estimand))
    (shares,) = _variances(means, means.largest_term(bounds)[:, None], Weighted(*(p[None] for p in (z, y, w, z))))
    assert math.isclose(shares.max().item(), 1.0, rel_tol=1e-12)
    mu, size = means.mu[0], means.size[0]
    direct = (torch.where(z > 0.5, 1 / size[0], 1 / size[1]) * w * (y - torch.where(z > 0.5, mu[0], mu[1]))).square()
    torch.testing.assert_close(shares.flatten() * means.largest_term(bounds), direct, rtol=1e-12, atol=1e-16)
