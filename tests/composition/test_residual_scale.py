"""The clip of residuals where most outcomes are one number: it is not nothing, and the effect is not lost."""

import math

import pytest
import torch

from tests.composition.test_streamed import BATCHES  # noqa: F401  (placeholder replaced below)
