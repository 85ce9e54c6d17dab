"""Which rows of a table are a person's contribution: exactly k of theirs, whatever the other persons' rows are."""

import hashlib
import re
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data._arrays import DECIMAL, MISSING, is_frame, plural
from torchdpcate.data.facts import check_integer
from torchdpcate.errors import InputError

_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")
_POWER = re.compile(r"[+-]?[0-9]+[eE][0-9]+")  # a word of hexadecimal digits may look like it
_EXACT = 2**53  # at and beyond it a number in float64 stands for several integers
_EXACT_IN = {2: 2**11, 4: 2**24}  # bytes of a number
_NONE = -1
_FAULTS = (
    "a number with a fraction",
    "a floating point number too large to tell integers apart",
    "neither a word nor an integer",
)
_FRACTION, _BEYOND, _OTHER = range(len(_FAULTS))


def person_names(persons: Any) -> np.ndarray:
    """Return the one name by which each row's person is known, however it is spelt, objects [n].

    A number has the digits of its integer: 7, 7.0, ``"007"`` and ``"7e0"`` are one person. A word is taken without
    blanks around it, in Unicode's form NFKC and with digits 0 to 9. A name of several columns is made of those of each,
    with their lengths before them, so that no two keys have the same. Each value is looked at alone: what a column
    holds beside it, and so which type it has, changes nothing.

    Args:
        persons: Name or number of each row's person [n], or a frame of the columns that name them together.

    Raises:
        InputError: Missing names; numbers with a fraction, or written as floating point numbers where these stand for
            several integers; what is neither words nor numbers; words that differ in capital letters alone. It says how
            many, and shows none.

    Example:
        >>> person_names([7, "007", 7.0, " ann "]).tolist()
        ['7', '7', '7', 'ann']
    """
    if not is_frame(persons):
        return _names_of_column(persons)
    if persons.shape[1] == 1:
        return _names_of_column(persons.iloc[:, 0])
    parts = [_names_of_column(persons.iloc[:, i]) for i in range(persons.shape[1])]
    return np.array(["".join(f"{len(part)}:{part}" for part in name) for name in zip(*parts, strict=True)], object)


def _names_of_column(persons: Any) -> np.ndarray:
    """Return the names of one column; each spelling is looked at once where that cannot confuse 1, 1.0 and true."""
    import pandas as pd

    column = pd.Series(persons, dtype=object) if isinstance(persons, list | tuple) else pd.Series(persons)
    mixed = column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) != "string"
    codes, values = (np.arange(len(column)), column) if mixed else pd.factorize(column)
    # NumPy's numbers know their size; the last one stands for code -1, a missing value
    found = np.array([*map(_name, values.to_numpy()), _NONE], dtype=object)
    what = "the column of persons" if column.name is None else f"column {column.name!r} of persons"
    names = found[codes]
    missing = int((names == _NONE).sum())
    if missing:
        raise InputError(
            f"{what} has {plural(missing, 'missing value')}; write whose each record is, a name of its own "
            "where nobody knows"
        )
    for fault, words in enumerate(_FAULTS):
        count = int((names == fault).sum())
        if count:
            raise InputError(
                f"{what} has {plural(count, 'row')} whose name is {words}; write each person's name as a word, or as "
                "an integer with all its digits"
            )
    distinct = set(names)
    alike = len(distinct) - len({name.casefold() for name in distinct})
    if alike:
        raise InputError(
            f"{what} has {plural(alike, 'name')} that {'differs' if alike == 1 else 'differ'} from others in capital "
            "letters alone; write each person's name in one way, or number the persons"
        )
    return names


def _name(value: Any) -> str | int:
    """Return the name that a value stands for, or the number of a fault."""
    import pandas as pd

    if isinstance(value, str):
        word = " ".join(unicodedata.normalize("NFKC", value).split())
        return _name_of_text(word if word.isascii() else "".join(str(unicodedata.decimal(c, c)) for c in word))
    if isinstance(value, bool | np.bool_):
        return _OTHER
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return _NONE if value != value else _whole(float(value), _EXACT_IN.get(getattr(value, "nbytes", 8), _EXACT))
    if isinstance(value, Decimal):
        return _NONE if value.is_nan() else _whole(value, 10**1024)
    return _NONE if value is None or value is pd.NA or value is pd.NaT else _OTHER


def _name_of_text(word: str) -> str | int:
    """Return the name that a word without blanks around it stands for, or the number of a fault."""
    if word.lower() in MISSING:
        return _NONE
    integer = _INTEGER.fullmatch(word)
    if integer:
        sign, digits = integer.groups()
        return digits if sign != "-" or digits == "0" else f"-{digits}"
    if not DECIMAL.fullmatch(word):
        return word
    if abs(float(word)) >= _EXACT:
        return word if _POWER.fullmatch(word) else _BEYOND
    try:
        return _whole(Decimal(word), _EXACT)
    except InvalidOperation:  # an exponent of more than 18 digits
        return _FRACTION


def _whole(number: float | Decimal, exact: int) -> str | int:
    """Return the integer that a number is, in digits, if all integers up to it are told apart."""
    if not -exact < number < exact:
        return _BEYOND
    return str(int(number)) if number == int(number) else _FRACTION


def person_rows(persons: Any, per_person: int = 1, seed: int = 0) -> Tensor:
    """Return the positions of exactly ``per_person`` rows of each person, [persons, per_person].

    Of a person with more rows as many are drawn; one with fewer has all of theirs, repeated in turn, so that each
    person weighs the same and the number of records is public with the number of persons. The draw ranks their rows by
    hashes of the seed, their own name (``person_names``) and the rows' order, and so is a function of their rows alone:
    a table that differs in one person gives records that differ in theirs, for every seed
    (docs/guarantees/composition.md).

    Args:
        persons: Name or number of each row's person [n], or a frame of the columns that name them together.
        per_person: k, rows of each person.
        seed: Public seed of the draw.

    Raises:
        InputError: Names that are refused, see ``person_names``; or ``per_person`` is no positive integer.

    Example:
        >>> rows = person_rows(["ann", "ben", "ann", "ann"], per_person=2)
        >>> rows.shape, rows[1].tolist(), set(rows[0].tolist()) < {0, 2, 3}
        (torch.Size([2, 2]), [1, 1], True)
    """
    import pandas as pd

    check_integer("data.per_person", per_person)
    names = person_names(persons)
    codes, _ = pd.factorize(names)
    order = pd.Series(codes).groupby(codes).cumcount().astype(str).to_numpy(dtype=object)
    rank = keyed_hashes(names + "/" + order, seed)
    sizes = np.bincount(codes)
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
