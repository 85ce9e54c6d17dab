"""Nuisances of a composition: what a record can do to a network's steps, what is paid, and what is chosen."""

import math

import pytest
import torch
from torch.func import functional_call, grad, vmap

from tests.composition.test_lightning_fit import Draws, steps_of
from torchdpcate.composition.linear_fit import FitPlan, HuberFit, LogisticFit
from torchdpcate.composition.networks import EffectNetwork, Network, NetworkSteps
from torchdpcate.fit.trainer import default_trainer

N, K = 300, 2


def problem(kind="huber", n=N, steps=20):
    """A fit on a constant and two slopes, its plan and its covariates; the truth is a bump."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, K, generator=generator, dtype=torch.float64)
    psi = torch.cat([torch.ones(n, 1, dtype=torch.float64), z], 1) / math.sqrt(3)
    bump = 2 * torch.exp(-2 * z[:, 0].square())
    weights = 1 / psi.norm(dim=1)
    if kind == "huber":
        fit, inside = HuberFit(psi, weights, bump, 0.8), 0.8
    else:
        fit, inside = LogisticFit(psi, weights, (bump > 1).double(), 1.0), 0.2
    curvature = inside * (weights[:, None] * psi.square()).sum(0)
    return fit, FitPlan("outcome", curvature, 1e-3 * curvature, steps, steps // 5, 0.2, 0.25), z, bump


def network(fit, width=4, features=3):
    found = Network(fit, K, width, 0.3, features)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return found


def record_gradients(found, batch):
    """Gradient of each record's loss in all parameters, [n, p], by torch.func."""
    parameters = {name: p.detach() for name, p in found.named_parameters()}

    def loss(parameters, *record):
        single = tuple(part[None] for part in record)
        return functional_call(Losses(found), {f"of.{k}": v for k, v in parameters.items()}, (single,)).sum()

    found_grads = vmap(grad(loss), in_dims=(None, *[0] * len(batch)))(parameters, *batch)
    return torch.cat([g.flatten(1) for g in found_grads.values()], 1)


class Losses(torch.nn.Module):
    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, batch):
        return self.of.record_loss(batch)


@pytest.mark.parametrize("kind", ["huber", "logistic"])
@pytest.mark.parametrize("features", [1, 3])
def test_gradients_are_as_long_as_the_pull_over_its_slope(kind, features):
    fit, _, z, _ = problem(kind)
    found, psi = network(fit, features=features), fit.predictors[:, :features]
    norms = record_gradients(found, (psi, z, fit.targets)).norm(dim=1)
    pulls = fit.pulls(found(psi, z).detach()).abs() / fit.slope
    torch.testing.assert_close(norms, pulls, rtol=1e-12, atol=1e-12)
    assert norms.max() <= 1 + 1e-12


def test_one_record_moves_a_step_by_at_most_two_clip_norms():
    fit, plan, z, _ = problem(steps=1)
    sums = []

    class Kept(NetworkSteps):
        def step(self, gradients):
            sums.append(torch.cat([g.flatten() for g in gradients]))

        def finish(self):
            pass

    other = fit.targets.clone()
    other[0], outlier = -1e9, z.clone()
    outlier[0] = torch.tensor([3.0, -3.0])
    for targets, covariates in ((fit.targets, z), (other, outlier)):
        own = HuberFit(fit.predictors, fit.weights, targets, fit.slope)
        found = network(own)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torchdpcate.composition.networks.NetworkSteps", Kept)
            from torchdpcate.composition.networks import trained

            trained(found, plan, covariates, steps_of(Draws(factor=0.0)), default_trainer)
    assert 0 < (sums[0] - sums[1]).norm() <= 2 * fit.slope * (1 + 2**-15)
    # without noise and clipping it is the sum of the records' gradients
    gradients = record_gradients(found, (fit.predictors, outlier, other)) * fit.slope
    order = [p.numel() for p in found.ordered]
    names = [name for name, _ in found.named_parameters()]
    parts = dict(zip(names, gradients.sum(0).split([p.numel() for p in found.parameters()]), strict=True))
    expected = torch.cat([parts[name] for name in ("wide.weight", "out.weight", "hidden.bias", "hidden.weight")])
    assert order == [3, 4, 4, 8]
    torch.testing.assert_close(sums[1], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arm", [0.0, 1.0])
def test_gradients_of_an_effect_are_at_most_one(arm):
    """The worst record: a residual far beyond its clip, in either arm, at any propensity and any covariates."""
    fit, _, z, _ = problem()
    pi = torch.rand(len(z), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    treatment, largest = arm - pi, torch.maximum(pi, 1 - pi)
    found = network(fit)
    found.__class__ = EffectNetwork
    far = torch.full_like(pi, 1e6)
    norms = record_gradients(found, (fit.predictors, z, far, treatment, largest)).norm(dim=1)
    torch.testing.assert_close(norms, treatment.abs() / largest)
    assert float(norms.max()) == pytest.approx(1)


def test_scalings_are_the_curvatures_of_the_public_sample():
    fit, plan, _, _ = problem()
    found = network(fit)
    steps = NetworkSteps(found, plan, noise=0.0)
    z = steps._sample
    psi = torch.zeros(len(z), 3, dtype=torch.float64)
    psi[:, 0] = 1  # features of norm one
    parameters = {name: p.detach() for name, p in found.named_parameters() if not name.startswith("wide")}

    def f(parameters, z, psi):
        own = {**{k: p.detach() for k, p in found.named_parameters()}, **parameters}
        hidden = torch.tanh(z @ own["hidden.weight"].T + own["hidden.bias"])
        return (psi @ own["wide.weight"].T + found.scale * hidden @ own["out.weight"].T).squeeze()

    jacobian = vmap(grad(f), in_dims=(None, 0, 0))(parameters, z, psi)
    whole = torch.cat([part.flatten(1) for part in jacobian.values()], 1)
    weights = 1 / (1 + whole.square().sum(1)).sqrt()
    total = plan.scaling.sum() / 0.95
    scalings, ridges = steps._scaled(torch.device("cpu"))
    for name, ours, ridge in zip(("out.weight", "hidden.bias", "hidden.weight"), scalings, ridges[1:], strict=True):
        dense = total * (weights.reshape(-1, *[1] * (jacobian[name].ndim - 1)) * jacobian[name].square()).mean(0)
        torch.testing.assert_close(ours - ridge, dense, rtol=1e-9, atol=1e-12)
