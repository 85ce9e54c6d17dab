"""Libraries that follow from a table's public facts alone."""

from collections.abc import Sequence
from itertools import permutations

import torch

from torchdpcate.candidates.constants import Constants
from torchdpcate.candidates.family import check_actions, check_numbers, shown
from torchdpcate.candidates.thresholds import Thresholds
from torchdpcate.data.covariates import Numeric
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError


def threshold_grid(
    schema: TableSchema, shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8), actions: Sequence[int] | None = None
) -> Thresholds:
    r"""Return thresholds at quantiles of every covariate's public bounds, for every ordered pair of actions.

    Covariate j has the cuts :math:`l_j + s\,(u_j - l_j)` for each share s, or the points that far along its log scale
    or typical range; a column of a category has the one cut that separates it. Two actions are tried in
    both directions, so q numeric covariates make 8 q policies by default.

    Args:
        schema: Public facts of the table.
        shares: Shares of a covariate's bounds, strictly between 0 and 1.
        actions: Labels of the actions; None takes the schema's.

    Raises:
        InputError: No share or one outside (0, 1).

    Example:
        >>> from torchdpcate.data import Domain
        >>> threshold_grid(TableSchema.from_domain(Domain([0.0], [10.0], 0.0, 1.0)), [0.5]).names
        ('x0 > 5', 'x0 <= 5')
    """
    shares = check_numbers("shares", shares)
    if not all(0 < share < 1 for share in shares):
        raise InputError(f"shares = {list(shares)}: give shares of the covariates' bounds strictly between 0 and 1")
    labels = check_actions(schema.actions if actions is None else actions)
    cuts = [
        (name, float(f"{cut:.10g}"))
        for covariate in schema.covariates
        for name, low, high in covariate.bounds
        for cut in (_cuts(covariate, low, high, shares) if isinstance(covariate, Numeric) else (0.5,))
    ]
    # with two actions a name says where the second one is taken
    pairs = [(labels[1], labels[0]), (labels[0], labels[1])] if len(labels) == 2 else list(permutations(labels, 2))
    rows = [(name, cut, above, below) for above, below in pairs for name, cut in cuts]
    names = [
        f"{name} {'>' if above > below else '<='} {shown(cut)}"
        if len(labels) == 2
        else f"{name} > {shown(cut)}: {above}, else {below}"
        for name, cut, above, below in rows
    ]
    covariates, places, above, below = zip(*rows, strict=True)
    return Thresholds(covariates, places, above, below, names)


def _cuts(covariate: Numeric, low: float, high: float, shares: Sequence[float]) -> list[float]:
    if covariate.scale == "linear" and covariate.typical is None:
        return [low + share * (high - low) for share in shares]
    return covariate.decode_unit(torch.tensor(shares, dtype=torch.float64))[:, 0].tolist()


def same_for_all(schema: TableSchema, actions: Sequence[int] | None = None) -> Constants:
    """Return the policies that give everybody the same action: which one is best?

    Args:
        schema: Public facts of the table.
        actions: Labels of the actions; None takes the schema's.

    Example:
        >>> from torchdpcate.data import Domain
        >>> same_for_all(TableSchema.from_domain(Domain([0.0], [10.0], 0.0, 1.0))).names
        ('always 0', 'always 1')
    """
    return Constants(check_actions(schema.actions if actions is None else actions))
