"""What both nuisances left over of squares and products: its sensitivity, its shrinkage, and what it finds."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from tests.composition.cases import batch
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.planned import hardly_adjusted, left_over_noise
from torchdpcate.composition.priors import EmpiricalBayes
from torchdpcate.composition.records import fit_composition, rows_of
from torchdpcate.composition.remainders import Remainders, Shapes, _outcomes, _times, _treated, left_over
from torchdpcate.composition.rows import InMemory
from torchdpcate.composition.steps import REMAINDERS, NoisySteps, propensity_of
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.weighted_basis import Levels
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import TRAINING
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession

LEVELS = Levels([False, False, True])
GENERATOR = torch.Generator().manual_seed(0)
POINTS = torch.randn(4_000, 3, generator=GENERATOR, dtype=torch.float64)
POINTS = torch.cat([POINTS[:, :2], POINTS[:, 2:].sign()], 1)
SHAPES = Shapes.of(LEVELS, None, POINTS)
BUDGET = PrivacyBudget(1.0, 1e-5)
DOMAIN = Domain([-3.0] * 3, [3.0] * 3, -12.0, 12.0, overlap=0.05)


def test_shapes_are_squares_and_products_without_lines():
    g, z = SHAPES(POINTS), torch.cat([torch.ones(len(POINTS), 1).double(), POINTS], 1)
    assert [f"{f.kind}{f.i}{f.j}" for f in SHAPES.basis.features] == ["200", "211", "x01", "x02", "x12"]
    assert float((z.T @ g / len(g)).abs().max()) < 1e-5
    bounded = SHAPES.bounded(g)
    assert float(bounded.norm(dim=1).max()) <= SHAPES.bound * (1 + 1e-12)
    within = g.norm(dim=1) < SHAPES.bound
    torch.testing.assert_close(bounded[within], g[within])


def test_one_covariate_of_two_levels_leaves_nothing_to_look_for():
    assert Shapes.of(Levels([True]), None, POINTS[:, 2:]) is None


def test_one_record_moves_the_sums_by_their_sensitivity_at_most_and_a_pair_attains_it():
    statistic = Remainders(SHAPES, 2.0)
    moved, _, _ = statistic.moved()
    generator = torch.Generator().manual_seed(1)
    x = 9 * torch.rand(400, 3, generator=generator, dtype=torch.float64) - 4.5
    a = 4 * torch.rand(400, generator=generator, dtype=torch.float64) - 2
    y = 20 * torch.rand(400, generator=generator, dtype=torch.float64) - 10
    weight = torch.rand(400, generator=generator, dtype=torch.float64)
    each = torch.stack(
        [statistic(batch(x[i : i + 1], y[i : i + 1], a[i : i + 1]).with_weight(weight[i : i + 1])) for i in range(400)]
    )
    assert float(torch.pdist(each).max()) <= moved
    far = torch.tensor([[3.0, -3.0, 1.0]]).double()
    one = torch.ones(1).double()
    first, second = (statistic(batch(far, 9 * sign * one, sign * one)) for sign in (1, -1))
    assert float((first - second).norm()) == pytest.approx(moved)


def test_sums_are_those_of_a_dense_computation():
    y, a = (
        3 * torch.randn(len(POINTS), generator=GENERATOR, dtype=torch.float64),
        torch.rand(len(POINTS)).double() - 0.5,
    )
    g = SHAPES(POINTS).numpy()
    f = g * np.minimum(1, SHAPES.bound / np.linalg.norm(g, axis=1))[:, None]
    expected = np.concatenate([a.numpy() @ f, np.clip(y.numpy() / 2, -1, 1) / 2 @ f])
    np.testing.assert_allclose(Remainders(SHAPES, 2.0)(batch(POINTS, y, a)).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_two_parameters_that_are_zero_together_are_shrunk_as_by_a_dense_posterior():
    """Means and mean squares of the product of errors, by draws from the prior weighed by their likelihood."""
    t = torch.tensor([[1.1, -0.2], [0.9, 0.3]]).double()
    variance, scale = (
        torch.tensor([[0.09, 0.09], [0.16, 0.16]]).double(),
        torch.tensor([[1.5, 1.5], [1.0, 1.0]]).double(),
    )
    rng, draws = np.random.default_rng(0), 2_000_000
    taus, shares = np.logspace(np.log10(0.05), np.log10(3), 20), np.array([1, 0.5, 0.25, 0.1, 0.04])
    tau, r = rng.choice(taus, draws), rng.choice(shares, draws)
    none = rng.uniform(size=draws) < 0.2
    on = (rng.uniform(size=(2, draws)) < r) & ~none  # by parameter
    theta = rng.normal(size=(2, 2, draws)) * tau / np.sqrt(r) * scale.numpy()[..., None] * on
    weight = np.exp(-((t.numpy()[..., None] - theta) ** 2 / 2 / variance.numpy()[..., None]).sum((0, 1)))
    weight /= weight.sum()
    expected = theta @ weight
    products = np.square(theta - expected[..., None]).prod(0) @ weight
    means, seconds = EmpiricalBayes(0.2).together(t, variance, scale)
    np.testing.assert_allclose(means.numpy(), expected, atol=0.01)
    np.testing.assert_allclose(seconds.numpy(), products, rtol=0.05, atol=1e-3)


def test_one_row_is_shrunk_as_it_is_alone():
    t, variance = torch.tensor([1.0, -0.5, 0.2]).double(), torch.full((3,), 0.1).double()
    alone, _ = EmpiricalBayes(0.5).moments(t, variance, torch.ones_like(t))
    far = torch.full_like(t, 1e12)  # knows nothing
    together, _ = EmpiricalBayes(0.5).together(
        torch.stack([t, 0 * t]), torch.stack([variance, far]), torch.ones(2, 3).double()
    )
    torch.testing.assert_close(together[0], alone, rtol=1e-6, atol=1e-6)


def confounded(n: int, size: float, seed: int = 0) -> CausalData:
    """Records whose outcome and propensity depend on a product of two covariates; the effect is one."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 3, generator=generator, dtype=torch.float64).clamp(-3, 3)
    product = z[:, 0] * z[:, 1]
    e = torch.sigmoid(size * product).clamp(0.05, 0.95)
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < e).double()
    y = z[:, 2] + product + a + torch.randn(n, generator=generator, dtype=torch.float64)
    return CausalData(z, a, y.clamp(-12, 12))


def session_of(budget: PrivacyBudget | None, n: int) -> FitSession:
    return FitSession.open({"records": n}, budget, NoiseSource.fixed(7)).charging(["records"], TRAINING)


def fitted(records: CausalData, budget: PrivacyBudget | None):
    plan = plan_within(records.n, budget, DOMAIN, lines=())
    session = session_of(budget, records.n)
    schema = TableSchema.of(DOMAIN)
    return plan, fit_composition(rows_of(records, DOMAIN), DOMAIN, plan, session, DOMAIN.two_levels, schema=schema)


def test_a_product_that_confounds_is_found():
    """At a size where the nuisances have no products of their own: propensities follow it nevertheless."""
    records = confounded(5_000, 1.0)
    plan, fit = fitted(records, PrivacyBudget(1.5, 1e-5))
    assert not {"x"} & {feature.kind for feature in plan.propensity().basis.features}
    logit = torch.logit(propensity_of(fit.worked))
    product = records.x[:, 0] * records.x[:, 1]
    assert float(torch.corrcoef(torch.stack([logit, product]))[0, 1]) > 0.8
    assert float(torch.corrcoef(torch.stack([fit.worked.outcome, product]))[0, 1]) > 0.5


def test_what_is_added_moves_both_residuals_by_it_within_the_bounds():
    records = confounded(2_000, 1.0)
    _, fit = fitted(records, None)
    first, change = fit.nuisances.args
    made, then = change.args
    before, left = made(first(records)), then.func
    after = then(before)
    g = left.shapes(before.x)
    assert left.error > 0
    inside = (propensity_of(after) > 0.05) & (propensity_of(after) < 0.95) & (before.lacks.sum(1) == 0)
    moved = torch.logit(propensity_of(after)) - torch.logit(propensity_of(before))
    torch.testing.assert_close(moved[inside], (g @ left.logit)[inside], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(after.a + propensity_of(after), before.a + propensity_of(before))
    torch.testing.assert_close(after.y + after.outcome, before.y + before.outcome)


def test_coefficients_and_their_error_are_those_of_the_formula():
    """Released sums over planned curvatures at public points, shrunk together."""
    records = confounded(3_000, 0.5)
    plan = plan_within(3_000, None, DOMAIN, lines=())
    steps = NoisySteps(session_of(None, 3_000), plan.shares)
    _, fit = fitted(records, None)
    first, change = fit.nuisances.args
    made, _ = change.args
    inner = made(first(records))
    none = POINTS.new_zeros(len(POINTS))
    at_points = made(CausalData(POINTS, none, none))
    found = left_over(InMemory(inner), plan, steps, LEVELS, POINTS, at_points, 2.0)
    shapes = Shapes.of(LEVELS, None, POINTS)
    g = shapes(POINTS)
    held = float((propensity_of(at_points) * (1 - propensity_of(at_points))).mean())
    unit, square = (shapes.bounded(g) * g).mean(0), g.square().mean(0)
    curvature = torch.stack([held * unit, plan.inside / 4.0 * unit])
    sampling = torch.stack([held * unit, 0.125 * unit]) / 3_000
    size = torch.tensor([1.5, 2.0]).double()[:, None] / (len(unit) * square).sqrt()
    sums = Remainders(shapes, 2.0)(inner).view(2, -1) / 3_000
    means, seconds = EmpiricalBayes(0.2).together(sums / curvature, sampling / curvature.square(), size)
    pi, bounded = propensity_of(at_points), shapes.bounded(g)
    times = float((found.logit @ means[0]) / means[0].square().sum())
    torch.testing.assert_close(found.logit, times * means[0])
    along, wanted = g @ means[0], held * float((bounded @ means[0]) @ (g @ means[0]))
    sums = [
        float((torch.sigmoid(torch.logit(pi) + c * along) - pi) @ (bounded @ means[0])) for c in (times - 0.01, times)
    ]
    assert sums[0] < wanted <= sums[1]
    more = float((found.outcome @ means[1]) / means[1].square().sum())
    assert 1 <= more < 2
    both = (times * more) ** 2 * seconds + (0.08 * times * more * means.prod(0)).square()
    assert found.error == pytest.approx(float(both @ square.square()))


def test_mean_residuals_within_a_clip_are_those_of_a_draw():
    """Normal residuals with the planned share within the clip, moved by what is left over."""
    plan = plan_within(3_000, None, DOMAIN, lines=())
    generator, scale = torch.Generator().manual_seed(0), 2.0
    more = torch.linspace(-3, 3, 7, dtype=torch.float64)[None]
    total = scale / float(torch.special.ndtri(torch.tensor((1 + plan.inside) / 2).double()))
    rest = math.sqrt(max(total**2 - float(more.var()), (0.3 * total) ** 2))
    z = torch.randn(200_000, 1, generator=generator, dtype=torch.float64)
    expected = ((more + rest * z) / scale).clamp(-1, 1).mean(0) / 2
    torch.testing.assert_close(_outcomes(plan, scale, more)[0], expected, rtol=0, atol=0.004)


def test_coefficients_of_large_left_overs_are_larger_than_the_first_step_says():
    """Of a probability that is nearly nought and one: the step of a constant slope has too little of it."""
    g = torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None]
    half, gamma = torch.full((401,), 0.5).double(), 3.0
    seen = float(((torch.sigmoid(gamma * g[:, 0]) - 0.5) @ g[:, 0]) / (0.25 * g[:, 0] @ g[:, 0]))  # first step
    assert seen < 0.8 * gamma
    times = _times(0.25, seen * g[:, 0], seen * g[:, 0], partial(_treated, half))
    assert times * seen == pytest.approx(gamma, rel=0.02)


def test_a_cohort_whose_products_would_be_missed_has_no_lines():
    eight = Domain([-3.0] * 8, [3.0] * 8, -12.0, 12.0, overlap=0.05)
    shown = {n: hardly_adjusted(plan_within(n, BUDGET, eight, lines=())) for n in (4_000, 20_000)}
    assert "squares and products of covariates decide who is treated, so that" in shown[4_000]
    assert "give 5,145 records or a larger epsilon; if treatment was drawn, state propensity:" in shown[4_000]
    assert [hardly_adjusted(plan_within(n, BUDGET, eight, lines=())) is None for n in (5_144, 5_145)] == [False, True]
    assert shown[20_000] is None
    plan = plan_within(20_000, BUDGET, DOMAIN, lines=())
    moved = 2 * math.sqrt(6) / 2 * math.hypot(1, 0.5)  # three squares, three products
    expected = moved / (20_000 * plan.shares.of(REMAINDERS) * 0.2 * 0.43)
    assert left_over_noise(plan) == pytest.approx(expected)
    trial = plan_within(20_000, BUDGET, replace_propensity(0.5), lines=())
    assert left_over_noise(trial) == 0.0
    assert REMAINDERS not in trial.shares.shares


def replace_propensity(propensity: float) -> Domain:
    return Domain([-3.0] * 3, [3.0] * 3, -12.0, 12.0, propensity=propensity)
