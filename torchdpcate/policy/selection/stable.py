"""Nuisances by deterministic ridge fits, which one replaced training record moves by no more than a public bound."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import LongTensor, Tensor

from torchdpcate.data import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.policy.selection.linear_fits import Block, Coefficients, LogisticFits, RidgeFits, gradient_norms
from torchdpcate.policy.selection.nuisances import (
    CertifiedNuisances,
    FittedNuisances,
    ScoreNuisances,
    SelectionFacts,
)
from torchdpcate.policy.selection.scores import project_to_floor
from torchdpcate.policy.selection.stability import SpillBound, spill_bound
from torchdpcate.policy.weight_scheme import on_domain
from torchdpcate.privacy import Ledger, Level, NoiseSource, PrivacyBudget
from torchdpcate.privacy.budget import positive
from torchdpcate.second_stage import FeatureMap

CONSTANTS = ("localised", "bounded_range", "paper")
"""How the spread is bounded: where fits can be; as the paper prints it; and with its two-sided sensitivity."""

_RIDGES = 1e-9, 1e9  # between which a default is sought
_STEPS = 200  # of bisection


@dataclass(frozen=True)
class StableNuisances(ScoreNuisances):
    r"""Ridge outcome models and a ridge logistic (for K > 2 multinomial) propensity, with a certificate of stability.

    On features psi of norm at most one, each arm's outcome model being a mean over all m training records,

    .. math::
        \frac1m \sum_i 1\{a_i = a\} \tfrac12 (z_i - b_a^\top \psi_i)^2 + \tfrac\lambda2 \|b_a\|^2, \quad
        \frac1m \sum_i -\log \mathrm{softmax}_{a_i}(\Theta\psi_i) + \tfrac{\lambda_e}2 \|\Theta\|^2

    with z the outcome in ranges about the middle. A replaced training record moves all n scores, whose sums it spreads
    by at most ``SpillBound.spill``; a replaced scoring record moves one, by at most 2 S. The spread is the larger.

    Guarantee:
        Certified: the spread holds for all neighbours in the public domain. Fits are checked to a public gradient norm,
        which enters it. Both blocks pay for the choice. Source: theory note ``policy_learning``, section 6.2;
        docs/guarantees/stable_nuisances.md.

    Args:
        ridge: lambda of the outcome models; None takes the smallest for which a training record does no more than a
            scoring one, a public number.
        propensity_ridge: lambda_e; None likewise, and where both are None they are equal.
        constants: ``localised`` (default) bounds gradients, propensities and outcome models where such fits can be;
            ``bounded_range`` takes the printed constants; ``paper`` their two-sided sensitivity, for comparison.
        tolerance: Largest gradient norm of a fit.
        features: Public feature map; None takes intercept and scaled covariates.

    Raises:
        InputError: A number that is not positive, or unknown constants.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), floor=0.1, training=1500, scoring=1500)
        >>> for constants in CONSTANTS:
        ...     nuisances = StableNuisances(constants=constants)
        ...     print(constants, round(nuisances.ridges(facts)[0], 3), round(nuisances.spread(facts), 3))
        localised 0.832 4.011
        bounded_range 3.199 20.0
        paper 3.059 44.0
    """

    certificate: ClassVar[str] = "stability"
    trains: ClassVar[bool] = True

    ridge: float | None = None
    propensity_ridge: float | None = None
    constants: str = "localised"
    tolerance: float = 1e-11
    features: FeatureMap | None = None

    def __post_init__(self) -> None:
        for name in ("ridge", "propensity_ridge", "tolerance"):
            value = getattr(self, name)
            if value is not None:
                positive(f"nuisance.{name}", value)
        if self.constants not in CONSTANTS:
            raise InputError(f"nuisance.constants = {self.constants!r}: choose one of {', '.join(CONSTANTS)}")

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses a ridge beside which no other is large enough."""
        super().check(facts, budget)
        on_domain(self.features, facts.domain)
        self.ridges(facts)

    def fit(
        self,
        train: CausalData | None,
        facts: SelectionFacts,
        *,
        budget: PrivacyBudget | None,
        noise: NoiseSource,
        ledger: Ledger | None,
        block: str,
        seed: int,
    ) -> CertifiedNuisances:
        """See ``ScoreNuisances.fit``; nothing is spent, for nothing is released.

        Raises:
            InputError: A subclass of its own solver whose two fits differ; not as many records as ``facts`` says.
            NumericalError: A gradient norm above the tolerance.
        """
        if train is None or train.n != facts.training:
            raise InputError(f"train: the certificate is that of {facts.training} training records; give as many")
        features, records, ridges = (
            on_domain(self.features, facts.domain),
            self._block(train, facts),
            self.ridges(facts),
        )
        found = self.solve(records, *ridges)
        if type(self).solve is not StableNuisances.solve:
            again = self.solve(records, *ridges)
            if not all(torch.equal(*pair) for pair in zip(found, again, strict=True)):
                raise InputError(
                    f"nuisance = {type(self).__name__}: two fits of the same records differ; certificate=stability "
                    "needs a deterministic learner: fix its seeds and order of records"
                )
        norms = gradient_norms(records, found, *ridges)
        if not bool((norms <= self.tolerance).all()):  # nan is not
            raise NumericalError(
                f"nuisances stopped at a gradient norm above {self.tolerance:.1e}: nothing is released; raise "
                "nuisance.ridge, nuisance.propensity_ridge or nuisance.tolerance"
            )
        bound, n = self.bound(facts), facts.scoring
        public = {
            "ridge": ridges[0],
            "propensity_ridge": ridges[1],
            "constants": self.constants,
            "beta_mu": bound.beta_mu,
            "beta_e": bound.beta_e,
            "score_spread": bound.own,
            "spill": bound.paper(n) if self.constants == "paper" else bound.spill(n),
        }
        return CertifiedNuisances(
            LinearNuisances(facts, features, found),
            self.spread(facts),
            spill_blocks=True,
            level=Level.CERTIFIED,
            public=public,
        )

    def solve(self, records: Block, ridge: float, propensity_ridge: float) -> Coefficients:
        """Return the coefficients; a subclass may fit them by other means, to the same minimisers.

        Args:
            records: The training block.
            ridge: lambda.
            propensity_ridge: lambda_e.
        """
        means = RidgeFits(records, ridge).fit()
        return Coefficients(means, LogisticFits(records, propensity_ridge, self.tolerance).fit())

    def refit(
        self, train: CausalData, facts: SelectionFacts, index: LongTensor, records: CausalData
    ) -> "LinearNuisances":
        """Return the nuisances of many neighbours of a training block, side by side: for audits.

        Args:
            train: The training block.
            facts: Public facts.
            index: Which record is replaced, [runs].
            records: By what, one a run.

        Returns:
            Nuisances whose functions give [runs, n, K].
        """
        base, new, ridges = self._block(train, facts), self._block(records, facts), self.ridges(facts)
        means = RidgeFits(base, ridges[0]).refit(index, new)
        logits = LogisticFits(base, ridges[1], self.tolerance).refit(index, new)
        return LinearNuisances(facts, on_domain(self.features, facts.domain), Coefficients(means, logits))

    def bound(self, facts: SelectionFacts) -> SpillBound:
        """Return the certificate, from public facts alone."""
        return self._bound(facts, *self.ridges(facts))

    def spread(self, facts: SelectionFacts) -> float:
        """Return the certified spread of the utilities, from public facts alone."""
        bound, n = self.bound(facts), facts.scoring
        return bound.paper_spread(n) if self.constants == "paper" else bound.spread(n)

    def ridges(self, facts: SelectionFacts) -> tuple[float, float]:
        """Return lambda and lambda_e: those given, or the smallest for which the spill is at most 2 S.

        Raises:
            InputError: One is given and spills more alone.
        """
        given = self.ridge, self.propensity_ridge
        if given[0] is not None and given[1] is not None:
            return given[0], given[1]

        def excess(free: float) -> float:
            bound = self._bound(facts, *(free if ridge is None else ridge for ridge in given))
            if self.constants == "paper":
                return bound.paper(facts.scoring) - bound.paper_spread(0) / 2
            return bound.spill(facts.scoring) - 2 * bound.own

        low, high = _RIDGES
        if excess(high) > 0:
            name, other = ("propensity_ridge", "ridge") if given[0] is None else ("ridge", "propensity_ridge")
            raise InputError(
                f"nuisance.{name} = {given[1] if given[0] is None else given[0]:g}: alone it lets a training record "
                f"spill more than a scoring record does; raise it, or give nuisance.{other} too"
            )
        for _ in range(_STEPS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
        free = high
        return (free if given[0] is None else given[0]), (free if given[1] is None else given[1])

    def _bound(self, facts: SelectionFacts, ridge: float, propensity_ridge: float) -> SpillBound:
        return spill_bound(
            facts.training,
            radius=FeatureMap.bound,
            ridge=ridge,
            propensity_ridge=propensity_ridge,
            floor=facts.floor,
            actions=facts.arms,
            outcome_range=facts.domain.outcome_range,
            localised=self.constants == "localised",
            tolerance=self.tolerance,
        )

    def _block(self, records: CausalData, facts: SelectionFacts) -> Block:
        domain = facts.domain
        z = (records.y - (domain.outcome_low + domain.outcome_high) / 2) / domain.outcome_range
        return Block(on_domain(self.features, domain)(records.x), z, records.a.long(), facts.arms)


@dataclass(frozen=True, eq=False)
class LinearNuisances(FittedNuisances):
    """Fitted `StableNuisances`, of one data set or of many side by side: functions give [..., n, K].

    Attributes:
        facts: Public facts.
        features: The feature map, set up.
        coefficients: The curator's.
    """

    facts: SelectionFacts
    features: FeatureMap
    coefficients: Coefficients

    def propensity(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.propensity``: projected to the floor for two arms, mixed with it for more."""
        u = self.features.product(self.coefficients.logits, x).mT
        arms, floor = self.facts.arms, self.facts.floor
        if arms == 2:
            return project_to_floor(torch.cat([torch.zeros_like(u), u], -1).softmax(-1), floor)
        return (1 - arms * floor) * u.softmax(-1) + floor

    def outcome(self, x: Tensor) -> Tensor:
        """See ``FittedNuisances.outcome``."""
        domain = self.facts.domain
        middle = (domain.outcome_low + domain.outcome_high) / 2
        means = self.features.product(self.coefficients.means, x).mT
        return domain.clip_outcome(middle + domain.outcome_range * means)
