"""Weights that nothing has to be fitted for: of a known propensity, or one for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import ConstantPropensity, KnownPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.errors import InputError
from torchdpcate.nuisance.known_propensity import propensity_column
from torchdpcate.nuisance.weights.scheme import FittedWeights, InversePropensity, WeightScheme, stated_weight
from torchdpcate.privacy.budget import PrivacyBudget, as_number, probability
from torchdpcate.privacy.session import FitSession


@dataclass(frozen=True)
class KnownWeights(WeightScheme):
    r"""Weights of a known propensity: the domain's, a trial's, or a covariate column's.

    .. math:: \omega_i = 1 / (2 \pi(a_i | x_i)), \quad \omega_{max} = 1 / (2 \min_{a, x} \pi(a | x))

    Guarantee:
        Certified, and free: a weight is a public function of its own record, so there is no indirect sensitivity. A
        trial's probability is used as it is; a column is clipped to its public bounds and to the overlap bound, and a
        column of the domain's that is no covariate has the overlap bound alone (theory note ``policy_learning``,
        sections 3 and 5.1).

    Args:
        propensity: None takes what the domain knows. Else P(A = 1) of a trial, in (0, 1), or the name of the covariate
            that holds P(A = 1 | x), whose public bounds lie in (0, 1); for domains that know nothing else.

    Raises:
        InputError: A number outside (0, 1).

    Example:
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0)
        >>> scheme = KnownWeights(0.3)
        >>> round(scheme.bounds(400, domain).first, 6)
        3.333333
        >>> KnownWeights().bounds(400, Domain([0.0], [1.0], -1.0, 1.0, propensity=0.5)).most
        1.0
    """

    name = "known"
    propensity: float | str | None = None

    def __post_init__(self) -> None:
        """Refuse a probability outside (0, 1)."""
        if self.propensity is not None and not isinstance(self.propensity, str):
            probability("weights.propensity", self.propensity, above_zero=True)

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds of weights without indirect sensitivity."""
        low, high = self._range(domain)
        return WeightBounds.per_record(0.5 / min(low, 1 - high))

    @classmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """See ``WeightScheme.restated``; the largest weight of a column is stated where the rule does not see it."""
        given = public["propensity"]
        if domain.known_propensity is None and isinstance(given, str):
            most = stated_weight(public, domain.overlap)
            return WeightBounds.per_record(most), {"propensity": given, "largest_weight": most}
        scheme = cls(None if domain.known_propensity is not None else as_number(given))
        return scheme.bounds(n, domain), {"propensity": scheme.known(domain).stated}

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "FittedKnownWeights":
        """Return the weights; nothing is fitted and nothing spent."""
        bounds, known = self.bounds(records.n, domain), self.known(domain)
        if domain.known_propensity is None and isinstance(self.propensity, str):
            return FittedKnownWeights(bounds, {"propensity": self.propensity, "largest_weight": bounds.most}, known)
        return FittedKnownWeights(bounds, {"propensity": known.stated}, known)

    def known(self, domain: Domain) -> KnownPropensity:
        """Return the propensity that the weights are made of.

        Raises:
            InputError: Neither the settings nor the domain tell it, or they say different things.
        """
        given, known = self.propensity, domain.known_propensity
        if given is None and known is None:
            raise InputError(
                "weights.propensity: P(A = 1 | x) of these records is needed and not known; give propensity: 0.5 in "
                "the domain (a trial's; or a column, or one per stratum), weights.propensity=0.5, "
                "weights.propensity=COLUMN (the covariate that holds it), or weights=private (a private one)"
            )
        if known is not None and given not in (None, known.entry()):
            raise InputError(
                f"weights.propensity = {given!r}: the domain says propensity: {known.entry()}; leave one of them out"
            )
        if known is not None:
            return known
        if not isinstance(given, str):
            return ConstantPropensity((float(given),))  # type: ignore[arg-type]
        column, span = propensity_column(given, domain, domain.overlap, strict=True, what="weights.propensity")
        return CovariatePropensity(column, span)

    def _range(self, domain: Domain) -> tuple[float, float]:
        """Return the least and largest P(A = 1 | x) over the public domain."""
        return self.known(domain).bounds


@dataclass(frozen=True)
class CovariatePropensity(KnownPropensity):
    """One that a covariate holds.

    Attributes:
        position: Of the covariate.
        bounds: Least and largest propensity, public.
    """

    position: int
    bounds: tuple[float, float]

    def at(self, x: Tensor) -> Tensor:
        """Return the covariate, clipped to the bounds, [B]."""
        return x[:, self.position].double().clamp(*self.bounds)

    def select(self, columns: Sequence[int]) -> "CovariatePropensity":
        """See ``KnownPropensity.select``."""
        return CovariatePropensity(list(columns).index(self.position), self.bounds)

    def entry(self) -> int:
        """Return the position."""
        return self.position


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
        """See ``WeightScheme.restated``."""
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
