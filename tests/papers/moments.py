"""Means of large samples against closed forms."""

import math

from torch import Tensor

SDS = 6.0
"""Standard errors; a normal mean lies farther off twice in a billion."""


def near(values: Tensor, mean: float) -> bool:
    return abs(float(values.mean()) - mean) < SDS * float(values.std()) / math.sqrt(len(values))
