"""Stage two by a weighted outcome table."""

import math

import pytest
import torch

from tests.estimators.average.eight import ETA, PHI, THETA, Y, Z
from torchdpcate.causal.estimand import ATT, ESTIMANDS, Estimand, make_estimand
from torchdpcate.estimators.average.effect_estimator import EffectFacts, Weighted
from torchdpcate.estimators.average.outcome_table import CELLS, OutcomeTable, _arm_bounds, _Means, floors
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

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
    found = OutcomeTable().without_noise(lambda terms: terms(_weighted(estimand)), EffectFacts(8, estimand))
    table, contrast = TABLES[name]
    for name, value in zip(CELLS, table, strict=True):
        assert abs(found.released[name].item() - value) < 5e-9
    assert abs(found.estimate.item() - contrast) < 5e-9


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_one_record_moves_the_scaled_table_by_at_most_one(estimand: str) -> None:
    """In the l1 norm of T_z / (2 W_z); and inside the root polytope of radius W where both arms have one bound."""
    estimand = make_estimand(estimand, ETA)
    ends = torch.linspace(0, 1, 3, dtype=torch.float64)
    z, y, e = (part.flatten() for part in torch.meshgrid(ends[::2], ends, ends, indexing="ij"))
    one = Weighted(*(part[:, None] for part in (z, y, estimand.at(ETA + (1 - 2 * ETA) * e, z), z)))
    found = OutcomeTable().without_noise(lambda terms: terms(one), EffectFacts(1, estimand)).released
    table = torch.stack([found[name] for name in CELLS], 1)
    moved = table[:, None] - table
    scaled = (moved / (2 * _arm_bounds(estimand))).abs().sum(-1)
    assert scaled.max().item() <= 1 + 1e-12
    assert scaled.max().item() >= 1 - 1e-12
    if estimand.most_treated == estimand.most_control:
        assert moved.clamp_min(0).sum(-1).max().item() <= estimand.largest * (1 + 1e-12)


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_the_variance_moves_by_no_more_than_its_bound(estimand: str) -> None:
    estimand = make_estimand(estimand, ETA)
    means = _Means(torch.tensor([[0.8, 0.3]]).double(), torch.tensor([[50.0, 80.0]]).double())
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    z, y, e = (part.flatten() for part in torch.meshgrid(ends, ends, ends, indexing="ij"))
    w = estimand.at(ETA + (1 - 2 * ETA) * e, z)
    bounds = _arm_bounds(estimand)
    each = means.terms(bounds, 1)
    shares = torch.stack([each(Weighted(*(p[k : k + 1][None] for p in (z, y, w, z)))) for k in range(len(z))])
    assert math.isclose(shares.max().item(), 1.0, rel_tol=1e-12)
    mu, size = means.mu[0], means.size[0]
    direct = (torch.where(z > 0.5, 1 / size[0], 1 / size[1]) * w * (y - torch.where(z > 0.5, mu[0], mu[1]))).square()
    torch.testing.assert_close(shares.flatten() * means.largest_term(bounds), direct, rtol=1e-12, atol=1e-16)


def test_the_law_of_the_error_is_that_of_the_released_means() -> None:
    """To first order: the estimate's error is the noise of the cells times its slopes in them."""
    estimand = ATT(ETA)
    found = OutcomeTable().run(
        lambda terms: terms(_weighted(estimand, 2_000)),
        EffectFacts(16_000, estimand),
        EPSILONS,
        FitSession(NoiseSource.fixed(3)),
    )
    table = torch.tensor([[found.released[name].item() for name in CELLS]], dtype=torch.float64, requires_grad=True)
    pairs = table.reshape(1, 2, 2)
    mu = pairs[:, :, 0] / pairs.sum(2)
    (slopes,) = torch.autograd.grad((mu[:, 0] - mu[:, 1]).sum(), table)
    scales = 2 * _arm_bounds(estimand) / EPSILONS["table"]
    torch.testing.assert_close(found.laplace, (slopes.abs() * scales), rtol=1e-4, atol=0)
    assert found.polytope is None


@pytest.mark.parametrize(("estimand", "polytope"), [("ATE", True), ("ATO", True), ("ATT", False), ("ATC", False)])
def test_the_root_polytope_is_taken_where_both_arms_have_one_bound(estimand: str, polytope: bool) -> None:
    estimand = make_estimand(estimand, ETA)
    found = OutcomeTable().run(
        lambda terms: terms(_weighted(estimand, 2_000)),
        EffectFacts(16_000, estimand),
        EPSILONS,
        FitSession(NoiseSource.fixed(3)),
    )
    assert (found.polytope is not None) == polytope
    assert found.laplace.shape[1] == (0 if polytope else 4)


def test_an_arm_that_noise_swamps_has_the_mean_one_half_and_says_so() -> None:
    estimand = ATT(ETA)
    epsilons = {"table": 1e-3, "variance": 1e-3}
    found = OutcomeTable().run(
        lambda terms: terms(_weighted(estimand)), EffectFacts(8, estimand), epsilons, FitSession(NoiseSource.fixed(4))
    )
    assert torch.isfinite(found.estimate).all()
    assert torch.isfinite(found.gaussian).all()
    assert found.noise_dominated.all() or found.released["treated_high"].abs().item() > floors(estimand, 1e-3)[0].item()
