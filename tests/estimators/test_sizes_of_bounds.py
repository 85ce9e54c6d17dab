"""Each family at the largest and the narrowest bounds that a domain takes: nothing overflows once it has paid."""

import numpy as np
import pytest
import torch

from tests.estimators.families import FAMILIES, TRIALS, made
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import LARGEST_BOUND
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.verify.file import verify_release

NAMES = sorted(FAMILIES, key=lambda name: name not in ("average", "subgroups"))
"""First those whose arithmetic overflows first."""
SIZES = [(what, high) for what in ("y", "x") for high in (LARGEST_BOUND, 1 / LARGEST_BOUND)]


@pytest.mark.first(6)
@pytest.mark.parametrize(("what", "high"), SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_release_verifies_at_bounds_of_any_size(name, what, high, tmp_path):
    x_high, y_high = (1.0, high) if what == "y" else (high, 1.0)
    known = {"propensity": 0.5} if name in TRIALS else {}
    domain = Domain([0.0] * 2, [x_high] * 2, 0.0, y_high, overlap=0.2, better="higher", **known)
    generator = torch.Generator().manual_seed(0)
    u, noise = (torch.rand(600, k, generator=generator, dtype=torch.float64) for k in (2, 1))
    a = (torch.rand(600, generator=generator) < 0.5).double()
    y = y_high * (0.3 + 0.3 * a * u[:, 0] + 0.1 * noise[:, 0])
    release = made(name, domain, PrivacyBudget(4.0, 1e-5)).fit(x_high * u, a, y).release()
    verify_release(release.save(tmp_path / "release.safetensors"))
    if callable(getattr(release, "effect", None)):
        assert np.isfinite(release.effect(x_high * u[:3])).all()
