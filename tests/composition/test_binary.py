"""Binary outcomes: a logistic outcome regression, no quantiles, no clipped residuals."""

import torch

from torchdpcate import Domain, PrivacyBudget, RLearner, load_release
from torchdpcate.composition.division import QUANTILES
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([-1.0, -1.0], [1.0, 1.0], 0.0, 1.0, overlap=0.1, outcome_kind="binary")


def records(n=8_000):
    generator = torch.Generator().manual_seed(5)
    x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < torch.sigmoid(x[:, 0])).double()
    effect = 0.2 + 0.2 * x[:, 1]
    y = (torch.rand(n, generator=generator) < 0.4 + 0.2 * x[:, 0] + (a - 0.5) * effect).double()
    return x, a, y, effect


def test_no_quantile_is_asked_for():
    plan = ComposedPlan.of(5_000, PrivacyBudget(1.0, 1e-5), DOMAIN)
    assert plan.binary
    assert not set(QUANTILES) & set(plan.shares.shares)
    assert abs(sum(plan.shares.shares.values()) - 1) < 1e-12


def test_without_noise_the_effect_is_found():
    x, a, y, effect = records()
    found = RLearner(DOMAIN, None).fit(x, a, y).nonprivate_effect(x)
    # a linear effect of 8,000 records: six standard errors of about .02
    assert (torch.from_numpy(found) - effect).square().mean().sqrt() < 0.12


def test_a_release_is_read_and_verified(tmp_path):
    x, a, y, effect = records()
    release = RLearner(DOMAIN, PrivacyBudget(8.0, 1e-5)).fit(x, a, y).release_function()
    assert release.scale == 1.0
    assert release.privacy.epsilon <= 8.0
    path = release.save(tmp_path / "r.safetensors")
    verify_release(path)
    assert (load_release(path).effect(x) == release.effect(x)).all()
    assert (torch.from_numpy(release.effect(x)) - effect).square().mean().sqrt() < 0.2
