"""Which nuisances a selector may use: those whose movement under one replaced record somebody vouches for."""

from typing import Any

from torchdpcate.errors import InputError
from torchdpcate.nuisance.arms.base import ScoreNuisances
from torchdpcate.nuisance.recipe import NuisanceRecipe
from torchdpcate.registry import Registry

CERTIFICATES = Registry("certificate")
"""Where nuisances may come from, by the name of what vouches for them."""

DEFAULT = "stability"

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
    given = None if certificate is None else CERTIFICATES.find(certificate)
    if nuisance is None:
        return (given or CERTIFICATES[DEFAULT])()
    if given is not None and isinstance(nuisance, NuisanceRecipe) and hasattr(given, "recipe"):
        return given(nuisance)
    if not isinstance(nuisance, ScoreNuisances) or nuisance.certificate not in CERTIFICATES:
        raise InputError(f"nuisance = {type(nuisance).__name__}: {_WHY}")
    if certificate not in (None, nuisance.certificate):
        raise InputError(
            f"certificate = {certificate}: {type(nuisance).__name__} has the certificate {nuisance.certificate}; ask "
            "for that one, or leave nuisance out"
        )
    return nuisance
