import pytest
import torch

from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import private_quantile

VALUES = torch.randperm(2001, generator=torch.Generator().manual_seed(0)) / 2000.0
GRID = torch.linspace(0, 1, 11)


@pytest.mark.parametrize("source", [NoiseSource.system, lambda: NoiseSource.fixed(3)])
@pytest.mark.parametrize("quantile", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_a_clear_quantile_is_found(source, quantile):
    # candidates are 200 ranks apart, noise has scale 2: another pick has probability below 10 exp(-99)
    found = private_quantile(VALUES, GRID.flip(0), quantile, 1.0, source())
    assert found == pytest.approx(quantile, abs=1e-6)


class Recorder:
    """Stands in for a noise source and keeps the scores."""

    def released(self, output):
        return output

    def select(self, scores, epsilon, sensitivity=1.0):
        self.scores, self.sensitivity = scores, sensitivity
        return 0


def scores_of(values, quantile):
    recorder = Recorder()
    private_quantile(values, GRID, quantile, 1.0, recorder)
    assert recorder.sensitivity == 1.0
    return recorder.scores


def test_scores_are_the_distances_in_rank():
    below = (VALUES[:, None] <= GRID).sum(0)
    assert torch.allclose(scores_of(VALUES, 0.37), -(below.double() - 0.37 * 2001).abs(), atol=1e-5)


@pytest.mark.parametrize("quantile", [0.1, 1 / 3, 0.77])
def test_replacing_a_record_moves_no_score_by_more_than_one(quantile):
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        values = torch.rand(17, generator=generator)
        other = values.clone()
        other[3] = 2 * torch.rand(1, generator=generator) - 0.5
        assert (scores_of(values, quantile) - scores_of(other, quantile)).abs().max() <= 1.0
