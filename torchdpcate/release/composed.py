"""The release of one composition: an effect function fitted with all nuisances under one plan, and the rule by it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchdpcate._process import BATCH
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import labelled
from torchdpcate.errors import InputError, MissingError
from torchdpcate.fit.weighted_basis import UNITS, HiddenUnits, Standardisation, WeightedBasis, effects_of
from torchdpcate.release.averages import (
    ABOUT,
    AVERAGE,
    NO_LINES,
    PARTS,
    SLOPE,
    VALUES,
    Averages,
    LineNumbers,
    level_of,
    robustness,
    tilts_of,
)
from torchdpcate.release.effect_law import EffectLaw, IntervalNumbers, stated_bias
from torchdpcate.release.lines import BY_EFFECT, EVERYBODY, OF_POLICY, OF_RULE, SUBGROUPS, WEIGHTED, Lines
from torchdpcate.release.module import ComposedValues, Gain, ReleaseModule
from torchdpcate.release.parts import tensors_of
from torchdpcate.release.population import ROWS, released_population
from torchdpcate.release.release import EffectRelease, require_tensor
from torchdpcate.release.rule import DecisionRelease
from torchdpcate.release.statement import (
    ESTIMATED,
    LIKE_PRIOR,
    MISSING_ESTIMATED,
    MODELLED,
    OVERLAPPING,
    RANDOMISED,
    RANDOMISED_LINES,
    RESIDUALS,
    UNMEASURED,
    PrivacyStatement,
    and_counting,
)
from torchdpcate.typing import Covariates

_WEIGHTS = "persons in the weights of their chances of either arm (docs/intervals.md)"


@dataclass(frozen=True, eq=False, repr=False)
class ComposedRelease(EffectRelease):
    r"""A CATE function: g(x) = psi(z(x))'theta, clipped to [-R, R].

    Of K > 2 arms the coefficients are those of K - 1 functions :math:`b(x)`, one after the other, and the effects
    those of ``arms`` against the reference, see ``effects_of``.

    The average effect of a release is the mean of its effects, see ``shift``. One that was planned as one number is the
    average effect of everybody; persons' intervals say how far theirs is expected to lie from it.

    Attributes:
        theta: Coefficients, shrunk as far as their known noise says, float64 [1 + p].
        estimates: The same before that, with known noise, float64 [1 + p].
        curvatures: Released mean curvatures of the features, from which the noise follows, float64
            [1 + p, 1 + p].
        scale: Released residual scale S, in outcome units.
        basis: Features of standardised covariates, with public weights.
        standardisation: Released means and spreads of the covariates in use.
        schema: Columns and public bounds.
        privacy: The privacy statement.
        columns: Covariates in use; None for all.
        law: What intervals rest on; None where there are none.
        numbers: Released numbers that the law was made of.
        without: Why there is no law, in one line; None where there is one.
        weight: Released mean weight of the records; None where all count alike.
        follow_up: Released counts of the ends of follow-up, see ``FollowUpCells``; None where outcomes are known.
        averages: Averages of effects with intervals; None where there are none.
        line_numbers: Released numbers that they were made of.
        no_lines: Why there are none, in one line.
    """

    kind = "composed"
    subject = "Estimated effect of {contrast} on {outcome} as a function of the covariates"

    theta: Tensor
    estimates: Tensor
    curvatures: Tensor
    scale: float
    basis: WeightedBasis
    standardisation: Standardisation
    schema: TableSchema
    privacy: PrivacyStatement
    columns: tuple[int, ...] | None = field(default=None, kw_only=True)
    law: EffectLaw | None = field(default=None, kw_only=True)
    numbers: IntervalNumbers | None = field(default=None, kw_only=True)
    without: str | None = field(default=None, kw_only=True)
    weight: float | None = field(default=None, kw_only=True)
    follow_up: Tensor | None = field(default=None, kw_only=True)
    averages: Averages | None = field(default=None, kw_only=True)
    line_numbers: LineNumbers | None = field(default=None, kw_only=True)
    no_lines: str | None = field(default=None, kw_only=True)

    @property
    def form(self) -> str:
        """What the effect is: ``constant``, ``linear`` or ``additive``."""
        kinds = set(self.basis.parts) if self.features_used else set()
        return "additive" if kinds - {"1"} else "linear" if kinds else "constant"

    @property
    def features_used(self) -> set[int]:
        """Positions of the encoded columns that the effect may depend on."""
        columns = range(self.domain.dimension) if self.columns is None else self.columns
        left = self.theta.view(-1, self.basis.dimension)[:, 1:].any(0).tolist()
        features = [feature for feature, there in zip(self.basis.features, left, strict=True) if there]
        if any(feature.kind == UNITS for feature in features):
            return set(columns)
        return {columns[place] for feature in features for place in feature[1:] if place is not None}

    @property
    def has_intervals(self) -> bool:
        """Whether there are confidence intervals of the effect; of one number without a law, of the average alone."""
        of_average = self.averages is not None and not self.arms and self.form == "constant"
        return self.law is not None or of_average

    @property
    def reference(self) -> Tensor:
        """Encoded rows whose covariates have the released means and spreads, over which it is shown."""
        return self.population(ROWS)

    def population(self, count: int) -> Tensor:
        """Return encoded rows whose covariates have the released means and spreads, float64 [count, q].

        Covariates are independent of each other: categories come with their released shares, numbers by the Beta law
        between their bounds that has the released mean and spread. Covariates that the release leaves out are uniform.
        The rows follow from released numbers and a fixed seed alone: no record is among them.
        """
        return released_population(self.schema, self.standardisation, self.columns, count)

    def features(self, x: Tensor) -> Tensor:
        """Return psi, [m, 1 + p], at encoded covariates x [m, q]."""
        if self.columns is None:
            return self.basis(self.standardisation.of(self.domain.scale(x), None, self.domain.indicators))
        seen, domain = self._seen
        u = domain.scale(x[:, seen])
        return self.basis(self.standardisation.of(u, range(len(self.columns)), domain.indicators))

    @cached_property
    def _seen(self) -> tuple[list[int], Domain]:
        """Columns that the features are of, with those that say where one is missing after them, and their bounds."""
        columns = range(self.domain.dimension) if self.columns is None else self.columns
        beside = (self.domain.indicators[column] for column in columns)
        seen = list(dict.fromkeys((*columns, *(place for place in beside if place is not None))))
        return seen, self.domain.select(seen)

    def effect_tensor(self, x: Tensor) -> Tensor:
        """Return g(x), [m]; of K > 2 arms [m, K - 1]."""
        bound, arms = self.domain.outcome_range, len(self.schema.actions)
        found = torch.cat([effects_of(self.features(rows), self.theta, arms) for rows in x.split(BATCH)])
        return (found + self.shift).clamp(-bound, bound)

    def module(self) -> nn.Module:
        """Return the effect as a module to serve or export; see ``Release.module``."""
        return ReleaseModule(self.domain, self.values())

    def values(self) -> ComposedValues:
        """Return the effect at covariates within their bounds as a module."""
        of, arms = (self.theta, self.shift, self.basis, self.standardisation), len(self.schema.actions)
        return ComposedValues(*of, self.domain, self.columns, arms)

    @property
    def shift(self) -> float:
        r"""What is added to psi'theta, in outcome units; zero where the average has no interval.

        It is ``level_of`` :math:`d = \text{average} - \bar\psi^\top\theta`, over public people where there are lines:
        where their difference may be noise the level of the regression stays, which has less, and is within a standard
        error of the interval's middle. Where a rule has values, the average is that of the sums before these.
        """
        if self.arms:
            return 0.0
        if self.averages is not None and self.line_numbers is not None:
            if self.averages.level is not None:
                return self.averages.level
            return level_of(self.averages.estimate() - self.line_numbers.facts.centre, self.averages.own_variance)
        if self.law is not None:
            apart = self.law.average - float(self.law.centre @ self.theta)
            return level_of(apart, self.law.average_variance)
        return 0.0

    def interval(self, X: Covariates, level: float = 0.95, bias: float = 0.0) -> np.ndarray:
        r"""Return intervals of the effect for a person like each of X, [m, 2], in outcome units.

        They hold sampling, all privacy noise, that of the nuisances too, and what effects are expected to have beyond
        the released features, from released numbers and public facts alone: as probabilities over persons and
        releases. In trials they are about the effect expected given the estimates, at the level of the average's line,
        see ``law_of_persons``. ``target`` names what they are about. The released effect need not be their middle;
        where it lies beyond an end, that end is moved to it, which can only raise the probability. They hold if what
        ``assumptions`` says is so.

        Args:
            X: Covariates, as for ``effect``.
            level: Probability in (0, 1).
            bias: Of releases with an estimated propensity: a bound of :math:`\|\hat\pi - \pi\| \|\hat\mu - \mu\| / E h`
                that the reader states, in outcome units (root mean squares over the records; mu of both arms, each in
                the weight of the other; h = pi (1 - pi)). The interval grows by what such errors could do.

        Raises:
            InputError: The release has none, and why; a level outside (0, 1); or a bias where there can be none.
        """
        law, x, bound = self.law_of_persons, self._covariates(X), self.domain.outcome_range
        return _hull(law.interval(self.features(x), level, bias), self.effect_tensor(x)).clamp(-bound, bound).numpy()

    def mean_interval(self, X: Covariates, level: float = 0.95, rows: int | None = None) -> np.ndarray:
        """Return confidence intervals of the projection's mean over public rows, [m, 2], in outcome units.

        What the projection misses is zero on average over the records, and is not in them; of single rows it is, as of
        ``interval``. The released effects' mean is in them, as ``interval`` says. Of one number they are ``average``.

        Args:
            X: Covariates [m rows, q], as for ``effect``.
            level: Probability in (0, 1).
            rows: How many rows in turn make a mean; None takes all of them.

        Raises:
            InputError: As ``interval``, or no rows, or a number of rows that does not divide that of X.
        """
        x = self._covariates(X)
        rows = len(x) if rows is None else rows
        if rows < 1 or len(x) % rows:
            raise InputError(f"rows = {rows}: X has {len(x)} rows; give a number that divides it")
        if self.form == "constant" and not self.arms and (rows > 1 or self.law is None):
            return np.tile(self.average(level), (len(x) // rows, 1))
        law, psi = self.law_of_persons if rows == 1 else self._required_law(), self.features(x)
        means = self.effect_tensor(x).view(-1, rows).mean(1)
        found = (
            law.interval(psi, level)
            if rows == 1
            else law.mean_interval(psi.view(-1, rows, psi.shape[1]).mean(1), level)
        )
        bound = self.domain.outcome_range
        return _hull(found, means).clamp(-bound, bound).numpy()

    def effect_contrast(self, X: Covariates, X2: Covariates, level: float = 0.95, bias: float = 0.0) -> np.ndarray:
        """Return intervals of the effect at X minus that at X2, row by row, [m, 2], in outcome units.

        The difference of the released effects is in them, as ``interval`` says.

        Args:
            X: Covariates, as for ``effect``.
            X2: As many rows, or one.
            level: Probability in (0, 1).
            bias: As of ``interval``.

        Raises:
            InputError: As ``interval``, or rows that do not fit.
        """
        law, (x, x2) = self.law_of_persons, (self._covariates(given) for given in (X, X2))
        if len(x2) not in (1, len(x)):
            raise InputError(f"X2: has {len(x2)} rows for {len(x)} of X; give as many, or one")
        psi, other = self.features(x), self.features(x2)
        difference = self.effect_tensor(x) - self.effect_tensor(x2)
        apart = (x != x2).any(1)
        return _hull(law.contrast(psi, other.expand_as(psi), level, bias, apart), difference).numpy()

    def average(self, level: float = 0.95, bias: float = 0.0) -> np.ndarray:
        """Return the confidence interval of the mean effect, (low, high), in outcome units.

        It is the line of everybody, where there are lines. Else the mean weighs records by pi (1 - pi): all alike where
        the propensity is one number. ``average_effect`` is in it, as ``interval`` says, within a standard error of its
        middle where no rule has values.

        Args:
            level: Probability in (0, 1).
            bias: As of ``interval``; the mean effect's interval grows by just that on either side.

        Raises:
            InputError: As ``interval``.
            MissingError: There are more than two arms, which have ``average_effects``.
        """
        if self.arms:
            raise MissingError(f"average: {len(self.arms) + 1} arms have several; see average_effects and lines()")
        bound = self.domain.outcome_range
        if self.averages is not None:
            stated = stated_bias(bias, self.domain.known_propensity is not None)
            low, high = self.averages.interval(level=level)
            found = torch.tensor([low - stated, high + stated], dtype=torch.float64)
        else:
            found = self._required_law().average_interval(level, bias)
        return _hull(found[None], found.new_tensor([self.average_effect]))[0].clamp(-bound, bound).numpy()

    @property
    def average_effect(self) -> float:
        """Mean of the released effects over the records, in outcome units; ``average`` is its interval.

        Of a release without intervals it is the effect's constant: all features but products are centred by the
        released means, so that the constant is the mean effect but for what correlated covariates add by products.

        Raises:
            MissingError: There are more than two arms, which have ``average_effects``.
        """
        if self.arms:
            raise MissingError(f"average_effect: {len(self.arms) + 1} arms have several; see average_effects")
        bound, theta = self.domain.outcome_range, self.theta
        if self.averages is not None and self.line_numbers is not None:
            found = self.line_numbers.facts.centre + self.shift
        elif self.law is None:
            found = float(theta[0] * self.basis.feature_weights[0].sqrt())
        else:
            found = float(self.law.centre @ theta) + self.shift
        return min(max(found, -bound), bound)

    @property
    def average_effects(self) -> np.ndarray:
        """Mean effect of each of ``arms``, float64 [K - 1], in outcome units: of its line, or of its constant.

        Of two arms the one.
        """
        if not self.arms:
            return np.array([self.average_effect])
        bound, lines = self.domain.outcome_range, self.averages
        if lines is not None:
            return np.array([lines.estimate(name) for name in lines.names])
        first = torch.zeros(1, self.basis.dimension, dtype=torch.float64)
        first[0, 0] = self.basis.feature_weights[0].sqrt()
        return effects_of(first, self.theta, len(self.schema.actions))[0].clamp(-bound, bound).numpy()

    def rule(
        self, cost: float = 0.0, threshold: float = 0.0, budget: float | None = None, population: Any = None
    ) -> "ComposedRule":
        """Return the rule that treats where the effect exceeds its cost; post-processing, hence free.

        The gain of a treatment is its effect, or where the schema says that lower outcomes are better, its effect with
        the other sign.

        Args:
            cost: Of a treatment, in outcome units.
            threshold: Least gain beyond the cost, in outcome units.
            budget: Largest share of the population that is to be treated, those who gain most first; None for no
                limit. Who gain alike are treated alike, hence none of them where all would be too many.
            population: Public covariates [m, q] that the budget refers to, as for ``effect``; never the records of
                the fit, of which the rule would tell.

        Raises:
            InputError: The schema does not say whether higher or lower outcomes are better; a cost or threshold that is
                no finite number; a budget outside [0, 1] or without a population; a population outside the domain, or
                without rows; more than two arms.

        Example:
            >>> from torchdpcate.release.composed import _example
            >>> effect = _example().effect
            >>> effect.rule(cost=0.3).decide([[0.4], [0.6], [0.9]]).tolist()
            [0, 0, 1]
            >>> effect.rule(budget=0.5, population=[[0.7], [0.8], [0.9], [1.0]]).decide([[0.8], [0.9]]).tolist()
            [0, 1]
        """
        self.schema.two_arms("a rule by an effect")
        return rule_of(self, Choices.of(self.schema, cost, threshold, budget, population))

    @property
    def target(self) -> str:
        """What intervals are about, in one sentence."""
        law, all_of_them = self._required_law(), self.basis.dimension
        found, missed = law.directions.shape[1], math.sqrt(law.missed)
        features = "its features" if found == all_of_them else f"{found} combinations of its {all_of_them} features"
        projection = f"the best linear projection of the effect on {features}, at the level of the average effect"
        first = "the average effect" if self.form == "constant" else projection
        estimated = " by the released propensity" if law.nuisances is not None else ""
        beyond = f", and what persons' effects are expected to have beyond that (deviation {missed:.3g})"
        return f"{first}, {_WEIGHTS}{estimated}{beyond if missed else ''}"

    @property
    def named(self) -> Lines | None:
        """The averages as lines, all but the slope; of a law alone that of the average; None without both."""
        averages = self.averages
        if averages is None:
            return None if self.law is None or self.arms else self._average_alone()
        own = [k for k, name in enumerate(averages.names) if name not in (SLOPE, EVERYBODY)]  # the average is there
        names = tuple(averages.names[k] for k in own)
        kinds = {name: BY_EFFECT for name in averages.groups} | dict.fromkeys(VALUES, OF_RULE)
        kinds |= dict.fromkeys(averages.policies, OF_POLICY) | {AVERAGE: EVERYBODY}
        kinds |= dict.fromkeys(tilts_of(names), WEIGHTED)
        kinds |= dict.fromkeys(names, EVERYBODY) if self.arms else {}
        titles = dict(zip(averages.names, self._line_titles, strict=True))
        everywhere = (EVERYBODY, WEIGHTED, None)  # with cells; groups by effect are other people elsewhere
        estimates, variances = averages.estimates[own].clone(), averages.variances[own]
        if not self.arms:
            estimates[0] = self.average_effect
        noise, common = variances[:, PARTS.index("noise")], variances[:, PARTS.index("nuisances")].clone()
        grouped = [*map(names.index, averages.groups)]
        # sums of groups share noise with that of everybody, against each other
        common[grouped] += noise[grouped] / max(len(grouped) - 1, 1)
        records = averages.records[own] * self.privacy.n
        records[grouped] *= self.privacy.n / records[grouped].sum().clamp_min(1)

        def ends(level: float) -> Tensor:
            found = torch.tensor([averages.interval(name, level) for name in names], dtype=torch.float64)
            if not self.arms:
                found[0] = torch.from_numpy(self.average(level))
            return found

        return Lines(
            tuple(self.arm_names) or names,
            tuple(titles[name] for name in names),
            tuple(kinds.get(name, SUBGROUPS) for name in names),
            estimates,
            variances.sum(1).sqrt(),
            noise.sqrt(),
            records,
            ends,
            self.line_assumptions,
            unshrunk=averages.estimates[own],
            common=common,
            disjoint=(BY_EFFECT,),
            comparable=tuple(self.arm_names)
            or tuple(name for name in names if name not in kinds or kinds[name] in everywhere),
        )

    @property
    def _line_titles(self) -> list[str]:
        """What each of the averages is of, in words."""
        return list(self.arm_titles) or labelled(self.schema, self.required_averages.titles())

    def _average_alone(self) -> Lines:
        law = self._required_law()
        rows = [[self.average_effect], [law.average_variance**0.5], [math.nan], [self.privacy.n]]
        y, error, noise, n = torch.tensor(rows, dtype=torch.float64)

        def ends(level: float) -> Tensor:
            return torch.from_numpy(self.average(level))[None]

        name, group = (AVERAGE, EVERYBODY) if law.nuisances is None else ("ATO", WEIGHTED)
        pooled = {"unshrunk": y.new_tensor([law.average]), "common": law.moments(law.centre[None])[2]}
        own = (y, error, noise, n, ends, self.assumptions)
        return Lines((name,), (ABOUT[name],), (group,), *own, **pooled, comparable=(name,))

    @property
    def why_no_lines(self) -> str:
        """Why there are none, in words."""
        return self.no_lines or "none were requested"

    @property
    def required_averages(self) -> Averages:
        """The lines.

        Raises:
            MissingError: There are none.
        """
        if self.averages is None:
            raise MissingError(NO_LINES.format(self.no_lines))
        return self.averages

    @property
    def line_assumptions(self) -> str:
        """What lines rest on, the strongest first; one sentence without its end."""
        missing = f"; {MISSING_ESTIMATED}" if self.schema.may_miss else ""
        if self.domain.known_propensity is not None:
            return and_counting(f"{RANDOMISED_LINES}", self.domain)
        return and_counting(f"{UNMEASURED}; {OVERLAPPING}; {MODELLED}{missing}", self.domain)

    def explained_away(self) -> tuple[float, float]:
        """Return how strong an unmeasured confounder must be to bring the average, and its interval's end, to zero.

        It is the share of what is left of the outcome and of the treatment's weights that it explains; see
        ``robustness``. The second is 0 where the interval holds zero. Post-processing, hence free.

        Raises:
            MissingError: There are no lines.
        """
        if self.averages is None or self.line_numbers is None:
            raise MissingError(NO_LINES.format(self.no_lines))
        (low, high), deviation = self.average(), self.line_numbers.facts.deviation
        near = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return robustness(self.average_effect, deviation), robustness(float(near), deviation)

    @property
    def without_words(self) -> str:
        """Why there are no intervals, for readers: no setting that the curator has; empty where there are some."""
        reason, _, setting = (self.without or "").partition("second_stage.")
        return "none were requested" if setting and not reason.endswith("; ") else reason.removesuffix("; ")

    @property
    def assumptions(self) -> str:
        """When intervals hold their target, beside noise and sampling, which they count; one sentence.

        It is ``line_assumptions`` where lines alone have intervals.

        Raises:
            MissingError: The release has none.
        """
        if self.law is None and self.averages is not None:
            return self.line_assumptions
        design = RANDOMISED if self._required_law().nuisances is None else ESTIMATED
        beyond = f"; {LIKE_PRIOR}" if self._required_law().missed else ""
        missing = f"; {MISSING_ESTIMATED}" if design is ESTIMATED and self.schema.may_miss else ""
        return and_counting(f"{design}; {RESIDUALS}{beyond}{missing}", self.domain)

    @cached_property
    def law_of_persons(self) -> EffectLaw:
        """What intervals of persons rest on; in trials with lines their level is the average's line.

        Raises:
            InputError: The release has none, and why.
        """
        law = self._required_law()
        line = (None, 0.0) if self.averages is None else (self.averages.estimate(), self.averages.error() ** 2)
        return law.of_persons(*line)

    def _required_law(self) -> EffectLaw:
        if self.law is None:
            raise MissingError(f"interval: this release has none that would hold: {self.without}")
        return self.law

    def _no_band(self) -> InputError:
        return InputError(
            "noise_band: a composition has no public noise scale of a second stage by itself; interval(X) holds all "
            "noise and sampling, where the release has one"
        )

    def summary(self) -> dict[str, Any]:
        """Return how rich the effect is, its scale, and its mean with what intervals are about where there are any.

        Example:
            >>> from torchdpcate.release.composed import _example
            >>> _example().effect.summary()
            {'form': 'linear', 'residual_scale': 1.0, 'features': 1}
        """
        used = len(self.basis.features) if self.form != "constant" else 0
        found = {"form": self.form, "residual_scale": self.scale, "features": used}
        if self.arms:
            means = zip(self.schema.arm_labels[1:], self.average_effects.tolist(), strict=True)
            found |= {f"average_effect_{arm}": mean for arm, mean in means} | {"reference": self.schema.arm_labels[0]}
        elif self.averages is not None or self.law is not None:
            low, high = self.average()
            found |= {"average": self.average_effect, "average_low": float(low), "average_high": float(high)}
        others = [] if self.averages is None else self.required_lines.rows()[not self.arms :]
        if others:
            found["averages"] = others
        if self.law is None:
            return found | ({"no_intervals_of_persons": self.without_words} if self.without else {})
        return found | {"intervals_of": self.target, "intervals_hold_if": self.assumptions}

    def tensors(self) -> dict[str, Tensor]:
        """Return coefficients, curvatures, feature_weights, scale and standardisation, and hidden units if any."""
        standardisation, units = self.standardisation.tensors(), self.basis.units
        return {
            "theta": self.theta,
            "estimates": self.estimates,
            "curvatures": self.curvatures,
            "feature_weights": self.basis.feature_weights,
            "scale": torch.tensor([self.scale], dtype=torch.float64),
            **({} if self.weight is None else {"weight": torch.tensor([self.weight], dtype=torch.float64)}),
            **({} if self.follow_up is None else {"follow_up": self.follow_up}),
            **{f"standardisation.{name}": tensor for name, tensor in standardisation.items()},
            **({} if units is None else {f"units.{name}": tensor for name, tensor in units.tensors().items()}),
            **({} if self.law is None else {f"law.{name}": part for name, part in self.law.tensors().items()}),
            **({} if self.numbers is None else {f"interval.{name}": n for name, n in self.numbers.tensors().items()}),
            **_named("line", self.averages),
            **_named("line_numbers", self.line_numbers),
        }

    def facts(self) -> dict[str, Any]:
        """Return the features, the columns in use, and why there is no law."""
        columns = None if self.columns is None else list(self.columns)
        units = {} if self.basis.units is None else {"units_beyond": self.basis.units.base.config()}
        own: dict[str, Any] = {} if self.averages is None else {"lines": list(self.averages.names)}
        own |= {} if self.no_lines is None else {"no_lines": self.no_lines}
        return {"features": self.basis.config(), "columns": columns, "without": self.without, **units, **own}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: Mapping[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "ComposedRelease | ComposedRule":
        """Rebuild an effect from ``tensors`` and ``facts``, or the rule by it where there are choices of one."""
        columns = None if facts.get("columns") is None else tuple(map(int, facts["columns"]))
        standardisation = Standardisation.from_tensors(tensors_of("standardisation", tensors))
        width = schema.domain.dimension if columns is None else len(columns)
        if len(standardisation.mean) != width or (
            columns and not 0 <= min(columns) <= max(columns) < len(schema.domain.names)
        ):
            raise ValueError("standardisation: not of the columns in use")
        own = tensors_of("units", tensors)
        units = HiddenUnits.from_tensors(own, facts["units_beyond"], width) if own else None
        basis = WeightedBasis.from_config(facts["features"], tensors["feature_weights"], width, units)
        size = basis.dimension * (len(schema.actions) - 1)
        for name in ("theta", "estimates"):
            require_tensor(tensors[name], (size,), name)
        require_tensor(tensors["curvatures"], (size, size), "curvatures")
        require_tensor(tensors["scale"], (1,), "scale")
        if "weight" in tensors:
            require_tensor(tensors["weight"], (1,), "weight")
        law, numbers = tensors_of("law", tensors), tensors_of("interval", tensors)
        lines, line_numbers = tensors_of("line", tensors), tensors_of("line_numbers", tensors)
        effect = cls(
            tensors["theta"],
            tensors["estimates"],
            tensors["curvatures"],
            tensors["scale"].item(),
            basis,
            standardisation,
            schema,
            privacy,
            columns=columns,
            law=EffectLaw.from_tensors(law, basis.dimension) if law else None,
            numbers=IntervalNumbers.from_tensors(numbers, basis.dimension) if numbers else None,
            without=None if facts.get("without") is None else str(facts["without"]),
            weight=tensors["weight"].item() if "weight" in tensors else None,
            follow_up=tensors.get("follow_up"),
            averages=Averages.from_tensors(facts["lines"], lines) if lines else None,
            line_numbers=LineNumbers.from_tensors(line_numbers) if line_numbers else None,
            no_lines=None if facts.get("no_lines") is None else str(facts["no_lines"]),
        )
        return ComposedRule.of(effect, facts["rule"]) if "rule" in facts else effect


def _named(prefix: str, numbers: Averages | LineNumbers | None) -> dict[str, Tensor]:
    return {} if numbers is None else {f"{prefix}.{name}": value for name, value in numbers.tensors().items()}


def _hull(intervals: Tensor, points: Tensor) -> Tensor:
    """Return intervals [m, 2] with the nearer end moved to the point [m] where it lies beyond."""
    return torch.stack([torch.minimum(intervals[:, 0], points), torch.maximum(intervals[:, 1], points)], 1)


@dataclass(frozen=True)
class RuleValue:
    """Gain and regret of a rule over a population, in outcome units a person.

    Attributes:
        gain: Estimate of the gain over treating nobody.
        interval: Its ends.
        regret: Upper end of what the best rule would gain beyond it.
        share: Share of the population that the rule treats.
    """

    gain: float
    interval: tuple[float, float]
    regret: float
    share: float


@dataclass(frozen=True, eq=False, repr=False)
class ComposedRule(DecisionRelease):
    r"""A treatment rule by the sign of a released effect; post-processing of its release, hence free.

    .. math:: s(x) = \pm g(x) - \text{cost} - \text{cutoff}, \quad d(x) = 1\{s(x) > 0\}

    with the minus sign where lower outcomes are better.

    Attributes:
        effect: The release that the rule is made of.
        cost: Of a treatment, in outcome units.
        threshold: Least gain beyond the cost, in outcome units.
        budget: Largest share of a public population that is to be treated; None for no such limit.
        cutoff: Gain beyond the cost above which the rule treats: the threshold, or what the budget makes of it.
        schema: Columns and public bounds, those of the effect.
        privacy: The privacy statement of the effect, which holds for the rule as it stands.
    """

    actions = (0, 1)

    effect: "ComposedRelease"
    cost: float
    threshold: float
    budget: float | None
    cutoff: float
    schema: TableSchema
    privacy: PrivacyStatement

    @property
    def kind(self) -> str:  # type: ignore[override]
        """That of its effect, whose file it is with the public choices beside."""
        return self.effect.kind

    @property
    def function(self) -> ComposedRelease:
        """The effect that it decides by."""
        return self.effect

    @property
    def constant(self) -> int | None:
        """What the rule decides for everybody, 0 or 1; None where it depends on the covariates.

        A constant rule is what a plan requests where nothing about covariates can be learnt.
        """
        if self.effect.form != "constant":
            return None
        return int(self.answer(self.domain.covariate_low[None]))

    @property
    def averages(self) -> Averages | None:
        """The lines that hold the values of this rule on people like the records, costs counted.

        None where there are none, or where they are about another rule by the same effect. Each interval is its own: a
        rule is chosen by numbers that were released before those of its values.
        """
        effect, of = self.effect.averages, self.effect.line_numbers
        if effect is None or effect.level is None or of is None or of.facts.rule is None:
            return None
        at = self.domain.direction * (self.cost + self.cutoff) - effect.level
        same = math.isclose(at, of.facts.rule.at, rel_tol=1e-9, abs_tol=1e-9 * self.domain.outcome_range)
        return effect if same and of.facts.rule.cost == self.cost else None

    @property
    def line_assumptions(self) -> str:
        """What values rest on; see ``ComposedRelease``."""
        return self.effect.line_assumptions

    @property
    def named(self) -> Lines | None:
        """The values of the rule, and of public policies, costs counted; None where there are none."""
        effect = self.effect.named
        if self.averages is None or effect is None:
            return None
        return effect.only([k for k, group in enumerate(effect.groups) if group in (OF_RULE, OF_POLICY)])

    @property
    def why_no_lines(self) -> str:
        """Why there are none, in words."""
        return self.effect.no_lines or "those of its effect are about another rule; request its own (task=rule)"

    def score_tensor(self, x: Tensor) -> Tensor:
        """Return the gain beyond cost and cutoff at encoded covariates x [m, q], [m], in outcome units."""
        return self.domain.direction * self.effect.effect_tensor(x) - self.cost - self.cutoff

    def value(self, population: Covariates, level: float = 0.95) -> RuleValue:
        r"""Return gain and regret of the rule over a public population, in outcome units a person.

        With the target :math:`\tau^*` of the release's intervals, s = -1 where lower outcomes are better and else 1,
        and :math:`g(x) = s\,\tau^*(x) - \text{cost}`,

        .. math:: \mathrm{gain} = \frac1m \sum_i d(x_i)\,g(x_i), \qquad
            \mathrm{regret} = \frac1m \sum_i |g(x_i)|\,1\{d(x_i) \ne 1\{g(x_i) > 0\}\}.

        The rule is made of the numbers that tell its value, which an interval of fixed covariates would not count. All
        combinations of the features' errors lie at once within
        :math:`\sqrt{\chi^2_{r, \text{level}}}` of their deviations, r being how many errors there are (Scheffe 1953):
        so the interval of the gain, and the regret's bound by the intervals of all g(x_i), hold whatever the rule.

        Post-processing of the numbers that the release's intervals rest on, hence free where it has some
        (``second_stage.intervals``); about the intervals' ``target``, if what ``assumptions`` says is so.

        Args:
            population: Public covariates [m, q], as for ``decide``; never the records of the fit.
            level: Probability with which the interval of the gain and the bound of the regret hold together.

        Raises:
            InputError: The release has no intervals, and why; a level outside (0, 1); a population outside the domain.
        """
        effect, direction, x = self.effect, self.domain.direction, self._covariates(population)
        law, psi, treated = effect._required_law(), effect.features(x), self.score_tensor(x) > 0
        one, share = torch.ones(len(x), dtype=torch.float64), treated.double().mean()
        mean = (psi * treated[:, None]).mean(0, keepdim=True)
        ends = direction * law.at_once(mean, share[None], level)[0] - self.cost * share
        each = direction * law.at_once(psi, one, level) - self.cost
        wrong = torch.where(treated, -each.amin(1), each.amax(1)).clamp_min(0)
        low, high = ends.sort().values.tolist()
        return RuleValue((low + high) / 2, (low, high), wrong.mean().item(), share.item())

    def module(self) -> nn.Module:
        """Return the score as a module to serve or export; see ``Release.module``."""
        gain = Gain(self.effect.values(), self.domain.direction, self.cost + self.cutoff)
        return ReleaseModule(self.domain, gain)

    def summary(self) -> dict[str, Any]:
        """Return how rich the rule is, and its public choices.

        Example:
            >>> from torchdpcate.release.composed import _example
            >>> _example().summary()
            {'form': 'linear', 'cost': 0.0, 'threshold': 0.0, 'cutoff': 0.0}
        """
        everybody = {None: {}, 0: {"decision": "nobody"}, 1: {"decision": "everybody"}}[self.constant]
        limit = {} if self.budget is None else {"largest_share_treated": self.budget}
        chosen = {"cost": self.cost, "threshold": self.threshold, **limit, "cutoff": self.cutoff}
        values = {} if self.named is None else {"values": self.named.rows()}
        return {"form": self.effect.form, **everybody, **chosen, **values}

    def tensors(self) -> dict[str, Tensor]:
        """Return those of the effect."""
        return self.effect.tensors()

    def facts(self) -> dict[str, Any]:
        """Return those of the effect, and the public choices."""
        rule = {"cost": self.cost, "threshold": self.threshold, "budget": self.budget, "cutoff": self.cutoff}
        return self.effect.facts() | {"rule": rule}

    build = ComposedRelease.build  # type: ignore[assignment]  # of a file with the choices in it

    @classmethod
    def of(cls, effect: ComposedRelease, chosen: Mapping[str, Any]) -> "ComposedRule":
        """Return the rule of an effect with the public choices that a file states."""
        cost, threshold, cutoff = (_number(name, chosen[name]) for name in ("cost", "threshold", "cutoff"))
        budget = None if chosen["budget"] is None else _share(chosen["budget"])
        if cutoff < threshold or (budget is None and cutoff != threshold):
            raise ValueError("cutoff: not that of a threshold and a budget")
        return cls(effect, cost, threshold, budget, cutoff, effect.schema, effect.privacy)


class Choices(NamedTuple):
    """Public choices of a rule, checked.

    Attributes:
        cost: Of a treatment, in outcome units.
        threshold: Least gain beyond the cost.
        budget: Largest share of the population to be treated; None for no limit.
        population: Encoded covariates [m, q]; None without a budget.
    """

    cost: float
    threshold: float
    budget: float | None
    population: Tensor | None

    @classmethod
    def of(cls, schema: TableSchema, cost: float, threshold: float, budget: float | None, population: Any) -> "Choices":
        """Return the choices for a schema; errors are those of ``ComposedRelease.rule``."""
        _ = schema.domain.direction  # may refuse
        cost, threshold = _number("cost", cost), _number("threshold", threshold)
        if budget is None:
            if population is not None:
                raise InputError("population: is what a budget of treatments refers to; give the share to treat")
            return cls(cost, threshold, None, None)
        budget = _share(budget)
        if population is None:
            raise InputError(
                f"budget = {budget:g}: is a share of a public population; give population=, its covariates (never the "
                "records of the fit)"
            )
        try:
            x = schema.within(schema.matrix(population, "query"), "query")
        except InputError as error:
            raise InputError(f"population: {error}") from None
        if not len(x):
            raise InputError("population: has no rows; give the covariates of at least one person")
        return cls(cost, threshold, budget, x)

    @property
    def planned_cutoff(self) -> float | None:
        """Gain beyond the cost above which the rule treats; None: the population's effects say."""
        return self.threshold if self.budget is None else None

    def cutoff(self, domain: Domain, effects: Tensor, level: float) -> float:
        """Return the gain beyond the cost above which the rule treats.

        Args:
            domain: Which says which outcomes are better.
            effects: Of the population, [m].
            level: What they are moved by.
        """
        if self.budget is None:
            return self.threshold
        bound = domain.outcome_range
        gains = domain.direction * (effects + level).clamp(-bound, bound) - self.cost
        return max(self.threshold, _cutoff(gains, self.budget))


def rule_of(effect: "ComposedRelease", choices: Choices) -> ComposedRule:
    """Return the rule of an effect; see ``ComposedRelease.rule``."""
    cutoff = choices.threshold
    if choices.population is not None:
        cutoff = choices.cutoff(effect.domain, effect.effect_tensor(choices.population), 0.0)
    return ComposedRule(effect, choices.cost, choices.threshold, choices.budget, cutoff, effect.schema, effect.privacy)


def _cutoff(gain: Tensor, budget: float) -> float:
    """Return the least gain that at most a share ``budget`` of the population exceeds.

    Example:
        >>> _cutoff(torch.tensor([3.0, 1.0, 2.0, 2.0]).double(), 0.5)
        2.0
    """
    treated = math.floor(budget * len(gain) * (1 + 1e-12))
    if treated >= len(gain):
        return -math.inf
    return gain.sort(descending=True).values[treated].item()


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name} = {value!r}: give a finite number, in outcome units")
    return float(value)


def _share(budget: Any) -> float:
    if isinstance(budget, bool) or not isinstance(budget, Real) or not 0 <= float(budget) <= 1:
        raise InputError(f"budget = {budget!r}: nobody can keep to it; give the share to treat at most, from 0 to 1")
    return float(budget)


def _example() -> ComposedRule:
    """A rule on one covariate in [0, 1], for examples and tests of readers."""
    from torchdpcate.fit.weighted_basis import Standardisation, WeightedBasis, all_features
    from torchdpcate.release.rule import _example as rule

    schema, privacy = rule().schema, rule().privacy
    half, one = torch.full((2,), 0.5, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    theta = torch.tensor([0.0, 1.0], dtype=torch.float64)
    basis, units = WeightedBasis(all_features([False], "1"), half), Standardisation(0 * one, one / 2)
    curvatures = torch.eye(2, dtype=torch.float64)
    return ComposedRelease(theta, theta, curvatures, 1.0, basis, units, schema, privacy).rule()
