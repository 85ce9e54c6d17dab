"""The mechanism of a composition: nuisances and effect as steps on all records, Gaussian or pure."""

from collections.abc import Iterator
from typing import ClassVar

from torchdpcate.composition.interval_gate import why_none
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.pure_plan import PurePlan
from torchdpcate.composition.records import ComposedFit
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS, Mechanism
from torchdpcate.estimators.cate.recompute_composed import FORMULA, PURE_FORMULA, SUMS_FORMULA, composed_problems
from torchdpcate.estimators.mechanism import Stated
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.composed_rule import ComposedRule
from torchdpcate.release.release import QueryRelease, Release
from torchdpcate.release.statement import PrivacyStatement


class Composed(Mechanism):
    """Releases the effect of a composition, which its fit has paid for.

    Guarantee:
        Certified (epsilon, delta): Gaussian events whose shares of mu^2 are fixed before any output; with delta = 0
        pure events whose shares of epsilon are (docs/guarantees/composed_effect.md, composed_pure_effect.md).

    Example:
        >>> Composed().name
        'composed'
    """

    name = "composed"
    formula = FORMULA
    states: ClassVar[Stated] = Stated(
        Level.CERTIFIED,
        (ComposedRelease.kind, ComposedRule.kind, QueryRelease.kind),
        frozenset(
            (
                "learner",
                "rung",
                "kept",
                "steps",
                "huber_quantile",
                "requested_epsilon",
                "requested_delta",
                "constant_only",
                "intervals",
                "constants",
            )
        ),
        frozenset(("target", "effect_by")),
        formula=FORMULA,
        other_formulas=(PURE_FORMULA, SUMS_FORMULA),
    )
    accepts = ()
    gaussian = True
    free = True

    def of_events(self, plan: ComposedPlan) -> "Composed":
        """Return the mechanism that statements name, whose formula is that of the plan's events."""
        if not isinstance(plan, PurePlan):
            return self
        return SummedEffect() if plan.by_sums else PureComposed()

    def make_release(
        self, fit: ComposedFit, plan: ComposedPlan, schema: TableSchema, privacy: PrivacyStatement
    ) -> ComposedRelease:
        """Return the release of a fit.

        Args:
            fit: The composition's numbers.
            plan: Its public plan.
            schema: Columns and public bounds.
            privacy: The privacy statement.
        """
        effect = fit.effect
        return ComposedRelease(
            effect.shrunk,
            effect.estimates,
            effect.curvatures,
            effect.scale,
            effect.regression.basis,
            fit.standardisation,
            schema,
            privacy,
            columns=fit.columns,
            law=fit.law,
            numbers=fit.numbers,
            without=None if fit.law is not None else why_none(plan, withheld=fit.numbers is not None),
        )

    @classmethod
    def recompute(cls, release: Release) -> Iterator[str]:
        """Return what of a release does not follow from its public facts; see ``ReleaseMechanism``."""
        assert isinstance(release, ComposedRelease | ComposedRule | QueryRelease)
        release = release.effect if isinstance(release, ComposedRule) else release
        yield from composed_problems(release, cls.name)


class PureComposed(Composed):
    """The same by pure events."""

    formula = PURE_FORMULA
    gaussian = False


class SummedEffect(PureComposed):
    """The same with the effect by sums."""

    formula = SUMS_FORMULA


def composed_mechanism(mechanism: "str | Mechanism | None") -> Composed:
    """Return the mechanism of a composition's release.

    Args:
        mechanism: The one that was asked for; None takes ``composed``.

    Raises:
        InputError: Another one.
    """
    chosen: Mechanism = MECHANISMS.make(mechanism or Composed.name, Mechanism)
    if not isinstance(chosen, Composed):
        raise InputError(
            f"mechanism = {chosen.name}: second_stage = adaptive pays for its release while it is fitted; use "
            f"second_stage=linear with mechanism={chosen.name}, or leave the mechanism out"
        )
    return chosen
