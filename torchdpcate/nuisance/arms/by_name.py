"""Which nuisances a selector may use: those whose movement under one replaced record somebody vouches for."""

from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.nuisance.arms.base import ScoreNuisances
from torchdpcate.nuisance.arms.fixed import FixedNuisances
from torchdpcate.nuisance.arms.frozen import FrozenNuisances
from torchdpcate.nuisance.arms.private import PrivateNuisances
from torchdpcate.nuisance.arms.stable import StableNuisances
from torchdpcate.nuisance.recipe import NuisanceRecipe

CERTIFICATES: dict[str, type[ScoreNuisances]] = {
    cls.certificate: cls for cls in (StableNuisances, PrivateNuisances, FrozenNuisances, FixedNuisances)
}
"""Where nuisances may come from, by the name of what vouches for them."""

_WHY = (
    "has no certificate, and double robustness is none: one replaced training record moves the scores of all scoring "
    "records, not one\nuse certificate=stability or private_nuisances, or nuisances that do not come from these "
    "records (certificate=frozen or fixed)"
)


def make_nuisances(nuisance: Any, certificate: str | None) -> ScoreNuisances:
    """Return the nuisances of a selector, whose certificate is the one that was asked for.

    Args:
        nuisance: ``ScoreNuisances``; a ``NuisanceRecipe`` of private ones; None for the certificate's default.
        certificate: A key of ``CERTIFICATES``; None takes the nuisances' own, or ``stability``.

    Raises:
        InputError: An unknown certificate, one that these nuisances do not have, or learned nuisances without any.

    Example:
        >>> make_nuisances(None, "stability").certificate
        'stability'
    """
    if certificate is not None and certificate not in CERTIFICATES:
        raise InputError(f"certificate = {certificate}: choose one of {', '.join(CERTIFICATES)}")
    if nuisance is None:
        return CERTIFICATES[certificate or StableNuisances.certificate]()
    if isinstance(nuisance, NuisanceRecipe):
        if certificate != PrivateNuisances.certificate:
            raise InputError(f"nuisance = {type(nuisance).__name__}: {_WHY}")
        return PrivateNuisances(nuisance)
    own = getattr(nuisance, "certificate", None)
    if not isinstance(nuisance, ScoreNuisances) or own not in CERTIFICATES:
        raise InputError(f"nuisance = {type(nuisance).__name__}: {_WHY}")
    if certificate is not None and own != certificate:
        raise InputError(
            f"certificate = {certificate}: {type(nuisance).__name__} has the certificate {own}; ask for that one, or "
            "leave nuisance out"
        )
    return nuisance
