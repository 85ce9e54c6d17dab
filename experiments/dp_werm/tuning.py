"""Algorithm 2 of Giddens et al.: the ridge by private fits on resamples of a public data set."""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from experiments.dp_werm.batch import Batch, scores
from experiments.dp_werm.selection import PUBLIC, RELEVANT, public_data
from experiments.dp_werm.trial import Trials
from experiments.frame.study import seed_of
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

VALIDATION = 500  # m, of n_0 = 1,000
MOST_WEIGHT = 30.0  # W: a ridge of the paper's is this many times ours, whose weights are at most one
GRID = tuple(range(1, 602, 20))  # the paper's candidates in its sensitivity study; those of its Table are not stated
AT_ONCE = 100  # resamples


def output_noise(problem: Batch, gamma: float, epsilon: float, theta: Tensor, noise: NoiseSource) -> Tensor:
    """Return fits [runs, p] with the paper's noise for this epsilon; the fits themselves without privacy.

    Args:
        problem: Whose fits.
        gamma: The ridge that they have.
        epsilon: Budget of each; infinity adds nothing.
        theta: The fits.
        noise: Where noise comes from.
    """
    if math.isinf(epsilon):
        return theta
    return problem.public(gamma).output(PrivacyBudget(epsilon, 0.0), "gamma").add_noise(theta, noise)


@cache
def tuned(n: int, epsilons: Sequence[float], resamples: int) -> dict[float, int]:
    """Return the ridge, of the paper's candidates, of best mean empirical value at each epsilon.

    Args:
        n: Records of the private data set: a resample has as many, with replacement where the public set is too small.
        epsilons: Budgets, those of the private fit.
        resamples: r of the paper.
    """
    public = public_data(0)
    generator = torch.Generator().manual_seed(seed_of("tuning", n))
    reached = {(gamma, epsilon): 0.0 for gamma in GRID for epsilon in epsilons}
    for first in range(0, resamples, AT_ONCE):
        runs = min(AT_ONCE, resamples - first)
        train, fresh = _split(public, runs, n, generator)
        problem, psi = train.problem(None, False), fresh.features(False)
        for gamma in GRID:
            theta = problem.fit(gamma / MOST_WEIGHT)
            for epsilon in epsilons:
                # the same draws for every ridge, so that their differences and not the noise decide
                noise = NoiseSource.fixed(seed_of("tuning", n, epsilon, first))
                private = output_noise(problem, gamma / MOST_WEIGHT, epsilon, theta, noise)
                reached[gamma, epsilon] += fresh.value(scores(psi, private) > 0).nansum().item()
    return {epsilon: max(GRID, key=lambda gamma: reached[gamma, epsilon]) for epsilon in epsilons}


def _split(public: Trials, runs: int, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
    """Return resamples of n records for fits, and the validation records of each."""
    order = torch.stack([torch.randperm(PUBLIC, generator=generator) for _ in range(runs)])
    held, rest = order[:, :VALIDATION], order[:, VALIDATION:]
    size = rest.shape[1]
    picked = rest[:, :n] if n <= size else rest.gather(1, torch.randint(size, (runs, n), generator=generator))
    return _at(public, picked), _at(public, held)


def _at(public: Trials, rows: Tensor) -> Trials:
    return Trials(public.x[0, rows, :RELEVANT], public.a[0, rows], public.y[0, rows])
