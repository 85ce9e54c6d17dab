"""Minimisers on convex sets are those of scipy, their stop bounds the distance, and projections are projections."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from experiments.convex_sets import Ball, L1Ball, descend_within, minimise_within
from tests.fit.test_solver import LOSSES, problem
from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit.losses import HuberHinge

NORMS = {Ball: 2, L1Ball: 1}
DOMAINS = [Ball(0.7), L1Ball(0.7)]


def objective(theta, psi, target, weights, loss, gamma, linear_term):
    """One run's objective and gradient, written out anew."""
    slopes = loss(psi @ theta, target)
    value = (weights * slopes.value).sum() + gamma / 2 * theta @ theta + linear_term @ theta
    return value, psi.T @ (weights * slopes.first) + gamma * theta + linear_term


def reference(psi, target, weights, loss, gamma, linear_term, domain):
    """scipy's SLSQP, in the parts above and below zero for the l1 ball."""
    p = psi.shape[1]

    def both(theta):
        value, gradient = objective(torch.as_tensor(theta), psi, target, weights, loss, gamma, linear_term)
        return value.item(), gradient.numpy()

    tight = {"maxiter": 2_000, "ftol": 1e-15}
    if isinstance(domain, Ball):
        inside = {"type": "ineq", "fun": lambda t: domain.radius**2 - t @ t, "jac": lambda t: -2 * t}
        return scipy.optimize.minimize(
            both, np.zeros(p), jac=True, method="SLSQP", constraints=[inside], options=tight
        ).x

    def split(z):
        value, gradient = both(z[:p] - z[p:])
        return value, np.concatenate([gradient, -gradient])

    inside = {"type": "ineq", "fun": lambda z: domain.radius - z.sum(), "jac": lambda z: -np.ones(2 * p)}
    z = scipy.optimize.minimize(
        split,
        np.full(2 * p, 0.01),
        jac=True,
        method="SLSQP",
        bounds=[(0, None)] * (2 * p),
        constraints=[inside],
        options=tight,
    ).x
    return z[:p] - z[p:]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_minimisers_are_those_of_scipy(loss, domain):
    data = problem()
    linear_terms = 3 * torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = minimise_within(*data, loss, 1.5, linear_terms, 1e-9, domain)
    for theta, linear_term in zip(found, linear_terms, strict=True):
        expected = torch.as_tensor(reference(*data, loss, 1.5, linear_term, domain))
        expected = domain.project(expected[None])[0]  # it stands outside by up to 1e-8
        gap = objective(theta, *data, loss, 1.5, linear_term)[0] - objective(expected, *data, loss, 1.5, linear_term)[0]
        assert gap <= 1e-10
        torch.testing.assert_close(theta, expected, rtol=0, atol=2e-4)
    sizes = torch.linalg.vector_norm(found, NORMS[type(domain)], dim=1)
    assert (sizes <= domain.radius * (1 + 1e-12)).all()
    assert (sizes > domain.radius * (1 - 1e-9)).any()  # the limit is felt


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_the_stop_certifies_the_distance_to_the_minimiser(loss, domain):
    data, linear_terms = problem(), torch.zeros(1, 4)
    best = minimise_within(*data, loss, 0.2, linear_terms, 1e-11, domain)
    for tolerance in (3.0, 0.3, 1e-3, 1e-6):
        rough = minimise_within(*data, loss, 0.2, linear_terms, tolerance, domain)
        assert (rough - best).norm() <= 2 * tolerance / 0.2 + 1e-10


def test_a_fit_that_misses_its_stop_raises():
    with pytest.raises(NumericalError, match="raise the ridge"):
        minimise_within(*problem(), HuberHinge(0.5), 3.0, torch.zeros(1, 4), -1.0, Ball(0.7))


@pytest.mark.parametrize("condition", [1.0, 100.0, 1e4])
def test_the_counted_projected_steps_are_enough(condition):
    """A quadratic whose minimiser on the ball lies on its boundary."""
    scales, ball = torch.logspace(0, math.log10(condition), 12, dtype=torch.float64), Ball(1.0)
    centre = torch.full((12,), 2.0, dtype=torch.float64)

    def evaluate(theta):
        calls.append(1)
        return (scales * (theta - centre).square()).sum(1) / 2, scales * (theta - centre), theta

    def measure(theta, gradient):
        return condition * (theta - ball.project(theta - gradient / condition)).norm(dim=1)

    calls = []
    start = torch.zeros(1, 12, dtype=torch.float64)
    ends = [torch.full((1,), end, dtype=torch.float64) for end in (1.0, condition)]
    steep = evaluate(start)[1].norm(dim=1)
    calls.clear()
    theta, norm = descend_within(evaluate, start, 1e-9, *ends, steep, ball.project, measure)
    assert bool((norm <= 1e-9).all())
    assert theta.norm() == pytest.approx(1.0)
    counted = 2 + math.ceil(2 * math.sqrt(condition) * math.log(2 * math.sqrt(2) * condition * steep.max() / 1e-9))
    assert len(calls) <= 2 * counted + 1


@pytest.mark.parametrize("make", [Ball, L1Ball])
def test_projections_obey_the_variational_inequality(make):
    """P is the projection if P lies inside and (x - P)'(z - P) <= 0 for all z inside; corners are enough for the l1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64) * torch.logspace(-2, 2, 200).double()[:, None]
    domain = make(1.5)
    P = domain.project(x)
    sizes = torch.linalg.vector_norm(P, NORMS[make], dim=1)
    assert (sizes <= 1.5 * (1 + 1e-12)).all()
    away = x - P
    # sup of away'z over the domain: the dual norm
    support = 1.5 * (away.norm(dim=1) if make is Ball else away.abs().amax(1))
    assert (support - (away * P).sum(1) <= 1e-9 * (1 + x.norm(dim=1) ** 2)).all()
    inside = torch.linalg.vector_norm(x, NORMS[make], dim=1) <= 1.5
    assert inside.any()
    assert (~inside).any()
    assert torch.equal(P[inside], x[inside])


def test_a_radius_must_be_positive():
    with pytest.raises(InputError, match="radius"):
        Ball(0.0)
