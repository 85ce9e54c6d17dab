"""What every learner of a treatment rule does: weights, a weighted ERM, a private rule."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import LongTensor, Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_split
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.domains import ConvexDomain
from torchdpcate.erm.losses import Loss, Squared, loss_conditions
from torchdpcate.errors import InputError
from torchdpcate.estimators.answers import AnswersDecisions
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.estimators.planned_noise import PlannedNoise
from torchdpcate.estimators.rules.loss import LOSSES, LossBounds, make_loss
from torchdpcate.estimators.rules.mechanisms import RULE_MECHANISMS, RuleMechanism
from torchdpcate.estimators.rules.noise_report import NoiseReport, explain_noise
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome, Shifted, magnitudes, try_outcome
from torchdpcate.estimators.rules.plan import RECORDS, RulePlan, block_sizes, share_of
from torchdpcate.estimators.rules.plan import WEIGHTS_BLOCK as WEIGHTS
from torchdpcate.estimators.rules.planned import score_noise
from torchdpcate.estimators.rules.ridge import LEAST_RIDGE, check_ridge, default_ridge, needed_ridge
from torchdpcate.estimators.rules.weighted_erm import PublicERM, WeightedERM
from torchdpcate.features.maps import FeatureMap, conditions_of
from torchdpcate.features.user_maps import on_domain
from torchdpcate.nuisance.weights.known import KnownWeights
from torchdpcate.nuisance.weights.private import PrivateWeights
from torchdpcate.nuisance.weights.scheme import WEIGHTS as SCHEMES
from torchdpcate.nuisance.weights.scheme import WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import OUTCOME, Charge, Purpose
from torchdpcate.privacy.guarantee import Condition, Level, of_library, own_code
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
        radius: Public bound of the coefficients, l2, or l1 for the squared loss; None leaves them free.
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
    ridge_bound: float | None = None
    seed: int = 0
    noise: NoiseSource | None = None
    ledger_path: str | Path | None = None

    @abstractmethod
    def scheme(self) -> WeightScheme:
        """Return how records are weighted."""

    def _free(self, scheme: WeightScheme) -> WeightScheme:
        """Return known weights where a private propensity is asked for that the domain knows: nothing pays for it."""
        known = TableSchema.of(self.domain).domain.known_propensity
        return KnownWeights() if isinstance(scheme, PrivateWeights) and known is not None else scheme

    def _prepare(self, records: CausalData) -> None:
        self.check(records.n)
        self.blocks_ = self._blocks(records.n)

    def _learn(self, records: CausalData) -> None:
        """Fit the weights, paying for them where they cost something, and set up the weighted ERM."""
        domain, scheme, session, budget = self.schema_.domain, self.scheme(), self._session, self.budget
        self.released_schema_, self.columns_ = self._seen(self.schema_), self._columns(domain)
        blocks = {name: records.subset(index) for name, index in self.blocks_.items()}
        outcome = OUTCOMES.make(self.outcome, Outcome)
        first = WEIGHTS if WEIGHTS in blocks else RECORDS
        self.weights_ = scheme.fit(
            blocks[first],
            domain,
            budget=self._first_budget(),
            session=session.scope([first], Charge(Purpose.WEIGHTS, scheme.name)),
        )
        self.outcome_ = outcome.settle(
            blocks[RECORDS],
            domain,
            None if budget is None else outcome.budget_fraction * budget.epsilon,
            session.scope([RECORDS], OUTCOME),
        )
        if outcome.budget_fraction > 0:
            try_outcome(self.outcome_, domain)
        self.problem_ = self.problem(blocks[RECORDS])
        self.features_, self.settings_ = self._features(domain), self._public()

    def check(self, n: int) -> None:
        """Refuse, before anything is fitted or spent, what could not be released.

        Args:
            n: Number of records.

        Raises:
            InputError: Settings that do not fit each other, the domain or the budget; or a budget so small that the
                ridge it needs dominates all records, with the accuracy to expect.
        """
        domain, scheme = TableSchema.of(self.domain).two_arms().domain, self.scheme()
        sizes = {name: len(index) for name, index in self._blocks(n).items()}
        first = sizes.get(WEIGHTS, n)
        scheme.check(first, domain, self._first_budget())
        outcome = OUTCOMES.make(self.outcome, Outcome)
        outcome.public(domain)
        if outcome.budget_fraction == 0:
            try_outcome(outcome, domain)
        loss, _ = self._loss(self._features(domain))
        mechanism = self._any_noise()
        if self.budget is None:
            return
        bounds, size = self.bounds(scheme.bounds(first, domain)), sizes[RECORDS]
        if mechanism.curved:
            needed = needed_ridge(self._rule_budget(self.budget).epsilon, bounds, loss.curvature)
            largest = self.ridge_bound or size * bounds.most * loss.curvature
            check_ridge(needed, largest, self.budget, lambda: explain_noise(**self._facts(size, domain, bounds)))
        facts = self._facts(size, domain, bounds)
        explain_noise(**facts)
        problem = PublicERM(size, facts["size"], LossBounds.of(loss), bounds, facts["ridge"])
        self._mechanism(facts).law(problem, self._rule_budget(self.budget))

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
        problem, size = self.problem_, self.sizes_[RECORDS]
        mechanism = self._mechanism(self._facts(size, self.schema_.domain, problem.bounds))

        def run(budget: PrivacyBudget, session: FitSession) -> Tensor:
            self.plan_ = self._plan(mechanism, budget)
            return self.plan_.ask("rule", session, problem.exact(self.plan_.queries["rule"].law))

        theta, own = self._session.spend(run, [RECORDS], Charge(Purpose.RELEASE, mechanism.name), budget)
        statement = self._statement_of(self.plan_, self.plan_.guarantee(), self.plan_.public(), own)
        return self.plan_.conclude({"rule": theta}, statement)

    def _plan(self, mechanism: RuleMechanism, spent: PrivacyBudget) -> RulePlan:
        """Return the plan of a release.

        Args:
            mechanism: How the coefficients leave the records.
            spent: What the release may cost.
        """
        budget, first, domain = self.budget, self._first_budget(), self.schema_.domain
        assert budget is not None
        n, outcome = sum(self.sizes_.values()), OUTCOMES.make(self.outcome, Outcome)
        return RulePlan(
            n,
            self.released_schema_,
            budget,
            mechanism,
            self.problem_.public,
            self.features_,
            spent,
            self.settings_,
            None if first is None else self.scheme().noise(self.sizes_.get(WEIGHTS, n), domain, first),
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
        domain, sizes = TableSchema.of(self.domain).two_arms().domain, block_sizes(n, self.scheme().block_fraction)
        bounds = self.bounds(self.scheme().bounds(sizes.get(WEIGHTS, n), domain))
        return explain_noise(**self._facts(sizes[RECORDS], domain, bounds))

    def expected_noise(self, n: int) -> PlannedNoise:
        """See ``PrivateEstimator``: the noise of the score by which the rule decides, as an effect; ``score_noise``.

        Args:
            n: Number of records.
        """
        budget, report = self._planned(n), self.plan(n)
        conditional = self.conditions or self._own_learner()
        return score_noise(
            report,
            OUTCOMES.make(self.outcome, Outcome),
            TableSchema.of(self.domain).domain,
            n,
            budget,
            Level.CONDITIONAL if conditional else self.scheme().level,
            private_first=self._first_fraction() > 0,
        )

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
        mechanism = own_code("mechanism", self._any_noise())
        own = Condition("outcome", "the outcome map looks at one record at a time; tried")
        outcome = () if of_library(OUTCOMES.make(self.outcome, Outcome)) else (own,)
        scheme = self.scheme()
        weights = *own_code("weights", scheme), *scheme.conditions
        return tuple(dict.fromkeys((*mechanism, *conditions_of(self.features), *weights, *tried, *outcome)))

    def bounds(self, weights: WeightBounds) -> WeightBounds:
        """Return the bounds of the weighted ERM's weights: those of omega, for magnitudes are at most one."""
        return weights

    @classmethod
    def restated_bounds(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """Return the bounds of a release with these public constants, and all constants that they state then.

        The arguments and the errors are those of ``WeightScheme.restated``.
        """
        return SCHEMES[public["weights"]].restated(public, n, domain)  # type: ignore[no-any-return]

    def _facts(self, n: int, domain: Domain, bounds: WeightBounds) -> dict[str, Any]:
        """Return the public facts that decide a rule's noise, as ``explain_noise`` takes them."""
        assert self.budget is not None
        features, outcome = self._features(domain), OUTCOMES.make(self.outcome, Outcome)
        loss, _ = self._loss(features)
        facts: dict[str, Any] = {
            "n": n,
            "size": features.dimension,
            "loss": loss,
            "bounds": bounds,
            "ridge": self._ridge(n, bounds, loss),
            "budget": self.budget,
            "mechanism": self.mechanism,
            "largest_entry": features.largest_entry,
            "first_stage_fraction": self._first_fraction(),
            "shifted": isinstance(outcome, Shifted),
        }
        return facts | {"perturbation": self.perturbation or _least_noise(facts)}

    def _any_noise(self) -> RuleMechanism:
        """Return the mechanism with the kind of noise that was asked for, or with any."""
        kind = RULE_MECHANISMS.find(self.mechanism)
        mechanism: RuleMechanism = kind(self.perturbation or kind.kinds[0])
        return mechanism

    def _mechanism(self, facts: Mapping[str, Any]) -> RuleMechanism:
        mechanism: RuleMechanism = RULE_MECHANISMS.find(self.mechanism)(facts["perturbation"])
        return mechanism

    def _ridge(self, n: int, bounds: WeightBounds, loss: Loss) -> float:
        if self.ridge is not None:
            return self.ridge
        if self.budget is None:
            return LEAST_RIDGE * n * bounds.most
        return default_ridge(n, self._rule_budget(self.budget).epsilon, bounds, loss.curvature)

    def _loss(self, features: FeatureMap) -> tuple[Loss, ConvexDomain | None]:
        """Return the loss, and the set to which the coefficients are confined."""
        return make_loss(self.loss, self.radius, features.largest_entry)

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
        return {WEIGHTS: first, RECORDS: second}

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
        scheme, outcome = self.scheme(), OUTCOMES.make(self.outcome, Outcome)
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

    def _public(self) -> dict[str, Any]:
        """Return the settings as in privacy statements."""
        scheme = self.scheme()
        return {
            "learner": type(self).__name__,
            "weights": scheme.name,
            "outcome": OUTCOMES.make(self.outcome, Outcome).name,
            **self.outcome_.public(self.schema_.domain),
            "loss": self.loss if isinstance(self.loss, str) else type(self.loss).__name__,
            **({"radius": self.radius} if self.radius is not None else {}),
            **({"split": scheme.block_fraction, "seed": self.seed} if scheme.block_fraction is not None else {}),
            **self._shares(),
            **self.weights_.public,
        }


def _least_noise(facts: dict[str, Any]) -> str:
    """Return the kind of noise that is expected to be shortest, among those of the mechanism."""
    first = RULE_MECHANISMS.find(facts["mechanism"]).kinds[0]
    lengths = explain_noise(**facts, perturbation=first).others
    own = {name.split()[1]: length for name, length in lengths.items() if name.split()[0] == facts["mechanism"]}
    return min(own, key=lambda kind: own[kind])
