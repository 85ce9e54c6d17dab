"""Doubly robust scores: their means at the truth and beside it."""

from typing import NamedTuple

import pytest
import torch

from tests.estimators.average.confounded import EFFECT, data_sets
from torchdpcate.causal.estimand import ESTIMANDS, Estimand, make_estimand


class Scored(NamedTuple):
    """Treatment, outcome, propensity and outcome models of records."""

    z: torch.Tensor
    y: torch.Tensor
    e: torch.Tensor
    mu0: torch.Tensor
    mu1: torch.Tensor


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
