"""Which rows of a table are a person's contribution: exactly k of hers, whatever the other persons' rows are."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._arrays import plural
from torchdpcate.errors import InputError

TOO_MANY = ("draw", "refuse")
"""What becomes of a person with more rows than her contribution: k of them are drawn, or the table is refused."""


def person_rows(persons: Any, per_person: int = 1, seed: int = 0, too_many: str = "draw") -> Tensor:
    """Return the positions of exactly ``per_person`` rows of each person, [persons, per_person].

    Of a person with more rows as many are drawn; one with fewer has all of hers, repeated in turn, so that each person
    weighs the same and the number of records is public with the number of persons. The draw ranks her rows by hashes of
    the seed, her name and the rows' order, and so is a function of her rows alone: a table that differs in one person
    gives records that differ in hers, for every seed (docs/clinical_data.md).

    Args:
        persons: Name or number of each row's person, [n].
        per_person: k, rows of each person.
        seed: Public seed of the draw.
        too_many: ``"draw"``, or ``"refuse"`` persons with more than k rows.

    Raises:
        InputError: A row without a person, persons with too many rows that are to be refused (how many), or a setting
            that is not allowed.

    Example:
        >>> rows = person_rows(["ann", "ben", "ann", "ann"], per_person=2)
        >>> rows.shape, rows[1].tolist(), set(rows[0].tolist()) < {0, 2, 3}
        (torch.Size([2, 2]), [1, 1], True)
    """
    import pandas as pd

    check_contribution(per_person, too_many)
    names = pd.Series(persons).reset_index(drop=True)
    missing = int(names.isna().sum())
    if missing:
        raise InputError(f"the column of persons has {plural(missing, 'missing value')}; drop these rows")
    codes, _ = pd.factorize(names)
    order = names.groupby(codes).cumcount().astype(str)
    rank = keyed_hashes(names.astype(str) + "/" + order, seed)
    sizes = np.bincount(codes)
    excess = int((sizes > per_person).sum())
    if excess and too_many == "refuse":
        raise InputError(
            f"{plural(excess, 'person')} with more than data.per_person = {per_person} records; raise it, or let "
            f"{per_person} of them be drawn with data.too_many=draw"
        )
    ranked = np.lexsort((rank, codes))
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(per_person)[None] % np.minimum(sizes, per_person)[:, None]
    return torch.from_numpy(ranked[first[:, None] + place])


def keyed_hashes(words: Any, seed: int) -> np.ndarray:
    """Return a number for each word by SipHash under a key made of the seed, uint64 [n].

    Args:
        words: Words [n].
        seed: Public seed.
    """
    import pandas as pd

    key = hashlib.blake2b(str(int(seed)).encode(), digest_size=8).hexdigest()  # sixteen letters, as SipHash takes
    return pd.util.hash_array(np.asarray(words, dtype=object), hash_key=key, categorize=False)


def check_contribution(per_person: Any, too_many: Any = "draw") -> None:
    """Refuse a contribution that is no positive integer, or an unknown rule for persons with more.

    Raises:
        InputError: Such a setting.
    """
    if isinstance(per_person, bool) or not isinstance(per_person, int) or per_person < 1:
        raise InputError(f"data.per_person = {per_person!r}: give a positive integer")
    if too_many not in TOO_MANY:
        raise InputError(f"data.too_many = {too_many!r}: choose draw or refuse")
