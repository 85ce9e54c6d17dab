import math

import pytest
import torch

from torchdpcate import Domain, PrivacyBudget, RLearner
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.effect_law import EffectLaw

COST, BUDGET = 0.2, PrivacyBudget(2.0, 1e-5)
DOMAIN = Domain([-1.0, -1.0], [1.0, 1.0], -4.0, 4.0, propensity=0.5, better="lower")


def law_of(t, V, c, var_c):
    t, V = torch.tensor(t, dtype=torch.float64), torch.tensor(V, dtype=torch.float64)
    return EffectLaw(t, V, torch.eye(len(t), dtype=torch.float64), torch.zeros(len(t)).double(), c, var_c, 0.0, 0.0)


def test_half_widths_are_those_of_scheffe():
    law = law_of([1.0], [[0.04]], 0.5, 0.01)
    psi = torch.tensor([[0.3]], dtype=torch.float64)
    low, high = law.at_once(psi, torch.tensor([0.6], dtype=torch.float64), 0.95)[0].tolist()
    # two errors: chi^2 of 2 degrees has the quantile -2 ln .05
    half = math.sqrt(-2 * math.log(0.05) * (0.3**2 * 0.04 + 0.6**2 * 0.01))
    assert (low, high) == pytest.approx((0.6 - half, 0.6 + half), rel=1e-9)
    with pytest.raises(InputError, match="level = 1"):
        law.at_once(psi, torch.ones(1).double(), 1)


def test_the_worst_combination_of_all_is_covered_as_often_as_stated():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    V = A @ A.T
    law = law_of([0.0] * 3, V.tolist(), 0.0, 0.3)
    draws = torch.randn(4_000, 4, generator=generator, dtype=torch.float64) * torch.tensor([1, 1, 1, 0.3**0.5])
    errors = torch.cat([draws[:, :3] @ A.T, draws[:, 3:]], 1)
    # the combination in which an error is largest, in deviations, is Sigma^-1 error
    sigma = torch.block_diag(V, torch.tensor([[0.3]], dtype=torch.float64))
    worst = torch.linalg.solve(sigma, errors.T).T
    half = law.at_once(worst[:, :3], worst[:, 3], 0.9)[:, 1]
    held = ((worst * errors).sum(1) <= half).double().mean().item()
    assert abs(held - 0.9) < 5 * math.sqrt(0.09 / 4_000)


def cohort(seed, n=3_000):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = (x[:, 1] - a * effect(x) + 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)).clamp(-4, 4)
    return x, a, y


def effect(x):
    return 0.3 + x[:, 0]


def rule(seed):
    learner = RLearner(TableSchema.of(DOMAIN), BUDGET, noise=NoiseSource.fixed(seed))
    return learner.fit(*cohort(seed)).release_function().rule(cost=COST)


def test_a_rule_by_a_fit_knows_its_gain_and_what_is_lost_to_the_best():
    population = cohort(10**6, n=500)[0]
    fitted = rule(1)
    found = fitted.value(population)
    gains, treated = effect(population) - COST, torch.as_tensor(fitted.decide(population)) > 0
    truth, best = (gains * treated).mean().item(), gains.clamp_min(0).mean().item()
    assert found.share == treated.double().mean().item()
    assert found.interval[0] <= found.gain <= found.interval[1]
    assert found.interval[0] <= truth <= found.interval[1]
    assert best - truth <= found.regret < 1.0
    assert found.interval[1] - found.interval[0] < 0.6
    wider = fitted.value(population, 0.999)
    assert wider.interval[0] < found.interval[0] < found.interval[1] < wider.interval[1]


@pytest.mark.slow
def test_intervals_of_rules_chosen_by_their_own_numbers_hold_the_gain():
    population, missed = cohort(10**6, n=500)[0], 0
    gains = effect(population) - COST
    for seed in range(40):
        fitted = rule(seed)
        found, treated = fitted.value(population), torch.as_tensor(fitted.decide(population)) > 0
        truth = (gains * treated).mean().item()
        lost = gains.clamp_min(0).mean().item() - truth
        missed += not (found.interval[0] <= truth <= found.interval[1] and lost <= found.regret)
    assert missed <= 12  # of 40 at .05 or less: more than 12 once in 10^7
