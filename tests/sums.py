"""What mechanisms are given, bit by bit, before they add noise."""

import pytest
import torch

from torchdpcate.privacy.mechanisms import AdditiveMechanism


def given(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return a list to which every value that gets additive noise from now on is appended."""
    seen: list[torch.Tensor] = []
    add_noise = AdditiveMechanism.add_noise

    def watched(self, values, noise):
        seen.append(values.clone())
        return add_noise(self, values, noise)

    monkeypatch.setattr(AdditiveMechanism, "add_noise", watched)
    return seen
