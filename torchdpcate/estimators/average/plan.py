"""Which mechanisms a covariate balancing effect uses, at which epsilon: all of it public, before any record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand, make_estimand
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.linear_fits import LINEAR_FITS, NoisyGradient, ObjectiveFit, PreparedFit, PrivateLinearFit
from torchdpcate.erm.losses import BalancingLoss, CrossEntropy, Logistic, Loss
from torchdpcate.erm.records import Batch, Records, Target, arm, outcome
from torchdpcate.erm.solver import default_tolerance, linear_predictor
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balance import BalanceStatistics, expected_balance
from torchdpcate.estimators.average.difference_in_means import equal_weights
from torchdpcate.estimators.average.effect_estimator import (
    EffectEstimator,
    EffectFacts,
    ReleasedRanges,
    Total,
    Weighted,
    left_imbalance,
    planned_size,
    released_ranges,
)
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.names import EFFECT_ESTIMATORS, RECORDS
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.outcome_table import CELLS, EQUAL, OutcomeTable
from torchdpcate.estimators.average.planned_error import ErrorPrior
from torchdpcate.features.maps import FeatureMap
from torchdpcate.laws import AddedNoise, LinearFit
from torchdpcate.plan import Query
from torchdpcate.privacy.accounting import EventCount, compose
from torchdpcate.privacy.budget import PrivacyBudget, as_number, number, split_epsilon
from torchdpcate.privacy.charge import Charge, Purpose, propensity_by
from torchdpcate.privacy.events import ApproximateEvent, PureEvent
from torchdpcate.privacy.exact_sums import far_problems
from torchdpcate.privacy.filters import SumFilter
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.blocks import Block, StatedCharge
from torchdpcate.release.release import Release
from torchdpcate.release.released_weights import ReleasedWeights

STAGE_ONE, OUTCOME_MODEL, BALANCE, DIFFERENCE = "stage_one", "outcome_model", "balance", "difference_in_means"
LARGEST_RATIO = 0.05
"""Noise per record r above which the logistic loss is fitted instead of the balancing one (section 3.1)."""
MOST_PURE = 30
"""Features up to which pure objective perturbation is no worse than the noisy gradient (section 3.1)."""
BOTH_MODELS = "a bias where neither the log-odds of treatment nor the mean outcomes are linear in the basis"
"""What its planned error does not count."""
LOSSES = ("auto", "balancing", "logistic")

_MODEL_SLOPE_BOUND = 0.25  # B of the interval where there is an outcome model
_PLAIN_SLOPE_BOUND = 0.5  # B where no outcome model takes the slopes away
_VARIANCE = 1 / 3  # of a feature over its largest square, if it is uniform in its range
_STAGE_ONE_SHARE, _OUTCOME_SHARE = 0.30, 0.15
_TREATED, _NUMBERS = f"{BALANCE}_treated", f"{DIFFERENCE}_numbers"
_NONPRIVATE_RIDGE = 1e-7  # a record; a smaller one leaves no minimiser in float64 where overlap is poor


@dataclass(frozen=True, eq=False)
class BalancingPlan(EffectPlan):
    """The plan of a covariate balancing effect: weights, an outcome model, sums by a readout, and what is beside them.

    Attributes:
        features: Basis, set up.
        balancing: Whether weights are fitted by the balancing loss, rather than the logistic one.
        ratio: r, noise per record of the balancing loss, that decides it.
        propensity: Stage one, prepared.
        outcome: The outcome model, prepared; None where the readout has none.
        fitters: Names of the fitters of both.
        estimator: Stage two.
        facts: What is public for it.
        epsilons: Epsilon of every part, by name.
    """

    rests_on: ClassVar[tuple[str, ...] | None] = None
    close: ClassVar[float] = 1e-9

    features: FeatureMap
    balancing: bool
    ratio: float
    propensity: PreparedFit
    outcome: PreparedFit | None
    fitters: tuple[str, str]
    estimator: EffectEstimator
    facts: EffectFacts
    epsilons: Mapping[str, float]

    @property
    def name(self) -> str:  # type: ignore[override]
        """See ``Plan``: that of the readout."""
        return self.estimator.name

    @property
    def formula(self) -> str:
        """See ``Plan``."""
        return self.estimator.formula

    @property
    def loss(self) -> str:
        """Name of the loss of stage one."""
        return "balancing" if self.balancing else "logistic"

    @property
    def noise(self) -> float:
        """Noise per record in the balance that stage one leaves; public."""
        return self.propensity.imbalance / self.facts.n

    @property
    def fits(self) -> dict[str, PreparedFit]:
        """The private fits by the names of their queries: stage one, and the outcome model if there is one."""
        return {"weights": self.propensity, **({} if self.outcome is None else {OUTCOME_MODEL: self.outcome})}

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: the fits, the readout's sums, and balance statistics and a difference in means if asked for."""
        if self.budget is None:
            return {}
        charges = propensity_by(self.fitters[0]), Charge(Purpose.OUTCOME_MODEL, self.fitters[1])
        found = {
            name: Query(charge, LinearFit(fit), fit.level, prefix=f"{name}_")
            for charge, (name, fit) in zip(charges, self.fits.items(), strict=False)
        }
        found |= self.summed(self.estimator.laws(self.facts, self.epsilons))
        for part, laws in self._beside().items():
            charge = self.part(part)
            found |= {f"{part}_{name}": Query(charge.with_part(name), law, prefix=None) for name, law in laws.items()}
        return found

    def _beside(self) -> dict[str, Mapping[str, AddedNoise]]:
        """Return the noise of what is asked beside the readout, by part."""
        found: dict[str, Mapping[str, AddedNoise]] = {}
        if BALANCE in self.epsilons:
            found[BALANCE] = self.statistics.laws(self.n, self.features.dimension - 1)
        if DIFFERENCE in self.epsilons:
            found[DIFFERENCE] = OutcomeTable.laws(self.equal, self.table_epsilons)
        return found

    @property
    def statistics(self) -> BalanceStatistics:
        """The balance statistics, at their epsilon."""
        return BalanceStatistics(self.epsilons.get(BALANCE, 1.0), self.estimand)

    @property
    def equal(self) -> EffectFacts:
        """What is public of the difference in means beside the estimate."""
        return EffectFacts(self.n, EQUAL)

    @property
    def table_epsilons(self) -> dict[str, float]:
        """Epsilon of the table and of the variance of the difference in means beside the estimate."""
        return split_epsilon(self.epsilons[DIFFERENCE], OutcomeTable.parts)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See ``Plan``: what the readout rests on with these fits."""
        return (self.estimator.assumption(self._models()),)

    def _models(self) -> dict[str, Any]:
        bounds = {} if self.outcome is None else {"outcome_bounds": [self.facts.low, self.facts.high]}
        return {"loss": self.loss, **bounds}

    def stated_budget(self) -> dict[str, Any]:
        """See ``EffectPlan``: the epsilons of all parts."""
        charged = {name: query.law.event for name, query in self.queries.items() if name in self._sums}
        whole = {part: event.epsilon for part, event in charged.items() if isinstance(event, PureEvent)}
        return {f"epsilon_{part}": epsilon for part, epsilon in {**self.epsilons, **whole}.items()}

    @property
    def _sums(self) -> Mapping[str, AddedNoise]:
        return self.estimator.laws(self.facts, self.epsilons)

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return {
            **self._models(),
            "basis": self.features.title,
            "noise_per_record": self.noise,
            "slope_bound": self.facts.slope_bound if self.facts.imbalance > 0 else 0.0,
        }

    def following(self, answers: Mapping[str, Tensor]) -> dict[str, Any]:
        """See ``Plan``: scales by released coefficients, and numbers of what is beside the estimate."""
        if self.budget is None:
            return {}
        found = self.estimator.public(self.released(answers), self.epsilons)
        if _TREATED in answers:
            found[_TREATED] = answers[_TREATED].item()
        if f"{DIFFERENCE}_table" in answers:
            numbers = self._plain(answers).released
            found[_NUMBERS] = [values[0].item() for values in numbers.values()]
        return found

    @classmethod
    def budget_of(cls, public: Mapping[str, Any], block: Block) -> PrivacyBudget:
        """See ``EffectPlan``: what was charged, which the epsilons of all parts explain."""
        return PrivacyBudget(as_number(block.epsilon), as_number(block.delta))

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return stated_plan(release)

    def learn(self, records: Records, session: FitSession, runs: int = 1) -> Mapping[str, Tensor]:
        """See ``EffectPlan``: coefficients of propensity and outcome model."""
        runs, targets = max(runs, records.sets), (arm, outcome)
        learnt = {}
        for (name, fit), target in zip(self.fits.items(), targets, strict=False):
            if self.budget is None:
                learnt[name] = fit.draw(records, target, session.noise, runs)
            else:
                learnt[name] = self.ask_runs(name, session, runs, records, target)
        return learnt

    def sums(
        self, records: Records, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``."""

        def ask(part: str, name: str, exact: Tensor) -> Tensor:
            return self.ask_each(session, runs, f"{part}_{name}", exact)

        ask_one, facts = partial(self.ask_each, session, runs), self.released(learnt)
        answers = {**learnt, **self.estimator.ask(self.total(records, learnt), facts, self.epsilons, ask_one)}
        if BALANCE in self.epsilons:
            found = self.statistics.ask(records, learnt["weights"], self.features, partial(ask, BALANCE))
            answers |= {f"{BALANCE}_{name}": answer for name, answer in found.items()}
        if DIFFERENCE in self.epsilons:
            total = equal_weights(records)
            found = OutcomeTable.ask(total, self.equal, self.table_epsilons, partial(ask, DIFFERENCE))
            answers |= {f"{DIFFERENCE}_{name}": answer for name, answer in found.items()}
        return answers

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        return self.estimator.estimate(answers, self.released(answers), self.epsilons)

    def extras(self, answers: Mapping[str, Tensor], found: NoisyEstimate) -> dict[str, Any]:
        """See ``EffectPlan``: coefficients, the balance, and the difference in means beside the estimate."""
        theta, model = answers["weights"], answers.get(OUTCOME_MODEL)
        size, unit = found.size[0].item(), self.schema.domain.outcome_range
        table = beside = None
        if self.balancing:
            fit = self.propensity
            table = expected_balance(theta[0], self.features, fit.ridge, fit.imbalance, size)
        if BALANCE in self.epsilons:
            numbers = {name: answers[f"{BALANCE}_{name}"] for name in ("treated", "sums")}
            balance = self.statistics.table(numbers, theta, self.features, self.n, size)
            table = (
                balance if table is None else replace(balance, expected=table.expected, expected_sd=table.expected_sd)
            )
        if DIFFERENCE in self.epsilons:
            beside = self._plain(answers).in_units(unit)
        return {
            # the learner's own weights may have been shown records since
            "weights": ReleasedWeights(theta[0], self.features.twin(), self.estimand),
            "outcome_theta": None if model is None else model[0],
            "balance": table,
            "beside": beside,
        }

    def _plain(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """Return the difference in means beside the estimate."""
        numbers = {name: answers[f"{DIFFERENCE}_{name}"] for name in OutcomeTable.parts}
        return OutcomeTable.estimate(numbers, self.equal, self.table_epsilons)

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        assert release.weights is not None
        public, answers = release.privacy.public, {"weights": release.weights.theta[None]}
        if self.outcome is not None:
            assert release.outcome_theta is not None
            answers[OUTCOME_MODEL] = release.outcome_theta[None]
        facts = self.released(answers)
        places = self.estimator.places(release.numbers, facts, self.epsilons)
        answers |= {name: self.placed(name, numbers) for name, numbers in places.items()}
        beside: dict[str, dict[str, Tensor]] = {}
        if BALANCE in self.epsilons:
            assert release.balance is not None
            size, treated = self.estimate(answers).size[0].item(), as_number(public[_TREATED])
            theta = answers["weights"]
            beside[BALANCE] = self.statistics.places(release.balance, treated, theta, self.features, self.n, size)
        if DIFFERENCE in self.epsilons:
            numbers = dict(zip((*CELLS, "variance"), map(as_number, public[_NUMBERS]), strict=True))
            beside[DIFFERENCE] = OutcomeTable.places(numbers, self.equal, self.table_epsilons)
        for part, found in beside.items():
            answers |= {f"{part}_{name}": self.placed(f"{part}_{name}", one) for name, one in found.items()}
        return answers

    def problems(self, release: Release) -> Iterator[str]:
        """See ``Plan``; numbers are within reach, and conditions of the fits are stated."""
        yield from super().problems(release)
        assert isinstance(release, AverageEffectRelease)
        reaches = self.estimator.reaches(self.released(self.answers(release)), self.epsilons)
        for name, (most, scale) in reaches.items():
            yield from far_problems(name, torch.tensor([release.numbers[name]]), most, scale)
        stated = [condition["name"] for condition in release.privacy.conditions]
        for fit in self.fits.values():
            yield from (f"the condition {c.name!r} is not stated" for c in fit.conditions if c.name not in stated)

    def without_noise(self, records: Records) -> NoisyEstimate:
        """See ``EffectPlan``; fits have no noise either."""
        exact = noiseless_plan(
            self.n,
            self.features,
            self.estimand,
            schema=self.schema,
            balancing=self.balancing,
            readout=self.estimator,
            outcome_bounds=(self.facts.low, self.facts.high),
        )
        learnt = exact.learn(records, FitSession(NoiseSource.system()))
        return self.estimator.without_noise(exact.total(records, learnt), exact.facts)

    def released(self, learnt: Mapping[str, Tensor]) -> EffectFacts:
        """Return what is public for stage two once the coefficients are."""
        return replace(self.facts, ranges=self._ranges(learnt))

    def _ranges(self, learnt: Mapping[str, Tensor]) -> ReleasedRanges:
        return released_ranges(self.facts, self.features, learnt["weights"], learnt.get(OUTCOME_MODEL))

    def total(self, records: Records, learnt: Mapping[str, Tensor]) -> Total:
        """Return what sums over the records with the weights and centres that were learnt."""
        ranges, (low, high) = self._ranges(learnt), (self.facts.low, self.facts.high)

        def weighted(batch: Batch) -> Weighted:
            g = linear_predictor(batch.psi, learnt["weights"])
            z, y = batch.z.expand_as(g), batch.y.expand_as(g)
            m = torch.full_like(g, (low + high) / 2)
            if OUTCOME_MODEL in learnt:
                m = torch.sigmoid(linear_predictor(batch.psi, learnt[OUTCOME_MODEL])).clamp(low, high)
            return Weighted(z, y, *ranges.clamp(self.estimand.weights(g, z), z, m))

        return lambda terms: records.total(lambda batch: terms(weighted(batch)))

    def planned_imbalance(self, prior: ErrorPrior) -> float:
        r"""Return the standard deviation that the noise of stage one is planned to give the estimate.

        .. math:: \min\Big\{\frac{a\, \sigma_V\, s \sqrt{p}}{N},\; b\Big\}

        with sigma_V the noise in each of p entries of the summed gradient, a its amplification where the logistic loss
        was fitted, and s how far the outcome model's slopes are off, 1/2 where there is no model; b is
        what confounds by the prior, more of which no noise brings back.
        """
        amplified = self.estimand.amplification * (not self.balancing) + self.balancing
        slope = prior.slope if self.outcome is not None else _PLAIN_SLOPE_BOUND
        size = planned_size(self.facts, prior.treated)
        moved = amplified * self.propensity.imbalance * slope * math.sqrt(self.features.dimension) / size
        return min(moved, prior.confounding)


def stated_plan(release: AverageEffectRelease) -> dict[str, Any]:
    """Return the fields of the plan that a release's public facts and charges describe; each may be forged.

    Raises:
        InputError: There is none; any other error of ``UNFIT`` means the same.
    """
    assert release.weights is not None
    privacy, public, features = release.privacy, release.privacy.public, release.weights.features
    estimand = make_estimand(str(public["estimand"]), as_number(public["eta"]))
    estimator = make_effect_estimator(privacy.mechanism)
    balancing = {"balancing": True, "logistic": False}[public["loss"]]
    modelled = "outcome_bounds" in public
    bounds = public["outcome_bounds"] if modelled else public.get("model_range", (0.5, 0.5))
    low, high = map(as_number, bounds)
    if not 0 <= low <= high <= 1 or (low < high) is not modelled:
        raise InputError(f"({low:g}, {high:g}): no bounds of an outcome model")
    block = next(block for block in privacy.blocks if block.name == RECORDS)
    weights = BalancingLoss(estimand) if balancing else Logistic()
    losses: dict[str, Loss] = {"weights": weights, **({OUTCOME_MODEL: CrossEntropy()} if modelled else {})}
    purposes = {"weights": Purpose.WEIGHTS, OUTCOME_MODEL: Purpose.OUTCOME_MODEL}
    fits, fitters, epsilons = [], ["none", "none"], {}
    for k, (name, loss) in enumerate(losses.items()):
        (charge,) = block.of(purposes[name])
        fits.append(_stated_fit(name, public, charge, loss, privacy.n, features))
        fitters[k] = charge.charge.mechanism
        epsilons[(STAGE_ONE, OUTCOME_MODEL)[k]] = _spent(charge, as_number(block.delta) / len(losses))
    parts = (*estimator.parts, BALANCE, DIFFERENCE)
    epsilons |= {part: as_number(public[f"epsilon_{part}"]) for part in parts if f"epsilon_{part}" in public}
    left, slope = left_imbalance(fits[0].imbalance, estimand, balancing), as_number(public["slope_bound"])
    if slope < 0 or (slope > 0 and not left):
        raise InputError(f"slope_bound = {slope:g}: does not count")
    return {
        "features": features,
        "balancing": balancing,
        "ratio": fits[0].imbalance / privacy.n,
        "propensity": fits[0],
        "outcome": fits[1] if modelled else None,
        "fitters": tuple(fitters),
        "estimator": estimator,
        "facts": EffectFacts(privacy.n, estimand, low, high, left, slope),
        "epsilons": epsilons,
    }


def _spent(charge: StatedCharge, delta: float) -> float:
    """Return the epsilon of the charge of a fit, of Gaussian noise at a delta."""
    event, count = charge.event, charge.count
    assert event is not None
    assert count is not None
    if isinstance(event, PureEvent | ApproximateEvent):
        return event.epsilon * count
    return compose([(event, count)], delta)


def _stated_fit(
    name: str, public: Mapping[str, Any], charge: StatedCharge, loss: Loss, n: int, features: FeatureMap
) -> PreparedFit:
    """Return the fit that a statement's constants and charge describe; of a user's own, what is stated of it."""
    assert charge.event is not None
    assert charge.count is not None
    own = {key.removeprefix(f"{name}_"): value for key, value in public.items() if key.startswith(f"{name}_")}
    kind = LINEAR_FITS.get(charge.charge.mechanism)
    if kind is not None:
        fit: PreparedFit = kind.recompute(own, charge.event, charge.count, loss, n, features)
        return fit
    if own.get("fitter") in LINEAR_FITS:
        raise InputError(f"{name}_fitter = {own['fitter']}: it was charged by {charge.charge.mechanism}")
    left = as_number(public["noise_per_record"]) * n if name == "weights" else 0.0
    ridge = next((as_number(own[key]) for key in ("ridge", "gamma") if key in own), 0.0)
    return PreparedFit(charge.event, own, _unknown, left, ridge, Level.CONDITIONAL, count=charge.count)


def _unknown(records: Records, target: Target, noise: NoiseSource, runs: int) -> Tensor:
    raise NotImplementedError


def make_plan(
    n: int,
    features: FeatureMap,
    estimand: Estimand,
    budget: PrivacyBudget,
    *,
    schema: TableSchema | None = None,
    learner: str = "",
    loss: str = "auto",
    fitter: str | PrivateLinearFit | None = None,
    readout: str | EffectEstimator = "balanced_difference",
    outcome_bounds: tuple[float, float] = (0.3, 0.7),
    shares: Mapping[str, float] | None = None,
    slope_bound: float | None = None,
) -> BalancingPlan:
    r"""Share the budget, choose the loss and calibrate every mechanism on public facts.

    The balancing loss is taken while :math:`r = \sigma_V / n \le 0.05`, sigma_V the noise in each entry of the summed
    gradient; beyond, the logistic loss, whose gradient is 1/eta times less sensitive.

    Args:
        n: Number of records.
        features: Basis, set up on the domain.
        estimand: Estimand and clip.
        budget: Of all of it. Its delta is for Gaussian fits alone.
        schema: Columns and public bounds; None takes the features' domain.
        learner: Name of the learner's class.
        loss: ``auto``, ``balancing`` or ``logistic``.
        fitter: Of stage one; None takes the noisy gradient beyond 30 features if there is a delta, else objective
            perturbation.
        readout: Stage two, or its name.
        outcome_bounds: Public bounds (lo, hi) of the outcome model, for outcomes in [0, 1].
        shares: Parts of the budget by name, in place of the defaults; divided by their sum.
        slope_bound: B of the interval; None takes 0.25, 0.5 where there is no outcome model, and with one and the
            logistic loss what noise in its fit is planned to make it.

    Raises:
        InputError: An unknown name, or settings that do not fit each other or the budget.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.features.user_maps import on_domain
        >>> features = on_domain(None, Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0))
        >>> plan = make_plan(5000, features, ATE(0.1), PrivacyBudget(1.0, 0.0))
        >>> plan.balancing, round(plan.ratio, 3), round(plan.epsilons["difference"], 3)
        (False, 0.084, 0.4)
    """
    chosen = make_effect_estimator(readout)
    facts = _facts(n, estimand, chosen, outcome_bounds, slope_bound)
    epsilons = share_out(budget.epsilon, chosen, facts, shares)
    first = _fitter(fitter, features, budget)
    second = None if OUTCOME_MODEL not in epsilons else _fitter(None, features, budget)
    delta = budget.delta / (1 + (second is not None))
    own = PrivacyBudget(epsilons[STAGE_ONE], delta)
    balancing, ratio, propensity = _propensity(loss, first, n, features, estimand, own)
    model = None
    if second is not None:
        model = second.prepare(CrossEntropy(), n, features, PrivacyBudget(epsilons[OUTCOME_MODEL], delta))
    facts = replace(facts, imbalance=left_imbalance(propensity.imbalance, estimand, balancing))
    if slope_bound is None and model is not None and not balancing:
        facts = replace(facts, slope_bound=_planned_slope(model.imbalance / n, features.dimension))
    fits = (propensity,) if model is None else (propensity, model)
    epsilons = _within(budget, epsilons, [(fit.event, fit.count) for fit in fits])
    chosen.public(facts, epsilons)  # which refuses noise that no number could carry
    names = first.name, second.name if second is not None else "none"
    parts = features, balancing, ratio, propensity, model, names, chosen, facts, epsilons
    return BalancingPlan(n, schema or TableSchema.of(features.domain), estimand, budget, *parts, learner=learner)


def _within(budget: PrivacyBudget, epsilons: Mapping[str, float], fits: Sequence[EventCount]) -> dict[str, float]:
    """Return epsilons of which what follows the fits is within what the ledger's filter leaves beside these.

    Gaussian fits that have all of delta leave a little less of epsilon for the sums than their share: the filter keeps
    some of delta for what may come.

    Raises:
        InputError: The fits leave nothing.
    """
    later = math.fsum(epsilon for part, epsilon in epsilons.items() if part not in (STAGE_ONE, OUTCOME_MODEL))
    reserve = SumFilter().reserve(fits, budget)
    if reserve is None:
        raise InputError(
            f"privacy.epsilon = {budget.epsilon:g}: the fits of weights and outcomes leave nothing for the estimate; "
            "give a larger epsilon, or fitter=objective"
        )
    factor = min(1.0, reserve.size / later)
    return {part: epsilon * (1 if part in (STAGE_ONE, OUTCOME_MODEL) else factor) for part, epsilon in epsilons.items()}


def _planned_slope(noise: float, dimension: int) -> float:
    r"""Return how far noise in the outcome model's fit is planned to move its slopes, all features together.

    An entry of the summed gradient has the noise :math:`n r`, and the curvature of a feature of variance k, over its
    largest square, is :math:`n k` times the slope of the sigmoid, which a slope of the mean has as well: each is off by
    :math:`r / k`, and what the weights leave of p features adds up to :math:`\sqrt p` times that.

    Args:
        noise: r, in units of the features' largest entry.
        dimension: p.
    """
    return min(math.sqrt(dimension) * noise / _VARIANCE, _MODEL_SLOPE_BOUND)


def noiseless_plan(
    n: int,
    features: FeatureMap,
    estimand: Estimand,
    *,
    schema: TableSchema | None = None,
    learner: str = "",
    balancing: bool,
    readout: str | EffectEstimator,
    outcome_bounds: tuple[float, float],
) -> BalancingPlan:
    """Return the plan of the same estimate without privacy; its epsilons and events have no meaning.

    Args:
        n: Number of records.
        features: Basis, set up on the domain.
        estimand: Estimand and clip.
        schema: See ``make_plan``.
        learner: Name of the learner's class.
        balancing: Whether weights are fitted by the balancing loss.
        readout: Stage two, or its name.
        outcome_bounds: See ``make_plan``.
    """
    chosen = make_effect_estimator(readout)
    own = _facts(n, estimand, chosen, outcome_bounds, 0.0)
    epsilons = share_out(1.0, chosen, own, None)
    loss = BalancingLoss(estimand) if balancing else Logistic()
    model = exact_fit(CrossEntropy(), n, features) if OUTCOME_MODEL in epsilons else None
    fit, names = exact_fit(loss, n, features), ("none", "none")
    parts = features, balancing, 0.0, fit, model, names, chosen, own, epsilons
    return BalancingPlan(n, schema or TableSchema.of(features.domain), estimand, None, *parts, learner=learner)


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


def make_effect_estimator(readout: str | EffectEstimator) -> EffectEstimator:
    """Return an effect estimator by its name.

    Raises:
        InputError: An unknown name.
    """
    if isinstance(readout, EffectEstimator):
        return readout
    if readout not in EFFECT_ESTIMATORS:
        raise InputError(f"readout = {readout!r}: choose one of {', '.join(EFFECT_ESTIMATORS)}")
    estimator: EffectEstimator = EFFECT_ESTIMATORS[readout]()
    return estimator


def share_out(
    epsilon: float, readout: EffectEstimator, facts: EffectFacts, shares: Mapping[str, float] | None
) -> dict[str, float]:
    """Return the epsilon of every part that has a share.

    Args:
        epsilon: Of all of it.
        readout: Stage two, whose parts have default shares.
        facts: Whether the outcome model has an interval to vary in.
        shares: In place of the defaults, by name.

    Raises:
        InputError: An unknown part, a share below 0, or none for a part that is needed.
    """
    centred = readout.centred and facts.low < facts.high
    needed = {STAGE_ONE: _STAGE_ONE_SHARE, **({OUTCOME_MODEL: _OUTCOME_SHARE} if centred else {}), **readout.parts}
    known = {**needed, BALANCE: 0.0, DIFFERENCE: 0.0}
    for name, share in (shares or {}).items():
        if name not in known:
            raise InputError(f"shares.{name}: no part of readout = {readout.name}; the parts are {', '.join(known)}")
        if number(f"shares.{name}", share) < 0 or (name in needed and share == 0):
            least = "above 0" if name in needed else "of at least 0"
            raise InputError(f"shares.{name} = {share:g}: give a number {least}")
        known[name] = float(share)
    return split_epsilon(epsilon, {name: share for name, share in known.items() if share > 0})


def _facts(
    n: int, estimand: Estimand, readout: EffectEstimator, bounds: tuple[float, float], slope_bound: float | None
) -> EffectFacts:
    if not readout.centred:
        bounds = (0.5, 0.5)
    try:
        low, high = (number("outcome_bounds", bound) for bound in bounds)
    except (TypeError, ValueError):
        raise InputError(f"outcome_bounds = {bounds!r}: give a pair of numbers, such as (0.3, 0.7)") from None
    if not 0 <= low <= high <= 1:
        raise InputError(
            f"outcome_bounds = ({low:g}, {high:g}): give two numbers in [0, 1], the lower first (outcomes are scaled "
            "to that); equal ones leave the outcome model out"
        )
    default = _MODEL_SLOPE_BOUND if low < high else _PLAIN_SLOPE_BOUND
    slope = default if slope_bound is None else number("slope_bound", slope_bound)
    if slope < 0:
        raise InputError(f"slope_bound = {slope:g}: give a number of at least 0")
    return EffectFacts(n, estimand, low, high, 0.0, slope)


def _fitter(fitter: str | PrivateLinearFit | None, features: FeatureMap, budget: PrivacyBudget) -> PrivateLinearFit:
    if isinstance(fitter, PrivateLinearFit):
        return fitter
    if fitter is None:
        return NoisyGradient() if features.dimension > MOST_PURE and budget.delta > 0 else ObjectiveFit()
    if fitter not in LINEAR_FITS:
        raise InputError(f"fitter = {fitter!r}: choose one of {', '.join(LINEAR_FITS)}")
    return LINEAR_FITS[fitter]()


def _propensity(
    loss: str, fitter: PrivateLinearFit, n: int, features: FeatureMap, estimand: Estimand, budget: PrivacyBudget
) -> tuple[bool, float, PreparedFit]:
    """Return whether the balancing loss is fitted, its noise per record r, and the fit."""
    if loss not in LOSSES:
        raise InputError(f"loss = {loss!r}: choose one of {', '.join(LOSSES)}")
    rule = estimand.scoring_rule
    if rule is None and loss == "balancing":
        raise InputError(f"loss = balancing: none is known for estimand = {estimand.name}; use loss=logistic")
    if rule is None or (loss == "logistic" and rule != loss):  # else it is the balancing loss
        return False, 0.0, fitter.prepare(Logistic(), n, features, budget)
    fit = fitter.prepare(BalancingLoss(estimand), n, features, budget)
    ratio = fit.imbalance / n
    forced = loss == "balancing" or rule == "logistic" or fitter.balancing_only
    balancing = forced or ratio <= LARGEST_RATIO
    return balancing, ratio, fit if balancing else fitter.prepare(Logistic(), n, features, budget)
