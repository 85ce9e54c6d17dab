"""Effects of one run along one covariate, as the curator keeps them for comparisons between runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchdpcate._files import PRIVATE, write_text
from torchdpcate._text import plain
from torchdpcate.errors import InputError

CURVES_FILE = "curves.json"
"""Their file in the curator's folder."""
_MOST_BYTES = 10_000_000


@dataclass(frozen=True, eq=False)
class EffectCurves:
    """Effects against one covariate, the others held at the middle of their bounds. The curator's.

    Attributes:
        covariate: Name of the covariate.
        grid: Its values, [m].
        released: Released effects, [m].
        band: Noise band of the second stage [m, 2], or None where no public scale is known.
        level: Probability of the band.
        others: Further curves [m] by name, such as ``truth`` and ``non-private``.
    """

    covariate: str
    grid: np.ndarray
    released: np.ndarray
    band: np.ndarray | None = None
    level: float = 0.95
    others: Mapping[str, np.ndarray] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the curves as JSON, atomically, with what the release publishes and what it does not."""
        public = {
            "covariate": self.covariate,
            "level": self.level,
            "grid": self.grid.tolist(),
            "released": self.released.tolist(),
            "band": None if self.band is None else self.band.tolist(),
        }
        secret = {name: values.tolist() for name, values in self.others.items()}
        write_text(path, json.dumps({"public": public, "secret": secret}) + "\n", PRIVATE)

    @classmethod
    def load(cls, path: Path) -> "EffectCurves":
        """Read curves that ``save`` wrote.

        Raises:
            InputError: No such file, or a damaged one.
        """
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # a pipe would never end
                raise ValueError
            facts = json.loads(path.read_text(encoding="utf-8"))
            public, grid = facts["public"], _numbers(facts["public"]["grid"])
            others = {_word(name): _numbers(values, grid.shape) for name, values in facts["secret"].items()}
            band = None if public["band"] is None else _numbers(public["band"], (*grid.shape, 2))
            level = public["level"]
            if grid.ndim != 1 or not grid.size or not (isinstance(level, float) and 0 < level < 1):
                raise ValueError
            return cls(_word(public["covariate"]), grid, _numbers(public["released"], grid.shape), band, level, others)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError):
            raise InputError(f"{path}: no curves of a run, or damaged; remove the run or run it again") from None


def _numbers(values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "if" or (shape is not None and array.shape != shape):
        raise ValueError
    array = array.astype(np.float64)
    if not np.isfinite(array).all() or np.abs(array).max(initial=0) > 1e100:  # beyond what can be drawn
        raise ValueError
    return array


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return plain(value[:1000])
