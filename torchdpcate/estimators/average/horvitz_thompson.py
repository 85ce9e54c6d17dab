"""Peer: inverse propensity weights by a private logistic regression, then one noisy sum (Lee et al. 2019)."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.erm.losses import Logistic
from torchdpcate.erm.objective_fit import ObjectiveFit
from torchdpcate.erm.private_fit import PreparedFit
from torchdpcate.erm.records import Batch, Records, arm, predictor
from torchdpcate.estimators.average.effect_estimator import EffectFacts, planned_sampling, released_ranges
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.noisy_estimate import NoisyEstimate
from torchdpcate.estimators.average.peers import HorvitzThompson, sum_estimate, sum_unit
from torchdpcate.estimators.average.plan import exact_fit
from torchdpcate.estimators.average.planned import with_typical_ranges
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError, laplace
from torchdpcate.estimators.average.stated import AverageMechanism
from torchdpcate.features.maps import FeatureMap
from torchdpcate.privacy.budget import PrivacyBudget, positive
from torchdpcate.privacy.charge import propensity_by
from torchdpcate.privacy.exact_sums import exact_sum
from torchdpcate.privacy.mechanisms import LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.released_weights import ReleasedWeights

NO_INTERVAL = "a bias where the log-odds of treatment are not linear in the covariates; it has no interval"
"""What its planned error does not count."""
_HALF = 0.5 * (1 - 1e-9)  # of epsilon for either stage, so that they never add up to more


@dataclass(frozen=True, eq=False)
class HorvitzThompsonPlan:
    """Everything public about a Horvitz-Thompson estimate.

    Attributes:
        facts: Number of records, estimand ATE and clip.
        features: Of the propensity, set up.
        fit: The propensity's fit, prepared.
        total: Noise of the sum, in its unit (``peers.sum_unit``).
    """

    facts: EffectFacts
    features: FeatureMap
    fit: PreparedFit
    total: LaplaceMechanism

    def released(self, theta: Tensor) -> EffectFacts:
        """Return what is public for the sum once the coefficients [runs, p] are."""
        return replace(self.facts, ranges=released_ranges(self.facts, self.features, theta, None))

    def scale(self, facts: EffectFacts) -> Tensor:
        """Return the scale of the noise in the sum, [runs], by what is public for it."""
        return sum_unit(facts) * self.total.released_scale(1)


def plan_horvitz_thompson(
    n: int, features: FeatureMap, estimand: Estimand, epsilon: float, ridge: float | None = None
) -> HorvitzThompsonPlan:
    r"""Calibrate both stages at half of epsilon each.

    The propensity is logistic regression by objective perturbation with ridge gamma. A ``ridge`` lambda_0 makes
    it max(gamma, n lambda_0), and the epsilon that the smaller change of curvature then leaves goes into less noise.

    Args:
        n: Number of records.
        features: Of the propensity, set up on the domain.
        estimand: Estimand ATE and clip.
        epsilon: Of all of it.
        ridge: lambda_0, least ridge a record for features scaled to largest entry 1; None has none.

    Raises:
        InputError: A ridge that is not positive.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.features.user_maps import on_domain
        >>> features = on_domain(None, Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0))
        >>> plan = plan_horvitz_thompson(5000, features, ATE(0.1), 1.0)
        >>> everywhere, even = plan.facts, plan.released(torch.zeros(1, 5, dtype=torch.float64))
        >>> [round(plan.scale(facts).item(), 3) for facts in (everywhere, even)]
        [40.0, 8.0]
    """
    budget = PrivacyBudget(epsilon * _HALF, 0.0)
    fit = ObjectiveFit().prepare(Logistic(), n, features, budget)
    if ridge is not None:
        least = n * positive("ridge", ridge) * features.largest_entry**2
        if least > fit.ridge:
            fit = ObjectiveFit(share=_share(least, fit)).prepare(Logistic(), n, features, budget)
    return HorvitzThompsonPlan(EffectFacts(n, estimand), features, fit, LaplaceMechanism(budget.epsilon, 1.0))


def learn_propensity(records: Records, fit: PreparedFit, session: FitSession, runs: int = 1) -> Tensor:
    """Pay for the propensity's coefficients and return them, [runs, p].

    Args:
        records: One data set, or several side by side.
        fit: Prepared.
        session: Pays, and draws the noise.
        runs: How many runs: one for each data set, or several on one.
    """
    noise = session.noise
    session.pay(fit.event, fit.level, fit.count, charge=propensity_by(ObjectiveFit.name))
    return noise.released(fit.draw(records, arm, noise, max(runs, records.sets)))


def release_sum(records: Records, plan: HorvitzThompsonPlan, theta: Tensor, session: FitSession) -> NoisyEstimate:
    r"""Pay for the Horvitz-Thompson sum at released coefficients and conclude.

    .. math::
        \tau = \frac1n \Big(\sum_i \frac{z_i y_i}{e_i} - \frac{(1 - z_i) y_i}{1 - e_i} + Lap(2 \Delta/\epsilon)\Big),
        \quad \Delta = W_1 + W_0 = \sup_x \frac1{e(x)} + \sup_x \frac1{1 - e(x)} \le \frac2\eta

    at the released coefficients of e, over all x of the domain.

    Args:
        records: One data set, or several side by side.
        plan: Public plan.
        theta: Coefficients, paid for, [runs, p].
        session: Pays, and draws the noise.
    """
    noise, facts = session.noise, plan.released(theta)
    session.pay(plan.total.event, part="sum")
    exact, unit = records.total(lambda batch: horvitz_thompson_terms(batch, facts, theta)), sum_unit(facts)[:, None]
    noisy = noise.released((plan.total.add_noise(exact / unit, noise) * unit)[:, 0])
    return sum_estimate(noisy, records.n, plan.scale(facts))


def horvitz_thompson(records: Records, plan: HorvitzThompsonPlan, noise: NoiseSource, runs: int = 1) -> NoisyEstimate:
    """Run the mechanism from fit to estimate on each data set, or ``runs`` times on one; for simulations and audits."""
    session = FitSession(noise)
    return release_sum(records, plan, learn_propensity(records, plan.fit, session, runs), session)


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
    g, of = predictor(batch.psi, theta), facts.estimand
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

    mechanism: ClassVar[type[AverageMechanism]] = HorvitzThompson

    @classmethod
    def supports(cls, estimand: type[Estimand]) -> bool:
        """Whether n is its denominator."""
        return estimand.public_size

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``; also refuses a ridge that is not positive."""
        if self.ridge is not None:
            positive("ridge", self.ridge)
        if self.budget is not None:
            self.plan(n)

    def plan(self, n: int) -> HorvitzThompsonPlan:
        """See ``AverageEffectLearner``."""
        assert self.budget is not None
        return plan_horvitz_thompson(n, self.features(), self.target, self.budget.epsilon, self.ridge)

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError:
        """See ``AverageEffectLearner``; noise in the propensity moves it to first order."""
        prior, facts = self._prior(prior), EffectFacts(n, self.target)
        noise = nuisances = 0.0
        if self.budget is not None:
            plan = self.plan(n)
            noise = laplace(plan.scale(with_typical_ranges(facts, prior.reach)).item() / n)
            nuisances = self.target.amplification * plan.fit.imbalance * prior.mean / n
        sampling = planned_sampling(facts, prior)
        return PlannedError("horvitz_thompson", noise, nuisances, sampling, bias=NO_INTERVAL).in_units(self._unit())

    def _fit_first(self, records: Records) -> None:
        features = self.features()
        if self.budget is None:
            fit = exact_fit(Logistic(), records.n, features)
        else:
            self._plan = self.plan(records.n)
            fit = self._plan.fit
        self._fit_public = fit.public
        self._theta = learn_propensity(records, fit, self._first())
        self.weights_ = ReleasedWeights(self._theta[0], features, self.target)

    def _release_estimate(self, records: Records, session: FitSession) -> NoisyEstimate:
        return release_sum(records, self._plan, self._theta, session)

    def _without_noise(self, records: Records) -> NoisyEstimate:
        fit, facts = exact_fit(Logistic(), records.n, self.weights_.features), EffectFacts(records.n, self.target)
        theta = learn_propensity(records, fit, FitSession(self._noise))
        exact = records.total(lambda batch: horvitz_thompson_terms(batch, facts, theta))[:, 0]
        return sum_estimate(exact, records.n, 0.0)

    def _extras(self, found: NoisyEstimate, session: FitSession) -> dict[str, Any]:
        return {"weights": self.weights_}

    def _public(self) -> dict[str, Any]:
        constants = {f"weights_{name}": value for name, value in self._fit_public.items()}
        if self.budget is None:
            return constants
        half = self.budget.epsilon * _HALF
        facts = self._plan.released(self._theta)
        assert facts.ranges is not None
        sums = {"sum_scale": self._plan.scale(facts).item(), **facts.ranges.stated_weights}
        return {"epsilon_weights": half, "epsilon_sum": half, **sums, **constants}
