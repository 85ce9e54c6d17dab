"""The study of DP-CATE: constants as printed, second stages towards zero, and one cell in small."""

import math

import pandas as pd
import pytest
import torch

from experiments.dp_cate import learners, neural_ridge
from experiments.dp_cate.learners import (
    CERTIFIED,
    CONSTANT,
    CORRECTED,
    DEFAULT,
    FUNCTION,
    NETWORK,
    NETWORKS,
    NONE_HOLDS,
    SMOOTH,
    kernel_height,
    kernel_ridge,
    printed_scale,
    without_offset,
)
from experiments.dp_cate.study import STUDY
from experiments.frame.study import Settings
from torchdpcate.causal.score import RScore
from torchdpcate.data.domain import Domain
from torchdpcate.heads.stage import SecondStageBlock
from torchdpcate.privacy.budget import PrivacyBudget


def block(n: int = 1350, q: int = 2) -> SecondStageBlock:
    """A coin, and means that are known: pi = 1/2, y = a x0, s = y - x0 / 2 - w x0 = 0."""
    x = torch.rand(n, q, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = (torch.arange(n) % 2).double()
    domain = Domain([0.0] * q, [1.0] * q, 0.0, 2.0, overlap=0.05)

    def regression(x, a, y):
        w = a - 0.5
        return y - x[:, 0] / 2 - w * x[:, 0], w

    return SecondStageBlock(x, *regression(x, a, a * x[:, 0]), regression, domain, RScore().bounds(domain))


def test_the_printed_scale_is_that_of_theorem_3():
    # sup rho 4 L sqrt(2 ln(2/delta)) / ((sqrt(2 pi) h)^q n epsilon): h = 1 at q = 2
    expected = 0.95**2 * 4 * 2 * math.sqrt(2 * math.log(2e5)) / (2 * math.pi * 1350 * 0.5)
    assert printed_scale(block(), PrivacyBudget(0.5, 1e-5)) == pytest.approx(expected, rel=1e-12)
    # h^2 = 15 at q = 30
    assert kernel_height(block(q=30)) == pytest.approx((30 * math.pi) ** -15, rel=1e-12)


def test_kernel_ridge_has_the_defaults_of_scikit_learn():
    kernel_methods = pytest.importorskip("sklearn.kernel_ridge")
    own = without_offset(block(200), lambda x: x[:, 0])
    ours = kernel_ridge(own).fit(own).correction(own.x)
    rho = own.w.square().numpy()
    theirs = kernel_methods.KernelRidge(kernel="rbf").fit(own.x.numpy(), (own.s / own.w).numpy(), sample_weight=rho)
    assert torch.allclose(ours, torch.from_numpy(theirs.predict(own.x.numpy())), atol=1e-8)


def test_without_offset_the_target_is_that_of_the_effect():
    given = block()
    own = without_offset(given, lambda x: x[:, 0])
    assert given.s.abs().max() < 1e-15
    assert torch.allclose(own.s, own.w * own.x[:, 0])
    a, y = torch.ones(3).double(), torch.tensor([0.0, 1.0, 2.0]).double()
    assert torch.allclose(own.regression(own.x[:3], a, y)[0], y - own.x[:3, 0] / 2)


def test_a_cell_finds_every_method(monkeypatch):
    monkeypatch.setattr(learners, "N", 600)
    learners.load.cache_clear()
    learners.answers.cache_clear()
    cell = {"source": "dataset_1", "learner": "R", "epsilon": "10", "seed": 0}
    try:
        found = {one.method: one for one in STUDY.compute(cell, Settings(quick=True))}
        free = {one.method for one in STUDY.compute(cell | {"epsilon": "inf"}, Settings(quick=True))}
        small = {"epsilon": "inf", "method": next(iter(NETWORKS))}
        [network] = STUDY.compute(cell | small, Settings(quick=True))
    finally:
        learners.load.cache_clear()
        learners.answers.cache_clear()
        learners.network.cache_clear()
    assert {CONSTANT, NETWORK, FUNCTION} < free
    assert (network.method, network.role) == (small["method"], "non-private")
    assert network.place.variant != found[NETWORK].place.variant
    assert found[DEFAULT].level == found[CORRECTED].level == found[SMOOTH].level == CERTIFIED
    assert found[NETWORK].level == "heuristic"
    assert found[FUNCTION].level == NONE_HOLDS
    assert all(math.isfinite(value) for one in found.values() for value in one.values)
    assert found[SMOOTH].values[0] > found[DEFAULT].values[0]


def test_constants_of_networks_are_found_again():
    size, q = (
        part.flatten()
        for part in torch.meshgrid(torch.tensor([400.0, 4000.0]), torch.tensor([2.0, 30.0]), indexing="ij")
    )
    in_use = 0.9 * (q**0.75 / size) ** (1 / 3)
    rows = pd.DataFrame({"size": size, "q": q, "in_use": in_use, "error": in_use / 2, "mean": in_use / 10})
    rows["binary"], rows["spread"], rows["varies"] = size > 1_000, in_use / 4, in_use * 2
    still = rows.assign(varies=0.0)
    found = neural_ridge.constants(pd.concat([rows, still]))["fitted"]
    expected = [0.45, 0.25, -1 / 3, 0.5, 0.0, 0.1, 0.1, 0.25]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_default_ridge_of_networks_errs_as_the_best_and_as_the_nuisances_own_effect():
    found = neural_ridge.ratios(pd.read_csv(neural_ridge.TABLE))
    assert len(found) == 27
    assert (found["best"].max() < 1.02, found["plug_in"].max() < 1.02) == (True, True)
