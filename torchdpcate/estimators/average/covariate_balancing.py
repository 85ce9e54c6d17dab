"""Private average effects by covariate balancing; and which mechanisms they use, at which epsilon: all public."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor

from torchdpcate.causal.estimand import Estimand
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.balance import exact_balance
from torchdpcate.estimators.average.balancing_plan import (
    OUTCOME_MODEL,
    STAGE_ONE,
    BalancingPlan,
)
from torchdpcate.estimators.average.effect_plan import exact_fit
from torchdpcate.estimators.average.learner import AverageEffectLearner
from torchdpcate.estimators.average.weighted import BalancedDifference, EffectFacts, left_imbalance
from torchdpcate.fit.feature_maps import FeatureMap, conditions_of, on_domain
from torchdpcate.fit.linear_fits import ObjectiveFit, PreparedFit
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Logistic
from torchdpcate.fit.stacked_records import Records
from torchdpcate.privacy.budget import PrivacyBudget, split_epsilon
from torchdpcate.privacy.guarantee import Condition
from torchdpcate.release.average_effect import BalanceTable, ReleasedWeights

LARGEST_RATIO = 0.05
"""Noise per record r above which the logistic loss is fitted instead of the balancing one (section 3.1)."""
LOSSES = ("auto", "balancing", "logistic")

MODEL_SLOPE_BOUND = 0.25
"""B, how far the slopes of the outcome model are taken to be off at most, in the interval."""
_VARIANCE = 1 / 3  # of a feature over its largest square, if it is uniform in its range
_SHARES = {STAGE_ONE: 0.30, OUTCOME_MODEL: 0.15, **BalancedDifference.parts}


def make_plan(
    n: int,
    features: FeatureMap,
    estimand: Estimand,
    budget: PrivacyBudget | None,
    *,
    schema: TableSchema | None = None,
    learner: str = "",
    loss: str = "auto",
    outcome_bounds: tuple[float, float] = (0.3, 0.7),
    shares: Mapping[str, float] | None = None,
) -> BalancingPlan:
    r"""Share the budget, choose the loss and calibrate every mechanism on public facts.

    The balancing loss is taken while :math:`r = \sigma_V / n \le 0.05`, sigma_V the noise in each entry of the summed
    gradient; beyond, the logistic loss, whose gradient is 1/eta times less sensitive.

    Args:
        n: Number of records.
        features: Basis, set up on the domain.
        estimand: Estimand and clip.
        budget: Of all of it; its delta is not used. None makes the plan of the same estimate without
            privacy, whose epsilons have no meaning, with the balancing loss unless ``loss`` is ``logistic``.
        schema: Columns and public bounds; None takes the features' domain.
        learner: Name of the learner's class.
        loss: ``auto``, ``balancing`` or ``logistic``.
        outcome_bounds: Public bounds (lo, hi) of the outcome model, for outcomes in [0, 1].
        shares: Of the parts in epsilon, for an attack on one of them; None takes those of the library.

    Raises:
        InputError: An unknown name, or settings that do not fit each other or the budget.

    Example:
        >>> from torchdpcate import Domain
        >>> from torchdpcate.causal.estimand import ATE
        >>> from torchdpcate.fit.feature_maps import on_domain
        >>> features = on_domain(None, Domain([0.0] * 4, [1.0] * 4, 0.0, 1.0))
        >>> plan = make_plan(5000, features, ATE(0.1), PrivacyBudget(1.0, 0.0))
        >>> plan.balancing, round(plan.epsilons["difference"], 3)
        (False, 0.4)
    """
    facts = EffectFacts(n, estimand, *outcome_bounds, slope_bound=MODEL_SLOPE_BOUND)
    columns = schema or TableSchema.of(features.domain)
    make = partial(BalancingPlan, n, columns, estimand, budget, features, learner=learner)
    if budget is None:
        exact = exact_fit(Logistic(), n, features)
        epsilons = split_epsilon(1.0, _SHARES)
        return make(loss != "logistic", exact, exact, facts, epsilons).noiseless()
    epsilons = split_epsilon(budget.epsilon, _SHARES if shares is None else shares)
    stage_one = PrivacyBudget(epsilons[STAGE_ONE], 0.0)
    balancing, propensity = _propensity(loss, n, features, estimand, stage_one)
    model = ObjectiveFit().prepare(CrossEntropy(), n, features, PrivacyBudget(epsilons[OUTCOME_MODEL], 0.0))
    facts = replace(facts, imbalance=left_imbalance(propensity.imbalance, estimand, balancing))
    if not balancing:
        facts = replace(facts, slope_bound=_planned_slope(model.imbalance / n, features.dimension))
    BalancedDifference(facts, epsilons).public()  # which refuses noise that no number could carry
    return make(balancing, propensity, model, facts, epsilons)


def _planned_slope(noise: float, dimension: int) -> float:
    r"""Return how far noise in the outcome model's fit is planned to move its slopes, all features together.

    An entry of the summed gradient has the noise :math:`n r`, and the curvature of a feature of variance k, over its
    largest square, is :math:`n k` times the slope of the sigmoid, which a slope of the mean has as well: each is off by
    :math:`r / k`, and what the weights leave of p features adds up to :math:`\sqrt p` times that.

    Args:
        noise: r, in units of the features' largest entry.
        dimension: p.
    """
    return min(math.sqrt(dimension) * noise / _VARIANCE, MODEL_SLOPE_BOUND)


def _propensity(
    loss: str, n: int, features: FeatureMap, estimand: Estimand, budget: PrivacyBudget
) -> tuple[bool, PreparedFit]:
    """Return whether the balancing loss is fitted, and the fit."""
    if loss not in LOSSES:
        raise InputError(f"loss = {loss!r}: choose one of {', '.join(LOSSES)}")
    rule = estimand.scoring_rule
    if rule is None and loss == "balancing":
        raise InputError(f"loss = balancing: none is known for estimand = {estimand.name}; use loss=logistic")
    if rule is None or (loss == "logistic" and rule != loss):  # else it is the balancing loss
        return False, ObjectiveFit().prepare(Logistic(), n, features, budget)
    fit = ObjectiveFit().prepare(BalancingLoss(estimand), n, features, budget)
    balancing = loss == "balancing" or rule == "logistic" or fit.imbalance / n <= LARGEST_RATIO
    return balancing, fit if balancing else ObjectiveFit().prepare(Logistic(), n, features, budget)


@dataclass(eq=False, repr=False)
class CovariateBalancingEffect(AverageEffectLearner):
    r"""Average effect of records whose weights balance treated and controls, with an interval.

    Stage one fits the propensity e(x) = sigmoid(psi(x)'theta) by a covariate balancing scoring rule
    (``BalancingLoss``), whose stationarity is balance, or where that costs too much noise by logistic regression; and
    an outcome model m(x). Stage two releases the balanced difference of y - m(x), with pure noise, t = 2a - 1:

    .. math:: \tau = \frac{2 \sum_i t_i w_i (y_i - m(x_i))}{\sum_i w_i}, \quad
        w = \frac{a}{e(x)} + \frac{1 - a}{1 - e(x)} \quad \text{(ATE)} .

    Guarantee:
        Certified: pure epsilon, the sum over all parts (objective perturbation and Laplace noise on sums whose
        sensitivities are public). The interval counts sampling and all noise;
        its coverage is asymptotic, and rests on overlap and on one of two models: log-odds of treatment that are linear
        in ``basis``, or mean outcomes that are (of an outcome that is no
        more than nearly linear, what is left is small). Where both models are wrong it may never hold the effect: with
        log-odds 3 x_1 x_2, outcomes that follow 2 x_1 x_2 and 5,000 records, 0 of 100 intervals did with the default
        basis. Take ``Products()`` for interactions. Conditions: those of ``AverageEffectLearner``. Source: theory note
        ``covariate_balancing``; after Ohnishi & Awan (2024), corrected; docs/guarantees/objective_perturbation.md and
        average_effects.md.

    Args:
        budget: Of all of it; delta = 0 is pure.
        basis: Public feature map that is balanced; None takes intercept and scaled covariates, ``Products`` adds their
            products. The interval rests on it, and noise grows with its size. A map that is not the library's has its
            rows scaled to norms of at most one, and makes the release conditional.

    Attributes:
        plan_: Public plan; None without privacy.
        weights_: Released propensity (the curator's where there is no budget).

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(4000, 2), torch.arange(4000) % 2
        >>> Y = (0.3 + 0.4 * A) * torch.ones(4000)
        >>> domain = Domain([0, 0], [1, 1], 0.0, 1.0, overlap=0.2)
        >>> learner = CovariateBalancingEffect(domain, PrivacyBudget(4.0, 0.0))
        >>> release = learner.fit(X, A, Y).release()
        >>> bool(abs(release.estimate[0] - 0.4) < 0.1), release.interval(0.95).shape, release.privacy.level
        (True, (1, 2), 'certified')
    """

    _: KW_ONLY
    basis: FeatureMap | None = None

    mechanism: ClassVar[type[BalancedDifference]] = BalancedDifference
    """How weighted records become an estimate."""

    def features(self) -> FeatureMap:
        """Return the basis, set up on the domain."""
        return on_domain(self.basis, TableSchema.of(self.domain).domain)

    def check(self, n: int) -> None:
        self.plan(n)

    def _user_conditions(self) -> tuple[Condition, ...]:
        """See ``AverageEffectLearner``: also those of the basis."""
        return super()._user_conditions() + conditions_of(self.basis)

    def plan(self, n: int) -> BalancingPlan:
        facts = self._facts(n)
        return make_plan(
            n,
            self.features(),
            self.target,
            self.budget,
            schema=facts["schema"],
            learner=facts["learner"],
        )

    def _learnt_first(self, records: Records) -> Mapping[str, Tensor]:
        plan = self._plan
        if plan.noise > LARGEST_RATIO:
            warnings.warn(
                f"noise of {plan.noise:.2g} a record in the {plan.loss} fit of the weights (above {LARGEST_RATIO}): "
                "the interval counts it as far as the outcome model's slopes are taken to be off, and may undercover; "
                "take fewer features, more epsilon or overlap",
                stacklevel=5,
            )
        learnt = super()._learnt_first(records)
        self.weights_ = ReleasedWeights(learnt["weights"][0], plan.features, plan.estimand)
        return learnt

    def nonprivate_balance(self) -> BalanceTable:
        """Return the imbalance before and after weighting as it is. The curator's, never to be published."""
        self._require_fitted("nonprivate_balance")
        plan = self._plan
        return exact_balance(self._records, plan.estimand, plan.features, self._learnt["weights"])
