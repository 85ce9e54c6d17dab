"""Laws like a hospital's tables: skewed covariates, codes, confounding, effects in a few patients, known truth."""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from experiments.designs.hospital_law import REACH, SHAPES, PatientLaw, Traits, solve, uniform
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import to_number
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.errors import InputError

_SKEW = (1.2, 6.0)  # of the noise (1 - (1 - U)^(1/b))^(1/a), Kumaraswamy's law
_BLOCK, _BLOCKS = 10_000, 20  # patients of which averages are taken
_COLUMNS = (5, 400)
_TREATED = 0.005


class HospitalOutcome(ABC):
    """An outcome under a law.

    Args:
        law: Of patients, treatment and effect.
        seed: Of the outcome's own constants.

    Attributes:
        low: Public lower bound.
        high: Public upper bound.
        kind: Kind of its values.
        better: Which outcomes are good.
    """

    low: float
    high: float
    kind = "continuous"
    better = "lower"

    def __init__(self, law: PatientLaw, seed: int) -> None:
        self._law = law
        self._set(law, public_generator(seed, "hospital outcome"))

    def entry(self) -> dict[str, Any]:
        """Return the outcome's entry of a domain file."""
        declared = {} if self.kind == "continuous" else {"kind": self.kind}
        return {"name": "y", "low": self.low, "high": self.high, "better": self.better, **declared}

    def effect(self, traits: Traits) -> Tensor:
        """Return E[Y(1) - Y(0)] of patients, [n]."""
        return self.mean(traits, 1.0) - self.mean(traits, 0.0)

    @abstractmethod
    def _set(self, law: PatientLaw, generator: torch.Generator) -> None:
        """Draw the constants."""

    @abstractmethod
    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return E[Y(a)] of patients, [n], as bounded in public."""

    @abstractmethod
    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return Y(a) of patients, [n], within the public bounds."""


class Score(HospitalOutcome):
    r"""Baseline, effect and right-skewed noise :math:`s(x) (K - E K) / \text{sd}`, bounded and of sd about 1 in all.

    K is Kumaraswamy's variable, :math:`(1 - (1 - U)^{1/6})^{1/1.2}`. Bounds hold for every patient: nothing is clipped.
    """

    better = "higher"

    def _set(self, law: PatientLaw, generator: torch.Generator) -> None:
        bias = float(uniform(0.55, 0.95, 1, generator))
        self._baseline = min(0.95, max(0.5, bias / max(law.bias, 1e-9)))
        self._noise = math.sqrt(1.0 - self._baseline**2)
        self._middle, second = (_moment(k) for k in (1, 2))
        self._sd = math.sqrt(second - self._middle**2)
        most = self._noise * law.most_spread
        low = -REACH * self._baseline + law.size * law.shape_bounds[0] - most * self._middle / self._sd
        high = REACH * self._baseline + law.size * law.shape_bounds[1] + most * (1.0 - self._middle) / self._sd
        self.low, self.high = math.floor(2.0 * low) / 2.0, math.ceil(2.0 * high) / 2.0

    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return baseline and effect, [n]."""
        return self._baseline * traits.baseline + a * self.effect(traits)

    def effect(self, traits: Traits) -> Tensor:
        """Return size times shape, [n]."""
        return self._law.size * traits.shape

    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return scores, [n]."""
        u = torch.rand(len(traits.baseline), generator=generator, dtype=torch.float64)
        noise = ((1.0 - u ** (1.0 / _SKEW[1])) ** (1.0 / _SKEW[0]) - self._middle) / self._sd
        return self.mean(traits, a) + self._noise * traits.spread * noise


class Death(HospitalOutcome):
    """0 or 1: the logit of P(Y = 1) is linear in baseline and, of the treated, less by twice size times shape.

    Of the untreated 1.5 to 5 % die.
    """

    kind, low, high = "binary", 0.0, 1.0

    def _set(self, law: PatientLaw, generator: torch.Generator) -> None:
        rate, self._slope = (float(uniform(*bounds, 1, generator)) for bounds in ((0.015, 0.05), (0.7, 1.1)))
        known = self._slope * law.reference.baseline
        self._intercept = solve(lambda c: float(torch.sigmoid(c + known).mean()) - rate, -40.0, 40.0)

    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return the probability of death, [n]."""
        less = 2.0 * self._law.size * a * traits.shape
        return torch.sigmoid(self._intercept + self._slope * traits.baseline - less)

    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return deaths, [n]."""
        u = torch.rand(len(traits.baseline), generator=generator, dtype=torch.float64)
        return (u < self.mean(traits, a)).to(torch.float64)


class CostOutcome(HospitalOutcome):
    r"""No cost for 20 to 50 %, else the exponential of :math:`m + \beta b(x) - a g(x) + \sigma Z`, or high if less.

    g is size times shape. Patients who do badly have costs more often. High is the .9995 quantile of costs, rounded up
    to two digits; means are those of costs so bounded, :math:`E[\min(Y, \text{high})]`.
    """

    low = 0.0

    def _set(self, law: PatientLaw, generator: torch.Generator) -> None:
        zeros, self._sd, self._slope, typical = (
            float(uniform(*bounds, 1, generator)) for bounds in ((0.2, 0.5), (0.7, 1.0), (0.3, 0.6), (7.0, 9.0))
        )
        self._typical, reference = typical, law.reference
        half = 0.5 * reference.baseline
        self._some = solve(lambda c: float(torch.sigmoid(c + half).mean()) - (1.0 - zeros), -40.0, 40.0)

        def within(logarithm: float) -> float:
            control, treated = (self._above(reference, a, logarithm) for a in (0.0, 1.0))
            return 0.0005 - float(torch.lerp(control, treated, reference.propensity).mean())

        self.high = _rounded_up(math.exp(solve(within, 0.0, 40.0)))

    def _any(self, traits: Traits) -> Tensor:
        """Return P(cost > 0), [n]."""
        return torch.sigmoid(self._some + 0.5 * traits.baseline)

    def _logarithm(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return the mean logarithm of a cost above 0, [n]."""
        return self._typical + self._slope * traits.baseline - self._law.size * a * traits.shape

    def _above(self, traits: Traits, a: Tensor | float, bound: float) -> Tensor:
        """Return P(log cost > bound), [n]."""
        z = (self._logarithm(traits, a) - bound) / self._sd
        return self._any(traits) * torch.special.ndtr(z)

    def mean(self, traits: Traits, a: Tensor | float) -> Tensor:
        """Return the mean cost, [n], of costs cut at high."""
        middle, bound, sd = self._logarithm(traits, a), math.log(self.high), self._sd
        below = torch.exp(middle + sd**2 / 2.0) * torch.special.ndtr((bound - middle) / sd - sd)
        return self._any(traits) * below + self.high * self._above(traits, a, bound)

    def draw(self, traits: Traits, a: Tensor | float, generator: torch.Generator) -> Tensor:
        """Return costs, [n]."""
        n = len(traits.baseline)
        u = torch.rand(n, generator=generator, dtype=torch.float64)
        z = torch.randn(n, generator=generator, dtype=torch.float64)
        costs = torch.exp(self._logarithm(traits, a) + self._sd * z).clamp(max=self.high)
        return costs * (u < self._any(traits))


OUTCOMES: dict[str, type[HospitalOutcome]] = {"score": Score, "death": Death, "cost": CostOutcome}
"""Outcomes by name."""


def _moment(order: int) -> float:
    """Return E K^order of Kumaraswamy's law."""
    a, b = _SKEW
    share = 1.0 + order / a
    return b * math.exp(math.lgamma(share) + math.lgamma(b) - math.lgamma(share + b))


def _rounded_up(value: float) -> float:
    """Return value with two digits, not less than it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


class Hospital(GeneratedStudy):
    r"""Patients of a random law like a hospital's tables: :math:`E[Y | x, a] = m(x) + a\,\tau(x)`.

    Of the covariates half are laboratory values, skewed, of which the records use a fortieth to a half of the public
    range; the others are vitals (the first is age), conditions of 2 to 30 %, and up to six codes of 12 levels. All
    share two latent severities. 5 to 20 confounders decide on treatment and on the untreated outcome.

    ========= ==============================================================================================
    outcome   values
    ========= ==============================================================================================
    score     sd about 1 within a public range of 8 to 14, right-skewed noise whose scale follows a covariate;
              a cohort's difference of means is off by .5 to .9
    death     0 or 1, 1.5 to 5 % of the untreated; the effect is a difference of probabilities
    cost      0 for 20 to 50 %, else log-normal, cut at the .9995 quantile, as is the effect
    ========= ==============================================================================================

    ========= ==============================================================================================
    effect    shape; the effect of a score is size times shape, that on death and cost is one of logits and logarithms
    ========= ==============================================================================================
    constant  1
    subgroup  1 for about a tenth of the patients: older ones with a condition, or with some levels of a code
    threshold age for those whose value of a laboratory covariate is above a bound, 0 for the others
    older     a laboratory value's logarithm for those beyond an age, 0 for the others
    smooth    a sum of functions of single covariates
    ========= ==============================================================================================

    All constants are functions of ``law`` and of the other arguments but ``seed`` and ``n``: two seeds are two draws of
    records from one law. Propensities beyond the overlap, of about 2 % of the patients at most, are moved to it, and so
    the overlap is a fact.

    Args:
        outcome: ``score``, ``death`` or ``cost``.
        effect: ``constant``, ``subgroup``, ``threshold``, ``older`` or ``smooth``.
        trial: Whether a coin decides on treatment, with the known propensity ``treated``.
        treated: Mean of P(A = 1), between .005 and .995.
        columns: Number of covariates before codes are encoded, 5 to 400; 40 become 106.
        law: Public seed of the law's constants.
        overlap: Bound of the propensities; None takes .05, or a tenth of the rarer arm's share if that is less.

    Raises:
        InputError: No such outcome or effect, or a number out of range; n too small to split, or bad queries.

    Example:
        >>> study = Hospital("score", effect="subgroup", law=3, n=1000, seed=0).load()
        >>> study.records.x.shape, len(study.schema.columns), study.effect.unique().shape
        (torch.Size([900, 106]), 40, torch.Size([2]))
    """

    def __init__(
        self,
        outcome: str = "score",
        effect: str = "subgroup",
        trial: bool = False,
        treated: float = 0.5,
        columns: int = 40,
        law: int = 0,
        overlap: float | None = None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        for name, value, choices in (("outcome", outcome, OUTCOMES), ("effect", effect, SHAPES)):
            if value not in choices:
                raise InputError(f"data.{name} is {value!r}; choose one of {', '.join(choices)}")
        least, most = _COLUMNS
        if isinstance(columns, bool) or not isinstance(columns, int) or not least <= columns <= most:
            raise InputError(f"data.columns is {columns!r}; give an integer from {least} to {most}")
        if isinstance(law, bool) or not isinstance(law, int) or law < 0:
            raise InputError(f"data.law is {law!r}; give an integer of 0 or more")
        self.treated = to_number("data.treated", treated)
        if not _TREATED <= self.treated <= 1.0 - _TREATED:
            raise InputError(f"data.treated is {treated}; give a share from {_TREATED} to {1.0 - _TREATED}")
        rarer = min(self.treated, 1.0 - self.treated)
        self.overlap = min(0.05, 0.1 * rarer) if overlap is None else to_number("data.overlap", overlap)
        if not 0.0 < self.overlap <= 0.5 * rarer:
            raise InputError(f"data.overlap is {overlap}; give half the rarer arm's share, {0.5 * rarer:g}, or less")
        self.outcome = outcome
        self.shape = effect
        self.trial = trial
        self.columns = columns
        self.law = law

    def domain(self) -> Domain:
        """Return the public facts of the law."""
        return self.schema().domain

    def schema(self) -> TableSchema:
        """Return the public facts of the table."""
        return self._schema

    def effect(self, x: Tensor) -> Tensor:
        """Return E[Y(1) - Y(0) | x], [n], at encoded x [n, q]; of costs as they are cut."""
        return self._outcome.effect(self._law.traits(x))

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x), [n], at encoded x [n, q]."""
        return torch.full_like(x[:, 0], self.treated) if self.trial else self._law.traits(x).propensity

    def average_effect(self, estimand: str) -> float:
        """Return the true effect of an estimand under the law, by 200,000 patients.

        Its standard error is below .002 of the outcome's standard deviation.

        Raises:
            InputError: No such estimand.

        Example:
            >>> source = Hospital(effect="constant", law=1)
            >>> bool(abs(source.average_effect("ATE") - source.effect(source.load().queries)[0]) < 1e-12)
            True
        """
        of = make_estimand(estimand, 0.5)
        effect, propensity = self._many
        mass = of.tilt(propensity)
        return float((mass * effect).sum() / mass.sum())

    def draw(self, n: int, generator: torch.Generator) -> CausalData:
        """Return n samples.

        Args:
            n: How many.
            generator: What they are drawn with.
        """
        x = self._law.patients.draw(n, generator)
        traits = self._law.traits(x)
        coin = torch.rand(n, generator=generator, dtype=torch.float64)
        a = (coin < (self.treated if self.trial else traits.propensity)).to(torch.float64)
        return CausalData(x, a, self._outcome.draw(traits, a, generator))

    @cached_property
    def _law(self) -> PatientLaw:
        return PatientLaw(self.law, self.treated, self.overlap, self.columns, self.shape)

    @cached_property
    def _outcome(self) -> HospitalOutcome:
        return OUTCOMES[self.outcome](self._law, self.law)

    @cached_property
    def _schema(self) -> TableSchema:
        facts = {
            "treatment": "a",
            "outcome": self._outcome.entry(),
            "covariates": self._law.patients.entries(),
            "overlap": self.overlap,
            "origin": self._origin(),
        }
        return TableSchema.from_dict(facts | {"propensity" if self.trial else "treated": self.treated})

    @cached_property
    def _many(self) -> tuple[Tensor, Tensor]:
        """Effects and propensities of the patients of which averages are taken."""
        generator = public_generator(self.law, "hospital averages")
        blocks = (self._law.patients.draw(_BLOCK, generator) for _ in range(_BLOCKS))
        parts = [torch.stack([self.effect(x), self.propensity(x)]) for x in blocks]
        effect, propensity = torch.cat(parts, 1)
        return effect, propensity
