"""The game on a user's basis: one record apart, the claim kept exactly, and broken where rows are left as they are."""

import torch

from torchdpcate.audit.registry import find
from torchdpcate.estimators.average import worst_case_fits as own
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)


def test_the_worlds_differ_in_one_record():
    features = on_domain(own._Ages(), own._YEARS)
    before, after = (own._ages(features, treated).batch for treated in (0.0, 1.0))
    assert torch.equal(before.psi, after.psi)
    assert (before.z != after.z).nonzero().flatten().tolist() == [0]
    assert before.psi.norm(dim=1).max().item() <= 1


def test_the_game_is_conditional_and_its_loss_within_the_claim():
    game = find("user_basis").make(BUDGET)
    assert game.guarantee.level is Level.CONDITIONAL
    assert "features = _Ages" in game.guarantee.conditions[0].text
    grid = torch.linspace(-6, 6, 121).double()
    drawn = torch.cat([game.draw(world, 200, NoiseSource.fixed(world)) for world in (0, 1)])
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
