"""Attacks on single steps by their own code: none shows more than was paid, and too little noise is found."""

import math

import pytest
import torch

from tests.composition.cases import Given, batch, rows
from torchdpcate.audit.attack import audit
from torchdpcate.composition.covariates import CELLS, WindowCells, chosen_pairs, turned, turned_back
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, NoisyNewton
from torchdpcate.composition.steps import HALVINGS, NoisySteps, Shares, total_mu
from torchdpcate.composition.summaries import Moments, private_curvatures, private_standardisation
from torchdpcate.fit.weighted_basis import Feature
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, WorstCase

BUDGET, RUNS = PrivacyBudget(1.0, 0.01), 400
STEPS = ("centre", "windows", "moments", "pairs", "curvatures", "effect")
FAR = 1e6
N = 20


class Faulty(NoisySteps):
    """Steps with a quarter of the noise that they were charged for, or a twentieth of a choice's."""

    def noisy(self, values, sensitivity, event):
        return super().noisy(values, sensitivity / 4, event)

    def noisy_gradient(self, values, sensitivity, event):
        return super().noisy_gradient(values, sensitivity / 4, event)

    def rounding(self, n, bound):
        return -1.9 if "pairs" in self.shares.shares else super().rounding(n, bound)  # a choice of two tells little


def seen(step: str, dataset: int, steps: NoisySteps) -> float:
    """One run of a step on D or D', as the number that tells them apart best."""
    sign = torch.tensor(1.0 if dataset else -1.0, dtype=torch.float64)
    ones = torch.ones(N, dtype=torch.float64)
    balanced = torch.where(torch.arange(N) % 2 == 0, 1.0, -1.0).double()
    if step == "centre":
        values = balanced.clone()
        values[-1] = sign
        return -steps.noisy((values < 0).sum(dtype=torch.float64)[None], 1.0, steps.pay(step)).item()
    if step == "windows":  # both quantiles of three covariates, of which all eight thresholds lie within
        u = balanced[:, None].repeat(1, 3)
        u[-1] = sign
        every = torch.ones(3, dtype=torch.bool)
        cells = WindowCells(every, ~every)
        below = turned(cells(batch(u))[:, : CELLS // 2].sum(1)[:, None].repeat(1, 2))
        event, sensitivity = steps.pay(step, count=HALVINGS), steps.sensitivity(cells, N)
        found = (steps.noisy(below.flatten(), sensitivity, event).view(3, 2) for _ in range(HALVINGS))
        return -sum(float(turned_back(noisy).sum()) for noisy in found)
    if step == "moments":
        u = balanced[:, None].repeat(1, 3)
        u[-1] = sign
        return private_standardisation(rows(u), Moments(), steps).mean.sum().item()
    if step == "pairs":  # of two, which a record tells apart: .77 for the second, -.27 for the first
        z = torch.stack([2 * balanced, 2 * ones], 1)
        z[-1] = torch.tensor([0.4, 2.0])
        r = -balanced
        r[-1] = sign
        return float(chosen_pairs(rows(z, r), (False, False), 1, step, steps) == (Feature("t", 1, 0),))
    if step == "curvatures":
        psi = torch.full((N, 2), 0.5, dtype=torch.float64)
        psi[-1] = torch.stack([1 + sign, 1 - sign])
        planned = torch.full((2,), 0.25, dtype=torch.float64)
        found = private_curvatures(rows(psi, ones), Given(norm=0.5), planned, step, steps)
        return (found[0, 0] - found[1, 1]).item()
    targets, row = FAR * balanced, ones[:, None]
    targets[-1] = FAR * sign
    plan = FitPlan(step, row[:1, 0] * N, row[:1, 0] * 0, 6, 1, 1 / 6, 0.25)
    return NoisyNewton().solve(HuberFit(row, ones, targets, 2.0), plan, steps).item()


def attacked(step: str, kind: type[NoisySteps]):
    shares = Shares(total_mu(BUDGET), {step: 1.0})

    def draw(dataset, runs, noise):
        steps = kind(FitSession(noise), shares)
        return torch.tensor([[seen(step, dataset, steps)] for _ in range(runs)], dtype=torch.float64)

    def make(budget):
        return Game(draw, shares.event(step), Guarantee(Level.CERTIFIED, budget), lambda outputs: outputs[:, 0])

    return audit(WorstCase(step, NoisySteps, "Neyman-Pearson", "a pair", make), BUDGET, trials=RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_shows_no_more_than_was_paid(step):
    result = attacked(step, NoisySteps)
    assert not result.refuted
    assert math.isfinite(result.bound)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS[::3])
def test_less_noise_is_found(step):
    assert attacked(step, Faulty).refuted
