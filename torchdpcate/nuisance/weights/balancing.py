"""Weights fitted to all records without privacy: never released; their indirect sensitivity is certified."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.erm.private_fit import WeightBounds
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.nuisance.weights.scheme import FittedWeights, WeightScheme
from torchdpcate.privacy.budget import PrivacyBudget, as_number, positive
from torchdpcate.privacy.session import FitSession

CERTIFICATE = 2
"""Which bounds of weights and of their indirect sensitivity releases are made with."""


@dataclass(frozen=True)
class BalancingWeights(WeightScheme):
    r"""Weights of a strongly convex first stage on the same records, which nothing is spent on.

    One record moves the weights of the others by at most the indirect sensitivity :math:`D_1`, a public number, so the
    rule's noise grows from :math:`2 \omega_{max}` to :math:`D_1 + 2 \omega_{max}`. The indirect sensitivity does not
    fall with n: with few records or little ridge, a private propensity's weights (`PrivateWeights`) may need less.

    Args:
        ridge: Strong convexity of the first stage's mean objective, positive and public.

    Raises:
        InputError: A ridge that is not positive.
    """

    ridge: float

    @classmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """See ``WeightScheme.restated``: certified anew by the stated settings."""
        stated = {name: public[f"weights_{name}"] for name in cls._settings()}
        settings: dict[str, Any] = {name: value and as_number(value) for name, value in stated.items()}
        scheme = cls(**settings)
        bounds = scheme.bounds(n, domain)
        return bounds, scheme._public(bounds)

    @classmethod
    def _settings(cls) -> list[str]:
        """Return the names of the settings that statements have."""
        return [field.name for field in fields(cls) if field.name != "features"]

    def _public(self, bounds: WeightBounds) -> dict[str, Any]:
        """Return the public constants."""
        return {f"weights_{name}": getattr(self, name) for name in self._settings()} | {
            "indirect_sensitivity": bounds.indirect,
            "weights_certificate": CERTIFICATE,
        }

    def __post_init__(self) -> None:
        """Refuse a first stage that nothing holds in place."""
        positive("weights.ridge", self.ridge)

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds of the weights; others move by no more in all than if each crossed its range.

        Raises:
            InputError: Settings that do not fit the domain, or too many records.
        """
        least, most = self.span(domain)
        return WeightBounds.with_indirect(most, min(self.indirect_sensitivity(n, domain), (n - 1) * (most - least)))

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "BalancedWeights":
        """Return the weights of these records; nothing is spent, for they only enter the rule's objective."""
        bounds = self.bounds(records.n, domain)
        try:
            omega = self.balance(records, domain)
        except NumericalError as error:
            raise NumericalError(f"weights = {self.name}: {error}, that is weights.ridge") from None
        return BalancedWeights(bounds, self._public(bounds), records.x, records.a, omega)

    @abstractmethod
    def span(self, domain: Domain) -> tuple[float, float]:
        """Return the least and the largest weight there can be."""

    @abstractmethod
    def indirect_sensitivity(self, n: int, domain: Domain) -> float:
        """Return the certified indirect sensitivity of n records, the solver's stop included."""

    @abstractmethod
    def balance(self, records: CausalData, domain: Domain) -> Tensor:
        """Return the weights of the records, [n].

        Raises:
            NumericalError: The solver missed its tolerance.
        """


@dataclass(frozen=True, eq=False)
class BalancedWeights(FittedWeights):
    """Fitted `BalancingWeights`: weights of the records that they were fitted to, and of no others.

    Attributes:
        x: Covariates of those records, [n, q].
        a: Their treatment, [n].
        omega: Their weights, [n].
    """

    x: Tensor
    a: Tensor
    omega: Tensor

    def _omega(self, records: CausalData) -> Tensor:
        if not (torch.equal(records.x, self.x) and torch.equal(records.a, self.a)):
            raise InputError(f"weights of other records than the {len(self.a)} they were fitted to: fit them anew")
        return self.omega


def largest_inverse(cap: float | None, domain: Domain) -> float:
    """Return the cap of 1 / pi(a|x): the given one, or the inverse of the domain's overlap.

    Raises:
        InputError: A cap of two or less, which lets no arm weigh more than in a balanced trial.

    Example:
        >>> largest_inverse(None, Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25))
        4.0
    """
    most = 1 / domain.overlap if cap is None else positive("weights.cap", cap)
    if most <= 2:
        raise InputError(f"weights.cap = {most:g}: caps 1 / pi(a|x), which is 2 in a balanced trial; give more than 2")
    return most
