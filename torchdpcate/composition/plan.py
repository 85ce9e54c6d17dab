"""The public plan of one composition: what is requested of the records, by which steps, all of its numbers plain."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchdpcate.composition.constants import LineConstants, RuleConstants, line_constants
from torchdpcate.composition.plan_numbers import PURE, PlanFacts, PlanNumbers
from torchdpcate.composition.priors import Regression, Request, matrix_noise
from torchdpcate.composition.pure_fits import least_ridge, places_of, sums_regression
from torchdpcate.composition.steps import LINES, MATRIX, ORDER, PROGNOSTIC, QUANTILES, Shares
from torchdpcate.fit.weighted_basis import PAIRED, UNITS, Feature, HiddenUnits, WeightedBasis, all_features
from torchdpcate.laws import Steps
from torchdpcate.release.averages import POLICIES
from torchdpcate.release.averages import RULE as VALUE

RULE = "rule"
"""What statements call the target of an effect that is estimated for its sign."""
CONSTANT, LINEAR, RICH = "constant", "linear", "additive"
"""What a plan asks of the effect: a constant, a linear function, or squares, products, waves and steps beside it."""


@dataclass(frozen=True, kw_only=True)
class PlanSteps(PlanNumbers):
    """Steps of nuisances and effect, beside the numbers that they follow from.

    Attributes:
        retained: Number of covariates that are retained.
        choices: How many covariates each step chooses, by step.
        shares: Share of each step, of mu^2, or of epsilon of pure events.
    """

    retained: int
    choices: Mapping[str, int]
    shares: Shares


@dataclass(frozen=True, kw_only=True)
class ComposedPlan(PlanSteps):
    """Everything public about one composition of events on all records; shares are of all of its steps.

    Attributes:
        requests: What each regression may request, by name.
    """

    requests: Mapping[str, Request]

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
        r"""Clip of scores in their deviations, :math:`(\sqrt n \mu / 2)^{.63}`.

        Noise over sampling error falls with it, and so does what is clipped; from some size on it grows with the fourth
        root only of that.
        """
        own = self.line_constants
        clip = max((math.sqrt(self.mass) * self.line_mu / 2) ** own.clip, own.least_clip)
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
        """Return the plan with the released mean weight of the records in the place of the expected one.

        What regressions request is worked out anew by the noise that they have at that weight; shares stay.
        """
        if weight is None or self.weight is None:
            return self
        if self.kind == PURE:
            return replace(self, weight=weight)
        times = self.weight / weight
        requests = {
            name: replace(each, noise=times**2 * each.noise, least=times * each.least, size=min(each.size / times, 1e9))
            for name, each in self.requests.items()
        }
        return replace(self, weight=weight, requests=requests)

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
    def effect_covariates(self) -> int:
        """How many covariates the effect has: those that are retained, or, where noise is small, all of a wide plan."""
        return self.retained if self.requests["effect"].heads is None else self.covariates

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
        return 2 * slope * self.shares.deviation(step, size) / self.noise_share

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
        return self._nuisance("outcome", two_levels)

    def propensity(self, two_levels: Sequence[bool] | None = None) -> Regression:
        """Return the regression of the treatment; see ``outcome``."""
        return self._nuisance("propensity", two_levels)

    def effect(
        self,
        two_levels: Sequence[bool] | None = None,
        pairs: Sequence[Feature] | None = None,
        units: HiddenUnits | None = None,
    ) -> Regression:
        """Return that of the effect; see ``outcome``.

        Squares, products and waves whose prior variance is below what sampling leaves of them are not requested, at
        any budget: where effects do not vary, hundreds of them would err by more than a constant. With intervals it has
        linear features, and further kinds as far as their matrix of second moments can be told from its noise, chosen
        products before whole kinds. By sums it is linear in all covariates, or a constant.

        Args:
            two_levels: As of ``outcome``.
            pairs: Products that were chosen, at most ``pairs``; None plans for so many.
            units: Combinations of released hidden units; None plans without.
        """
        request = self.requests["effect"]
        levels = [False] * self.effect_covariates if two_levels is None else two_levels
        if self.by_sums:
            return self._sums(request, tuple(levels))
        if not self.shrinks:
            return request.regression(levels)
        chosen = all_features(levels, PAIRED, request.heads)[: self.pairs] if pairs is None else tuple(pairs)
        products, combined = PAIRED if chosen else "", UNITS if units is not None else ""
        unit = 0.0
        if self.intervals:  # noise of their matrix, scaled to its planned diagonal
            unit = math.sqrt(2) * self.constants.interval_norm / (self.shares.of(MATRIX) * self.mass)
        for size in range(max(len(request.kinds), 1), 0, -1):
            for beside in dict.fromkeys((products + combined, products, "")):  # few, and paid for
                found = replace(request, kinds=request.kinds[:size] + beside).regression(levels, chosen, units)
                if not self.intervals or matrix_noise(found.basis, unit) <= self.constants.interval_edge:
                    return found
        return found

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
            **({"cost": self.cost} if {VALUE, POLICIES} & {*self.requested_lines} else {}),
            **({"cutoff": self.cutoff} if VALUE in self.requested_lines else {}),
            **({} if self.cells is None else {"cells": json.dumps(self.cells.config())}),
            **({"effect_by": self.way} if self.by_sums else {}),
        }

    def _sums(self, request: Request, levels: tuple[bool, ...]) -> Regression:
        """Return the effect by sums: of all covariates, or a constant where that has less planned regret."""
        alone, linear = (sums_regression(retained, request.noise, request.variance) for retained in ((), levels))
        found = [self.sign.correlation(each, self.covariates, self.covariates) for each in (alone, linear)]
        return linear if found[1] >= self.sign.worth(found[0], constant=True) else alone

    def _nuisance(self, name: str, two_levels: Sequence[bool] | None) -> Regression:
        if name not in self.requests:
            return Regression(WeightedBasis((), torch.ones(1).double()), torch.zeros(0).double(), 0.0, 0.0)
        levels = [False] * (self.covariates if self.wide else self.retained) if two_levels is None else two_levels
        return self.requests[name].regression(levels)
