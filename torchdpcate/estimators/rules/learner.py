"""Learners of treatment rules: weights, a weighted ERM, a private rule."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import LongTensor, Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_split
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.noise_report import NoiseReport
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome, magnitudes, try_outcome
from torchdpcate.estimators.rules.plan import RECORDS, WEIGHTS_BLOCK, RulePlan, block_sizes, share_of
from torchdpcate.estimators.rules.weighted_erm import (
    LEAST_RIDGE,
    LOSSES,
    RULE_MECHANISMS,
    RuleMechanism,
    WeightedERM,
    check_ridge,
    default_ridge,
    make_loss,
)
from torchdpcate.fit.descent import ConvexDomain
from torchdpcate.fit.feature_maps import FeatureMap, conditions_of
from torchdpcate.fit.losses import Loss, LossBounds, Squared, loss_conditions
from torchdpcate.fit.private_fit import PrivateFit, WeightBounds
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.fit.weights.private import PrivateWeights
from torchdpcate.fit.weights.scheme import WEIGHTS, KnownWeights, WeightScheme
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
        features: Public feature map; None takes intercept and scaled covariates. A map that is not the library's has
            its rows scaled to norms of at most one, and makes the release conditional.
        loss: ``huber_hinge``, ``logistic``, ``squared`` (needs a radius) or a ``Loss`` for labels of 1 and -1, whose
            bounds are checked; one that is not the library's makes the release conditional.
        ridge: Ridge of the total sum; None takes ``default_ridge``.
        mechanism: ``objective`` (default, least noise) or ``output``.
        perturbation: ``gamma``, ``box`` or ``gaussian``; None takes the one with the least noise.
        radius: Public bound of the coefficients; None leaves them free.
        radius_norm: Of that bound: ``l2``, or ``l1``, which sets coefficients to zero; of the squared loss always l1.
        ridge_bound: Largest ridge that is worth a release; None takes the curvature of all records at their largest
            weight. If the budget needs more, the learner refuses and says what accuracy to expect.
        seed: Public seed of the split into blocks.
        noise: Privacy noise; None takes the operating system's entropy.
        ledger_path: File of the ledger, which must not exist; None keeps the ledger in memory.

    Attributes:
        weights_: Fitted weights. The curator's, but for what they call public.
        outcome_: The outcome's map, its constants public or paid for.
        features_: The feature map, on the columns that the rule sees.
        released_schema_: Those columns: what a reader needs.
        settings_: Public settings of the fit, as in statements.
        plan_: The public plan of the last release.
        problem_: The weighted ERM. The curator's, never to be published.
        ledger_: What has been spent; None without privacy.
        blocks_: Positions of the records of each block, public; with privacy in a secret order.
    """

    domain: Domain | TableSchema
    budget: PrivacyBudget | None
    _: KW_ONLY
    outcome: str | Outcome = "private_residual"
    features: FeatureMap | None = None
    loss: str | Loss = "huber_hinge"
    ridge: float | None = None
    mechanism: str = "objective"
    perturbation: str | None = None
    radius: float | None = None
    radius_norm: str = "l2"
    ridge_bound: float | None = None
    seed: int = 0
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    typical_weight: ClassVar[float] = 1.0
    """Mean weight that plans expect: of inverse propensities, halved."""
    indirect_remedy: ClassVar[str] = "weights=private has none"
    """What has no indirect sensitivity, for the advice of plans."""

    @property
    def needs_all_records(self) -> str:
        """See ``PrivateEstimator``."""
        return f"{type(self).__name__} is solved on features of all records with weights of their own; use task=rule"

    @abstractmethod
    def scheme(self) -> WeightScheme:
        """Return how records are weighted."""

    def _free(self, scheme: WeightScheme) -> WeightScheme:
        """Return known weights where a private propensity is requested that the domain knows: nothing pays for it."""
        known = TableSchema.of(self.domain).domain.known_propensity
        return KnownWeights() if isinstance(scheme, PrivateWeights) and known is not None else scheme

    def _prepare(self, records: CausalData) -> None:
        self.check(records.n)
        self.blocks_ = self._blocks(records.n)
        if self.budget is not None:
            self._expected = self._planned_rule(records.n)

    def _learn(self, records: CausalData) -> None:
        """Fit the weights, paying for them where they cost something, and set up the weighted ERM."""
        domain, scheme, session, budget = self.schema_.domain, self.scheme(), self._session, self.budget
        self.released_schema_, self.columns_ = self._seen(self.schema_), self._columns(domain)
        blocks = {name: records.subset(index) for name, index in self.blocks_.items()}
        outcome = self._outcome
        first = WEIGHTS_BLOCK if WEIGHTS_BLOCK in blocks else RECORDS
        self.weights_ = scheme.fit(
            blocks[first],
            domain,
            budget=self._first_budget(),
            session=session.charging([first], Charge(Purpose.WEIGHTS, scheme.name)),
        )
        self.outcome_ = outcome.settle(
            blocks[RECORDS],
            domain,
            None if budget is None else outcome.budget_fraction * budget.epsilon,
            session.charging([RECORDS], OUTCOME),
        )
        if outcome.budget_fraction > 0:
            try_outcome(self.outcome_, domain)
        self.problem_ = self.problem(blocks[RECORDS])
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
        sizes = {name: len(index) for name, index in self._blocks(n).items()}
        first = sizes.get(WEIGHTS_BLOCK, n)
        scheme.check(first, domain, self._first_budget())
        outcome = self._outcome
        outcome.public(domain)
        if outcome.budget_fraction == 0:
            try_outcome(outcome, domain)
        loss, _ = self._loss(self._features(domain))
        mechanism = self._any_noise()
        if self.budget is None:
            return
        bounds, size = self.bounds(scheme.bounds(first, domain)), sizes[RECORDS]
        if mechanism.curved:
            needed = bounds.ridge_for(loss.curvature, self._rule_budget(self.budget).epsilon / 2)
            largest = self.ridge_bound or size * bounds.most * loss.curvature
            check_ridge(needed, largest, self.budget, lambda: self.plan(n))
        self._planned_rule(n).queries  # noqa: B018 - refuses what could not be released

    def release(self, budget: PrivacyBudget | None = None) -> RuleRelease:
        """Release the rule.

        Args:
            budget: What to spend of the block's budget; None spends all that is left, and is the same rule each time.

        Raises:
            InputError: Not fitted, fitted without privacy, or a budget too small for the ridge.
            BudgetError: The block cannot pay.
        """
        self._ready()
        make = partial(self._release, budget)
        return self._once(make) if budget is None else self._keep(make())

    def _release(self, budget: PrivacyBudget | None) -> RuleRelease:
        fit = self.problem_.public
        mechanism = self._mechanism(fit)
        plan = replace(self._expected, mechanism=mechanism, problem=fit, parts=self.settings_)

        def run(budget: PrivacyBudget, session: FitSession) -> Tensor:
            self.plan_ = replace(plan, spent=budget)
            return self.plan_.ask("rule", session, self.problem_.exact(self.plan_.queries["rule"].law))

        theta, own = self._session.spend(run, [RECORDS], Charge(Purpose.RELEASE, mechanism.name), budget)
        statement = self._statement_of(self.plan_, self.plan_.guarantee(), self.plan_.public(), own)
        return self.plan_.conclude({"rule": theta}, statement)

    def _planned_rule(self, n: int) -> RulePlan:
        """Return the plan of the release to expect of n records; a fit may find less for weights to move."""
        schema, scheme, outcome = (
            TableSchema.of(self.domain).two_arms(type(self).__name__),
            self.scheme(),
            self._outcome,
        )
        domain, budget, first = schema.domain, self.budget, self._first_budget()
        assert budget is not None
        sizes, features, spent = (
            block_sizes(n, scheme.block_fraction),
            self._features(domain),
            self._rule_budget(budget),
        )
        weighing = sizes.get(WEIGHTS_BLOCK, n)
        bounds, (loss, convex) = self.bounds(scheme.bounds(weighing, domain)), self._loss(features)
        ridge, shape = self._ridge(sizes[RECORDS], bounds, loss), (features.dimension, features.largest_entry)
        fit = PrivateFit(LossBounds.of(loss), bounds, ridge, *shape, constrained=convex is not None, n=sizes[RECORDS])
        return RulePlan(
            n,
            self._seen(schema),
            budget,
            self._mechanism(fit),
            fit,
            features,
            spent,
            self._settings(),
            None if first is None else scheme.noise(weighing, domain, first),
            outcome.query(domain, outcome.budget_fraction * budget.epsilon),
            self.conditions,
        )

    def plan(self, n: int | None = None) -> NoiseReport:
        """Return what public facts say of the noise: which term dominates, and what to change. It costs nothing.

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
        return NoiseReport(self._planned_rule(n), self.typical_weight, remedy=self.indirect_remedy)

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
        x = self.view(self.schema_.matrix(X))
        return self.features_.product(self.problem_.minimiser, x).numpy()

    def view(self, x: Tensor) -> Tensor:
        """Return the columns that the rule sees, [m, k], of covariates x [m, q]."""
        return x if self.columns_ is None else x[:, list(self.columns_)]

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
        # the squared loss looks at the size of its target, the others at its sign
        squared = isinstance(self._loss(self._features(domain))[0], Squared)
        target, weights = (2 * label * magnitude, omega) if squared else (label, omega * magnitude)
        return self._weighted(records.x, target, weights)

    def _weighted(self, x: Tensor, target: Tensor, weights: Tensor) -> WeightedERM:
        """Return the weighted ERM with these targets and weights of records, [k n]: of each record k in turn."""
        features, bounds = self._features(self.schema_.domain), self.bounds(self.weights_.bounds)
        loss, convex = self._loss(features)
        psi, copies = features(self.view(x)), len(target) // len(x)
        psi = psi if copies == 1 else psi.repeat(copies, 1)
        ridge = self._ridge(len(x), bounds, loss)
        return WeightedERM(psi, target, weights, loss, ridge, bounds, features.largest_entry, convex, self.conditions)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the rule's guarantee rests on beside its proof: outcome maps, features and losses of the user's."""
        loss = LOSSES[self.loss]() if isinstance(self.loss, str) and self.loss in LOSSES else self.loss
        tried = () if isinstance(loss, str) else loss_conditions(loss)
        mechanism = user_code("mechanism", self._any_noise())
        own = Condition("outcome", "the outcome map looks at one record at a time; tried")
        outcome = () if of_library(self._outcome) else (own,)
        scheme = self.scheme()
        weights = *user_code("weights", scheme), *scheme.conditions
        return tuple(dict.fromkeys((*mechanism, *conditions_of(self.features), *weights, *tried, *outcome)))

    def bounds(self, weights: WeightBounds) -> WeightBounds:
        """Return the bounds of the weighted ERM's weights: those of omega, for magnitudes are at most one."""
        return weights

    @classmethod
    def restated_bounds(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """Return the bounds of a release with these public constants, and all constants that they state then.

        The arguments and the errors are those of ``WeightScheme.restated``.
        """
        return WEIGHTS[public["weights"]].restated(public, n, domain)  # type: ignore[no-any-return]

    def _any_noise(self) -> RuleMechanism:
        """Return the mechanism with the kind of noise that was requested, or with any."""
        kind = RULE_MECHANISMS.find(self.mechanism)
        mechanism: RuleMechanism = kind(self.perturbation or kind.kinds[0])
        return mechanism

    @property
    def _outcome(self) -> Outcome:
        """The outcome's map, before its constants are known."""
        made: Outcome = OUTCOMES.make(self.outcome, Outcome)
        return made

    def _mechanism(self, fit: PrivateFit) -> RuleMechanism:
        """Return the mechanism with the kind of noise that was requested, or with the least of it."""
        if self.perturbation is not None or self.budget is None:
            return self._any_noise()
        kind = RULE_MECHANISMS.find(self.mechanism)
        mechanism: RuleMechanism = kind.least_noisy(fit, self._rule_budget(self.budget))
        return mechanism

    def _ridge(self, n: int, bounds: WeightBounds, loss: Loss) -> float:
        if self.ridge is not None:
            return self.ridge
        if self.budget is None:
            return LEAST_RIDGE * n * bounds.most
        return default_ridge(n, self._rule_budget(self.budget).epsilon, bounds, loss.curvature)

    def _loss(self, features: FeatureMap) -> tuple[Loss, ConvexDomain | None]:
        """Return the loss, and the set to which the coefficients are confined."""
        return make_loss(self.loss, self.radius, features.largest_entry, self.radius_norm)

    def _features(self, domain: Domain) -> FeatureMap:
        """Return the feature map, fixed on the columns that the rule sees."""
        columns = self._columns(domain)
        return on_domain(self.features, domain if columns is None else domain.select(columns))

    def _hidden(self) -> str | None:
        """Return the covariate that holds the propensity, which is weight and no feature; None if none does."""
        scheme = self.scheme()
        return scheme.propensity if isinstance(scheme, KnownWeights) and isinstance(scheme.propensity, str) else None

    def _seen(self, schema: TableSchema) -> TableSchema:
        hidden = self._hidden()
        return schema if hidden is None else schema.without(hidden)

    def _columns(self, domain: Domain) -> tuple[int, ...] | None:
        """Return the columns that the rule sees, by position; None for all."""
        hidden = self._hidden()
        return None if hidden is None else tuple(j for j, name in enumerate(domain.names) if name != hidden)

    def _blocks(self, n: int) -> dict[str, LongTensor]:
        block = self.scheme().block_fraction
        if block is None:
            return {RECORDS: torch.arange(n)}  # type: ignore[dict-item]
        first, second = public_split(n, block, self.seed, "weights")
        return {WEIGHTS_BLOCK: first, RECORDS: second}

    def _first_budget(self) -> PrivacyBudget | None:
        """Return what fitting the weights may spend; None without privacy, or where nothing is spent."""
        if self.budget is None or self.scheme().block_fraction is not None:
            return self.budget
        share = self._shares().get("weights_share")
        return None if share is None else share_of(self.budget, share)

    def _rule_budget(self, budget: PrivacyBudget) -> PrivacyBudget:
        return share_of(budget, 1 - self._first_fraction())

    def _shares(self) -> dict[str, float]:
        """Return the shares of the budget that weights and outcome cost the rule's own records, above zero."""
        scheme, outcome = self.scheme(), self._outcome
        weights = scheme.budget_fraction if scheme.block_fraction is None else 0.0
        shares = {"weights_share": weights, "outcome_share": outcome.budget_fraction}
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
        scheme = self.scheme()
        return {
            "learner": type(self).__name__,
            "weights": scheme.name,
            "outcome": self._outcome.name,
            "loss": self.loss if isinstance(self.loss, str) else type(self.loss).__name__,
            **({"radius": self.radius} if self.radius is not None else {}),
            **({"radius_norm": self.radius_norm} if self.radius_norm != "l2" else {}),
            **({"split": scheme.block_fraction, "seed": self.seed} if scheme.block_fraction is not None else {}),
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

    Args:
        propensity: None takes the propensity that the domain knows; a table's schema that knows none is refused, and a
            ``Domain`` in code that says nothing stands for a trial of equal arms, 0.5. Else P(A = 1) of a trial, the
            name of the covariate that holds P(A = 1 | x) (which the rule does not see), or a ``WeightScheme`` that
            estimates it, such as ``PrivateWeights()``.

    Example:
        >>> import torch
        >>> from torchdpcate import Domain, PrivacyBudget
        >>> X, A = torch.rand(2000, 2), torch.arange(2000) % 2
        >>> Y = (2 * A - 1) * (X[:, 0] - X[:, 1])
        >>> domain = Domain([0, 0], [1, 1], -1, 1, better="higher")
        >>> learner = OutcomeWeightedLearner(domain, PrivacyBudget(4.0, 0.0))
        >>> rule = learner.fit(X, A, Y).release()
        >>> rule.decide([[0.9, 0.1], [0.1, 0.9]]).tolist(), rule.privacy.level
        ([1, 0], 'certified')
    """

    propensity: float | str | WeightScheme | None = None

    def scheme(self) -> WeightScheme:
        """Return the weights of this propensity."""
        given, domain = self.propensity, self.domain
        if isinstance(given, WeightScheme):
            return self._free(given)
        if given is None and isinstance(domain, Domain) and domain.known_propensity is None:
            given = 0.5
        return KnownWeights(given)


@dataclass(eq=False, repr=False, kw_only=True)
class TwoStageRule(RuleLearner):
    r"""Two-stage ERM (Lee & Chen 2026): balancing weights, then a private weighted ERM.

    The default fits a private propensity first and weighs each record by it: then one record moves its own weight
    alone (theory note ``policy_learning``, section 4.3). Weights fitted without privacy (``ipw``, ``entropy``,
    ``mmd``) let a record move all others; the noise covers a certified bound of that *indirect sensitivity*, which is
    large. For small samples ``constant`` weights need the least noise.

    Args:
        weights: ``private`` (``known`` where the domain knows the propensity), ``known``, ``constant``, ``ipw``,
            ``entropy``, ``mmd``, or a ``WeightScheme``.

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

    weights: str | WeightScheme = "private"

    def scheme(self) -> WeightScheme:
        """Return the weights of this name."""
        return self._free(WEIGHTS.make(self.weights, WeightScheme))
