"""Largest weights of both arms, which the sums of the paper's peers are scaled by."""

import torch
from torch import Tensor

from torchdpcate.estimators.average.weighted import EffectFacts


def weight_bounds(facts: EffectFacts) -> Tensor:
    """Return W_1 and W_0, the largest weights by released coefficients, [runs, 2], or by all of them, [1, 2]."""
    if facts.ranges is None:
        return torch.tensor([[facts.estimand.most_treated, facts.estimand.most_control]], dtype=torch.float64)
    return torch.stack([facts.ranges.treated[1], facts.ranges.control[1]], -1)


def stated_weights(facts: EffectFacts) -> dict[str, list[float]]:
    """Return the ends of the first run's weights, by the names that statements have for them."""
    if facts.ranges is None:
        return {}
    return {name: ends for name, ends in facts.ranges.stated.items() if name != "model_range"}
