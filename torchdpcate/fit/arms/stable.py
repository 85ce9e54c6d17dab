"""Nuisances by deterministic ridge fits, which one replaced training record moves by no more than a public bound."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import LongTensor, Tensor

from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.arms.base import GuaranteedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.fit.arms.deviations import deviation_bound
from torchdpcate.fit.arms.linear_fits import (
    PRIVATE,
    ArmCoefficients,
    CoefficientBlock,
    LinearNuisances,
    LogisticFits,
    RidgeFits,
    ShrinkageTarget,
    gradient_norms,
    offset,
    private_target,
    target_mechanism,
)
from torchdpcate.fit.arms.stability import IndirectBound, indirect_bound
from torchdpcate.fit.feature_maps import FeatureMap
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget, number, positive
from torchdpcate.privacy.charge import ARMS, Charge
from torchdpcate.privacy.events import Event
from torchdpcate.privacy.session import FitSession

CONSTANTS = ("localised", "bounded_range", "paper")
"""How it is bounded: where fits can be; as the paper prints it; and with its two-sided sensitivity."""

_PART = 0.1  # of what noise covers at no cost, that a training record may do by default
_RIDGES = 1e-9, 1e9  # between which a default is sought
_STEPS = 200  # of bisection
_PUBLIC = "public"  # of a target, in statements


@dataclass(frozen=True)
class StableNuisances(ScoreNuisances):
    r"""Ridge outcome models and a ridge logistic (for K > 2 multinomial) propensity, with a stability guarantee.

    On features psi of norm at most one, each arm's outcome model being a mean over all m training records,

    .. math::
        \frac1m \sum_i 1\{a_i = a\} \tfrac12 (z_i - b_a^\top \psi_i)^2 + \tfrac\lambda2 \|b_a\|^2, \quad
        \frac1m \sum_i -\log \mathrm{softmax}_{a_i}(\log e + \Theta\psi_i) + \tfrac{\lambda_e}2 \|\Theta\|^2

    with z the outcome in ranges about the target of its arm's mean, and e that of the arms' shares: the ridges, which
    the bound wants large, pull to the target. A replaced training record moves all n scores, whose sums it
    moves apart by at most ``IndirectBound.indirect``; a replaced scoring record moves one, by at most 2 S. The range
    sensitivity is the larger of 2 S and the former divided by c, where the training block pays c times what the
    scoring block pays for the choice: c = 1, or what a private target leaves. A propensity that the domain knows takes
    the place of the fitted one, and no record moves it.

    Guarantee:
        Certified: the range sensitivity holds for all neighbours in the public domain, whatever the target is worth.
            Fits are
        checked to a public gradient norm, which enters it. Both blocks pay for the choice; a private target is paid by
        the training block (pure epsilon, see ``private_target``). Source: theory note ``policy_learning``, section 6.2;
        docs/guarantees/policy_selection.md.

    Args:
        target: What fits are shrunk towards: ``private`` (default) takes noisy shares and mean outcomes of the arms in
            the training block; a ``ShrinkageTarget``, or a mapping with its arguments, gives public numbers; None takes
            1 / K and the middle of the outcome's bounds.
        budget_fraction: Fraction of the training block's budget that pays for a private target, in (0, 1).
        ridge: lambda of the outcome models; None takes the smallest for which a training record does no more than a
            scoring one, or with a private target ``1 - budget_fraction`` of that; a public number once the target is.
        propensity_ridge: lambda_e; None likewise. Where both are None they are equal, and with localised constants such
            that a training record does a tenth of that: a larger ridge lessens S.
        constants: ``localised`` (default) bounds gradients, propensities and outcome models where such fits can be;
            ``bounded_range`` takes the printed constants; ``paper`` their two-sided sensitivity, for comparison.
        tolerance: Largest gradient norm of a fit.
        features: Public feature map; None takes intercept and scaled covariates. A map that is not the library's has
            its rows scaled to norms of at most one, and makes the choice conditional.

    Raises:
        InputError: A number that is not positive, a fraction outside (0, 1), unknown constants, or no target.

    Example:
        >>> from torchdpcate.data import Domain
        >>> facts = SelectionFacts(Domain([0.0], [1.0], 0.0, 1.0), (0, 1), overlap=0.1, training=1500, scoring=1500)
        >>> for constants in CONSTANTS:
        ...     nuisances = StableNuisances(constants=constants, target=None)
        ...     print(constants, round(nuisances.ridges(facts)[0], 3), round(nuisances.range_sensitivity(facts), 3))
        localised 7.584 2.307
        bounded_range 3.199 20.0
        paper 3.059 44.0
    """

    guarantee: ClassVar[str] = "stability"
    trains: ClassVar[bool] = True
    moves_all_scores = True

    ridge: float | None = None
    propensity_ridge: float | None = None
    constants: str = "localised"
    tolerance: float = 1e-11
    features: FeatureMap | None = None
    target: ShrinkageTarget | Mapping[str, Any] | str | None = PRIVATE
    budget_fraction: float = 0.1

    def __post_init__(self) -> None:
        for name in ("ridge", "propensity_ridge", "tolerance"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value)
        if self.constants not in CONSTANTS:
            raise InputError(f"constants = {self.constants!r}: choose one of {', '.join(CONSTANTS)}")
        if not 0 < number("budget_fraction", self.budget_fraction) < 1:
            raise InputError(f"budget_fraction = {self.budget_fraction:g}: give a number strictly between 0 and 1")
        if isinstance(self.target, Mapping):
            if not set(self.target) <= {"propensity", "outcome"}:
                raise InputError(f"target = {dict(self.target)}: give propensity and outcome")
            object.__setattr__(self, "target", ShrinkageTarget(**self.target))
        if not (self.target is None or self.target == PRIVATE or isinstance(self.target, ShrinkageTarget)):
            raise InputError(
                f"target = {self.target!r}: give {PRIVATE}, public numbers (propensity and outcome), or none"
            )

    def check(self, facts: SelectionFacts, budget: PrivacyBudget | None) -> None:
        """See ``ScoreNuisances.check``; also refuses features whose rows see each other and unpaid targets.

        With a public target, too, a ridge beside which none is enough.
        """
        super().check(facts, budget)
        on_domain(self.features, facts.domain)
        if self.target != PRIVATE:
            self.ridges(facts)
        elif budget is not None:
            target_mechanism(self.budget_fraction * budget.epsilon, facts)

    def fit(
        self, records: CausalData | None, facts: SelectionFacts, *, session: FitSession | None = None
    ) -> GuaranteedNuisances:
        """See ``ScoreNuisances.fit``; a private target is all that is spent, for nothing else is released.

        Raises:
            InputError: A subclass of its own solver whose two fits differ; not as many records as ``facts`` says.
            BudgetError: The block cannot pay for a target.
            NumericalError: A gradient norm above the tolerance.
        """
        if records is None or records.n != facts.training:
            raise InputError(f"records: the guarantee is that of {facts.training} training records; give as many")
        settled = self.settle(records, facts, session)
        certified, paid = settled._fit(records, facts, self.choice_share), {}
        if self.target == PRIVATE and session is not None and session.budget is not None:
            paid = {"requested_epsilon": session.budget.epsilon}
        return replace(certified, public={"target": _word(self.target), **certified.public, **paid})

    @classmethod
    def followed(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> tuple[dict[str, Any], float | None]:
        """See ``ScoreSource``: all of it follows from the target, the ridges and the tolerance."""
        word, share = stated["target"], number("choice_share", stated["choice_share"])
        if word not in (None, PRIVATE, _PUBLIC) or not 0 < share <= 1 or (word != PRIVATE and share != 1):
            raise InputError(f"target = {word!r}, choice_share = {share:g}: none of stable nuisances")
        target = None if word is None else ShrinkageTarget(stated["target_propensity"], stated["target_outcome"])
        given = {name: stated[name] for name in ("ridge", "propensity_ridge", "constants", "tolerance")}
        settled = StableNuisances(**given, target=target)
        paid = {"requested_epsilon": stated["requested_epsilon"]} if word == PRIVATE else {}
        return {"target": word, **settled._public(facts, share), **paid}, settled.range_sensitivity(facts, share)

    @classmethod
    def costs(cls, stated: Mapping[str, Any], facts: SelectionFacts) -> Mapping[Charge, Event]:
        """See ``ScoreSource``: a private target has what it leaves not to the choice."""
        if stated["target"] != PRIVATE:
            return {}
        fraction = 1 - stated["choice_share"]
        return {ARMS: target_mechanism(fraction * stated["requested_epsilon"], facts)[0].event}

    def settle(self, train: CausalData, facts: SelectionFacts, session: FitSession | None = None) -> "StableNuisances":
        """Return these nuisances with their target, a private one if need be, and their ridges; all of it public.

        A ridge that was given and lets it do too much alone is no reason to refuse once a target has been paid for: the
        other one is then set equal.

        Args:
            train: The training block.
            facts: Public facts.
            session: Pays for a target with ``budget_fraction`` of its budget; without a budget the exact numbers are
                taken.

        Raises:
            BudgetError: The block cannot pay for a target.
        """
        if self.target != PRIVATE:
            ridges = self.ridges(facts)
            return replace(self, ridge=ridges[0], propensity_ridge=ridges[1])
        budget = None if session is None else session.budget
        epsilon = None if budget is None else self.budget_fraction * budget.epsilon
        return self._towards(private_target(train, facts, epsilon, session), facts)

    @property
    def choice_share(self) -> float:
        """See ``ScoreSource``: what a private target leaves of the training block's budget."""
        return 1 - self.budget_fraction if self.target == PRIVATE else 1.0

    def planned_range(self, facts: SelectionFacts, budget: PrivacyBudget) -> float:
        """See ``ScoreNuisances``; a private target is expected to be 1 / K and the middle of the outcome's bounds."""
        return _planned_range(self, facts)

    def _towards(self, target: ShrinkageTarget, facts: SelectionFacts) -> "StableNuisances":
        """Return these nuisances with a target that was paid for, and their ridges."""
        settled = replace(self, target=target)
        try:
            ridges = settled.ridges(facts, self.choice_share)
        except InputError:
            given = self.ridge if self.ridge is not None else self.propensity_ridge
            assert given is not None
            ridges = given, given
        return replace(settled, ridge=ridges[0], propensity_ridge=ridges[1])

    def _fit(self, train: CausalData, facts: SelectionFacts, choice_share: float) -> GuaranteedNuisances:
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
                    f"nuisance = {type(self).__name__}: two fits of the same records differ; "
                    "nuisance_guarantee=stability needs a deterministic learner: fix its seeds and order of records"
                )
        norms = gradient_norms(records, found, *ridges)
        if not bool((norms <= self.tolerance).all()):  # nan is not
            raise NumericalError(
                f"nuisances stopped at a gradient norm above {self.tolerance:.1e}: nothing is released; raise "
                "ridge, propensity_ridge or tolerance"
            )
        return GuaranteedNuisances(
            LinearNuisances(facts, features, found, *self._numbers(facts)),
            self.range_sensitivity(facts, choice_share),
            public=self._public(facts, choice_share),
            conditions=features.conditions,
        )

    def _public(self, facts: SelectionFacts, choice_share: float) -> dict[str, Any]:
        """Return public constants of what is settled."""
        bound, n, (shares, means) = self.bound(facts), facts.scoring, self._numbers(facts)
        ridges = self.ridges(facts)
        return {
            "target_propensity": shares.tolist(),
            "target_outcome": means.tolist(),
            "ridge": ridges[0],
            "propensity_ridge": ridges[1],
            "constants": self.constants,
            "beta_mu": bound.beta_mu,
            "beta_e": bound.beta_e,
            "score_spread": bound.own,
            "indirect_sensitivity": bound.paper(n) if self.constants == "paper" else bound.indirect(n),
            "choice_share": choice_share,
            "tolerance": self.tolerance,
        }

    def solve(self, records: CoefficientBlock, ridge: float, propensity_ridge: float) -> ArmCoefficients:
        """Return the coefficients; a subclass may fit them by other means, to the same minimisers.

        Args:
            records: The training block.
            ridge: lambda.
            propensity_ridge: lambda_e.
        """
        means = RidgeFits(records, ridge).fit()
        return ArmCoefficients(means, LogisticFits(records, propensity_ridge, self.tolerance).fit())

    def refit(
        self, train: CausalData, facts: SelectionFacts, index: LongTensor, records: CausalData
    ) -> "LinearNuisances":
        """Return the nuisances of many neighbours of a training block, side by side: for audits.

        A target must be public numbers, which the records do not move: see ``settle``.

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
        features, coefficients = on_domain(self.features, facts.domain), ArmCoefficients(means, logits)
        return LinearNuisances(facts, features, coefficients, *self._numbers(facts))

    def bound(self, facts: SelectionFacts) -> IndirectBound:
        """Return the bound, from public facts alone."""
        return self._bound(facts, *self.ridges(facts))

    def range_sensitivity(self, facts: SelectionFacts, choice_share: float = 1.0) -> float:
        """Return the certified range sensitivity of the utilities, from public facts alone.

        Args:
            facts: Public facts.
            choice_share: c, see ``ScoreSource``: a training record may do c times as much, and what it may do counts
                divided by c.
        """
        own, other = self._ranges(self.bound(facts), facts.scoring)
        return max(own, other / choice_share)

    def ridges(
        self, facts: SelectionFacts, choice_share: float = 1.0, part: float | None = None
    ) -> tuple[float, float]:
        """Return lambda and lambda_e: those given, or the smallest with which a training record does a part of 2 S c.

        Args:
            facts: Public facts.
            choice_share: c, see ``range_sensitivity``.
            part: The part; None takes a tenth, or all of it where one ridge is given or S does not fall with them.

        Raises:
            InputError: One is given and lets it do more alone.
        """
        given = self.ridge, self.propensity_ridge
        if given[0] is not None and given[1] is not None:
            return given[0], given[1]
        if part is None:
            part = _PART if given == (None, None) and self.constants == "localised" else 1.0
        allowed = part * choice_share

        def excess(free: float) -> float:
            bound = self._bound(facts, *(free if ridge is None else ridge for ridge in given))
            own, other = self._ranges(bound, facts.scoring)
            return other - allowed * own

        low, high = _RIDGES
        if excess(high) > 0:
            name, other = ("propensity_ridge", "ridge") if given[0] is None else ("ridge", "propensity_ridge")
            raise InputError(
                f"{name} = {given[1] if given[0] is None else given[0]:g}: alone it lets a training record do more "
                f"than a scoring record does; raise it, or give {other} too"
            )
        for _ in range(_STEPS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
        free = high
        return (free if given[0] is None else given[0]), (free if given[1] is None else given[1])

    def _ranges(self, bound: IndirectBound, n: int) -> tuple[float, float]:
        """Return by how much a scoring record, and a training record, move utilities apart at most."""
        if self.constants == "paper":
            return bound.paper_range_sensitivity(0), 2 * bound.paper(n)
        return 2 * bound.own, bound.indirect(n)

    def _bound(self, facts: SelectionFacts, ridge: float, propensity_ridge: float) -> IndirectBound:
        domain, (shares, means) = facts.domain, self._numbers(facts)
        common: dict[str, Any] = {
            "radius": FeatureMap.bound,
            "ridge": ridge,
            "propensity_ridge": propensity_ridge,
            "overlap": facts.overlap,
            "tolerance": self.tolerance,
            "known": None if facts.known is None else facts.known.of_arms.tolist(),
        }
        if self.target is not None and self.constants == "localised":
            return deviation_bound(facts.training, shares.tolist(), means.tolist(), domain=domain, **common)
        far = max((means - domain.outcome_low).max().item(), (domain.outcome_high - means).max().item())
        return indirect_bound(
            facts.training,
            actions=facts.arms,
            outcome_range=domain.outcome_range,
            localised=self.constants == "localised",
            half=0.5 if self.target is None else far / domain.outcome_range,
            **common,
        )

    def _numbers(self, facts: SelectionFacts) -> tuple[Tensor, Tensor]:
        """Return the targets of shares and means, [K] each."""
        if isinstance(self.target, str):
            raise InputError(f"target = {self.target}: is not known yet; call fit or settle first")
        target = self.target or ShrinkageTarget()
        assert isinstance(target, ShrinkageTarget)
        return target.numbers(facts)

    def _block(self, records: CausalData, facts: SelectionFacts) -> CoefficientBlock:
        (shares, means), arm = self._numbers(facts), records.a.long()
        z = (records.y - means[arm]) / facts.domain.outcome_range
        return CoefficientBlock(on_domain(self.features, facts.domain)(records.x), z, arm, facts.arms, offset(shares))


@lru_cache(maxsize=256)
def _planned_range(nuisances: StableNuisances, facts: SelectionFacts) -> float:
    """Return the range sensitivity with a target that is public, or expected."""
    private = nuisances.target == PRIVATE
    settled = nuisances._towards(ShrinkageTarget(), facts) if private else nuisances
    return settled.range_sensitivity(facts, nuisances.choice_share)


def _word(target: Any) -> Any:
    return target if target is None or isinstance(target, str) else _PUBLIC
