"""A new way to release rules: noise on the minimiser, its scale rounded up to a power of two."""

import math

import torch
from torch import Tensor

from torchdpcate.erm.private_fit import PrivateFit
from torchdpcate.estimators.rules.mechanisms import OutputRule
from torchdpcate.laws import AddedNoise
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.worst_case import Game, worst_case
from torchdpcate.privacy.noise import NoiseSource
