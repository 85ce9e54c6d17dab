"""How good nuisances are, and how biased the doubly robust values that they give."""

import math

import torch
from torch import Tensor

from experiments.spillover.refits import Refits
from experiments.spillover.report import Diagnostics
from torchdpcate.fit.arms.base import FittedNuisances


def diagnostics(refits: Refits, truth: FittedNuisances | None) -> Diagnostics:
    r"""Return the errors of the nuisances on the scoring records.

    Where the truth (e, m) is known, also the largest bias of a policy's value given the covariates,

    .. math:: \max_\pi \Big| \frac1n \sum_i b_i(\pi(x_i)) \Big|, \qquad
        b_i(a) = \Big(1 - \frac{e_a(x_i)}{\hat e_a(x_i)}\Big) (\hat\mu_a(x_i) - m_a(x_i)),

    which is zero where either nuisance is exact. Else errors are those of the observed arm and outcome, noise included.

    Args:
        refits: The learner and its fit.
        truth: True propensities and mean outcomes.
    """
    score, nuisances = refits.score, refits.certified.nuisances
    e, mu = nuisances.propensity(score.x), nuisances.outcome(score.x)
    if truth is None:
        got = torch.nn.functional.one_hot(score.a.long(), e.shape[1]).to(e)
        return Diagnostics("records", _rms(((mu - score.y[:, None]) * got).sum(1)), _rms(e - got))
    true_e, true_mu = truth.propensity(score.x), truth.outcome(score.x)
    bias = refits.sums((1 - true_e / e) * (mu - true_mu)).abs().max() / score.n
    return Diagnostics("truth", _rms(mu - true_mu), _rms(e - true_e), float(bias))


def _rms(errors: Tensor) -> float:
    return math.sqrt(float(errors.square().mean()))
