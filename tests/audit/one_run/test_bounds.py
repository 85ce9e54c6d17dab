"""The statistics of one-run audits: against jax_privacy, closed forms, and exact mechanisms of known privacy.

Simulations are seeded. Each counts false alarms in 2,000 audits and fails where so many would have a probability below
1e-7 at the stated rate of 5 %.
"""

import math
from math import comb

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom

from tests.tools.one_run_bounds import (
    best_guesses,
    confidence_of_each,
    dp_sgd_trade_off,
    gaussian_trade_off,
    one_run_epsilon,
    one_run_fdp,
    one_run_refutes,
)
from torchdpcate.errors import InputError
from torchdpcate.privacy.calibration import gaussian_epsilon

AUDITS = 2000
MOST_FALSE_ALARMS = int(binom.isf(1e-7, AUDITS, 0.05))

# jax_privacy 2.0.0, CanaryScoreAuditor.epsilon_one_run and .epsilon_one_run_fdp with an explicit threshold, 95 %
ORACLE = [
    # canaries, guesses, correct, delta, epsilon, epsilon of the Gaussian bound
    (1000, 1000, 600, 1e-05, 0.297227, 0.583540),
    (1000, 1000, 950, 1e-05, 2.700816, 5.083982),
    (1000, 1000, 1000, 1e-05, 5.782283, 12.334570),
    (1000, 100, 100, 1e-05, 3.465376, 5.549028),
    (1000, 100, 97, 1e-05, 2.492287, 3.861513),
    (1000, 500, 420, 1e-06, 1.453479, 2.837644),
    (100, 100, 80, 1e-05, 0.958086, 2.130336),
    (100, 50, 50, 1e-03, 2.481269, 4.270570),
    (5000, 5000, 2700, 1e-05, 0.113050, 0.207955),
    (5000, 250, 245, 1e-06, 3.134038, 4.914830),
    (20, 20, 20, 1e-05, 1.822092, 4.733871),
    (1000, 1000, 520, 1e-05, 0.0, 0.0),
    (200, 200, 199, 1e-08, 3.727038, 10.502965),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta", "epsilon", "gaussian"), ORACLE)
def test_bounds_are_those_of_jax_privacy(canaries, guesses, correct, delta, epsilon, gaussian):
    assert one_run_epsilon(guesses, correct, canaries, delta) == pytest.approx(epsilon, abs=2e-6)
    mu = one_run_fdp(guesses, correct, canaries, gaussian_trade_off)
    # ours is rounded to the safe side, by 2e-4 of mu at most
    assert (gaussian_epsilon(1 / mu, delta) if mu else 0.0) == pytest.approx(gaussian, rel=4e-4)
    assert (gaussian_epsilon(1 / mu, delta) if mu else 0.0) <= gaussian + 2e-6


def test_the_general_bound_meets_its_formula_at_the_level():
    guesses, correct, canaries, delta = 30, 27, 40, 1e-3
    epsilon = one_run_epsilon(guesses, correct, canaries, delta, confidence=0.9)
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = [comb(guesses, k) * rate**k * (1 - rate) ** (guesses - k) for k in range(guesses + 1)]
    slack = max(sum(law[correct - i : correct]) / i for i in range(1, correct + 1))
    assert sum(law[correct:]) + 2 * canaries * delta * slack == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("truth", [0.1, 1.0, 3.0])
def test_one_coin_has_closed_forms(truth):
    """The best accuracy against one coin: e^eps / (1 + e^eps), and Phi(mu / 2)."""
    accuracy = math.exp(truth) / (1 + math.exp(truth))
    assert one_run_epsilon(1, 1, 1, 0.0, confidence=1 - accuracy) == pytest.approx(truth, abs=1e-7)
    mu = one_run_fdp(1, 1, 1, gaussian_trade_off, confidence=1 - float(ndtr(truth / 2)))
    assert mu == pytest.approx(truth, rel=3e-4)


def test_one_coin_under_epsilon_and_delta():
    epsilon, delta = 1.3, 0.05

    def trade_off(alpha):
        return max(0.0, 1 - delta - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - delta - alpha))

    best = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert one_run_refutes(1, 1, 1, trade_off, confidence=1 - best - 1e-6)
    assert not one_run_refutes(1, 1, 1, trade_off, confidence=1 - best + 1e-6)


def test_a_mechanism_that_rarely_betrays_all_coins_is_not_refuted():
    """(0, delta)-privacy allows all coins to be revealed with probability delta: the bounds are sharp about it."""

    def total_variation(delta):
        return lambda alpha: max(0.0, 1 - delta - alpha)

    assert not one_run_refutes(50, 50, 50, total_variation(0.0501), confidence=0.95)
    assert one_run_refutes(50, 50, 50, total_variation(0.0499), confidence=0.95)
    assert one_run_epsilon(50, 50, 50, delta=0.06) == 0.0
    # who takes the guesses for independent refutes it, wrongly
    assert binom.sf(49, 50, 0.5 + 0.06 / 2) < 1e-12


def _fewest_refuting(guesses, canaries, trade_off, confidence):
    low, high = 0, guesses + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if one_run_refutes(guesses, middle, canaries, trade_off, confidence)
            else (
                middle + 1,
                high,
            )
        )
    return low


def _coins(audits, canaries, generator):
    return torch.randint(2, (audits, canaries), generator=generator) * 2 - 1


def _gaussian_scores(coins, mu, generator):
    return coins * mu / 2 + torch.randn(coins.shape, generator=generator)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("guesses", [300, 100])
def test_randomised_response_is_covered_and_no_alarm_is_wasted(epsilon, guesses):
    generator = torch.Generator().manual_seed(0)
    coins = _coins(AUDITS, 300, generator)
    honest = torch.rand(coins.shape, generator=generator) < torch.tensor(epsilon).sigmoid()
    answers = torch.where(honest, coins, -coins) * (1 + torch.rand(coins.shape, generator=generator))
    correct = best_guesses(answers, coins, guesses)
    bound = {int(v): one_run_epsilon(guesses, int(v), 300, 1e-6) for v in correct.unique()}
    alarms = sum(bound[int(v)] > epsilon for v in correct)
    assert alarms <= MOST_FALSE_ALARMS
    assert alarms >= 0.01 * AUDITS  # the bound is sharp for randomised response, so nearly all of the 5 % is used


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_many_canaries_bring_the_bound_of_randomised_response_close(epsilon):
    """At two standard deviations below the mean of 20,000 guesses."""
    law = binom(20_000, 1 / (1 + math.exp(-epsilon)))
    assert 0.85 * epsilon < one_run_epsilon(20_000, int(law.mean() - 2 * law.std()), 20_000, 0.0) < epsilon


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("guesses", [300, 150, 30])
def test_the_gaussian_mechanism_is_covered_in_one_run_and_in_four(mu, guesses):
    generator = torch.Generator().manual_seed(1)
    coins = _coins(AUDITS, 300, generator)
    correct = best_guesses(_gaussian_scores(coins, mu, generator), coins, guesses)
    single = _fewest_refuting(guesses, 300, gaussian_trade_off(mu), 0.95)
    assert int((correct >= single).sum()) <= MOST_FALSE_ALARMS
    each = _fewest_refuting(guesses, 300, gaussian_trade_off(mu), confidence_of_each(0.95, 4))
    assert int((correct.reshape(-1, 4).amin(1) >= each).sum()) <= int(binom.isf(1e-7, AUDITS // 4, 0.05))
    assert each <= single


def test_halved_noise_of_the_gaussian_mechanism_is_refuted():
    """One run of 1,000 canaries: measured mean 470 of 500 and deviation 6, against 463 that refute mu = 0.9."""
    generator = torch.Generator().manual_seed(2)
    coins = _coins(200, 1000, generator)
    correct = best_guesses(_gaussian_scores(coins, 1.8, generator), coins, 500)
    assert float(correct.double().mean()) > _fewest_refuting(500, 1000, gaussian_trade_off(0.9), 0.95)


@pytest.mark.parametrize(("runs", "share"), [(1, 0.4), (4, 0.65), (16, 0.75)])
def test_more_runs_bring_the_bound_closer(runs, share):
    """Median count of 20,000 canaries, a quarter guessed: the share of mu = 1 that is refuted."""
    generator = torch.Generator().manual_seed(3)
    coins = _coins(31, 20_000, generator)
    correct = int(best_guesses(_gaussian_scores(coins, 1.0, generator), coins, 5000).median())
    mu = one_run_fdp(5000, correct, 20_000, gaussian_trade_off, confidence_of_each(0.95, runs))
    assert share < mu < 1


@pytest.mark.parametrize(("noise", "steps"), [(0.8, 1), (4.0, 9)])
def test_the_curve_of_full_batches_is_gaussian(noise, steps):
    ours, exact = dp_sgd_trade_off(noise, 1.0, steps), gaussian_trade_off(2 * math.sqrt(steps) / noise)
    for alpha in (1e-6, 1e-3, 0.05, 0.5, 0.9):
        assert ours(alpha) == pytest.approx(exact(alpha), rel=3e-3)
        assert ours(alpha) <= exact(alpha) * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_curve_of_one_sampled_step_is_that_of_its_worst_pair(rate):
    """(1 - q) N(0, s^2) + q N(-1, s^2) against the same with +1: thresholds are the best tests."""
    noise = 0.7
    ours = dp_sgd_trade_off(noise, rate, 1)
    for threshold in np.linspace(-0.5, 3.0, 8):
        below = [(1 - rate) * ndtr(threshold / noise) + rate * ndtr((threshold - s) / noise) for s in (-1, 1)]
        exact = below[1]
        assert ours(1 - below[0]) == pytest.approx(exact, rel=2e-3)
        assert ours(1 - below[0]) <= exact * (1 + 1e-9)


def test_the_guesses_are_the_surest_and_the_rest_is_left():
    scores = torch.tensor([[0.1, -3.0, 2.0, 0.0], [5.0, -1.0, 0.2, 0.3]])
    truth = torch.tensor([[-1, -1, -1, 1], [1, 1, 1, 1]])
    assert best_guesses(scores, truth, 1).tolist() == [1, 1]
    assert best_guesses(scores, truth, 2).tolist() == [1, 1]
    assert best_guesses(scores, truth, 4).tolist() == [2, 3]


def test_guesses_without_evidence_are_right_half_the_time():
    generator = torch.Generator().manual_seed(4)
    coins = _coins(AUDITS, 200, generator)
    correct = best_guesses(torch.randn(coins.shape, generator=generator), coins, 100)
    # 200,000 fair guesses: 6 standard deviations are 0.0067
    assert float(correct.double().mean()) / 100 == pytest.approx(0.5, abs=0.0067)


def test_nothing_is_refuted_by_nothing():
    assert one_run_epsilon(10, 0, 10, 0.0) == 0.0
    assert one_run_fdp(10, 0, 10, gaussian_trade_off) == 0.0
    assert one_run_fdp(10, 5, 10, lambda _: gaussian_trade_off(0.0)) == 0.0


def test_confidence_of_each_run_multiplies_to_the_whole():
    assert (1 - confidence_of_each(0.95, 7)) ** 7 == pytest.approx(0.05)
    assert confidence_of_each(0.95, 1) == pytest.approx(0.95)


@pytest.mark.parametrize(
    "call",
    [
        lambda: one_run_epsilon(10, 11, 20, 0.0),
        lambda: one_run_epsilon(30, 11, 20, 0.0),
        lambda: one_run_epsilon(10, 5, 20, 1.0),
        lambda: one_run_epsilon(10, 5, 20, 0.0, confidence=1.0),
        lambda: one_run_fdp(10, -1, 20, gaussian_trade_off),
        lambda: one_run_refutes(10, 5, 20, gaussian_trade_off(1.0), confidence=0.0),
        lambda: best_guesses(torch.zeros(3), torch.ones(3), 4),
        lambda: best_guesses(torch.zeros(3), torch.ones(3), 0),
        lambda: best_guesses(torch.tensor([1.0, math.nan]), torch.ones(2), 1),
    ],
)
def test_senseless_numbers_are_refused(call):
    with pytest.raises(InputError):
        call()
