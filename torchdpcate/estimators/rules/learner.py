"""Learners of treatment rules: weights, a weighted ERM, a private rule."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome, magnitudes, try_outcome
from torchdpcate.estimators.rules.plan import NoiseReport, RulePlan, share_of
from torchdpcate.estimators.rules.weighted_erm import (
    LEAST_RIDGE,
    LOSS,
    RULE_MECHANISMS,
    RuleMechanism,
    WeightedERM,
    default_ridge,
)
from torchdpcate.fit.feature_maps import FeatureMap, conditions_of, on_domain
from torchdpcate.fit.losses import LossBounds
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.weights import WEIGHTS, KnownWeights, PrivateWeights, WeightScheme
from torchdpcate.plan import RECORDS
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, Charge, Purpose
from torchdpcate.privacy.guarantee import Condition, Level, of_library, user_code
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.release.rule import RuleRelease


@dataclass(eq=False, repr=False)
class RuleLearner(AnswersDecisions, PrivateEstimator):
    r"""Learner of a rule d(x) = 1{psi(x)'theta > 0} by weighted empirical risk minimisation.

    .. math:: \min_\theta \sum_i m_i \omega_i\, \ell(\psi_i^\top\theta, t_i) + \tfrac\gamma2 \|\theta\|^2

    with the outcome's magnitude m and the sign in the label t (``Outcome``), and weights omega = 1 / (2 pi(a|x))
    (``WeightScheme``).

    Guarantee:
        ``fit`` spends what weights and outcome cost, ``release`` the rest; both certified. Conditions: records are
        rows, adjacency is replace-one, n, bounds and settings are public. Source: theory note ``policy_learning``,
        sections 3 to 5.

    Args:
        domain: Public bounds (``Domain``), or a ``TableSchema`` to keep a table's columns in releases.
        budget: Privacy budget of each block of records, hence of the release; delta = 0 is pure. None fits without
            privacy; such a learner releases nothing.
        outcome: An ``Outcome`` or its name: ``private_residual``, ``signed_residual`` or ``shifted``.
        weights: ``known`` (the propensity that the domain states), ``private`` (known where the domain states it),
            ``constant``, or a ``WeightScheme``.
        features: Public feature map; None takes intercept and scaled covariates. A map that is not the library's has
            its rows scaled to norms of at most one, and makes the release conditional.
        ridge: Ridge of the total sum; None takes ``default_ridge``.
        mechanism: ``objective`` (default, least noise) or ``output``; its noise is of the kind of least length.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        weights_: Fitted weights. The curator's, but for what they call public.
        outcome_: The outcome's map, its constants public or paid for.
        features_: The feature map.
        settings_: Public settings of the fit, as in statements.
        plan_: The public plan of the last release.
        problem_: The weighted ERM. The curator's, never to be published.
        ledger_: What has been spent; None without privacy.
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    outcome: str | Outcome = "private_residual"
    weights: str | WeightScheme = "private"
    features: FeatureMap | None = None
    ridge: float | None = None
    mechanism: str = "objective"
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    typical_weight: ClassVar[float] = 1.0
    """Mean weight that plans expect: of inverse propensities, halved."""

    @property
    def needs_all_records(self) -> str:
        return f"{type(self).__name__} is solved on features of all records with weights of their own; use task=rule"

    def scheme(self) -> WeightScheme:
        """Return how records are weighted: by known weights, for which nothing pays, where the domain knows them."""
        scheme: WeightScheme = WEIGHTS.make(self.weights, WeightScheme)
        known = TableSchema.of(self.domain).domain.known_propensity
        return KnownWeights() if isinstance(scheme, PrivateWeights) and known is not None else scheme

    def _prepare(self, records: CausalData) -> None:
        self.check(records.n)
        if self.budget is not None:
            self._expected = self._planned_rule(records.n)

    def _learn(self, records: CausalData) -> None:
        """Fit the weights, paying for them where they cost something, and set up the weighted ERM."""
        domain, session, outcome = self.schema_.domain, self._session, self._outcome
        scheme, budget = self.scheme(), self.budget
        weighing = session.charging([RECORDS], Charge(Purpose.WEIGHTS, scheme.name))
        self.weights_ = scheme.fit(records, domain, budget=self._first_budget(), session=weighing)
        self.outcome_ = outcome.settle(
            records,
            domain,
            None if budget is None else outcome.budget_fraction * budget.epsilon,
            session.charging([RECORDS], OUTCOME),
        )
        if outcome.budget_fraction > 0:
            try_outcome(self.outcome_, domain)
        self.problem_ = self.problem(records)
        self.features_ = self._features(domain)
        self.settings_ = self._settings() | self.outcome_.public(domain) | self.weights_.public

    def check(self, n: int) -> None:
        """Refuse, before anything is fitted or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that do not fit each other, the domain or the budget; or a budget so small that the
                ridge it needs dominates all records, with the accuracy to expect.
        """
        domain, scheme = TableSchema.of(self.domain).two_arms(type(self).__name__).domain, self.scheme()
        _ = domain.direction  # may refuse
        scheme.check(n, domain, self._first_budget())
        outcome = self._outcome
        outcome.public(domain)
        if outcome.budget_fraction == 0:
            try_outcome(outcome, domain)
        mechanism, _ = self._mechanism(), self._features(domain)
        if self.budget is None:
            return
        bounds = self.bounds(scheme.bounds(n, domain))
        if mechanism.curved:
            needed = bounds.ridge_for(LOSS.curvature, self._rule_budget(self.budget).epsilon / 2)
            self._refuse_ridge(needed, n * bounds.most * LOSS.curvature, n)
        self._planned_rule(n).queries  # noqa: B018 - refuses what could not be released

    def _refuse_ridge(self, needed: float, largest: float, n: int) -> None:
        """Refuse a budget whose ridge is above the curvature of all records at their largest weight.

        Raises:
            InputError: It is; says what accuracy to expect.
        """
        if needed <= largest:
            return
        assert self.budget is not None
        try:
            found = self.plan(n)
            accuracy, records = f"{found.accuracy:.2f}", f"about {found.records_needed}"
        except InputError:  # so small a budget that not even the solver's stop could be hidden
            accuracy, records = "0.50", "more"
        raise InputError(
            f"epsilon = {self.budget.epsilon:g}: needs ridge = {needed:.3g}, above the curvature {largest:.3g} of all "
            f"records; expect an accuracy of {accuracy} where a coin has 0.50; give more epsilon, or {records} records"
        )

    def release(self) -> RuleRelease:
        """Release the rule, for all that is left of the budget, the same one each time.

        Raises:
            InputError: Not fitted, or fitted without privacy.
            BudgetError: The block cannot pay.
        """
        self._ready()
        return self._once(self._release)  # type: ignore[no-any-return]

    def _release(self) -> RuleRelease:
        fit = self.problem_.public
        mechanism = self._mechanism(fit)
        plan = replace(self._expected, mechanism=mechanism, problem=fit, parts=self.settings_)

        def run(budget: PrivacyBudget, session: FitSession) -> Tensor:
            self.plan_ = replace(plan, spent=budget)
            return self.plan_.ask("rule", session, self.problem_.exact(self.plan_.queries["rule"].law))

        theta, own = self._session.spend(run, [RECORDS], Charge(Purpose.RELEASE, mechanism.name))
        statement = self._statement_of(self.plan_, self.plan_.guarantee(), self.plan_.public(), own)
        return self.plan_.conclude({"rule": theta}, statement)

    def _planned_rule(self, n: int) -> RulePlan:
        """Return the plan of the release to expect of n records; a fit may find less for weights to move."""
        schema, scheme = TableSchema.of(self.domain).two_arms(type(self).__name__), self.scheme()
        domain, budget, first, outcome = schema.domain, self.budget, self._first_budget(), self._outcome
        assert budget is not None
        features, spent = self._features(domain), self._rule_budget(budget)
        bounds = self.bounds(scheme.bounds(n, domain))
        facts = self._ridge(n, bounds), features.dimension, features.largest_entry
        fit = PrivateFit(LossBounds.of(LOSS), bounds, *facts, n=n)
        return RulePlan(
            n,
            schema,
            budget,
            self._mechanism(fit),
            fit,
            features,
            spent,
            self._settings(),
            None if first is None else scheme.noise(n, domain, first),
            outcome.query(domain, outcome.budget_fraction * budget.epsilon),
            self.conditions,
        )

    def plan(self, n: int | None = None) -> NoiseReport:
        """Return what public facts say of the noise. It costs nothing.

        Args:
            n: Number of records, before any fit; None takes those of the fit.

        Raises:
            InputError: No number of records and no fit, or no budget.
        """
        if n is None:
            self._require_fitted("plan")
            n = sum(self.sizes_.values())
        if self.budget is None:
            raise InputError("plan: needs a budget")
        self._planned(n)
        return NoiseReport(self._planned_rule(n), self.typical_weight)

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the noise of the score by which the rule decides, as an effect.

        Args:
            n: Number of records.
        """
        self._planned(n)
        conditional = self.conditions or self._own_learner()
        level = Level.CONDITIONAL if conditional else self.scheme().level
        outcome, domain = self._outcome, TableSchema.of(self.domain).domain
        return self.plan(n).score_noise(outcome, domain, n, level)

    def nonprivate_score(self, X: Any) -> np.ndarray:
        """Return the scores of the rule without noise, [m]. The curator's, never to be published."""
        x = self.schema_.matrix(X)
        return self.features_.product(self.problem_.minimiser, x).numpy()

    def propensity_of(self, records: CausalData) -> Tensor | None:
        """Return P(A = 1) of records [n] where the domain knows it, or the weights do or paid for it; else None."""
        known = self.schema_.domain.known_propensity
        return self.weights_.of(records) if known is None else known.of(records)

    def problem(self, records: CausalData) -> WeightedERM:
        """Return the weighted ERM of these records, the curator's.

        Args:
            records: Records of the rule's block, within the domain.
        """
        domain = self.schema_.domain
        magnitude, sign = magnitudes(self.outcome_, records.y, domain)
        omega, label = self.weights_.weights(records), (2 * records.a - 1) * sign
        return self._weighted(records.x, label, omega * magnitude)

    def _weighted(self, x: Tensor, target: Tensor, weights: Tensor) -> WeightedERM:
        """Return the weighted ERM with these labels and weights of records, [k n]: of each record k in turn."""
        features, bounds = self._features(self.schema_.domain), self.bounds(self.weights_.bounds)
        psi, copies = features(x), len(target) // len(x)
        psi = psi if copies == 1 else psi.repeat(copies, 1)
        ridge = self._ridge(len(x), bounds)
        return WeightedERM(psi, target, weights, LOSS, ridge, bounds, features.largest_entry, self.conditions)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the rule's guarantee rests on beside its proof: outcome maps and features of the user's."""
        mechanism = user_code("mechanism", self._mechanism())
        own = Condition("outcome", "the outcome map looks at one record at a time; tried")
        outcome = () if of_library(self._outcome) else (own,)
        scheme = self.scheme()
        weights = *user_code("weights", scheme), *scheme.conditions
        return tuple(dict.fromkeys((*mechanism, *conditions_of(self.features), *weights, *outcome)))

    def bounds(self, weights: WeightBounds) -> WeightBounds:
        """Return the bounds of the weighted ERM's weights: those of omega, for magnitudes are at most one."""
        return weights

    @classmethod
    def restated_bounds(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """Return the bounds of a release with these public constants, and all constants that they state then.

        The arguments and the errors are those of ``WeightScheme.restated``.
        """
        return WEIGHTS[public["weights"]].restated(public, n, domain)  # type: ignore[no-any-return]

    @property
    def _outcome(self) -> Outcome:
        """The outcome's map, before its constants are known."""
        made: Outcome = OUTCOMES.make(self.outcome, Outcome)
        return made

    def _mechanism(self, fit: PrivateFit | None = None) -> RuleMechanism:
        """Return the mechanism with the kind of noise of least length for a fit; without one with any kind."""
        kind: type[RuleMechanism] = RULE_MECHANISMS.find(self.mechanism)
        if fit is None or self.budget is None:
            return kind(kind.kinds[0])
        return kind.least_noisy(fit, self._rule_budget(self.budget))

    def _ridge(self, n: int, bounds: WeightBounds) -> float:
        if self.ridge is not None:
            return self.ridge
        if self.budget is None:
            return LEAST_RIDGE * n * bounds.most
        return default_ridge(n, self._rule_budget(self.budget).epsilon, bounds, LOSS.curvature)

    def _features(self, domain: Domain) -> FeatureMap:
        """Return the feature map, fixed on the domain."""
        return on_domain(self.features, domain)

    def _first_budget(self) -> PrivacyBudget | None:
        """Return what fitting the weights may spend; None without privacy, or where nothing is spent."""
        share = self._shares().get("weights_share")
        return None if self.budget is None or share is None else share_of(self.budget, share)

    def _rule_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        return share_of(budget, 1 - self._first_fraction())

    def _shares(self) -> dict[str, float]:
        """Return the shares of the budget that weights and outcome cost the rule's own records, above zero."""
        shares = {
            "weights_share": self.scheme().budget_fraction,
            "outcome_share": self._outcome.budget_fraction,
        }
        return {name: share for name, share in shares.items() if share > 0}

    def _first_fraction(self) -> float:
        """Return the share of the budget that is spent on the rule's records before the rule."""
        share = sum(self._shares().values())
        if not share < 1:
            raise InputError(
                f"weights.budget_fraction and outcome.budget_fraction add up to {share:g}: leave something for the rule"
            )
        return share

    def _settings(self) -> dict[str, Any]:
        """Return the settings that statements have, which follow from no fit."""
        return {
            "learner": type(self).__name__,
            "weights": self.scheme().name,
            "outcome": self._outcome.name,
            "loss": "huber_hinge",
            **self._shares(),
        }


@dataclass(eq=False, repr=False, kw_only=True)
class OutcomeWeightedLearner(RuleLearner):
    r"""Outcome weighted learning (Zhao et al. 2012) by a private weighted ERM (Giddens et al. 2023).

    .. math:: \min_\theta \sum_i \frac{m_i}{2\pi(a_i | x_i)}\, \ell(\psi_i^\top\theta, t_i) + \tfrac\gamma2\|\theta\|^2

    With ``outcome="shifted"`` m is the outcome above a public lower bound and t the treatment; with
    ``signed_residual`` m is the distance from a public centre and t changes its sign below it, which needs half the
    noise for the same rule. The default, ``private_residual``, takes private quantiles as centre and clip, for a tenth
    of the budget. ``mechanism="output"`` with ``perturbation="gamma"`` is the paper's Algorithm 1.

    Where the domain states no propensity, ``weights="private"`` estimates it.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(2000, 2), torch.arange(2000) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> domain = Domain([0, 0], [1, 1], -1, 1, propensity=0.5, better="higher")
        >>> learner = OutcomeWeightedLearner(domain, PrivacyBudget(4.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), rule.privacy.level
        ([1, 0], 'certified')
    """

    weights: str | WeightScheme = "known"


@dataclass(eq=False, repr=False, kw_only=True)
class TwoStageRule(RuleLearner):
    r"""Two-stage ERM (Lee & Chen 2026): balancing weights, then a private weighted ERM.

    The default fits a private propensity first and weighs each record by it: then one record moves its own weight
    alone (theory note ``policy_learning``, section 4.3). For small samples ``constant`` weights need the least noise.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X = torch.rand(4000, 2)
        >>> A = (torch.rand(4000) < 0.3 + 0.4 * X[:, 0]).long()
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> domain = Domain([0, 0], [1, 1], -1, 1, overlap=0.25, better="higher")
        >>> learner = TwoStageRule(domain, PrivacyBudget(6.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), round(rule.privacy.epsilon, 6)
        ([1, 0], 6.0)
    """
