"""Peer: inverse propensity weights by a private logistic regression, then one noisy sum (Lee et al. 2019)."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.erm.linear_fits import ObjectiveFit, PreparedFit
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.records import Batch, Records, arm
from torchdpcate.erm.solver import linear_predictor
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.effect_estimator import EffectFacts, planned_sampling, released_ranges
from torchdpcate.estimators.average.effect_plan import EffectPlan
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.plan import exact_fit
from torchdpcate.estimators.average.planned import with_typical_ranges
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.laws import AddedNoise, LinearFit
from torchdpcate.plan import Query
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.charge import propensity_by
from torchdpcate.privacy.exact_sums import exact_sum, sum_grid
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.average_effect import AverageEffectRelease
from torchdpcate.release.release import Release
from torchdpcate.release.released_weights import ReleasedWeights

NO_INTERVAL = "a bias where the log-odds of treatment are not linear in the covariates; it has no interval"
"""What its planned error does not count."""
_HALF = 0.5 * (1 - 1e-9)  # of epsilon for either stage, so that they never add up to more


@dataclass(frozen=True, eq=False)
class HorvitzThompson(EffectPlan):
    r"""The plan of a Horvitz-Thompson estimate: half of epsilon for the propensity, half for the sum.

    .. math::
        \tau = \frac1n \Big(\sum_i \frac{z_i y_i}{e_i} - \frac{(1 - z_i) y_i}{1 - e_i} + Lap(2 \Delta/\epsilon)\Big),
        \quad \Delta = W_1 + W_0 = \sup_x \frac1{e(x)} + \sup_x \frac1{1 - e(x)} \le \frac2\eta

    at the released coefficients of e, over all x of the domain. The propensity is logistic regression by objective
    perturbation with ridge gamma. A ``ridge`` lambda_0 makes it max(gamma, n lambda_0), and the epsilon that the
    smaller change of curvature then leaves goes into less noise.

    Attributes:
        ridge: lambda_0, least ridge a record for features scaled to largest entry 1; None has none.

    Raises:
        InputError: An estimand whose size is not the number of records, or a ridge that is not positive.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget, TableSchema
        >>> from torchdpcate.causal.estimand import ATE
        >>> schema, budget = TableSchema.of(Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0)), PrivacyBudget(1.0, 0.0)
        >>> plan = HorvitzThompson(5000, schema, ATE(0.1), budget)
        >>> everywhere, even = plan.facts, plan.released(torch.zeros(1, 5, dtype=torch.float64))
        >>> [round(plan.sum_scale(facts).item(), 3) for facts in (everywhere, even)]
        [40.0, 8.0]
    """

    name: ClassVar[str] = "horvitz_thompson"
    formula: ClassVar[str] = (  # type: ignore[override]
        "Laplace noise of scale 2 (W_1 + W_0)/epsilon on the Horvitz-Thompson sum, W_z the largest weight of arm z at "
        "the released propensity, which is by objective perturbation with epsilon/2; covariate_balancing section 5"
    )
    intervals: ClassVar[bool] = False
    assumption: ClassVar[str] = (
        "the log-odds of treatment are linear in the covariates; where they are not, the estimate is biased"
    )

    ridge: float | None = None

    def __post_init__(self) -> None:
        if not self.estimand.public_size:
            raise InputError(f"a Horvitz-Thompson estimate is none of the {self.estimand.name}")
        if self.ridge is not None:
            positive("ridge", self.ridge)

    @property
    def facts(self) -> EffectFacts:
        """What is public before there are coefficients."""
        return EffectFacts(self.n, self.estimand)

    @cached_property
    def features(self) -> FeatureMap:
        """Of the propensity."""
        return on_domain(None, self.schema.domain)

    @property
    def half(self) -> PrivacyBudget:
        """Budget of either stage."""
        assert self.budget is not None
        return PrivacyBudget(self.budget.epsilon * _HALF, 0.0)

    @cached_property
    def fit(self) -> PreparedFit:
        """The propensity's fit, prepared; exact without privacy."""
        if self.budget is None:
            return exact_fit(Logistic(), self.n, self.features)
        fit = ObjectiveFit().prepare(Logistic(), self.n, self.features, self.half)
        least = 0.0 if self.ridge is None else self.n * self.ridge * self.features.largest_entry**2
        if least <= fit.ridge:
            return fit
        return ObjectiveFit(share=_share(least, fit)).prepare(Logistic(), self.n, self.features, self.half)

    @cached_property
    def queries(self) -> Mapping[str, Query]:
        """See ``Plan``: the propensity, and the sum, in units of what a record moves it by."""
        if self.budget is None:
            return {}
        fit = Query(propensity_by(ObjectiveFit.name), LinearFit(self.fit), self.fit.level, prefix="weights_")
        law = AddedNoise(LaplaceMechanism(self.half.epsilon, 1.0), 1, float(self.n))
        return {"propensity": fit, **self.summed({"sum": law})}

    def own_settings(self) -> dict[str, Any]:
        """See ``EffectPlan``."""
        least = {} if self.ridge is None else {"ridge": self.ridge}
        parts = () if self.budget is None else ("weights", "sum")
        return {**least, **{f"epsilon_{part}": self.half.epsilon for part in parts}}

    def following(self, answers: Mapping[str, Tensor]) -> dict[str, Any]:
        """See ``Plan``: what the coefficients leave of the weights, and the scale of the sum's noise."""
        if self.budget is None:
            return {}
        facts = self.released(answers["propensity"])
        assert facts.ranges is not None
        return {"sum_scale": self.sum_scale(facts).item(), **facts.ranges.stated_weights}

    @classmethod
    def stated_settings(cls, release: AverageEffectRelease) -> dict[str, Any]:
        """See ``EffectPlan``."""
        return {"ridge": release.privacy.public.get("ridge")}

    def learn(self, records: Records, session: FitSession, runs: int = 1) -> Mapping[str, Tensor]:
        """See ``EffectPlan``: the propensity's coefficients."""
        runs = max(runs, records.sets)
        if self.budget is None:
            return {"propensity": self.fit.draw(records, arm, session.noise, runs)}
        return {"propensity": self.ask_runs("propensity", session, runs, records, arm)}

    def sums(
        self, records: Records, session: FitSession, learnt: Mapping[str, Tensor], runs: int = 1
    ) -> Mapping[str, Tensor]:
        """See ``EffectPlan``."""
        theta = learnt["propensity"]
        facts = self.released(theta)
        exact = records.total(lambda batch: horvitz_thompson_terms(batch, facts, theta))
        return {**learnt, "sum": self.ask_each(session, runs, "sum", exact / sum_unit(facts)[:, None])}

    def estimate(self, answers: Mapping[str, Tensor]) -> NoisyEstimate:
        """See ``EffectPlan``."""
        facts = self.released(answers["propensity"])
        return sum_estimate((answers["sum"] * sum_unit(facts)[:, None])[:, 0], self.n, self.sum_scale(facts))

    def extras(self, answers: Mapping[str, Tensor], found: NoisyEstimate) -> dict[str, Any]:
        """See ``EffectPlan``: the weights."""
        return {"weights": ReleasedWeights(answers["propensity"][0], self.features, self.estimand)}

    def answers(self, release: Release) -> dict[str, Tensor]:
        """See ``Plan``."""
        assert isinstance(release, AverageEffectRelease)
        assert release.weights is not None
        theta, total = release.weights.theta[None], torch.tensor([[release.numbers["sum"]]], dtype=torch.float64)
        return {"propensity": theta, "sum": self.placed("sum", total / sum_unit(self.released(theta))[:, None])}

    def without_noise(self, records: Records) -> NoisyEstimate:
        """See ``EffectPlan``."""
        fit = exact_fit(Logistic(), self.n, self.features)
        theta = fit.draw(records, arm, NoiseSource.fixed(0), 1)  # which draws none
        exact = records.total(lambda batch: horvitz_thompson_terms(batch, self.facts, theta))[:, 0]
        return sum_estimate(exact, self.n, 0.0)

    def released(self, theta: Tensor) -> EffectFacts:
        """Return what is public for the sum once the coefficients [runs, p] are."""
        return replace(self.facts, ranges=released_ranges(self.facts, self.features, theta, None))

    def sum_scale(self, facts: EffectFacts) -> Tensor:
        """Return the scale of the noise in the sum, [runs], by what is public for it."""
        return sum_unit(facts) * self.scale("sum")


def sum_unit(facts: EffectFacts) -> Tensor:
    """Return what one record moves the sum by, [runs], at released coefficients where there are any."""
    # terms are rounded so that sums are exact, each by half a step
    return facts.weight_bounds.sum(-1) + sum_grid(facts.n, facts.estimand.largest)


def sum_estimate(total: Tensor, n: int, scale: float | Tensor) -> NoisyEstimate:
    """Return the estimate, without an interval: nothing is released of how much sampling moves the sum."""
    return NoisyEstimate.of_mean(total, n, torch.full_like(total, math.inf), scale, {"sum": total})


def _share(ridge: float, fit: PreparedFit) -> float:
    """Return the objective noise's share of epsilon at which the default ridge is the given, larger one."""
    kept = (1 - ObjectiveFit().share_of(Logistic())) / math.log1p(Logistic.curvature / fit.ridge)
    return 1 - kept * math.log1p(Logistic.curvature / ridge)


def horvitz_thompson_terms(batch: Batch, facts: EffectFacts, theta: Tensor) -> Tensor:
    """Return z y / e - (1 - z) y / (1 - e), summed over a batch, [runs, 1]; see ``exact_sum``.

    Args:
        batch: Some records.
        facts: What is public, with the ranges that weights are moved into.
        theta: Coefficients of the propensity, [runs, p].
    """
    g, of = linear_predictor(batch.psi, theta), facts.estimand
    z = batch.z.expand_as(g)
    w = of.weights(g, z)
    w = w if facts.ranges is None else facts.ranges.within(w, z)
    return exact_sum(arm(batch) * w * batch.y, facts.n, of.largest)[:, None]


@dataclass(eq=False, repr=False)
class HorvitzThompsonEffect(AverageEffectLearner):
    r"""Average effect by inverse propensity weights, a peer to compare with: no interval, noise of order 1/eta.

    .. math:: \tau = \frac1n \sum_i \frac{z_i y_i}{e(x_i)} - \frac{(1 - z_i) y_i}{1 - e(x_i)}

    e is a logistic regression, clipped to [eta, 1 - eta]. The sum is not normalised by the weights, so an error of e
    moves it even where outcomes are all alike.

    Guarantee:
        Certified, pure: half of epsilon for the propensity (objective perturbation), half for the sum (Laplace noise).
        Source: after Lee, Gresele, Park & Muandet (2019), Privacy-preserving causal inference via inverse probability
        estimand; theory note ``covariate_balancing``, section 5; docs/guarantees/horvitz_thompson.md.

    Args:
        domain: See ``AverageEffectLearner``, and for all arguments not named here.
        budget: Of all of it; its delta is not used.
        ridge: Public least ridge a record, for features scaled to largest entry 1; None takes the ridge that
            the mechanism needs, which is smaller.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> learner = HorvitzThompsonEffect(Domain([0, 0], [1, 1], 0.0, 1.0), PrivacyBudget(4.0, 0.0), overlap=0.2)
        >>> release = learner.fit(X, A, Y).release()
        >>> abs(release.estimate - 0.4) < 0.2, release.privacy.mechanism
        (True, 'horvitz_thompson')
    """

    _: KW_ONLY
    ridge: float | None = None

    mechanism: ClassVar[type[EffectPlan]] = HorvitzThompson

    @classmethod
    def supports(cls, estimand: type[Estimand]) -> bool:
        """Whether n is its denominator."""
        return estimand.public_size

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses a ridge that is not positive."""
        self.plan(n).public()

    def plan(self, n: int) -> HorvitzThompson:
        """See ``AverageEffectLearner``."""
        return HorvitzThompson(**self._facts(n), ridge=self.ridge)

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``; noise in the propensity moves it to first order."""
        prior, facts = self._prior(prior), EffectFacts(n, self.target)
        noise = nuisances = 0.0
        if self.budget is not None:
            plan = self.plan(n)
            noise = laplace(plan.sum_scale(with_typical_ranges(facts, prior.reach)).item() / n)
            nuisances = self.target.amplification * plan.fit.imbalance * prior.mean / n
        sampling = planned_sampling(facts, prior)
        return PlannedError("horvitz_thompson", noise, nuisances, sampling, bias=NO_INTERVAL).in_units(self._unit())

    def _learnt_first(self, records: Records) -> Mapping[str, Tensor]:
        learnt = super()._learnt_first(records)
        self.weights_ = ReleasedWeights(learnt["propensity"][0], self.features(), self.target)
        return learnt
