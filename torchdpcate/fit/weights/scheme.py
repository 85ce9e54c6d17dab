r"""Weights of the records in a rule's objective, and the public bounds of what one record can do to them.

The weight of a record is omega = 1 / (2 pi(a|x)), about one on average: it makes the treated and the untreated stand
for everybody. What one record does to the weights of the others is the *indirect sensitivity*; weights that are a
public function of their own record have none.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import conditions_of
from torchdpcate.fit.private_fit import ObjectiveNoise, WeightBounds
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.privacy.budget import PrivacyBudget, as_number
from torchdpcate.privacy.guarantee import Condition, Level
from torchdpcate.privacy.session import FitSession
from torchdpcate.registry import Registry

_ROUNDING = 1e-9  # of the largest weight, which may exceed its bound by rounding alone


@dataclass(frozen=True, eq=False)
class FittedWeights(ABC):
    """Weights as fitted. The curator's, but for what it calls public.

    Attributes:
        bounds: What one record can do to the weights omega; public.
        public: Public constants, for the privacy statement.
    """

    bounds: WeightBounds
    public: dict[str, Any]

    def weights(self, records: CausalData) -> Tensor:
        """Return omega, float64 [n], in [0, ``bounds.most``].

        Raises:
            InputError: A weight is negative, not finite or above its bound, on which the guarantee rests; or weights
                that were fitted to other records.
        """
        omega, most = self._omega(records).double(), self.bounds.most
        inside = (omega >= 0) & (omega <= most * (1 + _ROUNDING))
        if not bool(inside.all()):
            wrong = int((~inside).sum())
            raise InputError(
                f"weights: {wrong} of {len(omega)} lie outside [0, {most:g}], their bound; clip them to it"
            )
        return omega.clamp(max=most)

    def propensity(self, x: Tensor) -> Tensor | None:
        """Return P(A = 1 | x) [B] where it is known or paid for, clipped to its bounds; else None."""
        return None

    def of(self, records: CausalData) -> Tensor | None:
        """Return P(A = 1) of records [n] where it is known or paid for; else None."""
        return self.propensity(records.x)

    @abstractmethod
    def _omega(self, records: CausalData) -> Tensor:
        """Return the weights, [n], not yet checked."""


class InversePropensity(FittedWeights):
    """Weights 1 / (2 pi(a|x)) by a propensity that is public: no indirect sensitivity."""

    def _omega(self, records: CausalData) -> Tensor:
        treated = self.of(records)
        assert treated is not None
        return 0.5 / torch.where(records.a == 1, treated, 1 - treated)


class WeightScheme(ABC):
    """How records are weighted: public settings alone, chosen without looking at the records.

    Attributes:
        name: The name users give.
        level: How far the bounds are proved.
        budget_fraction: Fraction of the budget that a first stage spends on the records of the second, which pay for
            both.
    """

    name: ClassVar[str]
    level: ClassVar[Level] = Level.CERTIFIED
    budget_fraction: float = 0.0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the bounds rest on beside their proof: the conditions of a feature map, where there is one."""
        return conditions_of(getattr(self, "features", None))

    @abstractmethod
    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return bounds that hold whatever a fit to n records returns: public before anything is fitted.

        Raises:
            InputError: Settings that do not fit the domain, or too many records.
        """

    @classmethod
    @abstractmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """Return the bounds of weights with these public constants, and all constants that they state then.

        Args:
            public: Of a statement; any value may be forged.
            n: Records that the weights were fitted to.
            domain: Public bounds of the columns that the rule sees.

        Raises:
            InputError, LookupError, TypeError, ValueError: Constants that are none of such weights.
        """

    def noise(self, n: int, domain: Domain, budget: PrivacyBudget) -> ObjectiveNoise | None:
        """Return the noise of what a fit pays for; None where it pays for nothing.

        Args:
            n: Records that the weights are fitted to.
            domain: Public bounds.
            budget: What the fit may spend.

        Raises:
            InputError: Settings that do not fit.
        """
        return None

    @classmethod
    def restated_noise(cls, public: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> ObjectiveNoise | None:
        """Return ``noise`` of a fit with these public constants; arguments and errors are those of both."""
        return None

    def check(self, n: int, domain: Domain, budget: PrivacyBudget | None) -> None:
        """Refuse, before anything is spent, what could not be fitted.

        Args:
            n: Records that the weights are fitted to.
            domain: Public bounds.
            budget: What the fit may spend (``budget_fraction`` already taken); None fits without privacy.

        Raises:
            InputError: Settings that do not fit.
        """
        self.bounds(n, domain)
        on_domain(getattr(self, "features", None), domain)
        if budget is not None:
            self.noise(n, domain, budget)

    @abstractmethod
    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> FittedWeights:
        """Return the fitted weights, the curator's.

        Args:
            records: Records within the domain.
            domain: Public bounds.
            budget: See ``check``.
            session: Pays before any noise is drawn, and draws it.

        Raises:
            InputError: See ``check``.
            BudgetError: The block cannot pay.
            NumericalError: The fit missed its tolerance.
        """


WEIGHTS = Registry("weights")
"""Weighting schemes by the name that users give."""


def stated_weight(public: Mapping[str, Any], overlap: float) -> float:
    """Return the largest weight that a statement has, moved to where the overlap bound allows one.

    Args:
        public: Of a statement.
        overlap: The domain's.

    Example:
        >>> stated_weight({"largest_weight": 3.0}, 0.25)
        2.0
    """
    return min(max(as_number(public["largest_weight"]), 1.0), 0.5 / overlap)


@dataclass(frozen=True)
class KnownWeights(WeightScheme):
    r"""Weights of a known propensity: the domain's, a trial's, or a covariate column's.

    .. math:: \omega_i = 1 / (2 \pi(a_i | x_i)), \quad \omega_{max} = 1 / (2 \min_{a, x} \pi(a | x))

    Guarantee:
        Certified, and free: a weight is a public function of its own record, so there is no indirect sensitivity. A
        trial's probability is used as it is; a column is clipped to its public bounds and to the overlap bound, and a
        column of the domain's that is no covariate has the overlap bound alone (theory note ``policy_learning``,
        sections 3 and 5.1).

    Example:
        >>> round(KnownWeights().bounds(400, Domain([0.0], [1.0], -1.0, 1.0, propensity=0.3)).first, 6)
        3.333333
    """

    name = "known"

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds of weights without indirect sensitivity."""
        low, high = self.known(domain).bounds
        return WeightBounds.per_record(0.5 / min(low, 1 - high))

    @classmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        return cls().bounds(n, domain), {"propensity": cls().known(domain).stated}

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "FittedKnownWeights":
        """Return the weights; nothing is fitted and nothing spent."""
        known = self.known(domain)
        return FittedKnownWeights(self.bounds(records.n, domain), {"propensity": known.stated}, known)

    def known(self, domain: Domain) -> KnownPropensity:
        """Return the propensity that the weights are made of.

        Raises:
            InputError: The domain does not tell it.
        """
        if domain.known_propensity is None:
            raise InputError(
                "weights = known: P(A = 1 | x) of these records is needed and not known; give propensity: 0.5 in the "
                "domain (a trial's; or a column, or one per stratum), or weights=private (a private one)"
            )
        return domain.known_propensity


@dataclass(frozen=True, eq=False)
class FittedKnownWeights(InversePropensity):
    """Fitted `KnownWeights`.

    Attributes:
        known: The propensity.
    """

    known: KnownPropensity

    def propensity(self, x: Tensor) -> Tensor | None:
        """Return the known P(A = 1 | x), [B]; None where covariates do not tell it."""
        return None if self.known.column is not None else self.known.at(x)

    def of(self, records: CausalData) -> Tensor:
        """Return the known propensity of records, [n]."""
        return self.known.of(records)


@dataclass(frozen=True)
class ConstantWeights(WeightScheme):
    """The same weight, one, for every record: no propensity at all.

    For small samples, where noise harms more than confounding does: no weights need less noise.

    Guarantee:
        Certified, and free: weights without records have no indirect sensitivity.

    Example:
        >>> ConstantWeights().bounds(100, Domain([0.0], [1.0], -1.0, 1.0)).most
        1.0
    """

    name = "constant"

    @classmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        return cls().bounds(n, domain), {}

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds of a weight of one."""
        return WeightBounds.per_record(1.0)

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "OneForAll":
        """Return the weights; nothing is fitted and nothing spent."""
        return OneForAll(self.bounds(records.n, domain), {})


class OneForAll(FittedWeights):
    """Fitted `ConstantWeights`."""

    def _omega(self, records: CausalData) -> Tensor:
        return torch.ones_like(records.a, dtype=torch.float64)
