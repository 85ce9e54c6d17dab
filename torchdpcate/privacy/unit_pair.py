"""Neighbours who differ in one person with several records, on whom the budget by record is attacked."""

import torch
from torch import Tensor

from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.unit import PrivacyUnit
from torchdpcate.privacy.worst_case import Game, Target, worst_case

_RECORDS = 4


@worst_case(
    "person",
    PrivacyUnit,
    attacks=[Target(None, person=True)],
    pair="four records of one person, each as far as one can be from its replacement",
)
def _person(budget: PrivacyBudget) -> Game:
    unit = PrivacyUnit.person("person", _RECORDS)
    mechanism = GaussianMechanism(unit.record_budget(budget), 1.0)
    sums = torch.tensor([0.0, float(_RECORDS)], dtype=torch.float64)

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return mechanism.add_noise(sums[world].expand(runs, 1), noise)

    event = GaussianEvent(mechanism.event.noise_multiplier / _RECORDS)
    return Game(draw, event, Guarantee(Level.CERTIFIED, budget), evidence=lambda outputs: outputs[:, 0])
