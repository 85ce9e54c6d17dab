"""What one record costs all sums of a balanced difference together, which is less than what each costs alone."""

from collections.abc import Mapping
from itertools import chain, product

import torch
from torch import Tensor

Range = tuple[Tensor, Tensor]


def joint_cost(
    treated: Range,
    control: Range,
    model: Range,
    scales: Mapping[str, Tensor],
    counts: tuple[float, float] | None = None,
) -> Tensor:
    r"""Return the largest privacy loss, [runs], of Laplace noise of these scales on D, N and Q together.

    A record's terms are :math:`(t w r, w / 2, w^2 r^2)` with r = y - m(x); for two records, a and b, it is

    .. math:: \sup \frac{|t_a w_a r_a - t_b w_b r_b|}{b_D} + \frac{|w_a - w_b|}{2 b_N}
        + \frac{|w_a^2 r_a^2 - w_b^2 r_b^2|}{b_Q} .

    Let a be the record of the larger size :math:`|w r|`. The loss is convex in its (w, w r), so that a is a corner.
    Written without the absolute value of its last term, which is no less then, it is concave in the size q of the
    other, whose best is :math:`q = b_Q / 2 b_D`, and along its weight piecewise so: finitely many candidates, of which
    none is more than the loss of some pair (docs/guarantees/balanced_difference.md). With :math:`\Delta_D = 2 P` and
    :math:`b_Q \ge 2 P b_D` the squares cost nothing beside the difference. Where N counts an arm, its term is the same
    for all weights, and two records of one arm do not differ by it.

    Args:
        treated: Least and largest weight of a treated record, [runs] each.
        control: Of a control.
        model: Least and largest value of the outcome model, for outcomes in [0, 1].
        scales: b of ``difference``, ``spread`` and, unless its noise is none, ``size``, [runs] each.
        counts: The term of N of a treated record, and of a control; None where it is w / 2.

    Example:
        >>> one, ten = torch.ones(1).double(), torch.full((1,), 10.0).double()
        >>> scales = {"difference": 35.0 * one, "size": 800 / 9 * one, "spread": 490.0 * one}
        >>> weights, model = (10 / 9 * one, ten), (0.3 * one, 0.7 * one)
        >>> round(joint_cost(weights, weights, model, scales).item(), 4)
        0.4079
    """
    low, high = model
    per_d, per_q = 1 / scales["difference"], 1 / scales["spread"]
    per_size = 1 / scales["size"] if "size" in scales else torch.zeros_like(per_d)
    per_n = per_size / 2 if counts is None else torch.zeros_like(per_d)
    # the size of a residual that moves D up, and down, in either arm
    up, down = ((*treated, 1 - low), (*control, high)), ((*treated, high), (*control, 1 - low))
    pairs = [(*one, *other) for rising, falling in ((up, down), (down, up)) for one, other in product(rising, falling)]
    values = torch.stack(torch.broadcast_tensors(*chain(*pairs))).unflatten(0, (len(pairs), 6))
    w, reach, others, other_reach = (part.unsqueeze(2) for part in values.split([2, 1, 2, 1], 1))  # [8, ., 1, runs]
    v, q = _others(others[:, :1, 0], others[:, 1:, 0], other_reach[:, :, 0], per_d, per_n, per_q)  # [8, 5, runs]
    v, q = v[:, None], q[:, None]
    p = w * reach
    losses = ((p + q) * per_d + (w - v).abs() * per_n + (p.square() - q.square()) * per_q).flatten(1, 2).amax(1)
    if counts is not None:
        apart = [abs(one - other) for _ in range(2) for one, other in product(counts, counts)]
        return (losses + per_size * torch.tensor(apart, dtype=torch.float64)[:, None]).amax(0)
    # two records without a residual, of either arm, differ by their weights alone
    most = torch.maximum(treated[1], control[1]) - torch.minimum(treated[0], control[0])
    return torch.maximum(losses.amax(0), most * per_n)


def _others(
    least: Tensor, most: Tensor, reach: Tensor, per_d: Tensor, per_n: Tensor, per_q: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weights and sizes at which the loss of the record of the smaller size may be largest, [pairs, 5, runs].

    Range and reach are [pairs, 1, runs].
    """
    best = per_d / (2 * per_q)
    # where the loss is stationary along q = v reach, N rising or falling with v
    stationary = [(per_d * reach + sign * per_n) / (2 * per_q * reach.square()) for sign in (1.0, -1.0)]
    at = torch.cat(torch.broadcast_tensors(least, most, best / reach, *stationary), 1)
    v = torch.minimum(torch.maximum(at.nan_to_num(nan=0.0), least), most)
    return v, torch.minimum(v * reach, best)
