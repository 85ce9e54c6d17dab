"""Average effects by one composition on all records: private nuisances, then sums of clipped doubly robust scores."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, Estimand
from torchdpcate.composition.average import AverageNuisances, average_nuisances
from torchdpcate.composition.builder import average_plan
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.planned import propensity_noise
from torchdpcate.composition.records import rows_of
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.steps import WEIGHTS, propensity_of
from torchdpcate.composition.summaries import Weights
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RecordStream
from torchdpcate.data.weights import times_weight
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balance import weighted_balance
from torchdpcate.estimators.average.effect_plan import AverageEffectPlan, ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.ratio_of_sums import (
    UPPER,
    NoisyEstimate,
    RatioOfSums,
    Sums,
    Total,
    sum_and_squares,
    sums_law,
)
from torchdpcate.laws import AddedNoise
from torchdpcate.plan import RECORDS, Query
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import COMPOSED_SCORES
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable

SCORES = "scores"
"""The query of both sums."""
CLIPPED = "a bias where the nuisances' features do not follow the truth, or where scores beyond the clip do not cancel"
"""What its planned error does not count."""
NUMBERS = ("centre", "clip", "error")
"""Numbers that the steps before the sums have paid for, in outcome ranges."""
WEIGHT = "weight"
"""The mean weight of the records, which they have paid for too where records have weights."""


@dataclass(frozen=True, eq=False)
class ScoreSteps:
    """The steps of one composition by which records get doubly robust scores; public facts alone.

    Attributes:
        n: Number of records.
        budget: Of the steps and the sums of scores together; None without privacy.
        schema: Columns and public bounds.
    """

    n: int
    budget: PrivacyBudget | None
    schema: TableSchema

    @cached_property
    def plan(self) -> ComposedPlan:
        """The plan of the steps."""
        return average_plan(self.n, self.budget, self.schema.domain)

    @property
    def query(self) -> Query:
        """What the steps ask of the records."""
        return Query(COMPOSED_SCORES, self.plan.law)

    def nuisances(self, records: CausalData | RecordStream, session: FitSession) -> AverageNuisances:
        """Pay for the steps, and return what they released with the scores by it, which are the curator's.

        Args:
            records: See ``rows_of``.
            session: Scope of the block of records.
        """
        domain = self.schema.domain
        return average_nuisances(rows_of(records, domain), domain, self.plan, session, self.schema.two_levels)


@dataclass(frozen=True, eq=False)
class ClippedScores(RatioOfSums):
    r"""Sums of clipped doubly robust scores and of their squares.

    .. math:: v_i = \mathrm{clip}\Big(\frac{\varphi_i - c}{S}, -1, 1\Big), \quad D = \sum_i v_i, \quad
        Q = \sum_i v_i^2, \quad \tau = c + \frac{S D}{n}

    Attributes:
        n: Number of records.
        epsilon: Of both sums.
        centre: c, in outcome ranges.
        clip: S.
        error: Standard deviation by the errors of both nuisances, [runs].
        weight: Released mean weight of the records; None where all count alike. Terms are v times those of a record
            with the weight v, squares too, and n is the sum of the weights in the estimate.
        weight_noise: Standard deviation of the noise in that mean.
    """

    n: int
    epsilon: float
    centre: float = 0.0
    clip: float = 1.0
    error: Tensor | float = 0.0
    weight: float | None = None
    weight_noise: float = 0.0

    @cached_property
    def laws(self) -> Mapping[str, AddedNoise]:
        return {SCORES: sums_law(self.n, self.epsilon)}

    def sums(self, query: str, numbers: Mapping[str, Tensor]) -> Sums:
        """See ``NoisySums``; of scores [runs, n] in outcome ranges, or of these with weights."""
        return sum_and_squares(self.n, partial(_clipped, self.centre, self.clip), names=("difference", "spread"))

    def estimate(self, numbers: Mapping[str, Tensor]) -> NoisyEstimate:
        total, n = numbers["difference"], self.mass
        every = torch.ones_like(total)
        gaussian = (self.clip * self.upper_squares(numbers["spread"]).sqrt() / n).hypot(self.error * every)
        steps = {name: value * every for name, value in zip(NUMBERS, (self.centre, self.clip, self.error), strict=True)}
        if self.weight is not None:
            steps[WEIGHT] = self.weight * every
            gaussian = gaussian.hypot(self.clip * total / n * self.weight_noise / self.weight)
        noise = (self.clip * self.scales(numbers)["difference"],)
        tau = (self.centre + self.clip * total / n).clamp(-1, 1)
        return NoisyEstimate.of_ratio(tau, every * n, gaussian, noise, {**numbers, **steps})

    @property
    def mass(self) -> float:
        """Number of records, or the sum of their weights."""
        return self.n if self.weight is None else self.n * self.weight

    def upper_squares(self, squares: Tensor) -> Tensor:
        """Return the sums of squares [runs] that intervals count."""
        return (squares + UPPER * 2 * self.scale(SCORES)).clamp(0, self.n)


def _clipped(centre: float, clip: float, scores: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    if isinstance(scores, tuple):
        return scores[1] * _clipped(centre, clip, scores[0])
    return ((scores - centre) / clip).clamp(-1, 1)


@dataclass(frozen=True, eq=False)
class ComposedScoresPlan(AverageEffectPlan):
    """The plan of ``ClippedScores`` by nuisances that are steps of one composition.

    Centre, clip and error, of outcomes scaled to [0, 1], are numbers that the steps have paid for.

    Raises:
        InputError: Another estimand than the ATE, or a budget without delta.
    """

    name: ClassVar[str] = "clipped_scores"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Gaussian noise in each step for the nuisances, on all records and by its share of the budget; Laplace noise "
        "of scale 2 S/epsilon on the sum of clipped doubly robust scores, and 4/epsilon on that of their squares over "
        "S^2, in one event; composed_estimator section 3"
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
    def steps(self) -> ScoreSteps:
        """The steps before the sums."""
        return ScoreSteps(self.n, self.budget, self.schema)

    def learning(self) -> dict[str, Query]:
        return {"steps": self.steps.query}

    def readout(self, learnt: Mapping[str, Any]) -> ClippedScores:
        epsilon = self.steps.plan.score_epsilon or 1.0
        if not learnt:
            return ClippedScores(self.n, epsilon)
        (centre, clip, _, *weight), error = learnt["steps"][0].tolist(), learnt["steps"][:, 2]
        if not weight:
            return ClippedScores(self.n, epsilon, centre, clip, error)
        noise = 0.0 if self.budget is None else self.steps.plan.shares.deviation(WEIGHTS) / self.n
        return ClippedScores(self.n, epsilon, centre, clip, error, weight[0], noise)

    def total(self, records: AverageNuisances, learnt: Mapping[str, Any]) -> Total:
        """See ``AverageEffectPlan``; of records with their nuisances."""
        unit = self.schema.domain.outcome_range

        def scores(batch: CausalData) -> Tensor | tuple[Tensor, Tensor]:
            own = batch.y[None] / unit
            return own if batch.weight is None else (own, batch.weight[None])

        return lambda exact: records.scored.total(lambda batch: exact(scores(batch)))

    def own_settings(self) -> dict[str, Any]:
        return self.steps.plan.facts() | super().own_settings()

    def sums(
        self, records: AverageNuisances, session: FitSession, learnt: Mapping[str, Any], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``AverageEffectPlan``; the error of the nuisances follows from the sum of squares."""
        unit = self.schema.domain.outcome_range
        centre, clip = records.centre / unit, records.clip / unit
        weight = [] if records.weight is None else [records.weight]
        own = torch.tensor([[centre, clip, 0.0, *weight]], dtype=torch.float64)
        answers = super().sums(records, session, {"steps": own}, runs)
        squares = self.readout({}).upper_squares(2 * answers[SCORES][:, 1]) / (self.n * (records.weight or 1))
        numbers = [[centre, clip, min(records.error(square) / unit, 1.0), *weight] for square in squares.tolist()]
        return {**answers, "steps": torch.tensor(numbers, dtype=torch.float64)}

    def stated_learnt(self, release: AverageEffectRelease) -> dict[str, Tensor]:
        names = NUMBERS if self.steps.plan.weight is None else (*NUMBERS, WEIGHT)
        return {"steps": torch.tensor([[release.numbers[name] for name in names]], dtype=torch.float64)}

    def without_noise(self, records: AverageNuisances, learnt: Mapping[str, Any] | None = None) -> NoisyEstimate:
        """See ``AverageEffectPlan``; of records with their nuisances, none of whose scores is clipped."""
        unit, n = self.schema.domain.outcome_range, float(self.n)
        if self.steps.plan.weight is not None:
            n = float(records.scored.total(Weights()))
        mean = records.scored.total(lambda batch: times_weight(batch.y, batch).sum()[None]) / n
        square = records.scored.total(lambda batch: times_weight(batch.y - mean, batch).square().sum()[None]) / n
        size = torch.full_like(mean, n)
        return NoisyEstimate.of_ratio(mean / unit, size, (square / n).sqrt() / unit, (torch.zeros_like(size),), {})

    def planned(self, prior: ErrorPrior) -> PlannedError:
        """See ``AverageEffectPlan``: the prior says how far scores lie from their mean."""
        plan, noise, nuisances = self.steps.plan, 0.0, 0.0
        if plan.score_epsilon is not None:
            noise = laplace(planned_clip(plan, prior) * self.readout({}).scale(SCORES) / plan.mass)
            if not plan.known_propensity:
                nuisances = _planned_nuisances(plan, prior)
        sampling = planned_deviation(plan, prior) / math.sqrt(plan.mass)
        return PlannedError("composed", noise, nuisances, sampling, bias=CLIPPED)


def planned_deviation(plan: ComposedPlan, prior: ErrorPrior) -> float:
    """Return the planned standard deviation of scores, in outcome ranges."""
    return 2 * prior.deviation * math.sqrt(prior.spread if not plan.known_propensity else 1.0)


def planned_clip(plan: ComposedPlan, prior: ErrorPrior) -> float:
    """Return the planned clip of scores, in outcome ranges."""
    return planned_deviation(plan, prior) * (plan.score_spread if not plan.binary else 2.0)


def _planned_nuisances(plan: ComposedPlan, prior: ErrorPrior) -> float:
    """Return what the product of both nuisances' errors is planned to add, in outcome ranges."""
    arms = plan.both_arms()
    size = len(arms.basis.feature_weights)
    unit = prior.deviation if not plan.binary else 1.0
    noise = arms.noise / arms.basis.feature_weights
    held = torch.cat([noise[:1], noise[1:] * arms.prior / (arms.prior + noise[1:])])
    outcome = unit * math.sqrt(float(held.sum()))
    return min(4 * propensity_noise(plan) * outcome / math.sqrt(size), prior.furthest)


@dataclass(eq=False, repr=False)
class ComposedAverageEffect(AverageEffectLearner):
    r"""Average effect by doubly robust scores (AIPW) of nuisances that one composition learns on all records.

    .. math:: \varphi_i = m_1(x_i) - m_0(x_i) + \frac{a_i - \pi_i}{\pi_i (1 - \pi_i)} (y_i - m_{a_i}(x_i)), \qquad
        \tau = c + \frac1n \sum_i \mathrm{clip}(\varphi_i - c, \pm S) + Lap

    Three fifths of epsilon pay for the nuisances, Gaussian events that add up in :math:`\mu^2`: the outcome's centre
    and scale, moments of the covariates, a propensity where the domain states none, and both arms' regression. The rest
    pays for the scores' sum; their sum of squares, for the interval, is free beside it. Since S is a private
    quantile of the scores' own sizes, noise follows the outcomes and not their public range.

    Guarantee:
        Certified (epsilon, delta) with delta > 0: (.6 epsilon, delta) for the steps, given which the sums are
        pure with the rest (docs/guarantees/average_effects.md). The interval counts sampling, all noise, what errors of
        both nuisances do together and what the clip makes of them, by released numbers. It does not count skewed
        scores beyond the clip, nor features that follow neither the propensity nor the outcomes, beyond their prior.
        Source: Robins, Rotnitzky & Zhao (1994), Dong, Roth & Su (2022); theory notes ``composed_estimator`` and
        ``composed_intervals``.

    Args:
        budget: Of all of it, with delta > 0.
        estimand: ``ATE``.

    Attributes:
        nuisances_: Centre, clip and error, paid for, and what makes the scores, which are the curator's.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000) + 0.1 * torch.rand(4000)
        >>> domain = Domain([0, 0], [1, 1], -10.0, 10.0, overlap=0.2)
        >>> release = ComposedAverageEffect(domain, PrivacyBudget(1.0, 1e-5)).fit(X, A, Y).release()
        >>> low, high = release.interval(0.95)
        >>> abs(release.estimate - 0.4) < 0.2, bool(low < release.estimate < high), release.privacy.mechanism
        (True, True, 'clipped_scores')
    """

    mechanism: ClassVar[type[AverageEffectPlan]] = ComposedScoresPlan
    needs_equal_records = None
    """See ``PrivateEstimator``, as of the next."""
    takes_censored = True

    @classmethod
    def supports(cls, estimand: type[Estimand]) -> bool:
        """Whether it is the effect on everybody."""
        return estimand is ATE

    def _of(self, records: CausalData | RecordStream) -> CausalData | RecordStream:
        """See ``AverageEffectLearner``: in outcome units."""
        return records.copy() if isinstance(records, CausalData) else records

    def _learnt_first(self, records: CausalData | RecordStream) -> Mapping[str, Tensor]:
        """Pay for the steps, and for the sums, which are part of the plan whose charges compose tightly."""
        plan = self._plan
        self.nuisances_ = plan.steps.nuisances(records, self._session.charging([RECORDS], COMPOSED_SCORES))
        self._exact = plan.without_noise(self.nuisances_)  # while the stream is there
        if plan.budget is None:
            return {}
        # a charge after the fit would pass the filter
        own = self._session.charging([RECORDS], plan.queries[SCORES].charge)
        answers: Mapping[str, Tensor] = plan.sums(self.nuisances_, own, {})
        self._paid = own.entries
        return answers

    def _sums(self, session: FitSession) -> Mapping[str, Tensor]:
        """See ``AverageEffectLearner``: the fit has paid for them."""
        session.entries.update(self._paid)
        return self._learnt

    def _without_noise(self, records: CausalData | RecordStream) -> NoisyEstimate:
        return self._exact  # type: ignore[no-any-return]

    def nonprivate_balance(self) -> BalanceTable | None:
        """Return the balance of all covariates before and after weighting by the propensity; the curator's.

        None of streams.

        Raises:
            NotFittedError: Before ``fit``.
        """
        self._require_fitted("nonprivate_balance")
        scored = self.nuisances_.scored
        if not isinstance(scored, InMemory):
            return None
        return weighted_balance(self._plan.schema.domain, self._records, propensity_of(scored.records))
