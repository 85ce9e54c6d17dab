"""Effects in subgroups: closed forms, plans, coverage of intervals, and what is refused."""

import math

import pytest
import torch
from scipy.stats import norm

from tests.estimators.subgroups.requested import requested
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.errors import InputError
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.estimators.subgroups.plan import KNOWN, SubgroupPlan, Weighting, cell_sums, record_numbers, sensitivity
from torchdpcate.privacy.accounting import event_mu
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.cell_effects import BASES, GAUSSIAN, LAPLACE, cell_effects

DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 3.0, overlap=0.1)
PURE, SOME = PrivacyBudget(1.0, 0.0), PrivacyBudget(1.0, 1e-5)
CELLS = [{"x0": [0.5]}, {"x1": [0.25, 0.75]}]


def records(n=3000, seed=0, treated=0.5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < treated).double()
    y = (0.5 + a * (x[:, 0] > 0.5) + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)).clamp(-1, 3)
    return x, a, y


def learner(budget=SOME, law=None, released=None, **settings):
    return requested(law, released)(DOMAIN, budget, **{"subgroups": CELLS, "propensity": "randomised", **settings})


@pytest.mark.parametrize("law", BASES)
@pytest.mark.parametrize("released", ["separate", "crossed"])
def test_without_noise_each_cell_is_a_difference_in_means(law, released):
    x, a, y = records()
    fitted = learner(law=law, released=released).fit(x, a, y)
    found, cells = fitted.nonprivate_effects(), fitted.subgroups_
    for cell in range(cells.size):
        inside = (cells.positions(x) == cell).any(1)
        means, variances = [], []
        for z in (0, 1):
            own = y[inside & (a == z)]
            means.append(own.mean())
            variances.append(own.var(unbiased=False) / len(own))
        assert found.estimate[cell].item() == pytest.approx((means[1] - means[0]).item(), abs=1e-9)
        assert found.gaussian[cell].item() == pytest.approx(math.sqrt(sum(variances)), rel=1e-6)
        assert found.size[cell].sum().item() == pytest.approx(inside.sum().item())


def test_weights_by_a_known_propensity_are_inverse_probabilities():
    domain = Domain(
        [0.0, 0.0], [1.0, 1.0], -1.0, 3.0, 0.1, two_levels=[True, False], propensity={"x0": {0: 0.2, 1: 0.6}}
    )
    generator = torch.Generator().manual_seed(3)
    x, _, _ = records()
    x[:, 0] = x[:, 0].round()
    e = 0.2 + 0.4 * x[:, 0]
    a = (torch.rand(len(x), generator=generator) < e).double()
    y = (0.5 + 2 * a * x[:, 0]).clamp(-1, 3)
    fitted = SubgroupEffects(domain, SOME, subgroups=[{"x1": [0.5]}]).fit(x, a, y)
    assert fitted.plan_.weighting.way == KNOWN
    w = fitted.plan_.weighting.weights(a, e)
    assert float(w.max()) == pytest.approx(1.0)
    direct = torch.where(a > 0.5, 1 / e, 1 / (1 - e))
    for z in (0, 1):
        assert torch.allclose(w[a == z] / w[a == z].max(), direct[a == z] / direct[a == z].max())
    assert fitted.nonprivate_effects().estimate.tolist() == pytest.approx([1.0, 1.0], abs=0.1)


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN])
def test_records_k_times_over_have_the_errors_of_the_records_once(law):
    """Without noise the bound on the sampling of dependent records is exact for equal ones, and noise is not in it."""
    x, a, y = records()
    sums = learner(law=law, released="separate").fit(x, a, y)._sums
    members = torch.eye(len(sums), dtype=torch.float64)
    once, again = (cell_effects(k * sums, members, law, 1e-9, 2.0, k) for k in (1, 3))
    assert torch.allclose(again.gaussian, once.gaussian, rtol=1e-6)
    one, three = (cell_effects(sums, members, law, 5.0, 2.0, k) for k in (1, 3))
    assert torch.equal(one.noise, three.noise)
    assert torch.equal(one.laplace, three.laplace)
    sampling = [found.gaussian.square() - (found.noise.square() if law == GAUSSIAN else 0) for found in (one, three)]
    assert torch.allclose(sampling[1], 3 * sampling[0])


@pytest.mark.slow
@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN])
def test_the_released_noise_is_that_of_the_plan(law):
    """Noise of many runs against the plan's number, the release's own, and the closed form."""
    x, a, y = records()
    y = torch.where(torch.arange(len(y)) % 2 == 0, 1.0, 3.0).double()  # means at 1/2 in [-1, 1]
    fitted = learner(law=law, released="separate").fit(x, a, y)
    plan, sums, runs = fitted.plan_, fitted._sums, 500
    moved = sensitivity(law, 2, len(x))
    mu = event_mu(plan.sums_law.mechanism.event)
    assert plan.scale == pytest.approx(moved if law == LAPLACE else moved / mu, rel=1e-3)
    outputs = plan.sums_law.mechanism.add_noise(sums.reshape(1, -1).expand(runs, -1), NoiseSource.fixed(1))
    members = torch.eye(plan.strata.size, dtype=torch.float64)
    one = cell_effects(sums, members, law, plan.scale, 2.0)
    found = torch.stack(
        [cell_effects(out.reshape(-1, 2, 3), members, law, plan.scale, 2.0).estimate for out in outputs]
    )
    # 500 runs: a standard deviation is off by 18 % once in a hundred million
    assert torch.allclose(found.std(0), one.noise, rtol=0.18)
    even = plan.cell_noise * plan.records / torch.tensor([len(x) / 2] * 2 + [len(x) / 4, len(x) / 2, len(x) / 4])
    assert torch.allclose(one.noise, even, rtol=0.15)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_simultaneous_intervals_are_those_of_a_higher_level(level):
    release = learner().fit(*records()).release()
    one = level ** (1 / release.subgroups.size)
    assert release.interval(level, simultaneous=True) == pytest.approx(release.interval(one))
    assert (release.interval(level) != release.interval(level, simultaneous=True)).any()


@pytest.mark.parametrize("law", BASES)
def test_a_contrast_has_the_errors_of_both_cells(law):
    release = learner(law=law).fit(*records()).release()
    value, low, high = release.contrast("x0 >= 0.5", "x0 < 0.5")
    assert value == pytest.approx(release.estimate[1] - release.estimate[0])
    both = math.sqrt(float(variance(release)[:2].sum()))
    assert (high - low) / 2 == pytest.approx(norm.ppf(0.975) * both, rel=0.02)  # six Laplace parts are nearly normal
    _, low, high = release.contrast("x0 < 0.5", "x1 < 0.25")  # which share records
    one, two = variance(release)[[0, 2]].sqrt().tolist()
    assert (high - low) / 2 == pytest.approx(norm.ppf(0.975) * (one + two), rel=0.08)
    for pair, said in ((("x0 < 0.5", "x0 < 0.5"), "are one line"), (("none", "x0 < 0.5"), "choose one of x0 < 0.5")):
        with pytest.raises(InputError, match=said):
            release.contrast(*pair)


def test_a_label_of_two_partitions_names_two_lines():
    release = learner(subgroups=[{"x0": [0.4]}, {"x0": [0.4, 0.6]}]).fit(*records()).release()
    names = ["x0: x0 < 0.4", "x0 >= 0.4", "x0 (2): x0 < 0.4", "0.4 <= x0 < 0.6", "x0 >= 0.6"]
    assert release.lines().index.tolist() == names
    one, two = variance(release)[[1, 4]].sqrt().tolist()  # of partitions of one name, which share records
    _, low, high = release.contrast("x0 >= 0.4", "x0 >= 0.6")
    assert (high - low) / 2 > 1.7 * (one + two)


def variance(release):
    return release.effects.gaussian.square() + 2 * release.effects.laplace.square().sum(1)


def test_records_of_a_noisy_cell_have_the_full_range():
    x, a, y = records(200)
    release = learner(subgroups=[{"x0": [0.05, 0.5]}]).fit(x, a, y).release()
    assert release.interval()[0].tolist() == [-4.0, 4.0]
    assert bool(release.effects.noise_dominated[0])
    assert math.isfinite(release.estimate[0])


def covered(law, eps, n, partitions, seeds, level=0.95):
    """Share of data sets whose intervals hold the effect, by cell; and all at once: the data sets side by side."""
    generator = torch.Generator().manual_seed(7)
    size, cells = seeds * n, 4
    at = torch.randint(0, 6, (size,), generator=generator).clamp(max=cells - 1)  # the last is three times as large
    a = (torch.rand(size, generator=generator) < 0.4).double()
    effect = torch.linspace(0, 0.3, cells, dtype=torch.float64)
    y = (torch.rand(size, generator=generator) < 0.2 + a * effect[at]).double()
    strata = (torch.arange(size) // n) * cells + at
    sums = cell_sums(record_numbers(y, torch.ones_like(y), law, 0.5, 0.5), a, strata[:, None], seeds * cells)
    moved = sensitivity(law, partitions, n)
    budget = PrivacyBudget(eps, 1e-5)
    schema = TableSchema.from_domain(Domain([0.0] * partitions, [1.0] * partitions, 0.0, 1.0))
    cuts, weighting = [{f"x{k}": [0.5]} for k in range(partitions)], Weighting("equal", 0.5, 0.5)
    plan = SubgroupPlan(n, schema, Subgroups.of(cuts, schema), budget, weighting, law, "separate")
    assert plan.sums_law.mechanism.sensitivity == moved
    noisy = plan.sums_law.mechanism.add_noise(sums.reshape(seeds, -1), NoiseSource.fixed(2)).reshape(sums.shape)
    found = cell_effects(noisy, torch.eye(seeds * cells, dtype=torch.float64), law, plan.scale, 0.5)
    off = (found.estimate.reshape(seeds, cells) - effect).abs()
    widths = [found.half_width(p).reshape(seeds, cells) for p in (level, level ** (1 / cells))]
    dominated = found.noise_dominated.reshape(seeds, cells)
    return [(off <= width) | dominated for width in widths]


@pytest.mark.slow
@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN])
@pytest.mark.parametrize(("eps", "n"), [(1.0, 1500), (1.0, 6000), (4.0, 1500)])
def test_intervals_hold_the_effects(law, eps, n):
    seeds = 500
    pointwise, at_once = covered(law, eps, n, 1 if law == LAPLACE else 5, seeds)
    # five standard errors below the level: a false alarm once in three million a cell
    least = 0.95 - 5 * math.sqrt(0.95 * 0.05 / seeds)
    assert float(pointwise.double().mean(0).min()) > least
    assert float(at_once.all(1).double().mean()) > least
    assert float(pointwise.double().mean()) < 0.99
