"""The plan of an average effect, the error it is planned to have, and the release that its numbers make."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.average.ratio_of_sums import NoisyEstimate, RatioOfSums, Total
from torchdpcate.estimators.average.weighted import BalancedDifference, EffectFacts, ReleasedRanges, Weighted
from torchdpcate.estimators.planned_noise import TYPICAL_RESIDUAL
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.linear_fits import PreparedFit
from torchdpcate.fit.losses import Loss
from torchdpcate.fit.minimise import default_tolerance
from torchdpcate.fit.stacked_records import Records, Target
from torchdpcate.laws import LinearCoefficients
from torchdpcate.plan import RECORDS, Plan, Query, requested_budget
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Level, of_library
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.blocks import Block
from torchdpcate.release.statement import UNSTATED, PrivacyStatement

HALF = 0.5
"""Share of the treated that plans expect where no propensity is known."""
TYPICAL_EFFECT = 0.25
"""Effect that plans expect, in outcome ranges, where noise in a denominator shows as far as there is one."""
_DEVIATIONS = {"binary": 0.45, "count": 0.15}
_DEVIATION = 0.2  # of an outcome of any other kind


@dataclass(frozen=True)
class ErrorPrior:
    """What a plan takes for what only the records know; shares of the outcome's range.

    Attributes:
        mean: Mean outcome, from the lower bound.
        deviation: Standard deviation of outcomes about what an estimate adjusts for.
        effect: Size of the effect.
        confounding: Size of what confounds, which noise in the weights leaves at most.
        treated: Share of the treated, where the design does not state it.
        slope: How far each of the outcome model's slopes is off after a private fit, which multiplies an imbalance.
        spread: Mean of 1/(4 e (1 - e)) over people where the propensity is not known: 1 at e = 1/2 for everybody.
        least_propensity: Least propensity that a private fit releases where the overlap bound lets it be smaller.
        furthest: Most that the errors of private nuisances add to a doubly robust score.

    Example:
        >>> ErrorPrior.of(Domain([0.0], [1.0], 0.0, 1.0)).deviation
        0.2
        >>> ErrorPrior.of(Domain([0.0], [1.0], 0.0, 60.0, outcome_sd=3.0)).deviation
        0.05
    """

    mean: float = 0.5
    deviation: float = _DEVIATION
    effect: float = 0.1
    confounding: float = 0.05
    treated: float = 0.5
    slope: float = 0.07
    spread: float = 1.2
    least_propensity: float = 0.1
    furthest: float = 0.25

    @classmethod
    def of(cls, domain: Domain) -> "ErrorPrior":
        """Return the prior for a domain: the deviation as stated or by the outcome's kind, the treated as known.

        With a stated ``Domain.outcome_sd`` effects and confounding are the same shares of it as they are without.
        """
        prior = cls(deviation=_DEVIATIONS.get(domain.outcome_kind, _DEVIATION))
        if domain.outcome_sd is not None:
            times = domain.outcome_sd / domain.outcome_range / prior.deviation
            own = {name: times * getattr(prior, name) for name in ("deviation", "effect", "confounding")}
            prior = replace(prior, **own)
        known = domain.known_propensity
        return prior if known is None else replace(prior, treated=sum(known.bounds) / 2)


@dataclass(frozen=True)
class PlannedError:
    r"""Parts of the planned standard error of an estimate, in outcome units, and what it leaves out.

    .. math:: \text{total} = \min\{\sqrt{\text{noise}^2 + \text{nuisances}^2 + \text{sampling}^2},\; R\}

    Attributes:
        effect: Name of the estimator, as ``effect=`` has it.
        noise: Of the privacy noise in the sums that the estimate is made of.
        nuisances: Of the noise in private fits, as far as it moves the estimate.
        sampling: Of the records, by the prior.
        range: R, the outcome's range.
        bias: What is counted nowhere, in words; None where there is nothing but what ``assumptions`` names.

    Example:
        >>> PlannedError("known_propensity", 0.03, 0.0, 0.04).total
        0.05
    """

    effect: str
    noise: float
    nuisances: float
    sampling: float
    range: float = 1.0
    bias: str | None = None

    @property
    def total(self) -> float:
        """All parts together, at most the outcome's range."""
        return min(math.hypot(self.noise, self.nuisances, self.sampling), self.range)

    def in_units(self, unit: float) -> "PlannedError":
        """Return that of outcomes scaled to [0, 1] in the outcome's units."""
        parts = ("noise", "nuisances", "sampling", "range")
        return replace(self, **{name: unit * getattr(self, name) for name in parts})


def laplace(*scales: float) -> float:
    """Return the standard deviation of a sum of independent Laplace noises of these scales."""
    return math.sqrt(2) * math.hypot(*scales)


def planned_size(facts: EffectFacts, treated: float) -> float:
    """Return the planned denominator N, everybody's propensity being the share of the treated."""
    e = torch.tensor([treated, treated], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return facts.n * (torch.stack([e[0], 1 - e[1]]) * facts.estimand.size(facts.estimand.at(e, z), z)).sum().item()


def planned_sampling(facts: EffectFacts, prior: ErrorPrior) -> float:
    """Return the planned standard error by sampling, for outcomes in [0, 1]."""
    e = torch.tensor([prior.treated, prior.treated], dtype=torch.float64)
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    squares = (torch.stack([e[0], 1 - e[1]]) * facts.estimand.at(e, z).square()).sum().item()
    return prior.deviation * math.sqrt(prior.spread * facts.n * squares) / planned_size(facts, prior.treated)


def with_typical_ranges(facts: EffectFacts, least_propensity: float) -> EffectFacts:
    """Return the facts with the ranges of weights that typical coefficients leave; those of a release are narrower.

    Args:
        facts: Public facts, before there are coefficients.
        least_propensity: Least propensity that coefficients are expected to have over the domain.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> facts = with_typical_ranges(EffectFacts(100, ATE(0.01), 0.3, 0.7), least_propensity=0.25)
        >>> [round(end, 9) for end in facts.ranges.stated["treated_weights"]]
        [1.333333333, 4.0]
    """
    least_propensity = max(least_propensity, facts.estimand.overlap)
    ends = torch.tensor([least_propensity, 1 - least_propensity], dtype=torch.float64)
    treated, control = (facts.estimand.at(ends, torch.full_like(ends, z)).sort().values for z in (1.0, 0.0))
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (facts.low, facts.high))
    ranges = ReleasedRanges((treated[:1], treated[1:]), (control[:1], control[1:]), (low, high))
    return replace(facts, ranges=ranges)


def typical_records(facts: EffectFacts, treated: float = HALF) -> Total:
    """Return what sums over n typical records: half of them treated, outcomes a quarter of their range off the middle.

    Args:
        facts: Public facts.
        treated: Share of the treated, and everybody's propensity.

    Example:
        >>> from torchdpcate.causal.estimand import ATE
        >>> total = typical_records(EffectFacts(100, ATE(0.1)))
        >>> total(lambda batch: batch.w.sum(-1, keepdim=True)).item()
        200.0
    """
    sides = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    e = torch.full_like(sides, min(max(treated, facts.estimand.overlap), 1 - facts.estimand.overlap))

    def arm(z: float) -> Weighted:
        every, y = torch.full_like(sides, z), HALF + TYPICAL_RESIDUAL * sides + TYPICAL_EFFECT * (z - HALF)
        return Weighted(every[None], y[None], facts.estimand.at(e, every)[None], torch.full_like(every, HALF)[None])

    arms = [(arm(1.0), treated), (arm(0.0), 1 - treated)]
    half = facts.n / len(sides)
    return lambda exact: torch.stack([exact(batch) * (share * half) for batch, share in arms]).sum(0)


def planned_noise(estimator: BalancedDifference, treated: float) -> float:
    """Return the standard deviation that noise in the sums gives an estimate of outcomes in [0, 1].

    Args:
        estimator: Of sums over weighted records.
        treated: Share of the treated.
    """
    facts = estimator.facts
    found = estimator.planned(typical_records(facts, treated))
    # a denominator that noise dominates still is at least what public weights make it, where there is such a bound
    bounded = facts.estimand.size_range[0] > 0
    return math.inf if bool(found.noise_dominated[0]) and not bounded else found.noise[0].item()


_NONPRIVATE_RIDGE = 1e-7  # a record; a smaller one leaves no minimiser in float64 where overlap is poor


class FirstFit(NamedTuple):
    """A linear fit before the sums.

    Attributes:
        charge: What it is charged for.
        fit: The fit, prepared; exact without privacy.
        target: What its loss aims at.
    """

    charge: Charge
    fit: PreparedFit
    target: Target


@dataclass(frozen=True, eq=False)
class AverageEffectPlan(Plan[AverageEffectRelease]):
    """Everything public about an average effect.

    What is learnt first, and the sums, are answers of its queries, [runs, p] each: one run in a release, any number in
    simulations and audits. Which sums are requested, and what follows from them, its ``readout`` says.

    Attributes:
        schema: Columns and public bounds.
        estimand: Estimand and clip.
        learner: Name of the learner's class.
        intervals: Whether an interval that counts sampling is known.
        assumption: Which models must follow the truth, in words; the full warning where a class does not say it.
    """

    kinds: ClassVar[tuple[str, ...]] = (AverageEffectRelease.kind,)
    intervals: ClassVar[bool] = True
    assumption: ClassVar[str] = UNSTATED

    n: int
    schema: TableSchema
    estimand: Estimand
    budget: PrivacyBudget | None
    _: KW_ONLY
    learner: str = ""

    @abstractmethod
    def readout(self, learnt: Mapping[str, Any]) -> RatioOfSums:
        """Return the sums and the formula of the estimate.

        Args:
            learnt: Answers of ``learn``; without any, what holds for all of them.
        """

    @abstractmethod
    def total(self, records: Any, learnt: Mapping[str, Any]) -> Total:
        """Return what sums over the records, as the readout's terms take them.

        Args:
            records: The records, or several data sets side by side.
            learnt: Answers of ``learn``.
        """

    @abstractmethod
    def planned(self, prior: ErrorPrior) -> PlannedError:
        """Return the error to expect, of outcomes in [0, 1], by public facts and a prior; nothing is spent."""

    def own_settings(self) -> dict[str, Any]:
        """Return the settings that statements have, besides those of all average effects."""
        laws = {} if self.budget is None else self.readout({}).laws
        pure = {name: law.event for name, law in laws.items() if isinstance(law.event, PureEvent)}
        return {f"epsilon_{name}": event.epsilon for name, event in pure.items()}

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """Return its further fields by name, by the public facts of a release; each may be forged."""
        return {}

    @property
    def fits(self) -> dict[str, FirstFit]:
        """The linear fits before the sums, by the names of their queries, with which their constants begin."""
        return {}

    def learning(self) -> dict[str, Query]:
        """Return the queries of what is learnt before the sums."""
        fits = self.fits.items()
        return {name: Query(own.charge, LinearCoefficients(own.fit), prefix=f"{name}_") for name, own in fits}

    def learn(self, records: Any, session: FitSession, runs: int = 1) -> Mapping[str, Any]:
        """Pay for what is learnt before the sums, and return it: coefficients of the fits, [runs, p] each."""
        learnt = {}
        for name, own in self.fits.items():
            several = max(runs, records.sets)
            if self.budget is None:
                learnt[name] = own.fit.draw(records, own.target, session.noise, several)
            else:
                learnt[name] = self.ask_runs(name, session, several, records, own.target)
        return learnt

    def stated_learnt(self, release: AverageEffectRelease) -> dict[str, Tensor]:
        """Return what a release, whose values may be forged, holds of what was learnt before the sums."""
        return {}

    def extras(self, answers: Mapping[str, Tensor], found: NoisyEstimate) -> dict[str, Any]:
        """Return what else a release holds, by the names of its fields."""
        return {}

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: what is learnt first, and the sums."""
        return {} if self.budget is None else {**self.learning(), **self.summed(self.readout({}))}

    def sums(self, records: Any, session: FitSession, learnt: Mapping[str, Any], runs: int = 1) -> Mapping[str, Tensor]:
        """Pay for the sums, draw them, and return all answers.

        Args:
            records: The records, or several data sets side by side.
            session: Pays, and draws the noise.
            learnt: Answers of ``learn``.
            runs: How many runs on one data set.
        """
        ask = partial(self.ask_each, session, runs)
        return {**learnt, **self.readout(learnt).ask(self.total(records, learnt), ask)}

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the estimate and the law of its error by the answers alone, for outcomes in [0, 1]."""
        return self.readout(answers).concluded(answers)

    def without_noise(self, records: Any, learnt: Mapping[str, Any] | None = None) -> NoisyEstimate:
        """Return the estimate without noise. The curator's, never to be published.

        Args:
            records: The records.
            learnt: Answers of ``learn`` without privacy; None learns them.
        """
        exact = self.noiseless()
        learnt = exact.learn(records, FitSession(NoiseSource.system())) if learnt is None else learnt
        return exact.readout(learnt).without_noise(exact.total(records, learnt))

    def noiseless(self) -> Self:
        """Return the plan of the same estimate without privacy."""
        return replace(self, budget=None)

    @property
    def epsilon(self) -> float:
        """What everything costs together; without privacy, where nothing follows from it, 1."""
        return 1.0 if self.budget is None else self.budget.epsilon

    def following(self, answers: Mapping[str, Tensor]) -> dict[str, Any]:
        """See ``Plan``: what of the sums follows from what was learnt before."""
        return {} if self.budget is None else self.readout(answers).public()

    def answers(self, release: AverageEffectRelease) -> dict[str, Tensor]:
        learnt = self.stated_learnt(release)
        numbers = {name: torch.tensor([value], dtype=torch.float64) for name, value in release.numbers.items()}
        return {**learnt, **self.readout(learnt).places(numbers)}

    def run(self, records: Any, noise: NoiseSource, runs: int = 1) -> NoisyEstimate:
        """Return the estimate of each data set, or of so many runs on one; for simulations and audits.

        Args:
            records: One data set, or several side by side.
            noise: Where the noise comes from.
            runs: How many runs on one data set.
        """
        session = FitSession(noise)
        return self.estimate(self.sums(records, session, self.learn(records, session, runs), runs))

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (self.assumption,)

    def settings(self) -> dict[str, Any]:
        return {
            "learner": self.learner,
            "estimand": self.estimand.name,
            "eta": self.estimand.overlap,
            **({} if self.budget is None else self.stated_budget()),
            **self.own_settings(),
        }

    def stated_budget(self) -> dict[str, Any]:
        """Return the budget as statements have it: of a pure mechanism, its epsilon."""
        assert self.budget is not None
        return {"epsilon": self.budget.epsilon}

    @classmethod
    def budget_of(cls, public: Mapping[str, Any], block: Block) -> PrivacyBudget:
        """Return the budget that a statement has; see ``requested_budget``."""
        return requested_budget(block, public["epsilon"], 0.0)

    @classmethod
    def restated(cls, release: AverageEffectRelease) -> Self:
        privacy, public = release.privacy, release.privacy.public
        return cls(
            n=privacy.n,
            schema=release.schema,
            estimand=make_estimand(str(public["estimand"]), release.domain.overlap),
            budget=cls.budget_of(public, next(block for block in privacy.blocks if block.name == RECORDS)),
            learner=str(public["learner"]),
            **cls.stated_settings(release),
        )

    def conclude(self, answers: Mapping[str, Tensor], privacy: PrivacyStatement) -> AverageEffectRelease:
        found = self.estimate(answers)
        main = found.in_units(self.schema.domain.outcome_range, self.intervals)
        numbers = {name: values[0].item() for name, values in found.released.items()}
        return AverageEffectRelease(
            self.estimand.name, main, numbers, self.schema, privacy, **self.extras(answers, found)
        )

    def problems(self, release: AverageEffectRelease) -> Iterator[str]:
        """See ``Plan``; what is certified is of an estimand of the library."""
        yield from super().problems(release)
        if release.privacy.level == Level.CERTIFIED and not of_library(self.estimand):
            yield f"the {self.estimand.name} is no estimand of the library, but it is called certified"

    def part(self, name: str) -> Charge:
        """Return the charge of a part of the release."""
        return Charge(Purpose.RELEASE, self.name, name)

    def summed(self, sums: RatioOfSums) -> dict[str, Query]:
        """Return the queries of sums, each a part of the release."""
        return {name: Query(self.part(name), law, prefix=None) for name, law in sums.laws.items()}

    def ask_each(self, session: FitSession, runs: int, name: str, exact: Tensor) -> Tensor:
        """Return the answers of so many runs on exact numbers [1, p], or one on each of several, [runs, p]."""
        return self.ask_runs(name, session, max(runs, len(exact)), exact)


def exact_fit(loss: Loss, n: int, features: FeatureMap) -> PreparedFit:
    """Return a fit without noise, with a ridge too small to matter."""
    ridge = _NONPRIVATE_RIDGE * n
    draw = partial(_minimiser, loss, ridge, features.dimension)
    return PreparedFit(PureEvent(1.0), {}, draw, imbalance=0.0, ridge=ridge)


def _minimiser(
    loss: Loss, ridge: float, size: int, records: Records, target: Target, noise: NoiseSource, runs: int
) -> Tensor:
    start, stop = torch.zeros(runs, size, dtype=torch.float64), default_tolerance(loss.slope, 1.0)
    return records.minimise(loss, target, ridge, start, stop)
