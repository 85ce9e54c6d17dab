"""Doubly robust scores of records and actions, and the floor of propensities."""

import torch
from torch import Tensor

from torchdpcate.errors import InputError


def dr_scores(arm: Tensor, y: Tensor, propensity: Tensor, outcome: Tensor) -> Tensor:
    r"""Return the doubly robust score of every record under every action.

    .. math::
        \phi_i(a) = \mu_a(x_i) + \frac{1\{a_i = a\}}{e_a(x_i)} (y_i - \mu_a(x_i))

    Args:
        arm: Position of the action that each record got, int64 [n].
        y: Outcome [n].
        propensity: e, [..., n, K], positive; leading dimensions are nuisances side by side.
        outcome: mu, [..., n, K], in the unit of y.

    Returns:
        phi [..., n, K], in the unit of y.

    Raises:
        InputError: Shapes that do not fit each other.

    Guarantee:
        None by itself: the curator's. One record's scores spread over actions by at most R / floor where propensities
        are at least ``floor`` and outcomes and their models lie in an interval of length R; what a replaced training
        record does to them is another matter. Source: Robins, Rotnitzky & Zhao (1994); theory note
        ``policy_learning``, section 6.1.

    Example:
        >>> e, mu = torch.full((1, 2), 0.5), torch.tensor([[0.0, 1.0]])
        >>> dr_scores(torch.tensor([1]), torch.tensor([2.0]), e, mu).tolist()
        [[0.0, 3.0]]
    """
    if not len(arm) == len(y) == outcome.shape[-2] == propensity.shape[-2] or propensity.shape[-1] != outcome.shape[-1]:
        raise InputError(
            f"scores: {len(arm)} actions, {len(y)} outcomes, propensities {list(propensity.shape)} and outcome models "
            f"{list(outcome.shape)}; they must have the same records and actions"
        )
    got = torch.nn.functional.one_hot(arm, outcome.shape[-1]).to(outcome.dtype)
    return outcome + got * (y[:, None] - outcome) / propensity


def project_to_floor(p: Tensor, floor: float) -> Tensor:
    r"""Return the nearest probabilities (Euclidean) that are all at least ``floor``.

    .. math::
        \operatorname{argmin}_q \{\lVert q - p \rVert_2 : q_a \ge \zeta, \sum_a q_a = 1\}
        = \zeta + (p - \tau)_+

    with the one :math:`\tau` that makes the sum 1, found by sorting. For two actions and p of sum 1 it clamps p to
    [floor, 1 - floor]. In the largest entry it moves no more than 2 - 2 / K times as far as p does.

    Args:
        p: [..., K], finite.
        floor: Smallest probability, public, at most 1 / K.

    Raises:
        InputError: A floor that K probabilities cannot keep.

    Source:
        Held, Wolfe & Crowder (1974); Lipschitz constant: theory note ``policy_learning``, section 6.2.

    Example:
        >>> project_to_floor(torch.tensor([[1.0, 0.25, -0.25]], dtype=torch.float64), 0.125).tolist()
        [[0.75, 0.125, 0.125]]
    """
    K = p.shape[-1]
    mass = 1 - K * floor
    if floor < 0 or mass < -1e-12:
        raise InputError(f"floor = {floor:g}: {K} propensities add up to one; give at most {1 / K:.4g}")
    # each entry's excess over the floor, projected on what the floors leave
    above = p - floor
    sorted_above = above.sort(dim=-1, descending=True).values
    excess = sorted_above.cumsum(-1) - max(mass, 0.0)
    ranks = torch.arange(1, K + 1, device=p.device)
    # entries above tau come first; without any mass the largest alone defines it
    kept = (sorted_above * ranks > excess).sum(-1, keepdim=True).clamp(min=1)
    tau = excess.gather(-1, kept - 1) / kept
    return floor + (above - tau).clamp(min=0)
