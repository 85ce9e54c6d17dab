"""Sums of doubly robust scores, released with noise, and what follows from them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from torchdpcate.causal.efficient_score import Scored, ScoreRanges
from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.balanced_difference import SCALES, UPPER
from torchdpcate.estimators.average.readout import Conclusion
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.session import FitSession

SHARES = {"score": 0.75, "size": 0.05, "spread": 0.20}
"""Parts of the budget; without a size to buy (ATE) the other two share it all. About best for n from 2,500 to 25,000
records, epsilon from 0.5 to 5 and eta = 0.1."""

_ROUNDING = 1e-9  # of epsilon, so that shares never add up to more


def prices_of(epsilon: float, estimand: Estimand) -> dict[str, float]:
    """Return the epsilon of each part that is bought.

    Example:
        >>> from torchdpcate.causal.estimand import ATT
        >>> {part: round(price, 4) for part, price in prices_of(1.0, ATT(0.1)).items()}
        {'score': 0.75, 'size': 0.05, 'spread': 0.2}
    """
    needed = {part: share for part, share in SHARES.items() if part != "size" or not estimand.public_size}
    all_of_it = sum(needed.values()) * (1 + _ROUNDING)
    return {part: epsilon * share / all_of_it for part, share in needed.items()}


def sensitivities(ranges: ScoreRanges, n: int) -> dict[str, Tensor]:
    """Return Delta_A and Delta_B of n records, [runs] each: the ranges' widths and one step of the sum's exact grid."""
    return {
        "score": ranges.change + sum_grid(n, ranges.largest),
        "size": ranges.size_change + sum_grid(n, 1.0),
    }


def released_scale(price: float) -> float:
    """Return the scale of the noise in a sum of sensitivity 1 at this epsilon."""
    return LaplaceMechanism(price, 1.0).released_scale(1)


def release_scores(
    scored: Scored,
    ranges: ScoreRanges,
    estimand: Estimand,
    epsilon: float,
    session: FitSession,
) -> Conclusion:
    r"""Pay for the sums of a, of b, and of squared centred scores, and conclude, one estimate a run.

    .. math:: A = \sum_i a_i, \quad B = \sum_i b_i, \quad \tau = \mathrm{clip}(A/B, -1, 1), \quad
        Q = \sum_i (a_i - \tau b_i)^2

    each with Laplace noise of scale Delta/epsilon for its part of epsilon: Delta_A the width of the range of a, Delta_B
    that of b (for the ATE b = 1, and B = n is public), and Delta_Q = sup (a - tau b)^2 at the effect just released; all
    plus a step of the public grid on which the sum is exact (``exact_sum``).

    Args:
        scored: Records with nuisances that were paid for, none of whose records they were trained on.
        ranges: Of the score by these nuisances.
        estimand: Whose score it is.
        epsilon: Of the whole.
        session: Pays, and draws the noise.
    """
    mechanisms = {part: LaplaceMechanism(price, 1.0) for part, price in prices_of(epsilon, estimand).items()}
    a, b = ranges.clip(*estimand.score(*scored))
    n = a.shape[1]
    moved = sensitivities(ranges, n)

    def buy(part: str, exact: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sum with noise and its scale, both [runs]; the unit is its sensitivity."""
        mechanism, noise = mechanisms[part], session.noise
        session.pay(mechanism.event, part=part)
        noisy = noise.paid(mechanism.add_noise((exact / unit)[:, None], noise)[:, 0] * unit)
        return noisy, unit * mechanism.released_scale(1)

    total, noise_a = buy("score", exact_sum(a, n, ranges.largest), moved["score"])
    size, noise_b = exact_sum(b, n, 1.0), torch.zeros_like(total)
    if "size" in mechanisms:
        size, noise_b = buy("size", size, moved["size"])
    tau, divisor = effect(total, size, noise_b, ranges, n)
    most = ranges.reach(tau).square()
    widest = most.amax().item()
    squares = exact_sum((a - tau[:, None] * b).square().minimum(most[:, None]), n, widest)
    spread, noise_q = buy("spread", squares, most + sum_grid(n, widest))
    upper = (spread + UPPER * noise_q).clamp(torch.zeros_like(most), n * most)
    sums = {"score": total, **({"size": size} if "size" in mechanisms else {}), "spread": spread}
    return _conclusion(tau, divisor, upper, torch.stack([noise_a, tau.abs() * noise_b], 1), noise_b, sums)


def conclude(scored: Scored, ranges: ScoreRanges, estimand: Estimand) -> Conclusion:
    """Conclude from the sums as they are. The curator's, never to be published."""
    a, b = estimand.score(*scored)
    n = a.shape[1]
    total, size = exact_sum(a, n, ranges.largest), exact_sum(b, n, 1.0)
    none = torch.zeros_like(total)
    tau, divisor = effect(total, size, none, ranges, n)
    spread = (a - tau[:, None] * b).square().sum(1)
    sums = {"score": total, "size": size, "spread": spread}
    return _conclusion(tau, divisor, spread, none[:, None], none, sums)


def effect(total: Tensor, size: Tensor, noise_b: Tensor, ranges: ScoreRanges, n: int) -> tuple[Tensor, Tensor]:
    """Return the estimate and its denominator, both [runs], kept within what n records can give and above its noise.

    Args:
        total: A, [runs].
        size: B, [runs].
        noise_b: Scale of the noise in B, [runs].
        ranges: Of the score.
        n: Number of scored records.
    """
    least = torch.maximum(n * ranges.least.amin(1), (SCALES * noise_b).clamp_min(1e-9))
    divisor = torch.maximum(torch.minimum(size, n * ranges.most.amax(1)), least)
    return (total / divisor).clamp(-1, 1), divisor


def _conclusion(
    tau: Tensor,
    divisor: Tensor,
    spread: Tensor,
    noise: Tensor,
    noise_b: Tensor,
    sums: Mapping[str, Tensor],
) -> Conclusion:
    """Conclude from an estimate, its denominator, the squared scores, and scales of the Laplace noise [runs, k]."""
    return Conclusion(
        estimate=tau,
        gaussian=spread.sqrt() / divisor,
        laplace=noise / divisor[:, None],
        polytope=None,
        swamped=divisor <= SCALES * noise_b,
        size=divisor,
        released=sums,
    )
