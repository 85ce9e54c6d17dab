"""Kernel balancing: the certificate's numbers, the quadratic program it belongs to, worst neighbours."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from experiments.dp_2erm.mmd import (
    MMDWeights,
    box_minimum,
    mmd_indirect_sensitivity,
)
from tests.experiments.dp_2erm.cases import confounded, omega
from torchdpcate.errors import NumericalError
from torchdpcate.fit.kernels import UnitKernel


def widest(w: float, alpha: float) -> float:
    """h of section 4.2: how far a record of weight w pulls in the two arms' feature space."""
    return math.hypot(w - alpha, (1 - alpha) * w + alpha)


def test_certificate():
    """Section 8 bounds the arms' form by its least eigenvalue, alpha; ours keeps the form: 13 for 37 under the root."""
    h = max(widest(w, 0.5) for w in (0.0, 4.0))
    assert h == pytest.approx(4.301163, abs=1e-6)
    ratio = math.sqrt(13 / (h**2 / 0.5))
    ours = 2 * mmd_indirect_sensitivity(400, 4.0, 0.5, 1.0)
    assert ours == pytest.approx(6.075154 * ratio * math.sqrt(48 / 52), abs=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("cap", [2.1, 4.0, 20.0])
def test_the_pull_of_a_record(alpha, cap):
    """|B^{-1/2} r|^2 by linear algebra, at most what the least eigenvalue gives, and equal to it where alpha is 1."""
    form = np.array([[1.0, alpha - 1], [alpha - 1, 1.0]])
    pull = {w: w * form[0] - alpha for w in (0.0, cap)}
    assert {w: np.linalg.norm(r) for w, r in pull.items()} == pytest.approx({w: widest(w, alpha) for w in pull})
    ours = max(r @ np.linalg.solve(form, r) for r in pull.values())
    assert 4 * mmd_indirect_sensitivity(1000, cap, alpha, 0.1) ** 2 <= 0.999 / 0.1 * ours * (1 + 1e-9)
    # both records at once: features at any angle that the kernel allows, weights anywhere between their ends
    both = np.kron(np.linalg.inv(form), np.eye(2))
    found = []
    for arm, k, w, other in itertools.product((0, 1), (0.0, 0.5, 1.0), *2 * [np.linspace(0, cap, 5)]):
        before, after = w * form[0] - alpha, other * form[arm] - alpha
        apart = np.kron(before, [1.0, 0.0]) - np.kron(after, [k, math.sqrt(1 - k * k)])
        found.append(apart @ both @ apart)
    assert 16 * mmd_indirect_sensitivity(1000, cap, alpha, 0.1) ** 2 == pytest.approx(0.999 / 0.1 * max(found))
    assert max(found) <= 4 * ours * (1 + 1e-12)
    theirs = max(widest(w, alpha) for w in pull) ** 2 / alpha
    assert ours == pytest.approx(theirs) if alpha == 1 else ours < theirs


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_weights_minimise_the_distances_between_arms(alpha):
    """By scipy, from the definition alone: least squares in a root of the kernel, each arm a block."""
    records, domain = confounded(50, 2)
    kernel = UnitKernel(math.sqrt(2), domain)(records.x, records.x).numpy()
    values, vectors = np.linalg.eigh(kernel)
    root = vectors * np.sqrt(values.clip(min=0)) @ vectors.T
    arm, ridge = records.a.numpy(), 0.02
    treated, untreated, everybody = root * arm, root * (1 - arm), root.sum(1)
    near, apart, held = math.sqrt(alpha), math.sqrt(1 - alpha), math.sqrt(50 * ridge)
    rows = [near * treated, near * untreated, apart * (treated - untreated), held * np.eye(50)]
    goal = [near * everybody, near * everybody, np.zeros(50), np.full(50, 2 * held)]
    found = lsq_linear(np.vstack(rows), np.concatenate(goal), (0, 2.3), tol=1e-14, method="bvls")
    scheme = MMDWeights(ridge, cap=2.3, alpha=alpha)
    w = 2 * omega(scheme, records, domain).numpy()
    assert w == pytest.approx(found.x, abs=1e-6)
    assert ((w == 2.3).sum(), w.min() >= 0) == (found.active_mask.sum(), True)
    assert found.active_mask.sum() > 0  # the box binds somewhere


def test_the_distance_to_the_minimiser_is_certified():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    quadratic = a @ a.T + torch.eye(40)
    ends = torch.linalg.eigvalsh(quadratic)[[0, -1]].tolist()
    linear = 5 * torch.randn(40, generator=generator, dtype=torch.float64)
    w = box_minimum(quadratic, linear, 1.0, (ends[0], ends[1]), 1e-6)
    slope = quadratic @ w + linear
    assert slope[(w > 0) & (w < 1)].abs().max() < 1e-5
    assert (slope[w == 0] > 0).all()
    assert (slope[w == 1] < 0).all()
    with pytest.raises(NumericalError, match="stopped up to"):
        box_minimum(quadratic, linear, 1.0, (ends[0], ends[1]), 1e-300)
