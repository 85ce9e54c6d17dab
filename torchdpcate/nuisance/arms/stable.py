"""Nuisances by deterministic ridge fits, which one replaced training record moves by no more than a public bound."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import LongTensor, Tensor

from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.features.maps import FeatureMap
from torchdpcate.features.user_maps import on_domain
from torchdpcate.nuisance.arms.base import CertifiedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.nuisance.arms.deviations import deviation_bound
from torchdpcate.nuisance.arms.linear_fits import (
    Block,
    Coefficients,
    LinearNuisances,
    LogisticFits,
    RidgeFits,
    gradient_norms,
    offset,
)
from torchdpcate.nuisance.arms.shrinkage import BOUGHT, Guess, buy_guess, purchase
from torchdpcate.nuisance.arms.stability import SpillBound, spill_bound
from torchdpcate.privacy.budget import PrivacyBudget, number, positive
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.session import FitSession

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
        \frac1m \sum_i -\log \mathrm{softmax}_{a_i}(\log e + \Theta\psi_i) + \tfrac{\lambda_e}2 \|\Theta\|^2

    with z the outcome in ranges about a guess of its arm's mean, and e guesses of the arms' shares: the ridges, which
    the certificate wants large, pull to the guesses. A replaced training record moves all n scores, whose sums it
    spreads by at most ``SpillBound.spill``; a replaced scoring record moves one, by at most 2 S. The spread is the
    larger.

    Guarantee:
        Certified: the spread holds for all neighbours in the public domain, whatever the guesses are worth. Fits are
        checked to a public gradient norm, which enters it. Both blocks pay for the choice; a bought guess is paid by
        the training block (pure epsilon, see ``buy_guess``). Source: theory note ``policy_learning``, section 6.2;
        docs/guarantees/stable_nuisances.md.

    Args:
        guess: What fits are shrunk towards: ``bought`` (default) buys the arms' shares and mean outcomes from the
            training block; a ``Guess``, or a mapping with its arguments, gives public numbers; None takes 1 / K and the
            middle of the outcome's bounds.
        share: Share of the training block's budget that buys a guess, in (0, 1).
        ridge: lambda of the outcome models; None takes the smallest for which a training record does no more than a
            scoring one, a public number once the guess is.
        propensity_ridge: lambda_e; None likewise, and where both are None they are equal.
        constants: ``localised`` (default) bounds gradients, propensities and outcome models where such fits can be;
            ``bounded_range`` takes the printed constants; ``paper`` their two-sided sensitivity, for comparison.
        tolerance: Largest gradient norm of a fit.
        features: Public feature map; None takes intercept and scaled covariates. A map that is not the library's has
            its rows scaled to norms of at most one, and makes the choice conditional.

    Raises:
        InputError: A number that is not positive, a share outside (0, 1), unknown constants, or no guess.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), floor=0.1, training=1500, scoring=1500)
        >>> for constants in CONSTANTS:
        ...     nuisances = StableNuisances(constants=constants, guess=None)
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
    guess: Guess | Mapping[str, Any] | str | None = BOUGHT
    share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("ridge", "propensity_ridge", "tolerance"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value)
        if self.constants not in CONSTANTS:
            raise InputError(f"constants = {self.constants!r}: choose one of {', '.join(CONSTANTS)}")
        if not 0 < number("share", self.share) < 1:
            raise InputError(f"share = {self.share:g}: give a number strictly between 0 and 1")
        if isinstance(self.guess, Mapping):
            if not set(self.guess) <= {"propensity", "outcome"}:
                raise InputError(f"guess = {dict(self.guess)}: give propensity and outcome")
            object.__setattr__(self, "guess", Guess(**self.guess))
        if not (self.guess is None or self.guess == BOUGHT or isinstance(self.guess, Guess)):
            raise InputError(f"guess = {self.guess!r}: give {BOUGHT}, public numbers (propensity and outcome), or none")

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses features whose rows see each other, and a guess without a budget.

        With a public guess, too, a ridge beside which no other is enough.
        """
        super().check(facts, budget)
        on_domain(self.features, facts.domain)
        if self.guess != BOUGHT:
            self.ridges(facts)
        elif budget is not None:
            purchase(self.share * budget.epsilon, facts)

    def fit(
        self, train: CausalData | None, facts: SelectionFacts, session: FitSession | None = None
    ) -> CertifiedNuisances:
        """See ``ScoreNuisances.fit``; a bought guess is all that is spent, for nothing else is released.

        Raises:
            InputError: A subclass of its own solver whose two fits differ; not as many records as ``facts`` says.
            BudgetError: The block cannot pay for a guess.
            NumericalError: A gradient norm above the tolerance.
        """
        if train is None or train.n != facts.training:
            raise InputError(f"train: the certificate is that of {facts.training} training records; give as many")
        settled = self.settle(train, facts, session)
        certified = settled._fit(train, facts)
        return replace(certified, public={"guess": _word(self.guess), **certified.public})

    def settle(self, train: CausalData, facts: SelectionFacts, session: FitSession | None = None) -> "StableNuisances":
        """Return these nuisances with their guess, bought if need be, and their ridges; all of it public.

        A ridge that was given and spills too much alone is no reason to refuse once a guess has been paid for: the
        other one is then set equal.

        Args:
            train: The training block.
            facts: Public facts.
            session: Pays for a guess with ``share`` of its budget; without a budget the exact numbers are taken.

        Raises:
            BudgetError: The block cannot pay for a guess.
        """
        settled = self
        if self.guess == BOUGHT:
            budget = None if session is None else session.budget
            epsilon = None if budget is None else self.share * budget.epsilon
            settled = replace(self, guess=buy_guess(train, facts, epsilon, session))
        try:
            ridges = settled.ridges(facts)
        except InputError:
            if self.guess != BOUGHT:
                raise
            given = self.ridge if self.ridge is not None else self.propensity_ridge
            assert given is not None
            ridges = given, given
        return replace(settled, ridge=ridges[0], propensity_ridge=ridges[1])

    def _fit(self, train: CausalData, facts: SelectionFacts) -> CertifiedNuisances:
        """Fit what is settled."""
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
                "ridge, propensity_ridge or tolerance"
            )
        bound, n, (shares, means) = self.bound(facts), facts.scoring, self._numbers(facts)
        public = {
            "guess_propensity": shares.tolist(),
            "guess_outcome": means.tolist(),
            "ridge": ridges[0],
            "propensity_ridge": ridges[1],
            "constants": self.constants,
            "beta_mu": bound.beta_mu,
            "beta_e": bound.beta_e,
            "score_spread": bound.own,
            "spill": bound.paper(n) if self.constants == "paper" else bound.spill(n),
        }
        return CertifiedNuisances(
            LinearNuisances(facts, features, found, shares, means),
            self.spread(facts),
            spill_blocks=True,
            level=Level.CERTIFIED,
            public=public,
            conditions=features.conditions,
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

        A guess must be public numbers, which the records do not move: see ``settle``.

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
        features, coefficients = on_domain(self.features, facts.domain), Coefficients(means, logits)
        return LinearNuisances(facts, features, coefficients, *self._numbers(facts))

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
                f"{name} = {given[1] if given[0] is None else given[0]:g}: alone it lets a training record spill more "
                f"than a scoring record does; raise it, or give {other} too"
            )
        for _ in range(_STEPS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
        free = high
        return (free if given[0] is None else given[0]), (free if given[1] is None else given[1])

    def _bound(self, facts: SelectionFacts, ridge: float, propensity_ridge: float) -> SpillBound:
        domain, (shares, means) = facts.domain, self._numbers(facts)
        common: dict[str, Any] = {
            "radius": FeatureMap.bound,
            "ridge": ridge,
            "propensity_ridge": propensity_ridge,
            "floor": facts.floor,
            "tolerance": self.tolerance,
        }
        if self.guess is not None and self.constants == "localised":
            return deviation_bound(facts.training, shares.tolist(), means.tolist(), domain=domain, **common)
        far = max((means - domain.outcome_low).max().item(), (domain.outcome_high - means).max().item())
        return spill_bound(
            facts.training,
            actions=facts.arms,
            outcome_range=domain.outcome_range,
            localised=self.constants == "localised",
            half=0.5 if self.guess is None else far / domain.outcome_range,
            **common,
        )

    def _numbers(self, facts: SelectionFacts) -> tuple[Tensor, Tensor]:
        """Return the guesses of shares and means, [K] each."""
        if isinstance(self.guess, str):
            raise InputError(f"guess = {self.guess}: is not bought yet; call fit or settle first")
        guess = self.guess or Guess()
        assert isinstance(guess, Guess)
        return guess.numbers(facts)

    def _block(self, records: CausalData, facts: SelectionFacts) -> Block:
        (shares, means), arm = self._numbers(facts), records.a.long()
        z = (records.y - means[arm]) / facts.domain.outcome_range
        return Block(on_domain(self.features, facts.domain)(records.x), z, arm, facts.arms, offset(shares))


def _word(guess: Any) -> Any:
    return guess if guess is None or isinstance(guess, str) else "public"
