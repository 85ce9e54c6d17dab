"""A rule made of a composition's effect: whom to treat at a cost, above a threshold, within a budget of treatments."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.release.rule import DecisionRelease
from torchdpcate.release.statement import PrivacyStatement

if TYPE_CHECKING:
    from torchdpcate.release.composed import ComposedRelease


@dataclass(frozen=True, eq=False, repr=False)
class ComposedRule(DecisionRelease):
    r"""A treatment rule by the sign of a released effect; post-processing of its release, hence free.

    .. math:: s(x) = g(x) - \text{cost} - \text{cutoff}, \quad d(x) = 1\{s(x) > 0\}

    Attributes:
        effect: The release that the rule is made of.
        cost: Of a treatment, in outcome units.
        threshold: Least gain beyond the cost, in outcome units.
        budget: Largest share of a public population that is to be treated; None for no such limit.
        cutoff: Gain beyond the cost above which the rule treats: the threshold, or what the budget makes of it.
        schema: Columns and public bounds, those of the effect.
        privacy: The privacy statement of the effect, which holds for the rule as it stands.
    """

    kind = "composed_rule"
    reading = "The decision is the sign of a released effect less a public number; evaluating it uses released numbers "
    reading += "alone."

    effect: "ComposedRelease"
    cost: float
    threshold: float
    budget: float | None
    cutoff: float
    schema: TableSchema
    privacy: PrivacyStatement

    @property
    def constant(self) -> int | None:
        """What the rule decides for everybody, 0 or 1; None where it depends on the covariates.

        A constant rule is what a plan asks for where nothing about covariates can be learnt.
        """
        if self.effect.rung != "constant":
            return None
        return int(self.answer(self.domain.covariate_low[None]))

    def score_tensor(self, x: Tensor) -> Tensor:
        """Return the gain beyond cost and cutoff at encoded covariates x [m, q], [m], in outcome units."""
        return self.effect.effect_tensor(x) - self.cost - self.cutoff

    def summary(self) -> dict[str, Any]:
        """Return how rich the rule is, and its public choices.

        Example:
            >>> from torchdpcate.release.composed_rule import _example
            >>> _example().summary()
            {'rung': 'linear', 'cost': 0.0, 'threshold': 0.0, 'budget': None, 'cutoff': 0.0}
        """
        everybody = {None: {}, 0: {"decision": "nobody"}, 1: {"decision": "everybody"}}[self.constant]
        chosen = {"cost": self.cost, "threshold": self.threshold, "budget": self.budget, "cutoff": self.cutoff}
        return {"rung": self.effect.rung, **everybody, **chosen}

    def tensors(self) -> dict[str, Tensor]:
        """Return those of the effect."""
        return self.effect.tensors()

    def facts(self) -> dict[str, Any]:
        """Return those of the effect, and the public choices."""
        rule = {"cost": self.cost, "threshold": self.threshold, "budget": self.budget, "cutoff": self.cutoff}
        return self.effect.facts() | {"rule": rule}

    @classmethod
    def build(
        cls, tensors: dict[str, Tensor], facts: Mapping[str, Any], schema: TableSchema, privacy: PrivacyStatement
    ) -> "ComposedRule":
        """Rebuild a rule from ``tensors`` and ``facts``."""
        from torchdpcate.release.composed import ComposedRelease

        chosen = facts["rule"]
        cost, threshold, cutoff = (_number(name, chosen[name]) for name in ("cost", "threshold", "cutoff"))
        budget = None if chosen["budget"] is None else _share(chosen["budget"])
        if cutoff < threshold or (budget is None and cutoff != threshold):
            raise ValueError("cutoff: not that of a threshold and a budget")
        effect = ComposedRelease.build(tensors, facts, schema, privacy)
        return cls(effect, cost, threshold, budget, cutoff, schema, privacy)


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


def rule_of(effect: "ComposedRelease", choices: Choices) -> ComposedRule:
    """Return the rule of an effect; see ``ComposedRelease.rule``."""
    cost, cutoff = choices.cost, choices.threshold
    if choices.budget is not None and choices.population is not None:
        cutoff = max(cutoff, _cutoff(effect.effect_tensor(choices.population) - cost, choices.budget))
    return ComposedRule(effect, cost, choices.threshold, choices.budget, cutoff, effect.schema, effect.privacy)


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
    from torchdpcate.features.weighted_basis import Standardisation, WeightedBasis, all_features
    from torchdpcate.release.composed import ComposedRelease
    from torchdpcate.release.rule import _example as rule

    schema, privacy = rule().schema, rule().privacy
    half, one = torch.full((2,), 0.5, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    theta = torch.tensor([0.0, 1.0], dtype=torch.float64)
    basis, units = WeightedBasis(all_features([False], "1"), half), Standardisation(0 * one, one / 2)
    curvatures = torch.eye(2, dtype=torch.float64)
    return ComposedRelease(theta, theta, curvatures, 1.0, basis, units, schema, privacy).rule()
