import pytest
import torch

from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import top_k


class Recorder:
    """Stands in for a noise source: takes the best, and keeps what each selection was requested."""

    def __init__(self):
        self.requested = []

    def released(self, output):
        return output

    def select(self, scores, epsilon, sensitivity=1.0):
        self.requested.append((scores, epsilon, sensitivity))
        return int(scores.argmax())


@pytest.mark.parametrize("source", [NoiseSource.system, lambda: NoiseSource.fixed(3)])
def test_the_clear_best_are_found_in_order(source):
    # rivals are 500 behind, noise has scale 8: a miss has probability below 30 exp(-60)
    scores = torch.zeros(30)
    scores[[4, 7, 20]] = torch.tensor([1500.0, 500.0, 1000.0])
    assert top_k(scores, 3, 0.75, source()) == [4, 20, 7]


def test_the_price_of_the_best_is_shared_and_that_of_opendp():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    recorder = Recorder()
    top_k(torch.arange(6.0), 3, 0.6, recorder, sensitivity=2.0)
    assert [len(scores) for scores, _, _ in recorder.requested] == [6, 5, 4]
    assert sum(epsilon for _, epsilon, _ in recorder.requested) == pytest.approx(0.6)
    scales = {2 * sensitivity / epsilon for _, epsilon, sensitivity in recorder.requested}
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    (scale,) = scales
    assert dp.m.make_noisy_top_k(*space, dp.max_divergence(), k=3, scale=scale).map(2.0) == pytest.approx(0.6)
