"""Sums of doubly robust scores, released with noise, and what follows from them."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.efficient_score import Scored, ScoreRanges
from torchdpcate.causal.estimand import Estimand
from torchdpcate.estimators.average.balanced_difference import SCALES, SUMS, UPPER
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.stated import (
    AverageMechanism,
    ContradictionError,
    Recomputed,
    StatedEffect,
    exactly,
    states,
)
from torchdpcate.estimators.average.sum_and_squares import TermRange, sum_and_half_squares, sums_mechanism
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.estimators.recompute import CLOSE
from torchdpcate.privacy.budget import as_number, split_epsilon
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.session import FitSession

SHARES = {"score": 0.75, "size": 0.05, "spread": 0.20}
"""Parts of the budget where the size is private. About best for n from 2,500 to 25,000 records, epsilon from 0.5 to 5
and eta = 0.1."""


def epsilons_of(epsilon: float, estimand: Estimand) -> dict[str, float]:
    """Return the epsilon of each part; one for all sums where the number of records is the size.

    Example:
        >>> from torchdpcate.causal.estimand import ATE, ATT
        >>> {part: round(value, 4) for part, value in epsilons_of(1.0, ATT(0.1)).items()}
        {'score': 0.75, 'size': 0.05, 'spread': 0.2}
        >>> epsilons_of(1.0, ATE(0.1))
        {'sums': 1.0}
    """
    return {SUMS: epsilon} if estimand.public_size else split_epsilon(epsilon, SHARES)


def noise_scales(ranges: ScoreRanges, estimand: Estimand, n: int, epsilon: float) -> dict[str, Tensor]:
    """Return the scales of the noise in the sum of a, and in that of b where it is private, [runs] each."""
    if estimand.public_size:
        return {"score": ranges.change / 2 * sums_mechanism(n, epsilon).released_scale(2)}
    units, epsilons = sensitivities(ranges, n), epsilons_of(epsilon, estimand)
    return {part: unit * released_scale(epsilons[part]) for part, unit in units.items()}


def sensitivities(ranges: ScoreRanges, n: int) -> dict[str, Tensor]:
    """Return Delta_A and Delta_B of n records, [runs] each: the ranges' widths and one step of the sum's exact grid."""
    return {
        "score": ranges.change + sum_grid(n, ranges.largest),
        "size": ranges.size_change + sum_grid(n, 1.0),
    }


def released_scale(epsilon: float) -> float:
    """Return the scale of the noise in a sum of sensitivity 1 at this epsilon."""
    return LaplaceMechanism(epsilon, 1.0).released_scale(1)


def release_scores(
    scored: Scored,
    ranges: ScoreRanges,
    estimand: Estimand,
    epsilon: float,
    session: FitSession,
) -> NoisyEstimate:
    r"""Pay for the sums of a, of b, and of squared centred scores, and conclude, one estimate a run.

    .. math:: A = \sum_i a_i, \quad B = \sum_i b_i, \quad \tau = \mathrm{clip}(A/B, -1, 1), \quad
        Q = \sum_i (a_i - \tau b_i)^2

    each with Laplace noise of scale Delta/epsilon for its part of epsilon: Delta_A the width of the range of a, Delta_B
    that of b, and Delta_Q = sup (a - tau b)^2 at the effect just released; all plus a step of the public grid on which
    the sum is exact (``exact_sum``). For the ATE b = 1, B = n is public, and A and the squares about the middle of the
    range are one event (``sums_mechanism``), in which the squares cost nothing.

    Args:
        scored: Records with nuisances that were paid for, none of whose records they were trained on.
        ranges: Of the score by these nuisances.
        estimand: Whose score it is.
        epsilon: Of all of it.
        session: Pays, and draws the noise.
    """
    a, b = ranges.clip(*estimand.score(*scored))
    if estimand.public_size:
        return _release_mean(a, ranges, epsilon, session)
    mechanisms = {part: LaplaceMechanism(own, 1.0) for part, own in epsilons_of(epsilon, estimand).items()}
    n = a.shape[1]
    moved = sensitivities(ranges, n)

    def add_noise(part: str, exact: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sum with noise and its scale, both [runs]; the unit is its sensitivity."""
        mechanism, noise = mechanisms[part], session.noise
        session.pay(mechanism.event, part=part)
        noisy = noise.released(mechanism.add_noise((exact / unit)[:, None], noise)[:, 0] * unit)
        return noisy, unit * mechanism.released_scale(1)

    total, noise_a = add_noise("score", exact_sum(a, n, ranges.largest), moved["score"])
    size, noise_b = add_noise("size", exact_sum(b, n, 1.0), moved["size"])
    tau, divisor = effect(total, size, noise_b, ranges, n)
    most = ranges.reach(tau).square()
    squares = exact_sum((a - tau[:, None] * b).square().minimum(most[:, None]), n, most.amax().item())
    squares, noise_q = add_noise("spread", squares, _square_change(most, n))
    upper = _upper(squares, noise_q, most, n)
    sums = {"score": total, "size": size, "spread": squares}
    return _estimate(tau, divisor, upper, torch.stack([noise_a, tau.abs() * noise_b], 1), noise_b, sums)


def _release_mean(a: Tensor, ranges: ScoreRanges, epsilon: float, session: FitSession) -> NoisyEstimate:
    """Pay for the sum of scores [runs, n] and that of their squares about the middle, as one event, and conclude."""
    n, noise, within = a.shape[1], session.noise, TermRange(*ranges.ends)
    mechanism = sums_mechanism(n, epsilon)
    session.pay(mechanism.event, part=SUMS)
    noisy = noise.released(mechanism.add_noise(sum_and_half_squares(within.places(a)), noise))
    sums = dict(zip(("score", "spread"), within.sums(noisy, n), strict=True))
    return _mean(sums, within, n, mechanism.released_scale(2))


def _mean(sums: Mapping[str, Tensor], within: TermRange, n: int, scale: float) -> NoisyEstimate:
    """Return the mean of n scores by their released sums [runs]; scale is that of the sum of their places."""
    total, none = sums["score"], torch.zeros_like(sums["score"])
    deviations = within.most_deviations(total, sums["spread"], n, scale)
    size, noise = torch.full_like(total, n), (within.half * scale)[:, None]
    return _estimate((total / n).clamp(-1, 1), size, deviations, noise, none, sums)


def conclude(scored: Scored, ranges: ScoreRanges, estimand: Estimand) -> NoisyEstimate:
    """Conclude from the sums as they are. The curator's, never to be published."""
    a, b = estimand.score(*scored)
    n = a.shape[1]
    total, size = exact_sum(a, n, ranges.largest), exact_sum(b, n, 1.0)
    none = torch.zeros_like(total)
    tau, divisor = effect(total, size, none, ranges, n)
    squares = (a - tau[:, None] * b).square().sum(1)
    sums = {"score": total, "size": size, "spread": squares}
    return _estimate(tau, divisor, squares, none[:, None], none, sums)


def _square_change(most: Tensor, n: int) -> Tensor:
    """Return Delta_Q, [runs], of n squares of at most ``most`` [runs]."""
    return most + sum_grid(n, most.amax().item())


def _upper(squares: Tensor, scale: Tensor, most: Tensor, n: int) -> Tensor:
    """Return the one-sided bound of a sum of n squares of at most ``most`` with noise of this scale, all [runs]."""
    return (squares + UPPER * scale).clamp(torch.zeros_like(most), n * most)


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


def _estimate(
    tau: Tensor,
    divisor: Tensor,
    squares: Tensor,
    noise: Tensor,
    noise_b: Tensor,
    sums: Mapping[str, Tensor],
) -> NoisyEstimate:
    """Return an estimate with the law of its error, by its denominator, squared scores and Laplace scales [runs, k]."""
    return NoisyEstimate(
        estimate=tau,
        gaussian=squares.sqrt() / divisor,
        laplace=noise / divisor[:, None],
        polytope=None,
        noise_dominated=divisor <= SCALES * noise_b,
        size=divisor,
        released=sums,
    )


class DoublyRobust(AverageMechanism):
    """Sums of doubly robust scores by nuisances that have a block of their own."""

    name: ClassVar[str] = "aipw"
    formula: ClassVar[str] = (
        "Laplace noise on sums of doubly robust scores and of their squares, scales Delta/epsilon by ranges of the "
        "released nuisances, at most 2/eta and 4/eta^2 for the ATE, as one event; covariate_balancing section 3.6"
    )
    numbers: ClassVar[Mapping[str, str]] = {part: part for part in SHARES}
    states: ClassVar[Stated] = states(
        *("nuisance", "split", "seed", "score_range", "size_range", "score_scale", "size_scale", f"epsilon_{SUMS}"),
        *(f"epsilon_{part}" for part in SHARES),
    )
    rests_on: ClassVar[str] = (
        "the released propensity or the released outcome models follow the truth; where neither does, the estimate is "
        "biased and the interval may never hold the effect"
    )
    on_nuisances: ClassVar[bool] = True

    @classmethod
    def numbers_of(cls, estimand: Estimand) -> Mapping[str, str | None]:
        """See ``AverageMechanism``: no size where it is the number of records."""
        return dict.fromkeys(("score", "spread"), SUMS) if estimand.public_size else cls.numbers

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``; of sums apart, ranges of the nuisances are stated in part alone."""
        of, every = stated.estimand, stated.release.privacy.n
        least, most = (as_number(end) for end in stated.public["size_range"])
        if not of.has_score() or not of.score_sizes_are_possible(least, most):
            raise ContradictionError(f"its size_range is none of the {of.name} at this overlap")
        if stated.n != every - round(stated.number("split") * every):
            raise ContradictionError("its blocks are not those of its split")
        return _together(stated) if of.public_size else _apart(stated, least, most)


def _together(stated: StatedEffect) -> Recomputed:
    """Return what a release must be whose sums are one event, by the range of its scores."""
    of, n, sums = stated.estimand, stated.n, stated.sums()
    within = TermRange(*(torch.tensor([as_number(e)], dtype=torch.float64) for e in stated.public["score_range"]))
    (least, most), half = ScoreRanges.widest(of).ends, within.half.item()
    slack = CLOSE * most.item()
    fits = least.item() - slack <= within.low.item() and within.high.item() <= most.item() + slack
    if not (fits and 2 * half >= of.least_score_change(1.0) - slack):
        raise ContradictionError(f"its score_range is none of the {of.name} at this overlap")
    scale = sums_mechanism(n, stated.epsilon(SUMS)).released_scale(2)
    reaches = {
        "score": (n * (abs(within.middle.item()) + half), half * scale),
        "spread": (n * half**2, 2 * half**2 * scale),
    }
    return Recomputed(_mean(sums, within, n, scale), exactly({"score_scale": half * scale}), reaches)


def _apart(stated: StatedEffect, least: float, most: float) -> Recomputed:
    """Return what a release must be whose sums are charged one by one, for its size is private."""
    of, n = stated.estimand, stated.n
    sums, widest = stated.sums(), ScoreRanges.widest(of)
    unit = {part: released_scale(stated.epsilon(part)) for part in SHARES}
    ends = (torch.full((1, 2), end, dtype=torch.float64) for end in (least, most))
    ranges = ScoreRanges(widest.low, widest.high, *ends)
    moved = sensitivities(ranges, n)
    constants = {"score_scale": (of.least_score_change(most) * unit["score"], moved["score"].item() * unit["score"])}
    noise_a, noise_b = torch.tensor([stated.number("score_scale")], dtype=torch.float64), moved["size"] * unit["size"]
    constants |= exactly({"size_scale": noise_b.item()})
    tau, divisor = effect(sums["score"], sums["size"], noise_b, ranges, n)
    # a score's reach is at least half of how far one record moves the sum, but for the size
    step, shift = sum_grid(n, widest.largest), tau.abs() * (most - least)
    narrow = (((noise_a / unit["score"] - step - shift).clamp_min(0)) / 2).square()
    wide = (widest.largest + tau.abs() * most).square()
    upper = [
        _upper(sums["spread"], unit["spread"] * _square_change(squares, n), squares, n)
        if squares.item() > 0
        else torch.zeros(1).double()
        for squares in (narrow, wide)
    ]
    found = _estimate(tau, divisor, upper[0], torch.stack([noise_a, tau.abs() * noise_b], 1), noise_b, sums)
    reaches = {
        "score": (n * widest.largest, noise_a.item()),
        "size": (n * most, noise_b.item()),
        "spread": (n * wide.item(), unit["spread"] * _square_change(wide, n).item()),
    }
    gaussian = tuple((squares.sqrt() / divisor).item() for squares in upper)
    return Recomputed(found, constants, reaches, (gaussian[0], gaussian[1]))
