"""Clipped doubly robust scores on all records: two sums in one pure event, and what follows from them."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, Estimand
from torchdpcate.composition.arm_regressions import ScoreScales
from torchdpcate.composition.average_plan import AveragePlan
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.balanced_difference import UPPER
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.stated import (
    RECORDS,
    AverageMechanism,
    ContradictionError,
    Recomputed,
    StatedEffect,
    states,
)
from torchdpcate.estimators.average.sum_and_squares import sum_and_half_squares, sums_mechanism
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.estimators.recompute import CLOSE, UNFIT, requested_budget, same, share_problems, shown
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.blocks import Block, StatedCharge

SUMS = "scores"
"""The part of the release that both sums are."""
_MOST_OVERLAP = 0.499  # a domain's; the clip of an effect may be a half
NUMBERS = ("centre", "clip", "error")
"""Numbers that the steps before the sums have paid for, in outcome ranges."""


def release_clipped(
    scores: Tensor,
    centre: float,
    clip: float,
    error: Callable[[float], float],
    epsilon: float,
    session: FitSession,
    runs: int = 1,
) -> NoisyEstimate:
    r"""Pay for both sums and conclude.

    .. math:: v_i = \mathrm{clip}\Big(\frac{\varphi_i - c}{S}, -1, 1\Big), \quad D = \sum_i v_i, \quad
        Q = \sum_i v_i^2, \quad \tau = c + \frac{S D}{n}

    Args:
        scores: Doubly robust scores by released nuisances, [n], or [runs, n], in outcome ranges.
        centre: c, released.
        clip: S, released.
        error: Standard deviation by the errors of both nuisances, at most one, of released numbers and of the mean of
            v^2 that intervals count.
        epsilon: Of both sums together.
        session: Pays, and draws the noise.
        runs: How many runs on one data set.
    """
    sums = clipped_sums(scores.reshape(-1, scores.shape[-1]), centre, clip)
    mechanism, noise = sums_mechanism(scores.shape[-1], epsilon), session.noise
    session.pay(mechanism.event, part=SUMS)
    noisy = noise.released(mechanism.add_noise(sums.expand(max(runs, len(sums)), -1), noise))
    n, scale, squares = scores.shape[-1], mechanism.released_scale(2), 2 * noisy[:, 1]
    errors = [error(square) for square in (_upper(squares, scale, n) / n).tolist()]
    return conclude(noisy[:, 0], squares, centre, clip, torch.tensor(errors, dtype=torch.float64), n, scale)


def clipped_sums(scores: Tensor, centre: float, clip: float) -> Tensor:
    """Return the sums of v and of half its square, exact, [runs, 2], of scores [runs, n]; the curator's."""
    return sum_and_half_squares(((scores - centre) / clip).clamp(-1, 1))


def conclude(
    total: Tensor, squares: Tensor, centre: float, clip: float, error: Tensor | float, n: int, scale: float
) -> NoisyEstimate:
    """Return the estimate and the law of its error by released numbers.

    Args:
        total: D, [runs].
        squares: Q, [runs].
        centre: c.
        clip: S.
        error: Standard deviation by the errors of both nuisances, [runs] or for all.
        n: Number of records.
        scale: Of the noise in D, half of that in Q.
    """
    every = torch.ones_like(total)
    upper = _upper(squares, scale, n)
    numbers = {name: value * every for name, value in zip(NUMBERS, (centre, clip, error), strict=True)}
    return NoisyEstimate(
        estimate=(centre + clip * total / n).clamp(-1, 1),
        gaussian=(clip * upper.sqrt() / n).hypot(error * every),
        laplace=(every * clip * scale / n)[:, None],
        polytope=None,
        noise_dominated=torch.zeros_like(total, dtype=torch.bool),
        size=every * n,
        released={"difference": total, "spread": squares, **numbers},
    )


def _upper(squares: Tensor, scale: float, n: int) -> Tensor:
    """Return the sums of squares [runs] that intervals count."""
    return (squares + UPPER * 2 * scale).clamp(0, n)


class ClippedScores(AverageMechanism):
    """Sums of clipped doubly robust scores by nuisances that are steps of one composition on the same records."""

    name: ClassVar[str] = "clipped_scores"
    formula: ClassVar[str] = (
        "Gaussian events on all records for the nuisances, mu^2 the sum of their shares; Laplace noise of scale "
        "2 S/epsilon on the sum of clipped doubly robust scores, and 4/epsilon on that of their squares over S^2, "
        "in one event; composed_estimator section 3"
    )
    numbers: ClassVar[Mapping[str, str | None]] = {  # type: ignore[assignment]
        "difference": SUMS,
        "spread": SUMS,
        **dict.fromkeys(NUMBERS),
    }
    states: ClassVar[Stated] = states(
        *("kept", "steps", "huber_quantile", "steps_epsilon", "steps_delta", "constants", f"epsilon_{SUMS}")
    )
    rests_on: ClassVar[str] = (
        "the log-odds of treatment, or the mean outcomes, are combinations of the features that n and epsilon could "
        "pay for, or the domain states the propensity; and scores beyond the clip cancel; where not, the estimate is "
        "biased and the interval may never hold the effect"
    )

    @classmethod
    def numbers_of(cls, estimand: Estimand) -> Mapping[str, str | None]:
        """See ``AverageMechanism``."""
        return cls.numbers

    @classmethod
    def plan_of(cls, stated: StatedEffect) -> AveragePlan:
        """Return the plan of a release; see ``stated_plan``."""
        block = next((block for block in stated.release.privacy.blocks if block.name == RECORDS), None)
        return stated_plan(stated.public, block, stated.n, stated.release.domain, stated.estimand)

    @classmethod
    def work_out(cls, stated: StatedEffect) -> Recomputed:
        """See ``AverageMechanism``: the estimate follows from its numbers, steps and sums from the plan."""
        if type(stated.estimand) is not ATE:
            raise ContradictionError(f"clipped scores are none of the {stated.estimand.name}")
        plan, n, unit = cls.plan_of(stated), stated.n, stated.release.domain.outcome_range
        epsilon = stated.epsilon(SUMS)
        assert plan.score_epsilon is not None
        # the accountant is asked in steps of 1e-9, and a plan that is made anew may end one beside
        if not math.isclose(epsilon, plan.score_epsilon, rel_tol=1e-7):
            raise ContradictionError("its sums were not charged what its plan leaves for them")
        steps = [charge for block in stated.release.privacy.blocks for charge in block.charges if is_step(charge)]
        for problem in share_problems(steps, {step: plan.shares.due(step) for step in plan.shares.shares}):
            raise ContradictionError(problem)
        sums = {name: value.item() for name, value in stated.sums().items()}
        domain = clipped_domain(stated.release.domain, stated.estimand)
        scales, clip = ScoreScales.of(domain), sums["clip"] * unit
        if not clip_on_grid(clip, plan, domain):
            raise ContradictionError(f"its clip {clip:.6g} is not on the grid of its quantile")
        if not (abs(sums["centre"]) <= 1 + CLOSE and 0 <= sums["error"] <= 1 + CLOSE):
            raise ContradictionError("its centre or its error is larger than the outcome's range")
        scale = sums_mechanism(n, epsilon).released_scale(2)
        total, squares = (stated.sums()[name] for name in ("difference", "spread"))
        found = conclude(total, squares, sums["centre"], sums["clip"], sums["error"], n, scale)
        reaches = {
            "difference": (float(n), scale),
            "spread": (float(n), 2 * scale),
            "centre": (1.0, 0.0),
            "clip": (scales.high / unit, 0.0),
            "error": (1.0, 0.0),
        }
        return Recomputed(found, {}, reaches)


def stated_plan(
    public: Mapping[str, Any], block: Block | None, n: int, domain: Domain, estimand: Estimand
) -> AveragePlan:
    """Return the plan that a statement's facts describe, which they follow from again.

    Args:
        public: Public constants of the statement.
        block: The records that paid.
        n: Number of records.
        domain: Public bounds.
        estimand: With the clip of the propensity.

    Raises:
        ContradictionError: Its facts are those of no plan, or not what the plan makes them.
    """
    try:
        if block is None:
            raise ValueError(f"no block {RECORDS!r}")
        requested_budget(block, public["steps_epsilon"], public["steps_delta"])
        plan = AveragePlan.from_facts(public, n, clipped_domain(domain, estimand), domain.overlap)
    except UNFIT as problem:
        raise ContradictionError(f"its settings are those of no plan: {problem}") from None
    for name, value in plan.facts().items():
        if public[name] != value:
            said, needed = shown(public[name]), shown(value)
            raise ContradictionError(f"{name} = {said} is stated, but the plan makes it {needed}")
    return plan


def is_step(charge: StatedCharge) -> bool:
    """Whether a charge is for a step of the composition."""
    return (charge.charge.purpose, charge.charge.mechanism) == (COMPOSED_SCORES.purpose, COMPOSED_SCORES.mechanism)


def clip_on_grid(clip: float, plan: AveragePlan, domain: Domain) -> bool:
    """Whether a clip, in outcome units, is on the grid of its quantile, or the largest; of a clipped domain."""
    scales = ScoreScales.of(domain)
    return same(clip, scales.high) or scales.on_grid(clip / plan.clip_factor, plan.constants.quantile_levels)


def clipped_domain(domain: Domain, estimand: Estimand) -> Domain:
    """Return a domain whose overlap is the estimand's clip, which may be a half or beyond the share of the treated."""
    facts, overlap = domain.to_dict(), min(estimand.overlap, _MOST_OVERLAP)
    share = {} if domain.treated is None else {"treated": min(max(domain.treated, overlap), 1 - overlap)}
    return Domain.from_dict({**facts, "overlap": overlap, **share})
