"""The study of Giddens et al.: laws against closed forms, noise by the paper's formula, one small cell of each part."""

import math

import pytest
import torch

from experiments.dp_werm import robustness, selection
from experiments.dp_werm.study import STUDY
from experiments.dp_werm.trial import Trials
from experiments.dp_werm.tuning import output_noise
from experiments.frame.study import CERTIFIED, FREE, OTHER, PRINTED, Settings
from torchdpcate.privacy.noise import NoiseSource


def test_outcomes_of_the_trial_reach_the_shift_that_the_published_values_of_chance_imply():
    """Chance is printed with 8.4, which is the mean, 0.02, plus the shift: 3 f reaches down to -9 on a set of 5,000."""
    drawn = Trials.draw(20, 5_000, torch.Generator().manual_seed(0))
    coin = torch.rand(20, 5_000, generator=torch.Generator().manual_seed(1)) < 0.5
    assert 8.0 < drawn.value(coin).mean() < 9.0
    assert drawn.correct(drawn.effect > 0).tolist() == [100.0] * 20


def test_noise_is_that_of_the_printed_formula():
    """The norm has the law Gamma(p) times 2 W / (gamma epsilon), W = 30: its mean is 5 * 60 / (141 * epsilon)."""
    problem = Trials.draw(1, 50, torch.Generator().manual_seed(0)).problem(None, False)
    zeros, epsilon, runs = torch.zeros(40_000, 5, dtype=torch.float64), 2.0, 40_000
    noise = output_noise(problem, 141 / 30, epsilon, zeros, NoiseSource.fixed(0)).norm(dim=1)
    scale = 60 / (141 * epsilon)
    assert noise.mean().item() == pytest.approx(5 * scale, abs=6 * scale * math.sqrt(5 / runs) + 1e-6)
    assert torch.equal(output_noise(problem, 1.0, math.inf, zeros, NoiseSource.fixed(0)), zeros)


@pytest.mark.parametrize(("mean", "expected"), [(None, 0.5), (0.5, 0.5), (0.25, 0.3207)])
def test_covariates_of_public_data_have_the_means_of_their_law(mean, expected):
    """A normal of mean 1/4 and deviation 1/4 within (0, 1): m + s (phi(-1) - phi(3)) / (Phi(3) - Phi(-1))."""
    law = robustness.Public(robustness.PAPER, 100_000, mean)
    x, _, _ = law.draw(torch.Generator().manual_seed(2))
    assert x.mean().item() == pytest.approx(expected, abs=6 * 0.29 / math.sqrt(x.numel()) + 1e-4)
    assert 0 < x.min() < x.max() < 1
    assert law.effect(x.new_tensor([[1.0, 0.0, 0.0, 0.0]])).item() == 2.0


def test_the_selection_keeps_what_moves_the_effect_and_nothing_of_a_coin():
    """The two large coefficients by either penalty, and of equal outcomes, whose weights say nothing, none."""
    public = selection.public_data(0)
    kept = selection.selected(public)
    assert kept[selection.ONE_ERROR].sum() <= kept[selection.LEAST].sum()
    assert all(one[2:4].all() for one in kept.values())
    coin = Trials(public.x, public.a, torch.ones_like(public.y))
    assert selection.selected(coin)[selection.ONE_ERROR].sum() == 0
    assert torch.equal(selection.public_data(0).x, public.x)
    assert public.x.shape == (1, 1_000, 10)


def test_one_small_cell_of_each_part():
    settings = Settings(quick=True)
    cells = list(STUDY.cells(settings))
    assert {cell["part"] for cell in cells} == {"simulated", "stand-in", "selection", "robustness"}
    small = [
        {"part": "simulated", "who": "paper", "n": 200, "repeats": 3, "resamples": 3},
        {"part": "simulated", "who": "ours", "n": 200, "epsilon": 1000.0, "first": 0, "repeats": 1},
        {"part": "stand-in", "who": "paper", "first": 0, "repeats": 2},
        {"part": "stand-in", "who": "ours", "first": 0, "repeats": 1},
        {"part": "selection", "first": 0, "repeats": 1},
        {"part": "robustness", "figure": "supp_figure4_number", "n": 200, "repeats": 2},
    ]
    found = [one for cell in small for one in STUDY.compute(cell, settings)]
    roles = {one.role for one in found}
    assert roles == {PRINTED, CERTIFIED, FREE, OTHER}
    losses = [one.values[0] for one in found if one.place.metric == robustness.LOST]
    (worst,) = (one.values[0] for one in found if one.place.metric == robustness.WORST)
    assert len(losses) == len(robustness.EPSILONS) * len(robustness.LAWS["supp_figure4_number"])
    assert worst == max(losses)
    assert losses.count(0.0) >= len(robustness.EPSILONS)  # the private data's own law loses nothing
    accuracy = [v for one in found if one.place.metric == "accuracy_percent" for v in one.values]
    assert all(0 <= v <= 100 for v in accuracy)
    assert all(one.level != "certified" for one in found if one.role == PRINTED)
