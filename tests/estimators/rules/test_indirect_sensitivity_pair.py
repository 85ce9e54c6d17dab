"""The pair that the audit attacks moves the weights by more than the replaced record's own could."""

import pytest
import torch

from torchdpcate.estimators.rules.worst_case import _OVERLAPPING, _SCHEME, _balancing, crossing_pair, free_weights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource


def test_the_crossing_record_would_reveal_a_forgotten_spill():
    scheme, worlds = _SCHEME, crossing_pair()
    assert sum(bool((worlds[0].x[i] != worlds[1].x[i]).any()) for i in range(99)) == 1
    before, after = (free_weights(scheme, records) for records in worlds)
    moved = ((after - before)[1:].abs().sum() + before[0] + after[0]).item()
    bounds = scheme.bounds(99, _OVERLAPPING)
    assert 3.2 * bounds.most < moved < bounds.first
    assert moved / bounds.first == pytest.approx(0.970, abs=2e-3)


def test_the_game_adds_all_movements_up():
    """Worlds lie as far apart as the weights moved, less the solver's distance: 0.970 of what the noise hides."""
    game = _balancing(PrivacyBudget(1.0, 0.0))
    noise = NoiseSource.fixed(0)
    middles = [game.draw(world, 20_001, noise).median().item() for world in (0, 1)]
    hidden = _SCHEME.bounds(99, _OVERLAPPING).first / 1_000.0
    assert (middles[1] - middles[0]) / hidden == pytest.approx(0.970, abs=0.05)
    assert torch.isfinite(game.evidence(game.draw(0, 3, noise))).all()
