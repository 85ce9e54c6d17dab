"""Verification of a released rule: noise and coefficients, worked out anew from public facts.

Two things are not told and follow from the noise: the largest weight of a bought propensity, or of a propensity column
that the rule does not see, which must lie in the range that the overlap bound leaves; and how round the corner of a
Huber hinge is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchdpcate.erm.bounds import WeightBounds
from torchdpcate.erm.losses import Logistic, Squared
from torchdpcate.erm.perturbation import ObjectiveNoise, calibrate_objective, output_mechanism
from torchdpcate.erm.solver import default_tolerance
from torchdpcate.errors import InputError
from torchdpcate.estimators.recompute import as_number, charged_gaussian, grid_problems, scale_problems
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import Event, GaussianEvent, event_from_dict
from torchdpcate.privacy.mechanisms import AdditiveMechanism
from torchdpcate.release.release import Release
from torchdpcate.release.rule import RuleRelease
from torchdpcate.verify.known import CANDIDATE, is_known

LOSSES: dict[str, tuple[float, float | None]] = {
    **dict.fromkeys(("huber_hinge", "HuberHinge"), (1.0, None)),
    **dict.fromkeys(("logistic", "Logistic"), (Logistic.slope, Logistic.curvature)),
    **dict.fromkeys(("squared", "Squared"), (math.nan, Squared.curvature)),
}
"""Slope and curvature by the loss that a statement tells; the slope of the squared one follows from its radius."""

PAIRS = {"difference": WeightBounds(1.0, 2.0, 2.0, own=False), "sign": WeightBounds.pairs(1.0)}
"""Bounds of pairwise weights by what a pair weighs."""

PARTS = {"outcome": ("shifted", "signed_residual", "private_residual"), "matching": ("all", "cells", "gaussian")}
"""Parts of a rule that a user may bring, and the names of the library's."""

_CLOSE = 1e-6
_SQUARED_TARGET = 2.0
_ANY = PrivacyBudget(1.0, 1e-6)


@dataclass(frozen=True, eq=False)
class RuleFacts:
    """What is public of a released rule.

    Attributes:
        release: The release; it claims something.
        event: What was charged for it.
        whole: Whether that is for the rule alone, and not for all that one of several candidates cost.
    """

    release: RuleRelease
    event: Event
    whole: bool

    @property
    def public(self) -> dict[str, Any]:
        """Public constants."""
        return self.release.privacy.public

    def number(self, name: str) -> float:
        """Return a public constant."""
        return as_number(self.public[name])

    @property
    def budget(self) -> PrivacyBudget:
        """What the release might spend."""
        fields = self.event.to_dict()
        return PrivacyBudget(fields["epsilon"], fields.get("delta", 0.0))

    @property
    def slope(self) -> float:
        """Largest slope of the loss."""
        slope = LOSSES[self.public["loss"]][0]
        if not math.isnan(slope):
            return slope
        return Squared(_SQUARED_TARGET + self.release.features.largest_entry * self.number("radius")).slope

    @property
    def weights(self) -> tuple[WeightBounds, float | None]:
        """Bounds of the weights; where the largest is not told, those of weights up to one, and a bound of it."""
        public, overlap = self.public, self.release.domain.overlap
        if public["learner"] == "PairwiseRule":
            return PAIRS[public["gap"]], None
        scheme, propensity = public["weights"], public.get("propensity")
        if scheme == "constant":
            return WeightBounds.per_record(1.0), None
        if scheme == "known" and not isinstance(propensity, str):
            least = as_number(propensity)
            return WeightBounds.per_record(0.5 / min(least, 1 - least)), None
        if scheme in ("known", "private"):
            return WeightBounds.per_record(1.0), 0.5 / overlap
        if scheme not in ("ipw", "entropy", "mmd"):
            raise ValueError(f"weights = {scheme}")
        cap = 1 / overlap if public.get("weights_cap") is None else self.number("weights_cap")
        return WeightBounds.with_indirect(cap / 2, self.number("indirect_sensitivity")), None


def rule_problems(release: Release) -> Iterator[str]:
    """Return what is wrong with the numbers of a released rule; nothing for other releases, or without a claim.

    Args:
        release: The release, as read from its file.
    """
    privacy = release.privacy
    if not isinstance(release, RuleRelease) or not privacy.claims or not is_known(privacy.mechanism):
        return
    if privacy.public.get("loss") not in LOSSES:
        yield from _own_loss(release)
        return
    yield from _own_parts(release)
    try:
        facts = _facts(release)
        yield from _CHECKS[privacy.mechanism.split("_")[0]](facts, privacy.mechanism.split("_")[1])
    except (InputError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        yield "its public constants, its charge and its numbers are not those of one release by its mechanism"


def _own_loss(release: RuleRelease) -> Iterator[str]:
    if release.privacy.level == "certified":
        yield f"its loss is called {release.privacy.public.get('loss')}, which is none of the library's"


def _own_parts(release: RuleRelease) -> Iterator[str]:
    for part, names in PARTS.items():
        told = release.privacy.public.get(part, names[0])
        if told not in names and release.privacy.level == "certified":
            yield f"its {part} is called {told}, which is none of the library's"


def _facts(release: RuleRelease) -> RuleFacts:
    charges = [charge for block in release.privacy.blocks for charge in block["charges"]]
    own = [c for c in charges if c["label"] == f"release by {release.privacy.mechanism}"]
    paid = own or [c for c in charges if c["label"].startswith(f"{CANDIDATE} ")]
    if paid[-1]["count"] != 1:
        raise ValueError("a release is paid once")
    return RuleFacts(release, event_from_dict(paid[-1]["event"]), bool(own))


def _compare(facts: RuleFacts, name: str, needed: float) -> Iterator[str]:
    yield from scale_problems(name, facts.number(name), needed, _CLOSE, least=not facts.whole)


def _objective(facts: RuleFacts, kind: str) -> Iterator[str]:
    bounds, most = facts.weights
    spent, gamma = facts.number("epsilon_jacobian"), facts.number("ridge")
    if facts.public["perturbation"] != kind:
        yield "its perturbation is not that of its mechanism"
    if most is not None:
        bounds = bounds.scaled(facts.number("tilt_scale") / _calibrated(facts, kind, bounds).scale)
        yield from _largest(bounds, most, facts.whole)
    # the curvature at which the determinants cost what is told
    curvature = (math.expm1(spent) / bounds.most if bounds.own else spent / bounds.second) * gamma
    expected = LOSSES[facts.public["loss"]][1]
    if not curvature > 0 or (expected is not None and facts.whole and not _near(curvature, expected)):
        yield "what its determinants cost is not what its loss, weights and ridge ask for"
    objective = _calibrated(facts, kind, bounds)
    solver = objective.solver.released_scale(objective.size)
    yield from _compare(facts, "tilt_scale", objective.scale)
    yield from _compare(facts, "solver_scale", solver)
    yield from grid_problems("theta", facts.release.theta, facts.number("solver_scale"))


def _calibrated(facts: RuleFacts, kind: str, bounds: WeightBounds) -> ObjectiveNoise:
    """Return the tilt that the charge pays, with these weights and the told cost of the determinants."""
    spent, gamma = facts.number("epsilon_jacobian"), facts.number("ridge")
    features = facts.release.features
    return calibrate_objective(
        facts.budget,
        kind=kind,
        slope=facts.slope,
        bounds=bounds,
        curvature=(math.expm1(spent) / bounds.most if bounds.own else spent / bounds.second) * gamma,
        gamma=gamma,
        size=features.dimension,
        largest_entry=features.largest_entry,
        constrained=facts.public.get("radius") is not None,
    )


def _output(facts: RuleFacts, kind: str) -> Iterator[str]:
    bounds, most = facts.weights
    size = facts.release.features.dimension
    if most is not None:
        told, unit = facts.number("noise_scale"), _noise(facts, kind, bounds).released_scale(size)
        bounds = bounds.scaled(told / unit)
        yield from _largest(bounds, most, facts.whole)
    scale = _noise(facts, kind, bounds).released_scale(size)
    yield from _compare(facts, "noise_scale", scale)
    yield from grid_problems("theta", facts.release.theta, facts.number("noise_scale"))


def _noise(facts: RuleFacts, kind: str, bounds: WeightBounds) -> AdditiveMechanism:
    """Return the noise that the charge pays, with these weights."""
    mechanism = output_mechanism(
        _ANY if isinstance(facts.event, GaussianEvent) else facts.budget,
        kind=kind,
        slope=facts.slope,
        bounds=bounds,
        gamma=facts.number("ridge"),
        tolerance=default_tolerance(facts.slope, bounds.most),
        constrained=facts.public.get("radius") is not None,
    )
    return charged_gaussian(facts.event, mechanism.sensitivity) if isinstance(facts.event, GaussianEvent) else mechanism


def _largest(bounds: WeightBounds, most: float, whole: bool) -> Iterator[str]:
    """Problems of a largest weight that follows from the noise: between that of no propensity and the overlap's."""
    if not (bounds.most >= 1 - _CLOSE and (not whole or bounds.most <= most * (1 + _CLOSE))):
        yield "its noise is not that of any weights which the overlap bound allows, at what was paid"


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE)


_CHECKS = {"objective": _objective, "output": _output}
