import itertools
import math

import pytest
import torch

from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import _generalised, generalised_select, normalised_scores, top_k


class Recorder:
    """Stands in for a noise source: takes the best, and keeps what each selection was requested."""

    def __init__(self):
        self.requested = []

    def released(self, output):
        return output

    def select(self, scores, epsilon, sensitivity=1.0):
        self.requested.append((scores, epsilon, sensitivity))
        return int(scores.argmax())


def law(scores, epsilon):
    """Probability of each index under permute-and-flip at sensitivity one, by all permutations."""
    heads = torch.exp(epsilon / 2 * (scores - scores.max()))
    chances = torch.zeros_like(scores)
    for order in itertools.permutations(range(len(scores))):
        still = 1.0
        for i in order:  # the best has heads for sure, so the first round of coins ends the game
            chances[i] += still * heads[i] / math.factorial(len(scores))
            still = still * (1 - heads[i])
    return chances


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


def random_case(generator, k=4):
    q = 5 * torch.randn(k, generator=generator, dtype=torch.float64)
    bounds = 10 ** (2 * torch.rand(k, generator=generator, dtype=torch.float64) - 1)
    shift = 3 * torch.rand(1, generator=generator).item()
    return q + shift * bounds, bounds, shift


@pytest.mark.parametrize("corner", [True, False])
def test_a_neighbour_moves_no_normalised_score_by_more_than_one(corner):
    generator, most = torch.Generator().manual_seed(0), 0.0
    for _ in range(3_000):
        q, bounds, shift = random_case(generator)
        moves = 2 * torch.rand(4, generator=generator, dtype=torch.float64) - 1
        other = q + (moves.sign() if corner else moves) * bounds
        moved = (normalised_scores(q, bounds, shift) - normalised_scores(other, bounds, shift)).abs().max().item()
        most = max(most, moved)
    assert most <= 1 + 2**-20
    assert most > (0.99 if corner else 0.7)


@pytest.mark.slow
def test_the_law_of_the_choice_changes_by_less_than_epsilon():
    generator, most = torch.Generator().manual_seed(1), 0.0
    for _ in range(500):
        q, bounds, shift = random_case(generator)
        other = q + torch.randn(4, generator=generator, dtype=torch.float64).sign() * bounds
        first, second = (law(normalised_scores(v, bounds, shift), 1.0) for v in (q, other))
        assert first.sum() == pytest.approx(1)
        most = max(most, (first / second).log().abs().max().item())
    assert 0.5 < most <= 1 + 1e-6


@pytest.mark.slow
def test_the_declared_pair_comes_near_its_claim():
    requested = []
    for dataset in (0, 1):
        recorder = Recorder()
        recorder.select = lambda scores, epsilon, sensitivity: requested.append(scores) or 0
        _generalised(PrivacyBudget(1.0, 1e-5)).draw(dataset, 1, recorder)
    # largest of the scores with exponential noise of scale two, by quadrature over the first one's noise
    chances = []
    for scores in requested:
        u = torch.linspace(0, 80, 400_001, dtype=torch.float64)
        sums = scores[0] + u
        others = 1 - torch.exp(-(sums[:, None] - scores[1:]).clamp(min=0) / 2)
        chances.append(torch.trapezoid(torch.exp(-u / 2) / 2 * others.prod(1), u).item())
    assert 0.85 < math.log(chances[0] / chances[1]) <= 1


def test_a_sensitive_candidate_does_not_spoil_the_choice():
    # a plain selection would have noise of scale 2000 between candidates that are 100 apart
    scores, bounds = torch.tensor([0.0, 100.0, 50.0]), torch.tensor([0.1, 0.1, 1000.0])
    chosen = [generalised_select(scores, bounds, 1.0, NoiseSource.system(), failure=1e-12) for _ in range(20)]
    assert chosen == [1] * 20
