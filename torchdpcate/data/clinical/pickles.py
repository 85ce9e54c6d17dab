"""HDF5 files hold pickles, in columns of words and in attributes: here they give arrays of plain values, or nothing."""

import io
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torchdpcate._text import plain
from torchdpcate.errors import InputError

_ALLOWED = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""What arrays of numbers and words are made by; none of it calls what it is given."""
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def plain_pickles() -> Iterator[None]:
    """Let PyTables unpickle arrays of numbers and words alone while the block runs: no file makes code run.

    pandas writes columns of words as pickled arrays, and lists of names as pickled attributes. PyTables would unpickle
    anything, so that a file could call any function; here a pickle that names something else is refused before it is
    called. One block runs at a time.

    Raises:
        InputError: The file holds such a pickle (what it names). PyTables takes attributes that cannot be unpickled for
            bytes, so that it is raised at the end of the block.
    """
    from tables import atom, attributeset

    refused: list[str] = []

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in _ALLOWED:
                refused.append(plain(f"{module}.{name}"))
                raise pickle.UnpicklingError(refused[-1])
            return super().find_class(module, name)

    def loads(data: bytes, **named: Any) -> Any:
        return Plain(io.BytesIO(data), **named).load()

    reader = SimpleNamespace(**{**vars(pickle), "loads": loads})
    with (
        _ONE_AT_A_TIME,
        mock.patch.object(atom, "pickle", reader),
        mock.patch.object(attributeset, "pickle", reader),
    ):
        try:
            yield
        finally:
            if refused:
                raise InputError(
                    f"the file holds a pickled Python object, {refused[0]}, which could run code as it is read; give "
                    "a folder of parquet exports of its tables"
                ) from None
