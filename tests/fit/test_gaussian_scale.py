import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi

from tests.fit.cases import objective_delta
from torchdpcate.fit.gaussian_scale import (
    CONVEX_LOSS,
    PARALLELOGRAM,
    TRIANGLE,
    Corners,
    gaussian_scale,
    objective_sigma,
)
from torchdpcate.privacy.accounting import gaussian_curve
from torchdpcate.privacy.calibration import analytic_gaussian_sigma

# policy_learning, section 8: epsilon, delta, xi, J, k, sigma
SIGMAS = [
    (1.0, 1e-5, 2.0, 0.25, 1, 10.117438),
    (1.0, 1e-5, 2.0, 0.25, 2, 11.105875),
    (1.0, 1e-5, 2.0, 0.25, 10, 15.319310),
    (0.1, 1e-5, 2.0, 0.025, 2, 95.023488),
    (1.0, 1e-6, 8.0, 0.1, 2, 41.700574),
    (1.0, 1e-6, 8.0, 0.1, 5, 48.070572),
]


@pytest.mark.parametrize(("epsilon", "delta", "shift", "jacobian", "k", "sigma"), SIGMAS)
def test_sigmas_of_the_note(epsilon, delta, shift, jacobian, k, sigma):
    assert objective_sigma(epsilon, delta, shift, jacobian, k) == pytest.approx(sigma, abs=6e-7)


def test_deltas_of_the_note():
    assert objective_delta(12.0, 1.0, 2.0, 0.25, 1) == pytest.approx(3.356115e-7, rel=2e-7)
    assert objective_delta(12.0, 1.0, 2.0, 0.25, 2) == pytest.approx(2.023653e-6, rel=3e-7)


def test_the_profile_is_below_the_closed_form():
    q, e, shift = chi.isf(1e-5, 2), 0.75, 2.0
    closed = shift / (2 * e) * (q + math.sqrt(q * q + 2 * e))
    assert (q, closed) == pytest.approx((4.798526, 13.001179), abs=6e-7)
    assert objective_sigma(1.0, 1e-5, shift, 0.25, 2) < closed


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("k", [1, 2, 7, 400])
def test_sigma_inverts_delta_on_the_safe_side(epsilon, delta, k):
    sigma = objective_sigma(epsilon, delta, 3.0, epsilon / 10, k)
    assert objective_delta(sigma, epsilon, 3.0, epsilon / 10, k) <= delta
    assert objective_delta(sigma * (1 - 1e-9), epsilon, 3.0, epsilon / 10, k) > delta


@pytest.mark.parametrize(("sigma", "k"), [(12.0, 1), (12.0, 2), (4.0, 3), (1.0, 5), (0.4, 2), (30.0, 60)])
def test_delta_is_the_expectation(sigma, k):
    s, law = 2.0 / sigma, chi(k)

    def tail(x):
        return max(0.0, 1 - math.exp(1.0 - (0.25 + s * s / 2 + s * x))) * law.pdf(x)

    start = max((0.75 - s * s / 2) / s, 0.0)
    expected = quad(tail, start, start + 40, points=[start + t for t in (0.1, 0.5, 1, 3, 8)], limit=500, epsabs=0)[0]
    assert objective_delta(sigma, 1.0, 2.0, 0.25, k) == pytest.approx(expected, rel=1e-9)


def test_one_dimension_is_two_gaussian_mechanisms():
    """The step of the proof that makes v = 2 vertices and k = 1 the same: chi_1 is |N|, and its two tails exclude."""
    for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-6), (5.0, 1e-3)):
        assert objective_sigma(epsilon, delta, 2.0, 0.0, 1) == pytest.approx(
            analytic_gaussian_sigma(epsilon, delta / 2, 2.0), rel=1e-8
        )


def gaussian_delta(x, e):
    """Delta at e of the Gaussian mechanism, as a function of the squared shift x."""
    return objective_delta(x**-0.5, e, 1.0, 0.0, 1) / 2


@pytest.mark.parametrize("e", [0.05, 0.75, 3.0, 20.0])
def test_delta_is_convex_in_the_squared_shift_as_far_as_the_proof_says_and_no_further(e):
    end = 2 * (math.sqrt(1 + e * e) - 1)
    x = np.linspace(0.2, 1.0, 60) * end
    values = np.array([gaussian_delta(v, e) for v in x])
    assert (np.diff(values, 2) > -1e-9 * values.max()).all()
    beyond = np.array([gaussian_delta(v, e) for v in np.linspace(1.05, 1.3, 10) * end])
    assert (np.diff(beyond, 2) < 0).all()


@pytest.mark.first(3)
@pytest.mark.parametrize("angle", np.linspace(0, np.pi / 2, 4))
@pytest.mark.parametrize(("e", "delta"), [(0.75, 0.01), (2.0, 0.05), (0.3, 1e-3)])
def test_the_worst_of_four_vertices_keeps_delta_at_every_angle(angle, e, delta):
    """E[(1 - exp(e - max_k L_k))_+] over the plane, by a product rule, for two gradients of length 1."""
    sigma = gaussian_scale(e, delta, 2.0, 0.0, 2, [PARALLELOGRAM])
    assert sigma == pytest.approx(analytic_gaussian_sigma(e, delta / 2, 2.0))
    g, other = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
    found = plane_delta([p * g + q * other for p in (-1, 1) for q in (-1, 1)], sigma, e)
    assert found <= delta * (1 + 1e-3)
    if angle == 0:
        assert found >= delta * (1 - 1e-2)  # parallel gradients attain it, were every corner taken everywhere


def worst_of_convex_losses(angle, r, e, levels=5):
    """The largest E[(1 - exp(e - L))_+] over the plane that gradients s psi and s' psi' at this angle have.

    The slope s, at most r/2, never rises along psi; s' is free. By dynamic programming on every line along psi.
    """
    t, u, g = np.linspace(-9, 9, 601), np.linspace(-9, 9, 241), r / 2
    along, across = np.meshgrid(t, u, indexing="ij")
    density = np.exp(-(along**2 + across**2) / 2) / (2 * np.pi) * (t[1] - t[0]) * (u[1] - u[0])
    points = []
    for s in np.linspace(-g, g, levels):
        shifts = [(other * math.cos(angle) - s, other * math.sin(angle)) for other in (-g, g)]
        losses = [(x * x + y * y) / 2 - x * along - y * across for x, y in shifts]
        points.append(np.maximum(-np.expm1(e - np.max(losses, axis=0)), 0) * density)
    value = np.zeros((levels, len(u)))
    for at in reversed(range(len(t))):  # from s(t) on: what the best of the levels no higher than it still has to come
        value = np.array([found[at] for found in points]) + np.maximum.accumulate(value)
    return value.max(0).sum()


@pytest.mark.first(2)
@pytest.mark.parametrize("r", [0.05, 0.27, 1.5, 4.0])
@pytest.mark.parametrize("least", [2.0, 3.7])
def test_a_convex_loss_never_has_both_of_the_longest_shifts(r, least):
    e = r * (least + r / 2)
    once, limit = gaussian_curve(r, np.array([e])).item(), CONVEX_LOSS.delta(r, np.array([e * (1 + 1e-12)])).item()
    assert limit == pytest.approx(4 / 3 * once)
    found = [worst_of_convex_losses(2 * a, r, e) / once for a in (0.0, 0.07, 0.13, 0.2, 0.3, math.pi / 4)]
    assert found[0] == pytest.approx(1, rel=5e-3)  # on one line: the longest shift once
    assert max(found) <= 1.25
    assert max(found) > (1.2 if r < 1 else 1.05)  # and so there is little to be gained over 4/3
    assert CONVEX_LOSS.delta(r, np.array([e * (1 - 1e-9)])).item() == 1.0 or least > 2


@pytest.mark.parametrize(("epsilon", "share"), [(0.1, 0.9690), (1.0, 0.9770), (10.0, 0.9856)])
def test_a_convex_loss_has_less_noise(epsilon, share):
    four, two = (gaussian_scale(epsilon, 1e-5, 2.0, 0.0, 2, [PARALLELOGRAM, *more]) for more in ([], [CONVEX_LOSS]))
    assert two == pytest.approx(analytic_gaussian_sigma(epsilon, 0.75e-5, 2.0))
    assert two / four == pytest.approx(share, abs=1e-4)


def test_where_delta_is_large_the_parallelogram_is_taken():
    assert CONVEX_LOSS.sigma(0.3, 0.01) is None
    pair = [gaussian_scale(0.3, 0.01, 2.0, 0.0, 2, [PARALLELOGRAM, *more]) for more in ([], [CONVEX_LOSS])]
    assert pair[0] == pair[1] == pytest.approx(analytic_gaussian_sigma(0.3, 0.005, 2.0))


def plane_delta(points, sigma, e):
    """E[(1 - exp(e - max_k L_k))_+] over the plane, by a product rule, L_k the loss of a shift by points[k]."""
    grid = np.linspace(-9, 9, 801)
    N, M = np.meshgrid(grid, grid)
    density = np.exp(-(N**2 + M**2) / 2) / (2 * np.pi) * (grid[1] - grid[0]) ** 2
    losses = [h @ h / 2 + h[0] * N + h[1] * M for h in np.asarray(points) / sigma]
    return (np.maximum(0, -np.expm1(e - np.max(losses, axis=0))) * density).sum()


@pytest.mark.first(3)
@pytest.mark.parametrize("angle", np.linspace(np.pi / 3, np.pi, 3))
@pytest.mark.parametrize("e", [-0.3, 0.0, 0.2, 1.0])
def test_the_triangle_of_a_slope_of_one_sign_keeps_the_curve_at_every_angle_and_epsilon(angle, e):
    """Gradients of length 1 at this angle: the shift is 0, g, -g' or g - g', 2 long where they are opposite."""
    g, other = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
    for sigma in (1.0, 6.0):
        bound = TRIANGLE.delta(2 / sigma, np.array([e])).item()
        found = plane_delta([0 * g, g, -other, g - other], sigma, e)
        assert found <= bound * (1 + 1e-3)
        if angle == np.pi and e > 0:
            assert found == pytest.approx(gaussian_curve(2 / sigma, np.array([e])).item(), rel=1e-2)


def test_the_curve_of_four_points_is_twice_the_gaussian_one_as_far_as_it_is_proved():
    left = np.array([-1.0, 0.1, 0.3, 1.0, 4.0])
    single = PARALLELOGRAM.delta(0.25, left)
    assert single[:2].tolist() == [1.0, 1.0]  # 0.25^2 > 2 (sqrt(1.01) - 1)
    expected = [2 * gaussian_delta(0.0625, e) for e in left[2:]]
    assert single[2:] == pytest.approx(expected, rel=1e-8)


def test_where_the_proof_of_the_hull_ends_the_profile_is_taken():
    assert gaussian_scale(0.1, 0.9, 2.0, 0.0, 2, [PARALLELOGRAM]) == objective_sigma(0.1, 0.9, 2.0, 0.0, 2)
    assert gaussian_scale(1.0, 1e-5, 2.0, 0.25, 10) == objective_sigma(1.0, 1e-5, 2.0, 0.25, 10)
    assert gaussian_scale(1.0, 1e-5, 2.0, 0.25, 1, [Corners(((1e6, 1.0),), least=1.0)]) == objective_sigma(
        1.0, 1e-5, 2.0, 0.25, 1
    )


@pytest.mark.parametrize("left", [1e-3, 0.1, 0.75, 4.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.3])
def test_the_scale_of_a_loss_of_one_slope_solves_its_curve(left, delta):
    sigma = gaussian_scale(left, delta, 2.0, 0.0, 400, [TRIANGLE])
    found = [TRIANGLE.delta(2 / s, np.array([left])).item() for s in (sigma, sigma * (1 - 1e-6))]
    assert found[0] <= delta * (1 + 1e-6)  # of the curve's own arithmetic, which is not that of the scale
    assert found[1] > delta * (1 - 1e-6)


def test_the_scale_of_a_loss_of_one_slope_cannot_be_lowered():
    """Opposite gradients are one Gaussian mechanism, of which it is the least scale to eight digits."""
    for left in (0.1, 0.75, 4.0):
        least = analytic_gaussian_sigma(left, 1e-5, 2.0)
        assert gaussian_scale(left, 1e-5, 2.0, 0.0, 2, [PARALLELOGRAM, TRIANGLE]) == pytest.approx(least, rel=3e-8)
    # where delta is large beside epsilon, the two short sides of the triangle count
    sigma = gaussian_scale(0.1, 0.01, 2.0, 0.0, 2, [PARALLELOGRAM, TRIANGLE])
    assert sigma / analytic_gaussian_sigma(0.1, 0.01, 2.0) == pytest.approx(1.036256, abs=1e-6)
