"""By what each record says that other actions are better than the first: doubly robust scores, and their clip."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchdpcate.causal.score import dr_scores
from torchdpcate.composition.records import RecordsFit
from torchdpcate.composition.regressions import arm_means, centred_arms, simplex
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData


class Scores(NamedTuple):
    """Doubly robust scores of all actions before their clip; the curator's.

    Attributes:
        values: By action, float64 [n, K], each record's up to a constant of its own.
        own: Positions of the actions that the records got, int64 [n].
        baseline: Mean outcome under the first action.
    """

    values: Tensor
    own: Tensor
    baseline: float

    @property
    def sizes(self) -> Tensor:
        """How far each record's scores of two actions lie apart at most, [n]."""
        return self.values.amax(1) - self.values.amin(1)

    def gains(self, clip: float) -> Tensor:
        """Return by what each action but the first is better, [n, K - 1], of ``clipped`` scores.

        Args:
            clip: C.
        """
        values = clipped(self.values, self.own, clip)
        return (values[:, 1:] - values[:, :1]).clamp(-clip, clip)


def clipped(values: Tensor, own: Tensor, clip: float) -> Tensor:
    r"""Return scores of which those of two actions lie at most C apart, [n, K].

    Scores of the actions that a record did not get, which are released functions of its covariates, are clipped to C/2
    about their middle; that of its own to within C of all of them. Of two actions it clips their difference to
    :math:`\pm C`.

    Args:
        values: Scores [n, K].
        own: Positions of the actions that the records got, int64 [n].
        clip: C.

    Example:
        >>> clipped(torch.tensor([[0.0, 1.0, 9.0]]).double(), torch.tensor([2]), 4.0).tolist()
        [[-0.5, 0.5, 3.5]]
    """
    at = own[:, None]
    inside = values.scatter(1, at, torch.inf).amin(1, keepdim=True)
    middle = (inside + values.scatter(1, at, -torch.inf).amax(1, keepdim=True)) / 2
    others = (values - middle).clamp(-clip / 2, clip / 2)
    low = others.scatter(1, at, -torch.inf).amax(1, keepdim=True) - clip
    high = others.scatter(1, at, torch.inf).amin(1, keepdim=True) + clip
    mine = torch.minimum(torch.maximum(values.gather(1, at) - middle, low), high)
    return others.scatter(1, at, mine)


def scores_of(fit: RecordsFit, records: CausalData, domain: Domain) -> Scores:
    """Return the doubly robust scores that a composition's released numbers make of records.

    Args:
        fit: What the composition found.
        records: Its records, actions as positions.
        domain: Public bounds.
    """
    bound, u = domain.outcome_range, domain.scale(records.x)
    z = fit.standardisation(u if fit.columns is None else u[:, list(fit.columns)])
    psi, theta = fit.effect.regression.basis(z), fit.effect.shrunk
    if fit.propensity.ndim == 1:
        return _of_two(fit, records, (psi @ theta).clamp(-bound, bound))
    functions = (psi @ theta.reshape(-1, psi.shape[1]).T).clamp(-bound, bound)
    centred = centred_arms(simplex(fit.propensity.shape[1]), fit.propensity)
    means = arm_means(fit.outcome, functions, centred)
    values = dr_scores(records.a.long(), records.y, fit.propensity, means)
    return Scores(values, records.a.long(), float(values[:, 0].mean()))


def _of_two(fit: RecordsFit, records: CausalData, tau: Tensor) -> Scores:
    """Return those of two actions, whose difference is tau(x) and a weighted residual."""
    a, pi = records.a, fit.propensity
    residual = records.y - fit.outcome - (a - pi) * tau
    gain = tau + (a - pi) / (pi * (1 - pi)) * residual
    first = fit.outcome - pi * tau + (1 - a) / (1 - pi) * residual
    return Scores(torch.stack([torch.zeros_like(gain), gain], 1), a.long(), float(first.mean()))


def gains_as_scores(gains: Tensor) -> Tensor:
    """Return scores of all actions, [n, K], of which the first is nothing, of gains [n, K - 1]."""
    return torch.cat([torch.zeros_like(gains[:, :1]), gains], 1)
