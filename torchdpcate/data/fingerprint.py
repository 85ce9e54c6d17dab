"""What tells whether two tables are the same records."""

import hashlib
from typing import Any

import numpy as np

from torchdpcate.data._arrays import to_float64, to_matrix
from torchdpcate.errors import InputError


def fingerprint(X: Any, A: Any, Y: Any) -> str:
    """Return the SHA-256 of records as ``CausalData`` holds them, whatever their order.

    A policy made from records carries their fingerprint, and a selector refuses one with its own. It tells the same
    records, not a part of them. It is the curator's: whoever guesses all the records can check the guess by it.

    Args:
        X: Covariates [n, q], encoded.
        A: Treatment [n].
        Y: Outcome [n].

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: Other shapes, or what is no number.

    Example:
        >>> one = fingerprint([[0.1], [0.2]], [0, 1], [1.0, 2.0])
        >>> one == fingerprint([[0.2], [0.1]], [1, 0], [2.0, 1.0])
        True
    """
    x = to_matrix(X)
    columns = [to_float64(value, name).reshape(-1, 1) for value, name in ((A, "treatment"), (Y, "outcome"))]
    if not len(x) == len(columns[0]) == len(columns[1]):
        raise InputError(
            f"X, A and Y have {len(x)}, {len(columns[0])} and {len(columns[1])} records; they must be as many"
        )
    # adding zero makes -0.0 the number 0.0
    table = np.concatenate([part.cpu().numpy() for part in (x, *columns)], 1).astype("<f8") + 0.0
    rows = table[np.lexsort(table.T)]
    return hashlib.sha256(f"{rows.shape}".encode() + rows.tobytes()).hexdigest()
