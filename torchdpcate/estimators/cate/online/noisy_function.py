"""A noisy function, revealed at queries as they come."""

import os
from typing import Any

import torch
from torch import Tensor

from torchdpcate.estimators.cate.online.correction import Correction
from torchdpcate.estimators.cate.online.path import EXCESS, JITTER, LATTICE, Revealed, SamplePath
from torchdpcate.privacy.noise import NoiseSource

_SLACK = EXCESS * JITTER
_STOCK = 1_024  # numbers drawn at once


class _Stock:
    """Standard normal numbers drawn in advance, for one draw costs as much as hundreds; none is used twice."""

    def __init__(self, noise: NoiseSource) -> None:
        self._noise, self._owner, self._left = noise, 0, torch.empty(0, dtype=torch.float64)

    def take(self, count: int) -> Tensor:
        """Return numbers that were never used, [count]."""
        if self._owner != os.getpid():  # a fork has the same stock, and both would use it
            self._owner, self._left = os.getpid(), self._left[:0]
        if count > len(self._left):
            self._left = self._noise.gaussian(max(count, _STOCK), 1.0, LATTICE)
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins with an empty stock: it must not use the same numbers again."""
        return {**self.__dict__, "_left": self._left[:0]}


class NoisyFunction:
    r"""f(x) + s (v(x) + sqrt(jitter) e(x)) at queries as they come: v a path of GP(0, K), e white noise.

    s = r sqrt(1 + excess) covers what ``SamplePath`` leaves out, so that the covariance of the noise is never below
    r^2 K.

    Args:
        correction: f and its kernel.
        scale: s, in outcome units.
        noise: Where z and e come from.
    """

    def __init__(self, correction: Correction, scale: float, noise: NoiseSource) -> None:
        self.correction, self.scale = correction, scale
        self.path, self._stock = SamplePath(correction.covariance, _SLACK), _Stock(noise)

    def reveal(self, lifted: Tensor, runs: int = 1) -> tuple[Revealed, Tensor]:
        """Return the path at new queries, and beside it v + sqrt(jitter) e, [b, runs], for independent paths."""
        z, e = self._stock.take(2 * len(lifted) * runs).reshape(2, len(lifted), runs)
        revealed = self.path.reveal(lifted, z)
        return revealed, revealed.values + JITTER**0.5 * e

    def value(self, lifted: Tensor, total: Tensor) -> Tensor:
        """Return f plus the noise, [b, runs]."""
        return self.correction.value(lifted)[:, None] + self.scale * total

    def noise_scales(self, lifted: Tensor) -> Tensor:
        """Return the public standard deviation of the noise, [b]."""
        return self.scale * (self.correction.variance(lifted) + JITTER).sqrt()
