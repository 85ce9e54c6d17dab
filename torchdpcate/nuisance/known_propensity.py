"""Propensities that nothing has to be fitted for: the domain's own, or one that a covariate's column holds."""

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError


def propensity_at(x: Tensor, domain: Domain) -> Tensor | None:
    """Return the propensity that the domain knows, [n], at raw covariates x [n, q]; None if it knows none.

    Where it is known of records alone, this is the middle of its bounds, for points that are no records.

    Example:
        >>> propensity_at(torch.zeros(2, 1), Domain([0.0], [1.0], -1.0, 1.0, propensity=0.3)).tolist()
        [0.3, 0.3]
    """
    known = domain.known_propensity
    if known is None:
        return None
    return known.at(x) if known.column is None else x.new_full((len(x),), known.middle, dtype=torch.float64)


def propensity_column(
    name: str, domain: Domain, overlap: float, *, strict: bool = False, what: str = "propensity"
) -> tuple[int, tuple[float, float]]:
    """Return the position of the column, and the range of its values clipped to the overlap.

    Args:
        name: Of the covariate that holds P(A = 1 | x).
        domain: Public bounds.
        overlap: Least propensity of either arm.
        strict: Whether the column's public bounds must lie strictly between 0 and 1.
        what: Name of the setting, for messages.

    Raises:
        InputError: No such covariate, or bounds that are no probabilities.

    Example:
        >>> propensity_column("p", Domain([0.1], [0.8], -1.0, 1.0, names=["p"]), overlap=0.2)
        (0, (0.2, 0.8))
    """
    if name not in domain.names:
        raise InputError(f"{what} = {name!r}: no such covariate; choose one of {', '.join(domain.names)}")
    column = domain.names.index(name)
    low, high = float(domain.covariate_low[column]), float(domain.covariate_high[column])
    if not 0 <= low <= high <= 1 or (strict and (low == 0 or high == 1)):
        raise InputError(
            f"{what} = {name!r}: its public bounds [{low:g}, {high:g}] must lie {'strictly ' if strict else ''}between "
            "0 and 1; narrow them in the domain"
        )
    return column, (min(max(low, overlap), 1 - overlap), min(max(high, overlap), 1 - overlap))
