"""Private average effects by covariate balancing: weights, an outcome model, a balanced difference."""

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch import Tensor

from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.linear_fits import LINEAR_FITS, PrivateLinearFit
from torchdpcate.erm.records import Records
from torchdpcate.estimators.average.effect_estimator import EffectEstimator, planned_sampling
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.plan import (
    BOTH_MODELS,
    LARGEST_RATIO,
    BalancingPlan,
    make_effect_estimator,
    make_plan,
    noiseless_plan,
)
from torchdpcate.estimators.average.planned import planned_sums, with_typical_ranges
from torchdpcate.estimators.average.planned_error import ErrorPrior, PlannedError
from torchdpcate.features.maps import FeatureMap, conditions_of
from torchdpcate.features.user_maps import on_domain
from torchdpcate.privacy.guarantee import Condition, Level, own_code
from torchdpcate.release.released_weights import BalanceTable, ReleasedWeights


@dataclass(eq=False, repr=False)
class CovariateBalancingEffect(AverageEffectLearner):
    r"""Average effect of records whose weights balance treated and controls, with an interval.

    Stage one fits the propensity e(x) = sigmoid(psi(x)'theta) by a covariate balancing scoring rule
    (``BalancingLoss``), whose stationarity is balance, or where that costs too much noise by logistic regression; and
    an outcome model m(x). Stage two releases the balanced difference of y - m(x) (or the weighted outcome table), all
    with pure noise.

    Guarantee:
        Certified: pure epsilon, the sum over all parts (objective perturbation and Laplace noise on sums whose
        sensitivities are public); (epsilon, delta) with a Gaussian fitter; conditional with
        ``fitter="k_norm_gradient"``. The interval counts sampling and all noise; its coverage is asymptotic, and rests
        on overlap and on one of two models: log-odds of treatment that are linear in ``basis``, or mean outcomes that
        are (with ``loss="balancing"`` or an outcome model; of an outcome that is no more than nearly linear, what is
        left is small). Where both models are wrong it may never hold the effect: with log-odds 3 x_1 x_2, outcomes that
        follow 2 x_1 x_2 and 5,000 records, 0 of 100 intervals did with the default basis. Take ``Products()`` for
        interactions. Conditions: those of ``AverageEffectLearner``. Source: theory note ``covariate_balancing``;
        after Ohnishi & Awan (2024), corrected; docs/guarantees/balancing_objective.md and balanced_difference.md.

    Args:
        domain: See ``AverageEffectLearner``, and for all arguments not named here.
        budget: Of all of it; delta = 0 is pure.
        basis: Public feature map that is balanced; None takes intercept and scaled covariates, ``Products`` adds their
            products. The interval rests on it, and noise grows with its size. A map that is not the library's has its
            rows scaled to norms of at most one, and makes the release conditional.
        loss: ``balancing``, ``logistic``, or ``auto``: balancing while its noise is at most 0.05 a record.
        fitter: ``objective``, ``noisy_gradient``, ``k_norm_gradient`` or a ``PrivateLinearFit``; None takes the noisy
            gradient beyond 30 features if the budget has a delta, else objective perturbation.
        readout: ``balanced_difference``, ``outcome_table`` or an ``EffectEstimator``.
        outcome_bounds: Public bounds (lo, hi) of the outcome model, for outcomes scaled to [0, 1]; equal ones leave
            the model out. Wider ones cost noise, and take away bias where the propensity's model is wrong.
        shares: Parts of the budget by name, in place of the defaults, divided by their sum: ``stage_one`` .30,
            ``outcome_model`` .15, ``difference`` .40, ``size`` .05, ``spread`` .10 (or ``table`` .60 and ``variance``
            .10 instead of the last four); ``balance`` and ``difference_in_means`` are 0 unless asked for.
        slope_bound: Public bound B of how far the outcome model's slopes are off, in the interval; None takes .25, .5
            where there is no model, and with one and the logistic loss what noise in its fit is planned to make it.
        public_sample: Covariates of a public sample [m, q]; a warning says so if most of its propensities are clipped.

    Attributes:
        plan_: Public plan; None without privacy.
        weights_: Released propensity (the curator's where there is no budget).

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> learner = CovariateBalancingEffect(Domain([0, 0], [1, 1], 0.0, 1.0), PrivacyBudget(4.0, 0.0), overlap=0.2)
        >>> release = learner.fit(X, A, Y).release()
        >>> bool(abs(release.estimate - 0.4) < 0.1), release.interval(0.95).shape, release.privacy.level
        (True, (2,), 'certified')
    """

    _: KW_ONLY
    basis: FeatureMap | None = None
    loss: str = "auto"
    fitter: str | PrivateLinearFit | None = None
    readout: str | EffectEstimator = "balanced_difference"
    outcome_bounds: tuple[float, float] = (0.3, 0.7)
    shares: Mapping[str, float] | None = None
    slope_bound: float | None = None
    public_sample: Any = None

    @property
    def mechanism(self) -> EffectEstimator:  # type: ignore[override]
        """How weighted records become an estimate."""
        return make_effect_estimator(self.readout)

    def features(self) -> FeatureMap:
        """Return the basis, set up on the domain."""
        return on_domain(self.basis, TableSchema.of(self.domain).domain)

    def check(self, n: int) -> None:
        """See ``AverageEffectLearner``."""
        self.plan(n)
        if self.public_sample is not None:
            self._sample()

    @property
    def level(self) -> Level:
        """Level of what is released: the fits', and conditional at best with parts that are not the library's."""
        own = Level.CONDITIONAL if self._own_conditions else Level.CERTIFIED
        return max((own, *(fit.level for fit in self._plan.fits.values())), key=list(Level).index)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions of the fits, and of parts that are not the library's."""
        fits = self._plan.fits.values()
        return self._own_conditions + tuple(condition for fit in fits for condition in fit.conditions)

    def _user_conditions(self) -> tuple[Condition, ...]:
        """See ``AverageEffectLearner``: also those of the basis, the estimator of the effect and the fit."""
        fitter = LINEAR_FITS[self.fitter]() if isinstance(self.fitter, str) else self.fitter
        own = own_code("mechanism", self.mechanism) + own_code("weights", fitter)
        return super()._user_conditions() + conditions_of(self.basis) + own

    def plan(self, n: int) -> BalancingPlan:
        """See ``AverageEffectLearner``."""
        features, facts = self.features(), self._facts(n)
        own = {name: facts[name] for name in ("schema", "learner")}
        settings: dict[str, Any] = {**own, "readout": self.readout, "outcome_bounds": self.outcome_bounds}
        if self.budget is None:
            return noiseless_plan(n, features, self.target, balancing=self.loss != "logistic", **settings)
        return make_plan(
            n,
            features,
            self.target,
            self.budget,
            loss=self.loss,
            fitter=self.fitter,
            shares=self.shares,
            slope_bound=self.slope_bound,
            **settings,
        )

    def planned_error(self, n: int, prior: ErrorPrior | None = None) -> PlannedError | None:
        """See ``AverageEffectLearner``; None for a ``readout`` whose noise is not known before."""
        prior, plan = self._prior(prior), self.plan(n)
        noise: float | None = 0.0
        if self.budget is not None:
            facts = with_typical_ranges(plan.facts, prior.reach)
            noise = planned_sums(plan.estimator, facts, plan.epsilons, prior.treated)
        if noise is None:
            return None
        sampling = planned_sampling(plan.facts, prior)
        return PlannedError(
            "covariate_balancing", noise, plan.planned_imbalance(prior), sampling, bias=BOTH_MODELS
        ).in_units(self._unit())

    def _part_levels(self, n: int) -> tuple[Level, ...]:
        return tuple(fit.level for fit in self.plan(n).fits.values())

    def _learnt_first(self, records: Records) -> Mapping[str, Tensor]:
        plan = self._plan
        if plan.propensity.warning:
            warnings.warn(plan.propensity.warning, stacklevel=5)
        if plan.noise > LARGEST_RATIO:
            counted = "only as far as slope_bound goes" if plan.facts.imbalance > 0 else "nowhere"
            warnings.warn(
                f"noise of {plan.noise:.2g} a record in the {plan.loss} fit of the weights (above {LARGEST_RATIO}): "
                f"the interval counts it {counted} and may undercover; take fewer features, more epsilon or overlap",
                stacklevel=5,
            )
        learnt = super()._learnt_first(records)
        self.weights_ = ReleasedWeights(learnt["weights"][0], plan.features, plan.estimand)
        if self.public_sample is not None:
            self._look_at_sample()
        return learnt

    def nonprivate_balance(self) -> BalanceTable:
        """Return the imbalance before and after weighting as it is. The curator's, never to be published."""
        self._require_fitted("nonprivate_balance")
        plan = self._plan
        return plan.statistics.without_noise(self._records, self._learnt["weights"], plan.features)  # type: ignore[no-any-return]

    def _sample(self) -> Tensor:
        """Return the public sample as encoded covariates, [m, q]."""
        schema = TableSchema.of(self.domain)
        return schema.within(schema.matrix(self.public_sample, "public_sample"), "query")

    def _look_at_sample(self) -> None:
        share = self.weights_.clipped_share(self._sample())
        if share > 0.5:
            warnings.warn(
                f"overlap = {self.target.overlap:g}: the propensity of {share:.0%} of the public sample lies beyond "
                "[overlap, 1 - overlap] and is clipped, which changes whom the effect is an average of; take a smaller "
                "overlap, or estimand=ATO",
                stacklevel=6,
            )
