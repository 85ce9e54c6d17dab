"""The mechanism of a composition, by which users name it."""

from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.composition_plan import FORMULA, CompositionPlan
from torchdpcate.estimators.cate.mechanisms.base import MECHANISMS, Mechanism


class Composed(Mechanism):
    """Releases the effect of a composition, which its fit has paid for.

    Guarantee:
        Certified (epsilon, delta): Gaussian events whose shares of mu^2 are fixed before any output; with delta = 0
        pure events whose shares of epsilon are (docs/guarantees/composed_effect.md, composed_pure_effect.md).

    Example:
        >>> Composed().name
        'composed'
    """

    name = CompositionPlan.name
    kinds = CompositionPlan.kinds
    formula = FORMULA
    accepts = ()
    gaussian = True
    free = True


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
