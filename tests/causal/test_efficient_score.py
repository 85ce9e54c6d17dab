"""Doubly robust scores: their means at the truth and beside it, and their ranges by search over records."""

import pytest
import torch

from tests.estimators.average.confounded import EFFECT, data_sets
from torchdpcate.causal.estimand import ESTIMANDS, Estimand, make_estimand
from torchdpcate.causal.score import Scored, ScoreRanges


def true_nuisances(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    e = torch.sigmoid(0.1 + x @ torch.tensor([0.8, 0.8, -0.5, -0.6], dtype=torch.float64))
    g = -0.3 + x @ torch.tensor([1.0, 0.8, -0.6, 0.5], dtype=torch.float64)
    return e, torch.sigmoid(g), torch.sigmoid(g + 0.8)


WEIGHTS = {"ATE": torch.ones_like, "ATT": lambda e: e, "ATC": lambda e: 1 - e, "ATO": lambda e: e * (1 - e)}
"""What estimands weigh people by, as the note has it; of others what their class says is taken."""
SCORED = [name for name, kind in ESTIMANDS.items() if kind.score is not Estimand.score]
"""Estimands with a doubly robust score."""


def effect(score: Estimand, scored: Scored) -> float:
    a, b = score.score(*scored)
    return (a.sum() / b.sum()).item()


@pytest.mark.parametrize("estimand", SCORED)
def test_scores_give_the_weighted_effect_and_forgive_either_nuisance(estimand):
    """400,000 records: the deviation of each estimate is about 0.003."""
    batch = data_sets(1, 400_000, seed=0).batch
    e, mu0, mu1 = true_nuisances(batch.x)
    h = WEIGHTS.get(estimand, ESTIMANDS[estimand].tilt)(e)
    truth = ((h * (mu1 - mu0)).sum() / h.sum()).item()
    if estimand == "ATE":
        assert truth == pytest.approx(EFFECT, abs=1e-3)
    score, half = make_estimand(estimand, 0.1), torch.full_like(e, 0.5)
    assert effect(score, Scored(batch.z, batch.y, e, mu0, mu1)) == pytest.approx(truth, abs=0.015)
    assert effect(score, Scored(batch.z, batch.y, e, half, half)) == pytest.approx(truth, abs=0.015)
    if estimand != "ATO":  # whose weights are the propensity's own
        assert effect(score, Scored(batch.z, batch.y, half, mu0, mu1)) == pytest.approx(truth, abs=0.015)
        assert effect(score, Scored(batch.z, batch.y, half, half, half)) > truth + 0.05  # which is wrong in both


def test_a_score_worked_out_by_hand():
    one = Scored(*(torch.tensor([[value]], dtype=torch.float64) for value in (1.0, 0.5, 0.25, 0.2, 0.4)))
    control = one._replace(z=torch.zeros(1, 1, dtype=torch.float64))
    found = {name: [part.item() for part in make_estimand(name, 0.1).score(*one)] for name in SCORED}
    assert found["ATE"] == pytest.approx([0.2 + 0.1 / 0.25, 1])
    assert found["ATT"] == pytest.approx([0.3, 1])
    assert found["ATC"] == pytest.approx([0.1 * 3, 0])
    assert found["ATO"] == pytest.approx([0.75 * (0.5 - 0.25 * 0.4 - 0.75 * 0.2), 0.75**2])
    found = {name: [part.item() for part in make_estimand(name, 0.1).score(*control)] for name in SCORED}
    assert found["ATE"] == pytest.approx([0.2 - 0.3 / 0.75, 1])
    assert found["ATT"] == pytest.approx([-0.3 / 3, 0])
    assert found["ATC"] == pytest.approx([-0.1, 1])
    assert found["ATO"] == pytest.approx([-0.25 * 0.25, 0.25**2])


def test_what_outcomes_and_clip_allow():
    for estimand, change, size in (("ATE", 20, 0), ("ATT", 11 - 1, 1), ("ATC", 11 - 1, 1), ("ATO", 1.8, 0.8)):
        widest = ScoreRanges.widest(make_estimand(estimand, 0.1))
        assert widest.size_change.item() == pytest.approx(size)
        if estimand in ("ATE", "ATO"):
            assert widest.change.item() == pytest.approx(change)


@pytest.mark.parametrize("estimand", SCORED)
def test_random_records_stay_within_their_ranges_and_come_near(estimand):
    """Nuisances anywhere in random intervals, outcomes anywhere in [0, 1]: the worst of 40,000 records of each arm."""
    generator = torch.Generator().manual_seed(0)
    runs, n = 8, 80_000

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    e = (0.1 + 0.8 * uniform(runs, 2)).sort(1).values
    mu = uniform(runs, 2, 2).sort(2).values
    score, z = make_estimand(estimand, 0.1), (torch.arange(n) % 2).double().expand(runs, n)

    def inside(ends: torch.Tensor) -> torch.Tensor:
        share = (2 * uniform(runs, n) - 0.5).clamp(0, 1)  # half of them at an end
        return ends[:, :1] + share * (ends[:, 1:] - ends[:, :1])

    unit = torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(runs, 2)
    scored = Scored(z, inside(unit), inside(e), inside(mu[:, 0]), inside(mu[:, 1]))
    a, b = score.score(*scored)
    ranges, tau = ScoreRanges.of(score, e, mu), 2 * uniform(runs) - 1
    for arm in (0, 1):
        own_a, own_b = a[:, z[0] == arm], b[:, z[0] == arm]
        assert (own_a.amax(1) <= ranges.high[:, arm] + 1e-12).all()
        assert (own_a.amin(1) >= ranges.low[:, arm] - 1e-12).all()
        assert torch.allclose(own_b.amax(1), ranges.most[:, arm], atol=1e-9)
        assert torch.allclose(own_b.amin(1), ranges.least[:, arm], atol=1e-9)
    found, reach = (a - tau[:, None] * b).abs().amax(1), ranges.residual_bound(tau)
    assert (found <= reach + 1e-12).all()
    change = a.amax(1) - a.amin(1)
    assert (change <= ranges.change + 1e-12).all()
    if estimand != "ATO":  # whose mean outcome lies between both arms', so that the hull is not attained
        assert torch.allclose(change, ranges.change, rtol=1e-9)
        assert torch.allclose(found, reach, rtol=1e-9)
