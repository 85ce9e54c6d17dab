"""The games on stage one: neighbours indeed, exact evidence, honest noise that is not refuted, half of it that is."""

import math

import pytest
import torch

from torchdpcate.audit.attack import audit
from torchdpcate.audit.report import find
from torchdpcate.estimators.average import worst_case as games
from torchdpcate.estimators.average import worst_case as own
from torchdpcate.fit import linear_fits
from torchdpcate.fit.stacked_records import arm
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import WORST_CASES

BUDGET = PrivacyBudget(1.0, 1e-5)


def changed(datasets):
    """Records in which two data sets differ."""
    before, after = (torch.cat([w.batch.psi, w.batch.z[:, None], w.batch.y[:, None]], 1) for w in datasets)
    return (before != after).any(1).nonzero()[:, 0].tolist()


def test_the_worlds_of_the_objective_noise_differ_in_one_record_of_full_weight():
    datasets = [games._separated(dataset, 40) for dataset in (0, 1)]
    assert changed(datasets) == [80]
    fit = linear_fits.ObjectiveFit(share=games._SHARE).prepare(games._STEEP, 81, games._FEATURES, BUDGET)
    theta = datasets[0].minimise(games._STEEP, arm, fit.ridge, torch.zeros(1, 2), 1e-9)
    gradients = [dataset.slopes(games._STEEP, arm, theta)[1] for dataset in datasets]
    entry = games._FEATURES.largest_entry
    assert (gradients[1] - gradients[0]).abs().max().item() == pytest.approx(2 * 4.0 * entry)  # 2 W max|psi_j|
    hessians = [dataset.slopes(games._STEEP, arm, theta)[2] for dataset in datasets]
    torch.testing.assert_close(hessians[0], hessians[1])  # the records are clipped


@pytest.mark.slow
def test_the_density_integrates_to_the_mass_of_the_cubes_noise():
    """Theta and the linear term are one to one: its mass is that of exp(-||b||_inf / s), 8 s^2 in the plane."""
    for dataset in (0, 1):
        records, ridge, scale = games._separated(dataset, 3), 6.0, 1.5
        end = (7 * 4 + 16 * scale) / ridge  # beyond lies 2e-6 of the mass
        line = torch.linspace(-end, end, 801, dtype=torch.float64)
        mass = games.log_density(torch.cartesian_prod(line, line), records, games._STEEP, ridge, scale).exp().sum()
        assert (mass * (line[1] - line[0]) ** 2).item() == pytest.approx(8 * scale**2, rel=5e-3)  # kinks, jumps


@pytest.mark.slow
@pytest.mark.first(1)
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_evidence_of_the_objective_noise_is_the_exact_log_likelihood_ratio(epsilon):
    """E_0 exp(L) = 1 = E_1 exp(-L), to five standard errors of 2000 runs: wrong once in 1e6 looks."""
    game, noise, runs = (
        WORST_CASES["balancing_objective"].make(PrivacyBudget(epsilon, 0.0)),
        NoiseSource.fixed(5),
        2_000,
    )
    assert game.event == PureEvent(epsilon)
    ratios = [game.evidence(game.draw(dataset, runs, noise)) for dataset in (0, 1)]
    for means in (ratios[0].exp(), (-ratios[1]).exp()):
        assert abs(means.mean().item() - 1) < 5 * means.std().item() / math.sqrt(runs)
    most = max(ratio.abs().max().item() for ratio in ratios)
    assert 0.85 * epsilon < most < epsilon


@pytest.mark.slow
def test_half_of_the_noise_is_refuted(monkeypatch):
    """Counting the replaced record once."""
    case = WORST_CASES["balancing_objective"]
    assert not audit(case, BUDGET, trials=8_000, noise=NoiseSource.fixed(2)).refuted
    half = linear_fits.WeightBounds.per_record(1.0)
    object.__setattr__(half, "first", 1.0)
    monkeypatch.setattr(linear_fits.WeightBounds, "per_record", lambda most: half)
    assert audit(case, BUDGET, trials=8_000, noise=NoiseSource.fixed(2)).refuted


def test_the_game_is_conditional_and_its_loss_within_the_claim():
    game = find("user_basis").make(BUDGET)
    assert game.guarantee.level is Level.CONDITIONAL
    assert "features = _Ages" in game.guarantee.conditions[0].text
    grid = torch.linspace(-6, 6, 121).double()
    drawn = torch.cat([game.draw(dataset, 200, NoiseSource.fixed(dataset)) for dataset in (0, 1)])
    ratio = game.evidence(torch.cat([drawn, torch.cartesian_prod(grid, grid)]))
    # the share of the noise, nearly: the record pulls one way or the other by all that is charged
    assert 0.93 < ratio.abs().max().item() <= 0.951


def test_rows_left_as_they_are_would_break_it(monkeypatch):
    """The same game with norms of 90: the ratio of what is drawn is far beyond the claim."""
    monkeypatch.setattr(own, "on_domain", lambda features, domain: _Unbounded(features.setup(domain)))
    game = find("user_basis").make(BUDGET)
    ratio = game.evidence(game.draw(1, 400, NoiseSource.fixed(0)))
    assert ratio.mean().item() > 3 * BUDGET.epsilon


class _Unbounded:
    """A map whose rows are not held to their bounds."""

    largest_entry = 1.0
    dimension = 2
    conditions = ()

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, x):
        return self.inner.forward(x)
