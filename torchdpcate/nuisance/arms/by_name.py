"""Which nuisances a selector may use: those with a proved bound of what one replaced record does to the scores."""

from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.nuisance.arms.base import ScoreSource
from torchdpcate.nuisance.model import NuisanceRecipe
from torchdpcate.registry import Registry

GUARANTEES = Registry("nuisance_guarantee")
"""Where nuisances may come from, by the name of what bounds one record's influence on the utilities."""

DEFAULT = "auto"

_WHY = (
    "has no guarantee, and double robustness is none: one replaced training record moves the scores of all scoring "
    "records, not one\nuse nuisance_guarantee=composed, stability or private_nuisances, or nuisances that do not come "
    "from these records (nuisance_guarantee=frozen or fixed)"
)


def make_nuisances(nuisance: Any, guarantee: str | None) -> ScoreSource:
    """Return the nuisances of a selector, whose guarantee is the one that was asked for.

    Args:
        nuisance: ``ScoreSource``; a ``NuisanceRecipe`` of private ones; None for the guarantee's default.
        guarantee: A key of ``GUARANTEES``; None takes the nuisances' own, or ``auto``.

    Raises:
        InputError: An unknown guarantee, one that these nuisances do not have, or learned nuisances without any.

    Example:
        >>> make_nuisances(None, "stability").guarantee
        'stability'
    """
    given = None if guarantee is None else GUARANTEES.find(guarantee)
    if nuisance is None:
        return (given or GUARANTEES[DEFAULT])()
    if given is not None and isinstance(nuisance, NuisanceRecipe) and hasattr(given, "recipe"):
        return given(nuisance)
    if not isinstance(nuisance, ScoreSource) or nuisance.guarantee not in GUARANTEES:
        raise InputError(f"nuisance = {type(nuisance).__name__}: {_WHY}")
    if guarantee not in (None, nuisance.guarantee):
        raise InputError(
            f"nuisance_guarantee = {guarantee}: {type(nuisance).__name__} has the guarantee {nuisance.guarantee}; ask "
            "for that one, or leave nuisance out"
        )
    return nuisance
