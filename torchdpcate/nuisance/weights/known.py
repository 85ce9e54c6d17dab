"""Weights that nothing has to be fitted for: of a known propensity, or one for all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.nuisance.known_propensity import propensity_column
from torchdpcate.nuisance.weights.scheme import FittedWeights, InversePropensity, WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget, as_number, probability
from torchdpcate.privacy.session import FitSession


@dataclass(frozen=True)
class KnownWeights(WeightScheme):
    r"""Weights of a known propensity: a trial's, or a covariate column's.

    .. math:: \omega_i = 1 / (2 \pi(a_i | x_i)), \quad \omega_{max} = 1 / (2 \min_{a, x} \pi(a | x))

    Guarantee:
        Certified, and free: a weight is a public function of its own record, so there is no indirect sensitivity. A
        trial's probability is used as it is; a column is clipped to its public bounds and to the overlap bound (theory
        note ``policy_learning``, sections 3 and 5.1).

    Args:
        propensity: P(A = 1) of a trial, in (0, 1), or the name of the covariate that holds P(A = 1 | x), whose public
            bounds lie in (0, 1).

    Raises:
        InputError: A number outside (0, 1).

    Example:
        >>> domain = Domain([0.0], [1.0], -1.0, 1.0)
        >>> scheme = KnownWeights(0.3)
        >>> round(scheme.bounds(400, domain).first, 6)
        3.333333
    """

    name = "known"
    states = ("propensity",)

    propensity: float | str

    def __post_init__(self) -> None:
        """Refuse a probability outside (0, 1)."""
        if not isinstance(self.propensity, str):
            probability("weights.propensity", self.propensity, above_zero=True)

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds of weights without indirect sensitivity."""
        low, high = self._range(domain)
        return WeightBounds.per_record(0.5 / min(low, 1 - high))

    @classmethod
    def stated_bounds(cls, public: Mapping[str, Any], overlap: float) -> tuple[WeightBounds, float | None]:
        """See ``WeightScheme.stated_bounds``; the range of a column that the rule does not see is not stated."""
        if isinstance(public["propensity"], str):
            return WeightBounds.per_record(1.0), 0.5 / overlap
        given = as_number(public["propensity"])
        return WeightBounds.per_record(0.5 / min(given, 1 - given)), None

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "KnownPropensity":
        """Return the weights; nothing is fitted and nothing spent."""
        bounds, name = self.bounds(records.n, domain), self.propensity
        column = domain.names.index(name) if isinstance(name, str) else None
        return KnownPropensity(bounds, {"propensity": name}, column, self._range(domain))

    def _range(self, domain: Domain) -> tuple[float, float]:
        """Return the least and largest P(A = 1 | x) over the public domain."""
        if not isinstance(self.propensity, str):
            return float(self.propensity), float(self.propensity)
        return propensity_column(self.propensity, domain, domain.overlap, strict=True, what="weights.propensity")[1]


@dataclass(frozen=True, eq=False)
class KnownPropensity(InversePropensity):
    """Fitted `KnownWeights`.

    Attributes:
        column: Position of the covariate that holds the propensity; None for one number.
        span: Least and largest propensity, public.
    """

    column: int | None
    span: tuple[float, float]

    def propensity(self, x: Tensor) -> Tensor:
        """Return the known P(A = 1 | x), [B]."""
        if self.column is None:
            return x.new_full((len(x),), self.span[0], dtype=torch.float64)
        return x[:, self.column].double().clamp(*self.span)


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
    def stated_bounds(cls, public: Mapping[str, Any], overlap: float) -> tuple[WeightBounds, float | None]:
        """See ``WeightScheme.stated_bounds``."""
        return WeightBounds.per_record(1.0), None

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
