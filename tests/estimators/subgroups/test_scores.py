"""Effects in subgroups by doubly robust scores: closed forms, shares of the budget, errors of nuisances, the plan."""

import math
from dataclasses import replace

import pytest
import torch

from tests.estimators.subgroups.requested import requested
from torchdpcate.composition.average import average_nuisances
from torchdpcate.composition.builder import average_plan
from torchdpcate.composition.records import rows_of
from torchdpcate.composition.steps import total_mu
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.estimators.subgroups.plan import cell_sums, score_numbers, sensitivity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_SCORES, Purpose
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.cell_effects import BASES, GAUSSIAN, LAPLACE, CellScores, cell_effects, mean_square
from torchdpcate.release.estimate import half_width

FACTS = {"overlap": 0.1, "two_levels": [False, False, True]}
DOMAIN = Domain([-3.0, -3.0, 0.0], [3.0, 3.0, 1.0], -10.0, 10.0, **FACTS)
BUDGET = PrivacyBudget(2.0, 1e-5)
CELLS = [{"x0": [0.0]}, {"x2": True}]


def records(n=3000, seed=0):
    """Confounded records with an effect of 1, and of 2 where x2 = 1."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64).clamp(-3, 3)
    x[:, 2] = (torch.rand(n, generator=g) < 0.3).double()
    pi = torch.sigmoid(0.8 * x[:, 0]).clamp(0.1, 0.9)
    a = (torch.rand(n, generator=g, dtype=torch.float64) < pi).double()
    y = x[:, 0] - 0.5 * x[:, 1] + a * (1 + x[:, 2]) + torch.randn(n, generator=g, dtype=torch.float64)
    return x, a, y.clamp(-10, 10)


def learner(budget=BUDGET, domain=DOMAIN, law=None, released=None, **settings):
    given = {"subgroups": CELLS, "noise": NoiseSource.fixed(5), **settings}
    return requested(law, released)(domain, budget, **given)


@pytest.mark.parametrize("released", ["separate", "crossed"])
def test_without_privacy_each_cell_has_the_mean_of_the_textbook_scores(released):
    x, a, y = records()
    fitted = learner(None, released=released).fit(x, a, y)
    plan = average_plan(len(x), None, DOMAIN)
    order = NoiseSource.fixed(5)
    rows = rows_of(CausalData(x, a, y), DOMAIN)
    found = average_nuisances(rows, DOMAIN, plan, FitSession(order), (False, False, True)).scored.records
    exact, cells = fitted.nonprivate_effects(), fitted.subgroups_
    for cell in range(cells.size):
        inside = (cells.positions(x) == cell).any(1)
        scores, count = found.y[inside], int(inside.sum())
        assert exact.estimate[cell].item() == pytest.approx(scores.mean().item(), abs=1e-4)
        assert exact.gaussian[cell].item() == pytest.approx(scores.std().item() / math.sqrt(count), rel=1e-2)
        assert exact.size[cell].tolist() == pytest.approx([count])
    assert exact.estimate.tolist() == pytest.approx([1.3, 1.3, 1.0, 2.0], abs=0.25)


@pytest.mark.parametrize("law", BASES)
def test_a_cells_numbers_give_its_mean_score_and_its_law(law):
    t = torch.tensor([-1.0, 0.5, 0.25, 1.0, 7.0], dtype=torch.float64)  # the last is clipped
    at = torch.tensor([[0], [0], [0], [1], [1]])
    numbers = score_numbers(t, law)
    if law == LAPLACE:
        assert torch.allclose(numbers.sum(1), torch.ones(5).double())
        assert bool((numbers >= 0).all())
    sums = cell_sums(numbers, None, at, 2)
    assert sums.shape == (2, 1, 3)
    held = CellScores(centre=0.3, clip=2.0, error=0.2, n=5)
    found = cell_effects(sums, torch.eye(2).double(), law, 1e-12, 10.0, scores=held)
    assert found.estimate.tolist() == pytest.approx([0.3 + 2 * (-0.25 / 3), 2.3], abs=1e-9)
    variance = t[:3].var(correction=0).item() / 3
    nuisances = 0.2 * (3 / 5) ** -0.25
    assert found.nuisances.tolist() == pytest.approx([nuisances, 0.2 * (2 / 5) ** -0.25])
    assert found.gaussian[0].item() == pytest.approx(math.hypot(2 * math.sqrt(variance), nuisances), rel=1e-6)
    far = cell_effects(sums, torch.eye(2).double(), law, 1e-12, 0.5, scores=replace(held, centre=0.0))
    assert far.estimate[1].item() == 1.0  # no effect is larger than the outcome's range


@pytest.mark.parametrize("law", BASES)
def test_no_pair_of_scores_moves_the_sums_further(law):
    g = torch.Generator().manual_seed(0)
    t = torch.rand(2, 4000, generator=g, dtype=torch.float64) * 2 - 1
    t = torch.where(torch.rand(2, 4000, generator=g) < 0.5, t.sign(), t)
    numbers = [score_numbers(t[k], law) for k in (0, 1)]
    same = torch.rand(4000, 1, generator=g) < 0.5  # the cell: of a record that stays, or leaves
    order = 1 if law == LAPLACE else 2
    stays = (numbers[0] - numbers[1]).norm(order, dim=1)
    leaves = torch.cat(numbers, 1).norm(order, dim=1)
    moved = float(torch.where(same[:, 0], stays, leaves).max())
    assert 0.999 * sensitivity(law, 1, 12) <= moved <= sensitivity(law, 1, 12) * (1 + 1e-12)


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN])
def test_steps_and_sums_share_the_budget(law):
    fitted = learner(law=law, noise=None).fit(*records(800))
    plan, entries = fitted.plan_, fitted.ledger_.entries
    assert fitted.ledger_.spent()["total"]["epsilon"] <= BUDGET.epsilon
    assert fitted.ledger_.spent()["total"]["epsilon"] == pytest.approx(BUDGET.epsilon, rel=1e-6)
    *steps, sums = entries
    assert {entry.charge.purpose for entry in steps} == {COMPOSED_SCORES.purpose}
    assert (sums.charge.purpose, sums.event) == (Purpose.RELEASE, plan.sums_law.mechanism.event)
    release = fitted.release()
    assert len(fitted.ledger_.entries) == len(entries)  # the fit has paid for it
    assert release.privacy.public["weights"] == "composed"
    if law == LAPLACE:
        assert sums.event.epsilon == plan.scores.plan.score_epsilon
    else:
        mu = 1 / sums.event.noise_multiplier
        assert math.hypot(mu, plan.scores.plan.shares.total) == pytest.approx(total_mu(BUDGET), rel=1e-6)
        assert plan.scale == pytest.approx(sensitivity(law, len(plan.strata.partitions), 800) / mu, rel=1e-3)


def test_intervals_count_the_errors_of_nuisances_and_contrasts_count_them_opposed():
    release = learner().fit(*records()).release()
    found, held = release.effects, release.scores
    assert held.error > 0
    share = found.size[:, 0] / 3000
    assert torch.allclose(found.nuisances, held.error * share.clamp(max=1) ** -0.25)
    assert bool((found.gaussian > found.nuisances).all())
    assert release.records.sum() == pytest.approx(6000, abs=200)  # of two partitions
    value, low, high = release.contrast("x0 < 0", "x0 >= 0")
    own = found.gaussian[:2].square() - found.nuisances[:2].square()
    deviation = math.sqrt(float(own.sum() + found.nuisances[:2].sum() ** 2))
    laplace = found.laplace[:2].flatten()[None]
    needed = half_width(0.95, torch.tensor([deviation]).double(), laplace).item()
    assert (high - low) / 2 == pytest.approx(needed, rel=1e-6)
    assert value == pytest.approx(release.estimate[0] - release.estimate[1])


def test_the_mean_square_that_errors_follow_from_is_a_bound():
    t = torch.linspace(-1, 1, 400, dtype=torch.float64)
    at = torch.stack([torch.arange(400) % 3, 3 + torch.arange(400) % 2], 1)
    for law in BASES:
        sums = cell_sums(score_numbers(t, law), None, at, 5)
        truth = t.square().mean().item()
        assert mean_square(sums, law, 0.0, 2, 400) == pytest.approx(truth, abs=1e-9)
        assert mean_square(sums, law, 2.0, 2, 400) > truth
        assert mean_square(1e3 * sums, law, 2.0, 2, 400) == 1.0
