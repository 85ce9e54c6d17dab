"""The public plan of one composition: what is requested of the records, by which steps, all of its numbers plain."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdpcate.composition.constants import LineConstants, PlanConstants, RuleConstants, line_constants
from torchdpcate.composition.priors import STEPS, Regression, Request, Sign, matrix_noise
from torchdpcate.composition.pure_fits import NOISE_SHARE, OBJECTIVE, least_ridge, places_of, sums_regression
from torchdpcate.composition.steps import LINES, MATRIX, ORDER, PROGNOSTIC, QUANTILES, Shares
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.fit.weighted_basis import UNITS, Feature, HiddenUnits, WeightedBasis, all_features
from torchdpcate.laws import Steps
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.lines import REQUESTS, tilts_of
from torchdpcate.release.lines import RULE as VALUE

EFFECT, ARMS, PURE = "effect", "arms", "pure"
"""Kinds of plans, each with a file of constants in ``plans/``."""
RULE = "rule"
"""What statements call the target of an effect that is estimated for its sign."""
CONSTANT, LINEAR, RICH = "constant", "linear", "additive"
"""What a plan asks of the effect: a constant, a linear function, or squares, products, waves and steps beside it."""


@dataclass(frozen=True)
class PlanFacts:
    """What a plan is made of: n, the budget, facts of the domain, and what a user chose; no record is looked at.

    Args:
        n: Number of records.
        budget: (epsilon, delta); None without privacy.
        covariates: Number of encoded covariates q.
        overlap: Public bound of the propensity.
        known_propensity: Whether the propensity is a public fact, on which nothing is spent.
        constant_only: Whether the effect is to be one number.
        constants: Constants of the plan; those of rules request the effect's sign.
        intervals: Whether the numbers are requested that intervals rest on.
        binary: Whether the outcome has two values: its regression is logistic, and no residual is clipped.
        count: Whether the outcome is a count: its regression may have a logarithmic link.
        numbers: Number of covariates that have more than two levels; None: all.
        treated: Public share of the treated, or the one propensity that is known; None expects about half.
        part: Share of the budget that the steps have together, of mu^2, or of epsilon in a plan of pure events; the
            rest is for what follows on their answers.
        arms: Number of arms.
        weight: Mean weight of the records, as it is expected, or as it was released; None where all count alike.
        follow_up: Cells of the histogram that a curve of censoring is made of; 0 where outcomes are known.
        hidden: Whether the effect may have features of hidden units, which need networks.
        sites: Number of sites that have the records, and add noise to sums of their own each.
        lines: What is requested beside the average of scores (``REQUESTS`` of lines); None: no lines.
        cells: Public partitions whose cells have lines; None: none.
        cost: Of a treatment by the rule whose values are requested, outcome units.
        cutoff: Gain beyond the cost above which that rule treats; None: a share of public people says.

    Raises:
        InputError: No records, no covariates, or lines of no known name.
    """

    n: int
    budget: PrivacyBudget | None
    covariates: int
    overlap: float = 0.05
    known_propensity: bool = False
    constant_only: bool = False
    constants: PlanConstants = field(default_factory=PlanConstants)
    intervals: bool = False
    binary: bool = False
    count: bool = False
    numbers: int | None = None
    treated: float | None = None
    part: float = 1.0
    arms: int = 2
    weight: float | None = None
    follow_up: int = 0
    hidden: bool = False
    sites: int = 1
    lines: tuple[str, ...] | None = None
    cells: Subgroups | None = None
    cost: float = 0.0
    cutoff: float | None = 0.0

    def __post_init__(self) -> None:
        if self.n < 1 or self.covariates < 1:
            raise InputError(f"n = {self.n}, covariates = {self.covariates}: give at least one of each")
        if not set(self.requested_lines) <= {*REQUESTS, *tilts_of(self.requested_lines)}:
            raise InputError(f"lines = {list(self.requested_lines)}: give some of {', '.join(REQUESTS)}, beta:a:b")

    @property
    def requested_lines(self) -> tuple[str, ...]:
        """What is requested of scores beside their average."""
        return () if self.lines is None else self.lines

    @property
    def mass(self) -> float:
        """What sums over the records are divided by: n, or the sum of their weights, as far as it is known."""
        return self.n if self.weight is None else self.n * self.weight

    @property
    def estimates_propensity(self) -> bool:
        """Whether intervals are requested beside a propensity that is estimated."""
        return self.intervals and not self.known_propensity


@dataclass(frozen=True, kw_only=True)
class ComposedPlan(PlanFacts):
    """Everything public about one composition of events on all records, as a ``PlanBuilder`` found it.

    Attributes:
        kind: Of plan; its events are Gaussian, but those of ``PURE``.
        size: N mu, on which its numbers depend; at most 1e9.
        shares: Share of each step, of mu^2, or of epsilon of pure events.
        quantiles: Steps that find a private quantile.
        retained: Number of covariates that are retained.
        windows: Whether covariates are scaled by private windows.
        choices: How many covariates each step chooses, by step.
        pairs: How many products of a covariate with a step of another are chosen for the effect.
        units: Whether the effect has features of hidden units.
        reduced: Whether it is a rule's without an outcome regression.
        one_propensity: Whether a propensity that is not known is estimated as one number.
        propensity_steps: Steps that fit the propensity, where it is not known.
        propensity_slope: Bound of a record's gradient in a regression of the propensity.
        log_link: Whether the outcome regression is one of logarithms.
        huber_quantile: Quantile of absolute residuals at which they are clipped.
        inside: Planned share of residuals that are not clipped.
        sampling: Planned variance of a record's clipped residual, in squared scales.
        residual_scale: Residual scale to expect, in outcome ranges; that of a binary outcome is the range.
        steps: Steps of each regression.
        burn_in: Steps among them that only move to the solution.
        step_size: Of a step, over the inverse of the curvature.
        momentum: Part of the last move that a step repeats.
        requests: What each regression may request, by name.
        way: How the effect is found: by one objective, or by sums.
        effect_weight: Planned mean curvature by which the effect's features are requested, over their weights.
        effect_curvature: Planned mean curvature of the effect's features, over their weights.
        effect_size: Standard deviation that parts of effects on this kind of outcome have, in units of S, over others'.
        head_variance: Prior variance of effects on this kind of outcome, in units of S^2.
        shrinking_variance: That by which the effect is shrunk.
        shrinks: Whether coefficients are shrunk by their noise.
        noise_inflation: Variance of the effect's estimates by noise, over that of one event of all that its step has.
        sign: What the effect's sign is planned by.
        interval_spread: Clip of the mean's correction, in standard deviations of normal residuals.
        interval_clip: Clip of the effect in the average, in its planned standard deviations.
        line_groups: How many groups by released effect have lines; 1: none.
    """

    kind: str
    size: float
    shares: Shares
    quantiles: tuple[str, ...]
    retained: int
    windows: bool
    choices: Mapping[str, int]
    pairs: int
    units: bool
    reduced: bool
    one_propensity: bool
    propensity_steps: tuple[str, ...]
    propensity_slope: float
    log_link: bool
    huber_quantile: float
    inside: float
    sampling: float
    residual_scale: float
    steps: int
    burn_in: int
    step_size: float
    momentum: float
    requests: Mapping[str, Request]
    way: str
    effect_weight: float
    effect_curvature: float
    effect_size: float
    head_variance: float
    shrinking_variance: float
    shrinks: bool
    noise_inflation: float
    sign: Sign
    interval_spread: float
    interval_clip: float
    line_groups: int = 1

    @property
    def line_constants(self) -> LineConstants:
        """Constants of lines."""
        return line_constants()

    @property
    def line_mu(self) -> float:
        """The Gaussian that costs what all lines do, of more than two arms those of one of them."""
        return math.hypot(*map(self.line_step, LINES))

    def line_step(self, step: str) -> float:
        """Return mu of a step of lines, of which each arm but the reference has an equal part."""
        return self.shares.of(step) / math.sqrt(self.arms - 1)

    @property
    def line_clip(self) -> float:
        """Clip of scores in their deviations: noise over sampling error is a constant, and falls from some size on.

        From there on the clip grows with the fourth root only, so that noise and what is clipped both vanish.
        """
        own = self.line_constants
        clip = max(own.clip * math.sqrt(self.mass) * self.line_mu / 2, own.least_clip)
        return min(clip, own.slow_clip * (clip / own.slow_clip) ** 0.25)

    @property
    def line_size(self) -> float:
        """N mu of the lines."""
        return min(self.mass * self.line_mu, 1e9)

    @property
    def made_of(self) -> PlanFacts:
        """What it is made of."""
        return PlanFacts(*(getattr(self, f.name) for f in fields(PlanFacts)))

    def at_weight(self, weight: float | None) -> "ComposedPlan":
        """Return the plan with the released mean weight of the records in the place of the expected one."""
        return self if weight is None else replace(self, weight=weight)

    @property
    def by_sums(self) -> bool:
        """Whether the effect is one event of sums."""
        return self.way != OBJECTIVE

    @property
    def screens(self) -> bool:
        """Whether covariates are left out by a private choice."""
        return self.retained < self.covariates

    @property
    def wide(self) -> bool:
        """Whether nuisances are of all covariates, and the effect of those that are retained."""
        return self.windows and self.screens

    @property
    def heads(self) -> int | None:
        """How many covariates have features of all kinds in the nuisances; None: all that are retained."""
        return self.choices[PROGNOSTIC] if self.wide else None

    @property
    def law(self) -> Steps:
        """What the steps request of the records."""
        shares = self.shares
        return Steps({step: shares.due(step) for step in shares.shares}, shares.cost, ORDER)

    @cached_property
    def form(self) -> str:
        """What is requested of the effect: a constant, a linear function, or more."""
        kinds = {feature.kind for feature in self.effect().basis.features}
        return RICH if kinds - {"1"} else LINEAR if kinds else CONSTANT

    def slope(self, step: str) -> float:
        """Return the bound of a record's gradient in a logistic regression.

        Args:
            step: The regression's.
        """
        return 1.0 if step == "outcome" else self.propensity_slope

    def gradient_noise(self, step: str, slope: float, size: int) -> float:
        """Return the standard deviation of the noise in a regression's summed gradient; zero without privacy.

        Of a pure event it is that of the objective's linear term.

        Args:
            step: The regression's.
            slope: Bound of a record's gradient.
            size: Number of coefficients.
        """
        return 2 * slope * self.shares.deviation(step, size) / (NOISE_SHARE if self.kind == PURE else 1.0)

    def least_ridge(self, step: str, curvature: float) -> float:
        """Return the least ridge of a coefficient, which objectives of pure events have.

        Args:
            step: The regression's.
            curvature: Of its loss, at most.
        """
        return least_ridge(self.shares.of(step), curvature) if self.kind == PURE else 0.0

    def places(self, step: str) -> Tensor | None:
        """Return which candidates of a private quantile a step looks at, by position; None for all.

        Args:
            step: Of the quantile.
        """
        return places_of(step == QUANTILES[0], 2**self.constants.quantile_levels) if self.by_sums else None

    def outcome(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the outcome regression: of the retained covariates, or of all in a wide plan, the chosen ones first.

        Where no step is for it, that is a constant of no noise, which the released centre is.

        Args:
            two_levels: Whether each has two levels; None takes none.
        """
        if "outcome" not in self.requests:
            return Regression(WeightedBasis((), torch.ones(1).double()), torch.zeros(0).double(), 0.0, 0.0)
        return self.requests["outcome"].regression(self._nuisance_levels(two_levels))

    def propensity(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the regression of the treatment; see ``outcome``."""
        return self.requests["propensity"].regression(self._nuisance_levels(two_levels))

    def effect(
        self,
        two_levels: Sequence[bool] | None = None,
        pairs: Sequence[Feature] | None = None,
        units: HiddenUnits | None = None,
    ) -> Regression:
        """Return that of the effect; see ``outcome``.

        Squares, products and waves whose prior variance is below what sampling leaves of them are not requested, at
        any budget: where effects do not vary, hundreds of them would err by more than a constant. With intervals it has
        linear features, and further kinds as far as their matrix of second moments can be told from its noise. By sums
        it is linear in all covariates, or a constant.

        Args:
            two_levels: As of ``outcome``.
            pairs: Products with a step that were chosen, at most ``pairs``; None plans for so many.
            units: Combinations of released hidden units; None plans without.
        """
        request, levels = self.requests["effect"], [False] * self.retained if two_levels is None else two_levels
        if self.by_sums:
            return self._sums(request, tuple(levels))
        if not self.shrinks:
            return request.regression(levels)
        chosen = all_features(levels, STEPS)[: self.pairs] if pairs is None else tuple(pairs)
        kinds = request.kinds + (STEPS if chosen else "") + (UNITS if units is not None else "")
        while True:
            found = replace(request, kinds=kinds).regression(levels, chosen, units)
            if not self.intervals or len(kinds) == 1 or self._matrix_noise(found) <= self.constants.interval_edge:
                return found
            kinds = kinds[:-1]

    def planned_correlation(self) -> float:
        """Return the planned correlation of the effect and its estimate; see ``Sign``."""
        return self.sign.correlation(self.effect(), self.retained, self.covariates)

    def facts(self) -> dict[str, Any]:
        """Return what the plan is made of beside n and the domain, and what it decides, as statements have it."""
        budget = self.budget
        epsilon, delta = (None, None) if budget is None else (budget.epsilon, budget.delta)
        facts = {"retained": self.retained, "steps": self.steps, "huber_quantile": self.huber_quantile}
        constants = self.constants.to_text()
        return {
            "form": self.form,
            **facts,
            "requested_epsilon": epsilon,
            "requested_delta": delta,
            "constant_only": self.constant_only,
            "intervals": self.intervals,
            **({"target": RULE} if isinstance(self.constants, RuleConstants) else {}),
            "constants": constants,
            **({"hidden_units": True} if self.units else {}),
            **({"sites": self.sites} if self.sites > 1 else {}),
            **({} if self.lines is None else {"lines": list(self.lines)}),
            **({"cost": self.cost, "cutoff": self.cutoff} if VALUE in self.requested_lines else {}),
            **({} if self.cells is None else {"cells": json.dumps(self.cells.config())}),
            **({"effect_by": self.way} if self.by_sums else {}),
        }

    def _sums(self, request: Request, levels: tuple[bool, ...]) -> Regression:
        """Return the effect by sums: of all covariates, or a constant where that has less planned regret."""
        alone, linear = (sums_regression(retained, request.noise, request.variance) for retained in ((), levels))
        found = [self.sign.correlation(each, self.covariates, self.covariates) for each in (alone, linear)]
        return linear if found[1] >= self.sign.worth(found[0], constant=True) else alone

    def _matrix_noise(self, effect: Regression) -> float:
        """Return the planned noise of the interval steps' matrix, scaled to its planned diagonal."""
        unit = math.sqrt(2) * self.constants.interval_norm / (self.shares.of(MATRIX) * self.mass)
        return matrix_noise(effect.basis, unit)

    def _nuisance_levels(self, two_levels: Sequence[bool] | None) -> Sequence[bool]:
        return [False] * (self.covariates if self.wide else self.retained) if two_levels is None else two_levels
