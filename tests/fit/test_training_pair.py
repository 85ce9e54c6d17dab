import pytest
import torch

from torchdpcate.fit import dp_sgd_worst_case as worst_case
from torchdpcate.fit.dp_sgd_plan import DPSGDPlan
from torchdpcate.fit.dp_sgd_worst_case import CANARIES, canaries, nuisance_sums
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource


def test_canaries_are_mirrored_at_right_angles():
    for dataset in (0, 1):
        records = canaries(dataset)
        assert torch.equal(records.x @ records.x.T, CANARIES * torch.eye(CANARIES, dtype=torch.float64))
    assert torch.equal(canaries(0).x, -canaries(1).x)
    assert torch.equal(canaries(0).a, canaries(1).a)


@pytest.mark.parametrize("dataset", [0, 1])
def test_each_canary_is_seen_at_the_clip_norm_if_it_was_sampled_and_moves_no_other(dataset):
    clip = worst_case._CONFIG.plan(CANARIES, PrivacyBudget(1.0, 1e-5)).max_grad_norm
    sums = nuisance_sums(DPSGDPlan(1e-3, clip, 0.2, 4), dataset, NoiseSource.fixed(0))
    sampled = sums.abs() > 0.5
    sign = 2.0 * dataset - 1
    assert sums.shape == (CANARIES, 4)
    assert 0.1 < sampled.double().mean() < 0.3
    torch.testing.assert_close(sums, sign * sampled.double(), rtol=0, atol=8e-3)  # the bias, and 8 deviations of noise
