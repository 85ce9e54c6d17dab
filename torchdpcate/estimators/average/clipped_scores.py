"""Clipped doubly robust scores on all records: two sums in one pure event, and what follows from them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, Estimand
from torchdpcate.composition.average import AverageNuisances, average_nuisances
from torchdpcate.composition.builder import average_plan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.settings import known_propensities
from torchdpcate.composition.summaries import ScoreScales
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balanced_difference import UPPER
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.sum_and_squares import sum_and_half_squares, sums_mechanism
from torchdpcate.laws import CLOSE, AddedNoise
from torchdpcate.plan import Query
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.exact_sums import same
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.release import Release

SUMS = "scores"
"""The part of the release that both sums are."""
_MOST_OVERLAP = 0.499  # a domain's; the clip of an effect may be a half
NUMBERS = ("centre", "clip", "error")
"""Numbers that the steps before the sums have paid for, in outcome ranges."""


def noise_of(n: int, epsilon: float) -> AddedNoise:
    """Return the noise of both sums of n records at this epsilon."""
    return AddedNoise(sums_mechanism(n, epsilon), 2, float(n))


def clipped_sums(scores: Tensor, centre: float, clip: float) -> Tensor:
    """Return the sums of v and of half its square, exact, [runs, 2], of scores [runs, n]; the curator's."""
    return sum_and_half_squares(((scores - centre) / clip).clamp(-1, 1))


def upper_squares(squares: Tensor, scale: float, n: int) -> Tensor:
    """Return the sums of squares [runs] that intervals count."""
    return (squares + UPPER * 2 * scale).clamp(0, n)


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
    upper = upper_squares(squares, scale, n)
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


@dataclass(frozen=True, eq=False)
class ClippedScores(EffectPlan):
    r"""The plan of sums of clipped doubly robust scores by nuisances that are steps of one composition.

    .. math:: v_i = \mathrm{clip}\Big(\frac{\varphi_i - c}{S}, -1, 1\Big), \quad D = \sum_i v_i, \quad
        Q = \sum_i v_i^2, \quad \tau = c + \frac{S D}{n}

    Centre, clip and error, of outcomes scaled to [0, 1], are numbers that the steps have paid for.

    Raises:
        InputError: Another estimand than the ATE, or a budget without delta.
    """

    name: ClassVar[str] = "clipped_scores"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Gaussian events on all records for the nuisances, mu^2 the sum of their shares; Laplace noise of scale "
        "2 S/epsilon on the sum of clipped doubly robust scores, and 4/epsilon on that of their squares over S^2, "
        "in one event; composed_estimator section 3"
    )
    assumption: ClassVar[str] = (
        "the log-odds of treatment, or the mean outcomes, are combinations of the features that n and epsilon could "
        "pay for, or the domain states the propensity; and scores beyond the clip cancel; where not, the estimate is "
        "biased and the interval may never hold the effect"
    )
    uses_delta: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.estimand) is not ATE:
            raise InputError(f"clipped scores are none of the {self.estimand.name}")

    @cached_property
    def domain(self) -> Domain:
        """The domain with the clip of the propensity as its overlap."""
        return clipped_domain(self.schema.domain, self.estimand)

    @cached_property
    def steps(self) -> ComposedPlan:
        """The plan of the steps."""
        return average_plan(self.n, self.budget, self.domain, least=self.schema.domain.overlap)

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: the steps, and what they leave to both sums."""
        if self.steps.score_epsilon is None:
            return {}
        return {
            "steps": Query(COMPOSED_SCORES, self.steps.law),
            **self.summed({SUMS: noise_of(self.n, self.steps.score_epsilon)}),
        }

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        epsilon = self.steps.score_epsilon
        return self.steps.facts() | ({} if epsilon is None else {f"epsilon_{SUMS}": epsilon})

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return {}

    def nuisances(self, records: CausalData, session: FitSession) -> AverageNuisances:
        """Pay for the steps, and return what they released with the scores by it, which are the curator's."""
        known = known_propensities(records, self.domain)
        return average_nuisances(records, self.domain, self.steps, session, self.schema.two_levels, known)

    def sums(
        self, records: AverageNuisances, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``; of records with their nuisances."""
        unit = self.schema.domain.outcome_range
        centre, clip = records.centre / unit, records.clip / unit
        sums = self.ask_each(session, runs, SUMS, clipped_sums(records.scores[None] / unit, centre, clip))
        squares = upper_squares(2 * sums[:, 1], self.scale(SUMS), self.n) / self.n
        numbers = [[centre, clip, min(records.error(square) / unit, 1.0)] for square in squares.tolist()]
        return {SUMS: sums, "steps": torch.tensor(numbers, dtype=torch.float64)}

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        (centre, clip, _), error = answers["steps"][0].tolist(), answers["steps"][:, 2]
        total, half = answers[SUMS].T
        return conclude(total, 2 * half, centre, clip, error, self.n, self.scale(SUMS))

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        numbers = release.numbers
        return {
            SUMS: torch.tensor([[numbers["difference"], numbers["spread"] / 2]], dtype=torch.float64),
            "steps": torch.tensor([[numbers[name] for name in NUMBERS]], dtype=torch.float64),
        }

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; numbers of the steps are on their grids."""
        yield from super().problems(release)
        ((centre, clip, error),) = self.answers(release)["steps"].tolist()
        if not clip_on_grid(clip * self.schema.domain.outcome_range, self.steps, self.domain):
            yield f"its clip {clip:.6g} is not on the grid of its quantile"
        if not (abs(centre) <= 1 + CLOSE and 0 <= error <= 1 + CLOSE):
            yield "its centre or its error is larger than the outcome's range"

    def without_noise(self, records: AverageNuisances) -> NoisyEstimate:
        """See ``EffectPlan``; of records with their nuisances."""
        scores = records.scores[None] / self.schema.domain.outcome_range
        every = torch.ones_like(scores[:, 0])
        return NoisyEstimate(
            estimate=scores.mean(1),
            gaussian=scores.std(1, correction=0) / math.sqrt(self.n),
            laplace=every[:, None] * 0.0,
            polytope=None,
            noise_dominated=every < 0,
            size=every * self.n,
        )


def clip_on_grid(clip: float, plan: ComposedPlan, domain: Domain) -> bool:
    """Whether a clip, in outcome units, is on the grid of its quantile, or the largest; of a clipped domain."""
    scales = ScoreScales.of(domain)
    return same(clip, scales.high) or scales.on_grid(clip / plan.clip_factor, plan.constants.quantile_levels)


def clipped_domain(domain: Domain, estimand: Estimand) -> Domain:
    """Return a domain whose overlap is the estimand's clip, which may be a half or beyond the share of the treated."""
    facts, overlap = domain.to_dict(), min(estimand.overlap, _MOST_OVERLAP)
    share = {} if domain.treated is None else {"treated": min(max(domain.treated, overlap), 1 - overlap)}
    return Domain.from_dict({**facts, "overlap": overlap, **share})
