"""The tables of average effects say what their numbers say, and the code still gives such numbers."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats

from experiments.average_effects import defaults, lalonde
from experiments.average_effects.literal import BalancingSum, printed_sampler
from experiments.average_effects.references import LALONDE
from experiments.covariate_balancing.laws import LAWS

DATA = Path(__file__).parents[3] / "shared" / "data" / "lalonde"


def eight() -> BalancingSum:
    """The eight records of the theory note's section 7."""
    x = [[0.6, 0.2], [-0.4, 0.5], [0.1, -0.7], [0.9, -0.1], [-0.8, -0.3], [0.3, 0.4], [-0.2, -0.6], [0.5, 0.8]]
    phi = torch.cat([torch.ones(8, 1), torch.tensor(x)], 1).double()
    return BalancingSum(phi[None], torch.tensor([[1.0, 0, 1, 1, 0, 0, 1, 0]]).double())


def test_the_printed_loss_is_the_notes():
    total, theta = eight(), torch.tensor([[0.3, -0.7, 1.1]]).double()
    assert total.gradient(theta[None])[0, 0].tolist() == pytest.approx([3.36721163, -4.60379367, 8.07553055])
    assert torch.logdet(total.hessian(theta)).item() == pytest.approx(5.31080236)


def test_gradients_are_at_least_what_the_sampler_thinks():
    batch = next(iter(LAWS.values())).sample(60, range(1)).records.batch
    total = BalancingSum(batch.psi[..., :3], batch.z)
    theta = total.minimiser()
    assert total.gradient(theta[None]).norm() <= 60 * 1e-8
    delta = torch.randn(1, 1000, 3, generator=torch.Generator().manual_seed(0)).double()
    bound = total.phi.norm(dim=2).max().item()
    low = total.least_gradient(total.hessian(theta), delta, bound)
    size = total.gradient(theta[:, None] + delta).norm(dim=2)
    assert bool((low <= size).all())
    near = total.least_gradient(total.hessian(theta), 1e-4 * delta, bound)
    along = torch.einsum("rki,rij,rkj->rk", delta, total.hessian(theta), delta) / delta.norm(dim=2)
    assert (near / (1e-4 * along)).min() > 0.999


def test_the_printed_sampler_has_the_law_that_it_is_said_to_have():
    """In one dimension, against the density on a grid; a false alarm once in a million."""
    generator = torch.Generator().manual_seed(0)
    n, eta, epsilon, draws = 40, 0.2, 4.0, 4000
    phi = torch.rand(1, n, 1, generator=generator).double()
    z = (torch.rand(1, n, generator=generator) < 0.6).double()
    total = BalancingSum(phi.expand(draws, -1, -1), z.expand(draws, -1))
    theta, tried = printed_sampler(total, 1.0, eta, epsilon, generator)
    one, centre = BalancingSum(phi, z), BalancingSum(phi, z).minimiser()[0]
    grid = torch.linspace(-40, 40, 40_001).double()
    size = one.gradient(grid[None, :, None])[0, :, 0].abs()
    power = torch.maximum(size, n * eta / (1 - eta) * (grid - centre).abs()) * (epsilon * eta / 4)
    law = torch.cumulative_trapezoid((-power).exp(), grid)
    law = torch.cat([law.new_zeros(1), law]) / law[-1]
    assert law[1] < 1e-6
    assert law[-2] > 1 - 1e-6

    def cdf(values):
        right = torch.searchsorted(grid, torch.as_tensor(values)).clamp(1, len(grid) - 1)
        return law[right].numpy()

    assert stats.kstest(theta[:, 0].numpy(), cdf).pvalue > 1e-6
    assert tried.min() >= 1
    assert tried.double().mean() < 200


@pytest.mark.skipif(not DATA.is_dir(), reason="needs shared/data/lalonde beside the checkout")
def test_estimates_on_lalondes_data_are_the_notes():
    for sample, features, _, estimate, low, high in lalonde.estimates(DATA):
        note, note_low, note_high = LALONDE[sample, features]
        assert estimate == pytest.approx(note, abs=1e-4 if "clipped" in features else 1e-6)
        if note_low is not None:
            assert (low, high) == pytest.approx((note_low, note_high), abs=5e-5)


@pytest.mark.parametrize("design", defaults.DESIGNS, ids=lambda design: design.title)
def test_a_cell_of_the_defaults_study_is_near_its_plan(design):
    row = defaults.cell(design, 2_000, 1.0, 30)
    assert row["repeats"] == 30
    assert row["planned"] / 2 < row["default"] < row["planned"] * 2  # 30 data sets: six standard errors
    assert row["non-private"] < 1.5 * row["default"]
    assert design.title in defaults.page(pd.DataFrame([row]))
