"""What a DP-SGD run will do: fixed, public, and the same numbers for training and for accounting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from torchdpcate.errors import InputError
from torchdpcate.privacy.events import DPSGDEvent

ROUNDING = 2.0**-16
"""Share of the clip norm that is left for the rounding of norms and products in float32, and of sums to the grid."""

MOST_DRAWS = 2**40
"""Numbers up to which the precision of `NoiseSource.fine_gaussian` moves no epsilon by more than 8e-8."""

MOST_NOISE = 2.0**22
"""Noise multiplier times root of the trained numbers at which the noise's grid takes a quarter of `ROUNDING`."""


@dataclass(frozen=True)
class DPSGDPlan:
    r"""A run of `steps` steps, each on a Poisson sample of the records.

    The gradient of one step is

    .. math::
        \frac{1}{q n} \Big(\sum_{i \in S} g_i \min\{1, C / \|g_i\|\} + \sigma C Z\Big),

    where each record is in S with probability q, independently, and Z is standard normal. Gradients are clipped to
    `clip_norm`, a little below C, which leaves a margin for rounding.

    Args:
        noise_multiplier: :math:`\sigma`, noise over clip norm; above 0.
        max_grad_norm: clip norm C of one record's gradient; above 0.
        sampling_rate: q in (0, 1].
        steps: number of steps T, at least 1.

    Raises:
        InputError: a value out of its range.

    Example:
        >>> DPSGDPlan(noise_multiplier=2.0, max_grad_norm=0.3, sampling_rate=0.1, steps=200).epoch
        10
    """

    noise_multiplier: float
    max_grad_norm: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "max_grad_norm"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name}={value!r} must be above 0 and finite")
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"sampling_rate={self.sampling_rate!r} must be in (0, 1]")
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise InputError(f"steps={self.steps!r} must be a whole number, at least 1")

    @property
    def clip_norm(self) -> float:
        """What gradients are clipped to, C (1 - 2^-16), so that as computed and rounded none is longer than C."""
        return self.max_grad_norm * (1 - ROUNDING)

    def check_precision(self, numbers: int) -> None:
        """Refuse a run on so many trained numbers that the grid and the precision of its noise would count.

        Raises:
            InputError: `steps` times them exceeds 2^40, or the noise is too coarse for
                `clip_norm`.
        """
        if self.steps * numbers > MOST_DRAWS:
            raise InputError(
                f"steps={self.steps} of {numbers} numbers each: the noise is exact enough for 2^40 numbers in all; "
                f"give at most {MOST_DRAWS // numbers} steps"
            )
        if self.noise_multiplier * math.sqrt(numbers) > MOST_NOISE:
            raise InputError(
                f"noise_multiplier={self.noise_multiplier:g} with {numbers} numbers: the grid of so much noise is too "
                f"coarse; give at most {MOST_NOISE / math.sqrt(numbers):.3g}, by a larger epsilon or fewer weights"
            )

    @property
    def event(self) -> DPSGDEvent:
        """The ledger's event of one step."""
        return DPSGDEvent(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)

    @property
    def epoch(self) -> int:
        """Steps in which each record is expected once, `ceil(1/q)`."""
        return math.ceil(1 / self.sampling_rate - 1e-9)

    def to_dict(self) -> dict[str, float | int]:
        """Plain types, for checkpoints and summaries."""
        return asdict(self)


def check_limit(max_physical_batch: int | None, mode: str = "auto") -> None:
    """Refuse a number of records that pass at once which is none.

    Raises:
        InputError: Neither a whole number of at least 1 nor None, or a way of clipping that takes no step in parts.
    """
    if max_physical_batch is not None and not (isinstance(max_physical_batch, int) and max_physical_batch >= 1):
        raise InputError(f"max_physical_batch={max_physical_batch!r} must be a whole number, at least 1, or None")
    if max_physical_batch is not None and mode not in ("auto", "chain"):
        raise InputError(f"max_physical_batch = {max_physical_batch}: mode = {mode} cannot; use mode=chain")


def batch_problems(what: str, rate: float, n: int) -> Iterator[str]:
    """Return problems of a sampling rate: rate times n must be an integer."""
    batch = rate * n
    if not (round(batch) >= 1 and abs(batch - round(batch)) <= 1e-6 * batch):
        yield f"the sampling rate of {what} is not that of a batch of its {n} records"
