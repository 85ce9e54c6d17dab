"""The printed laws of the covariate balancing study have the moments that their formulas say."""

import math

import pytest
import torch
from scipy import integrate, stats

from experiments.covariate_balancing.laws import LAWS, average_effect
from experiments.covariate_balancing.simulation import GROUPS, simulate
from torchdpcate.data.records import public_generator

N = 400_000
SLOPES = (-0.2, 0.3, -0.4, 0.6)


def expit(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def effect_by_integral(largest: float) -> float:
    """E[expit(1.15 + s Z) - expit(0.15 + s Z)], s^2 = b'(0.8 I + 0.2 J) b over the squared norm."""
    spread = math.sqrt(0.8 * sum(b * b for b in SLOPES) + 0.2 * sum(SLOPES) ** 2) / largest

    def term(at: float) -> float:
        return (expit(1.15 + spread * at) - expit(0.15 + spread * at)) * stats.norm.pdf(at)

    return integrate.quad(term, -9, 9)[0]


@pytest.mark.parametrize("largest", [3.0, 5.3, 6.2])
def test_the_effect_is_the_integral_of_its_law(largest):
    assert average_effect(torch.tensor([largest])).item() == pytest.approx(effect_by_integral(largest), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "treated", "low", "high"),
    [(*row,) for row in (("scenario 1", 0.524, 0.1, 0.92), ("scenario 2", 0.618, 0.41, 0.8))],
)
def test_draws_have_the_moments_of_their_law(name, treated, low, high):
    law = LAWS[name]
    x, scaled, z, y, largest = law.draw(N, public_generator(0, "moments"))
    cov = torch.cov(x.T)
    six = 6 / math.sqrt(N)  # standard errors of a mean of numbers with deviation 1
    assert torch.allclose(cov, 0.8 * torch.eye(4).double() + 0.2, atol=1.5 * six)
    assert scaled.norm(dim=1).amax().item() == pytest.approx(1.0, abs=1e-12)
    e = torch.sigmoid(law.logit(scaled))
    assert low < e.amin().item() < e.amax().item() < high
    assert abs((z - e).mean().item()) < six / 2
    assert z.mean().item() == pytest.approx(treated, abs=six)
    # the formulas again, for one record
    a, b, c, d = scaled[7].tolist()
    logit = {
        "scenario 1": 0.1 + 0.8 * a + 2.0 * b - 1.0 * c - 1.8 * d,
        "scenario 2": 0.1 + 0.4 * math.exp(-a / 2) + b * c - 0.6 * math.sin(a) - 0.9 * d**2,
    }[name]
    assert e[7].item() == pytest.approx(expit(logit), abs=1e-12)
    # nothing confounds by much: the difference in means is near the effect
    plain = y[z > 0.5].mean() - y[z < 0.5].mean()
    assert plain.item() == pytest.approx(effect_by_integral(largest.item()), abs=0.002 + six)


@pytest.mark.parametrize("group", GROUPS)
def test_a_quick_cell_of_each_group(group):
    found = list(simulate("scenario 2", 2_000, group, 0, 3))
    assert {one.place.metric for one in found} >= {"mse", "relative_absolute_error"}
    assert all(len(one.values) == 3 and all(map(math.isfinite, one.values)) for one in found)
    again = list(simulate("scenario 2", 2_000, group, 0, 3))
    assert [one.values for one in again] == [one.values for one in found]
