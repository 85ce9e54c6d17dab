r"""Weights of the records in a rule's objective, and the public bounds of what one record can do to them.

The weight of a record is omega = 1 / (2 pi(a|x)), about one on average: it makes the treated and the untreated stand
for everybody. A weight is a public function of its own record: what one record does to the weights of the others, the
*indirect sensitivity*, is nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.propensity import KnownPropensity
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.feature_maps import FeatureMap, conditions_of, on_domain
from torchdpcate.fit.losses import Logistic, LossBounds
from torchdpcate.fit.minimise import default_tolerance, minimise
from torchdpcate.fit.private_fit import ObjectiveNoise, PrivateFit, WeightBounds
from torchdpcate.fit.worst_pairs import objective_game
from torchdpcate.privacy.budget import PrivacyBudget, as_number, integer, positive
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.guarantee import Condition, Level
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.registry import Registry, refuse_strings

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


Fits = Callable[[Tensor], Tensor]
"""Linear terms [runs, p] -> coefficients [runs, p]."""

_EQUAL = WeightBounds.per_record(1.0)  # every record weighs one in the propensity's own fit
_JACOBIAN_SHARE = 0.3  # of epsilon that the default ridge leaves to the change of curvature
_NOISE = 200.0  # times p / (n epsilon^2): the ridge below which noise swamps the propensity
_NONPRIVATE_RIDGE = 1e-4  # a record
_SIZE, _ENTRY = "propensity_size", "propensity_largest_entry"  # stated of features other than scaled covariates
_STATED = ("propensity_ridge", _SIZE, _ENTRY)
_NOISE_LAW = "box"  # of the objective: least for scaled covariates
_LEAST_RIDGE = 1e-9  # a record, below which the noise that hides the stop of the fit would grow without end


@dataclass(frozen=True)
class PrivateWeights(WeightScheme):
    r"""Weights 1 / (2 clip(pi(a|x))) by a private logistic regression, whose coefficients are paid for.

    .. math:: \tilde l = \arg\min_l \sum_i \log(1 + e^{-t_i \psi_i^\top l}) + \tfrac\gamma2 \|l\|^2 + b^\top l + noise,
        \quad \omega_i = \frac{1}{2\, \mathrm{clip}(\pi(a_i | x_i))}, \quad \pi = \sigma(\psi^\top \tilde l)

    For every fixed l the weight of a record is a public function of the record itself: no indirect sensitivity, so the
    rule's noise is that of a known propensity. Weights are never normalised by a sum of records, cut at a sample's
    quantile, or scaled by a sample's prevalence, each of which would undo that.

    Guarantee:
        Certified: objective perturbation with the fraction's epsilon, pure, which
        adds to the rule's own by composition (theory note
        ``policy_learning``, sections 3 and 4.3; docs/guarantees/objective_perturbation.md).

    Args:
        budget_fraction: Fraction of the budget that pays for the propensity, in (0, 1).
        ridge: gamma of the summed objective; None takes ``ridge_for``.
        features: Public feature map; None takes intercept and scaled covariates.

    Raises:
        InputError: A fraction or ridge out of its range.

    Example:
        >>> scheme = PrivateWeights(budget_fraction=0.25)
        >>> scheme.bounds(1000, Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25)).first
        4.0
    """

    name = "private"
    budget_fraction: float = 0.25
    ridge: float | None = None
    features: FeatureMap | None = None

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        refuse_strings(type(self), vars(self))
        if not 0 < self.budget_fraction < 1:
            raise InputError(
                f"weights.budget_fraction = {self.budget_fraction}: give a number strictly between 0 and 1"
            )
        if self.ridge is not None:
            positive("weights.ridge", self.ridge)

    def bounds(self, n: int, domain: Domain) -> WeightBounds:
        """Return the bounds before the propensity is known; ``FittedWeights.bounds`` may be smaller."""
        return WeightBounds.per_record(0.5 / domain.overlap)

    @classmethod
    def restated(cls, public: Mapping[str, Any], n: int, domain: Domain) -> tuple[WeightBounds, dict[str, Any]]:
        """See ``WeightScheme.restated``; the largest weight follows from coefficients that are not released."""
        most = min(max(as_number(public["largest_weight"]), 1.0), 0.5 / domain.overlap)
        settings = {name: public[name] for name in _STATED if name in public}
        return WeightBounds.per_record(most), {
            "largest_weight": most,
            "propensity_perturbation": _NOISE_LAW,
            **settings,
        }

    def noise(self, n: int, domain: Domain, budget: PrivacyBudget) -> ObjectiveNoise:
        """See ``WeightScheme.noise``; refuses a ridge too small for the budget."""
        features = on_domain(self.features, domain)
        size, entry = features.dimension, features.largest_entry
        return _objective(budget, self.ridge_for(n, size, budget), size, entry)

    @classmethod
    def restated_noise(cls, public: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> ObjectiveNoise:
        """See ``WeightScheme.restated_noise``; features of the library's default have the shape of the domain's."""
        known = on_domain(None, domain)
        size = integer(_SIZE, public.get(_SIZE, known.dimension), least=1)
        entry = as_number(public.get(_ENTRY, known.largest_entry))
        return _objective(budget, as_number(public["propensity_ridge"]), size, entry)

    def ridge_for(self, n: int, size: int, budget: PrivacyBudget | None) -> float:
        r"""Return the ridge gamma: the given one, or a public function of n, p and the budget.

        .. math:: \gamma = \max\Big\{ \frac{1/4}{e^{0.3 \varepsilon} - 1},\; \frac{200\, p}{n \varepsilon^2} \Big\}

        The first leaves epsilon_J three tenths of epsilon. Below the second the noise swamps the propensity, and wild
        weights harm more than equal ones; above it, weights shrink towards one. Found on synthetic
        propensities (n from 400 to 20,000, p of 5 and 11, epsilon from 0.025 to 1), where the weights' mean squared
        error was within a fifth of equal weights' error of the best ridge's. Without privacy it is 1e-4 n.

        Args:
            n: Records that the propensity is fitted to.
            size: p, number of features.
            budget: What they may spend on it.

        Example:
            >>> round(PrivateWeights().ridge_for(4000, 11, PrivacyBudget(0.25, 0.0)), 6)
            8.8
        """
        if self.ridge is not None:
            return self.ridge
        if budget is None:
            return _NONPRIVATE_RIDGE * n
        determinants = _EQUAL.ridge_for(Logistic.curvature, _JACOBIAN_SHARE * budget.epsilon)
        return max(determinants, _NOISE * size / (n * budget.epsilon**2), _LEAST_RIDGE * n)

    def fit(
        self,
        records: CausalData,
        domain: Domain,
        *,
        budget: PrivacyBudget | None,
        session: FitSession,
    ) -> "PrivatePropensity":
        """Return weights by the propensity, once paid for; see the base class."""
        features = on_domain(self.features, domain)
        psi, label = features(records.x), 2 * records.a.double() - 1
        problem = psi, label, torch.ones_like(label)
        gamma, most = self.ridge_for(records.n, features.dimension, budget), 0.5 / domain.overlap
        if budget is None:
            fits = logistic_fits(*problem, gamma, default_tolerance(Logistic.slope, _EQUAL.most))
            theta = fits(psi.new_zeros(1, features.dimension))[0]
            return PrivatePropensity(WeightBounds.per_record(most), {"propensity_ridge": gamma}, theta, features)
        objective = self.noise(records.n, domain, budget)
        session.pay(objective.event, Level.CONDITIONAL if self.conditions else self.level)
        draw = objective.release(logistic_fits(*problem, gamma, objective.tolerance), session.noise, 1)
        theta = session.noise.released(draw[0])
        most = min(most, largest_weight(theta, features))
        public = {"propensity_ridge": gamma, "propensity_perturbation": _NOISE_LAW, "largest_weight": most}
        if self.features is not None:
            public[_SIZE] = features.dimension
            public[_ENTRY] = features.largest_entry
        return PrivatePropensity(WeightBounds.per_record(most), public, theta, features)


def _objective(budget: PrivacyBudget, ridge: float, size: int, largest_entry: float) -> ObjectiveNoise:
    """Return the objective noise of a propensity with so many features."""
    fit = PrivateFit(LossBounds.of(Logistic()), _EQUAL, ridge, size, largest_entry)
    return fit.objective(budget, _NOISE_LAW, remedy="raise weights.budget_fraction")


def logistic_fits(psi: Tensor, label: Tensor, count: Tensor, gamma: float, tolerance: float) -> Fits:
    """Return the map from linear terms [runs, p] to minimisers [runs, p] of the perturbed logistic sums.

    Args:
        psi: Features, [n, p].
        label: 1 for the treated and -1 for the others, [n].
        count: How many records each row stands for, [n].
        gamma: Ridge of the sum.
        tolerance: Largest gradient norm at the end.
    """
    return lambda linear_terms: minimise(psi, label, count, Logistic(), gamma, linear_terms, tolerance)


def largest_weight(theta: Tensor, features: FeatureMap) -> float:
    r"""Bound of 1 / (2 pi(a|x)) over the public domain, for coefficients that are public.

    .. math:: (1 + e^u) / 2, \quad u = \min\{ \|\theta\|_2,\; \max_j |\psi_j|\, \|\theta\|_1 \} \ge |\psi(x)^\top\theta|

    For intercept and scaled covariates the second is attained at a corner of the domain.

    Args:
        theta: Coefficients, [p].
        features: The feature map, set up.

    Example:
        >>> features = on_domain(None, Domain([0.0], [1.0], -1.0, 1.0))
        >>> round(largest_weight(torch.tensor([0.0, 2**0.5]).double(), features), 6)
        1.859141
    """
    bound = min(theta.norm().item(), features.largest_entry * theta.abs().sum().item())
    return (1 + math.exp(min(bound, 700.0))) / 2


@dataclass(frozen=True, eq=False)
class PrivatePropensity(InversePropensity):
    """Fitted `PrivateWeights`.

    Attributes:
        theta: Coefficients, paid for where there is a budget, [p].
        features: The feature map, set up.
    """

    theta: Tensor
    features: FeatureMap

    def propensity(self, x: Tensor) -> Tensor:
        """Return the clipped P(A = 1 | x), [B]."""
        least = 0.5 / self.bounds.most
        return torch.sigmoid(self.features.product(self.theta, x)).clamp(least, 1 - least)


@worst_case(
    "private_propensity",
    PrivateWeights,
    attacks=[Charge(Purpose.WEIGHTS, "private")],
    pair="a record treated at one end of the domain or untreated at the other, among many that disagree with both",
)
def _private_propensity(budget: PrivacyBudget) -> Game:
    # The crowd holds theta where both records' gradients are full and differ in the first entry alone, by all that a
    # cube's noise hides; a large ridge leaves little to the curvature.
    domain, crowd = Domain([0.0], [1.0], -0.5, 0.5), 10_000.0
    features, gamma = on_domain(None, domain), Logistic.curvature / math.expm1(0.02 * budget.epsilon)
    objective = PrivateWeights(ridge=gamma).noise(1, domain, budget)
    count = torch.tensor([1.0, crowd, crowd], dtype=torch.float64)
    sides = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)  # x of the record, of the crowd
    psi, label = features(sides.reshape(-1, 1)).reshape(2, 3, -1), torch.tensor([[1.0, 1.0, -1.0], [-1.0, 1.0, -1.0]])
    datasets = [(psi[k], label[k].double(), count) for k in (0, 1)]
    return objective_game(objective, Logistic(), datasets, PrivacyBudget(budget.epsilon, 0.0))
