"""Influence functions and kernel solves on another device against the CPU: emulated, and a GPU where there is one."""

import math

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.heads import influence
from torchdpcate.heads.influence import InfluenceFunction, solve_by_products, solve_densely
from torchdpcate.heads.kernel_system import DenseSystem, ProductSystem
from torchdpcate.heads.neural import NeuralHead

N, Q = 300, 3


@pytest.mark.parametrize("solver", [solve_densely, solve_by_products])
def test_influence_is_that_of_the_cpu(solver, device, monkeypatch):
    monkeypatch.setattr(influence, "solve_hessian", solver)
    generator = torch.Generator().manual_seed(0)
    head = NeuralHead(Domain([-1.0] * Q, [1.0] * Q, 0, 1), width=6, ridge=0.1, generator=generator)
    x = torch.rand(N + 4, Q, dtype=torch.float64, generator=generator) * 2 - 1
    w = torch.rand(N, dtype=torch.float64, generator=generator) - 0.5
    s = w * head(x[:N]).detach() + 0.1 * torch.randn(N, dtype=torch.float64, generator=generator)
    found = []
    for place in ("cpu", device):
        on = head.to(place)
        parts = (part.to(place) for part in (x[:N], s, w))
        F = InfluenceFunction(on.functional, on.theta.detach(), *parts, 0.1, x[N:].to(place))
        assert F.rows.device.type == place
        found.append((F.rows.cpu(), F.norm(*(part[:50].to(place) for part in (x, s, w))).cpu()))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("system", [DenseSystem, ProductSystem])
def test_kernel_solves_are_those_of_the_cpu(system, device):
    generator = torch.Generator().manual_seed(1)
    z = torch.rand(N, Q, dtype=torch.float64, generator=generator)
    w, B = torch.rand(2, N, dtype=torch.float64, generator=generator)
    active = torch.rand(N, generator=generator) < 0.9
    found = []
    for place in ("cpu", device):
        on = [part.to(place) for part in (z, w, B[:, None], active)]
        made = system(lambda a, b: torch.exp(-torch.cdist(a, b).square()), *on[:2], math.sqrt(N) / 10)
        first = made.solve(on[2], torch.ones_like(on[3]))  # then a set of records that differs by few
        found.append([first.cpu(), made.solve(*on[2:]).cpu(), made.product(on[2]).cpu()])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-7, atol=1e-9)
