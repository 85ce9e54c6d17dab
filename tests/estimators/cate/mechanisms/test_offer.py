"""The comparison offered to users: public, exact for the function's noise, never above the secret smooth scale."""

import pytest
import torch

from tests.registered import GaussianProcess, SmoothSensitivity
from tests.release.helpers import Charges
from tests.sessions import noted
from torchdpcate.estimators.cate.mechanisms import worst_pairs
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import noise_at_queries
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.heads.kernel import KernelSecondStage
from torchdpcate.heads.stage import LinearStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

BUDGET = PrivacyBudget(1.0, 1e-5)
QUERIES = torch.linspace(0, 1, 7, dtype=torch.float64)[:, None]


def stages():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 300, generator=generator, dtype=torch.float64)
    block = worst_pairs.treated_block(x[:, None], y - 0.5)
    yield LinearStage(block, Legendre(2).setup(worst_pairs.DOMAIN), 0.05)
    yield KernelSecondStage(ridge=0.05, loss="squared").fit(block)


@pytest.mark.parametrize("stage", stages(), ids=["linear", "kernel"])
def test_the_functions_noise_is_what_is_released(stage):
    answers = GaussianProcess().answer(stage, QUERIES, BUDGET, noted(NoiseSource.fixed(0), Charges()))
    noise = noise_at_queries(stage, QUERIES, BUDGET)["function"]
    assert noise == pytest.approx(answers.noise_scales.square().mean().sqrt().item(), rel=1e-3)  # but for the jitter


@pytest.mark.parametrize("stage", stages(), ids=["linear", "kernel"])
@pytest.mark.parametrize("count", [1, 7])
def test_the_smooth_scale_is_never_below_what_is_said(stage, count):
    queries = QUERIES[:count]
    ready = SmoothSensitivity().prepare(stage, queries, BUDGET)
    draws = ready.draw(NoiseSource.fixed(0), 4_000) - stage.correction(queries)
    least = noise_at_queries(stage, queries, BUDGET)["smooth_sensitivity"]
    assert draws.square().mean().sqrt() > 0.9 * least  # its own error is below 2 % in five of 10^6 runs
