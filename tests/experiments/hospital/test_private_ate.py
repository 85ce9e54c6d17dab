"""Output perturbation of doubly robust scores: noise falls with the budget, and the interval counts it."""

from experiments.hospital.cases import Case
from experiments.hospital.private_ate import private_ate


def test_noise_falls_with_the_budget_and_the_interval_counts_it():
    case = Case.of("hospital, costs trial", 3, 500)
    wide, narrow = (private_ate(case, epsilon, 1e-5, 0) for epsilon in (1.0, 30.0))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert narrow.low < case.people.effect.mean() < narrow.high
