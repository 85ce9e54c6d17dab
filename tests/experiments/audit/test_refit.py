"""Batched refits against one solve each, autograd's gradient and Hessian, and the proved sensitivities."""

import contextlib
import dataclasses
import math

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from experiments.audit import refit
from experiments.audit.refit import Replacements, ReplaceOne
from torchdpcate.errors import NumericalError
from torchdpcate.heads.linear import LinearProblem, sensitivity, solve

B, S = 0.9, 1.0


def records(n: int, p: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of norm at most one, targets at their bound now and then, weights."""
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(n, p, dtype=torch.float64, generator=generator)
    psi = psi / psi.norm(dim=1, keepdim=True).clamp(min=1)
    s = (1.5 * torch.randn(n, dtype=torch.float64, generator=generator)).clamp(-S, S)
    return psi, s, B * (2 * torch.rand(n, dtype=torch.float64, generator=generator) - 1)


def problem(threshold: float, n: int = 60, p: int = 5, ridge: float = 0.01, seed: int = 0) -> LinearProblem:
    return LinearProblem(*records(n, p, seed), ridge, B, S, threshold)


def candidates(base: LinearProblem, K: int = 200, seed: int = 1) -> Replacements:
    index = torch.randint(base.n, (K,), generator=torch.Generator().manual_seed(seed))
    return Replacements(index, *records(K, base.psi.shape[1], seed))


def neighbour(base: LinearProblem, candidate: Replacements, k: int) -> LinearProblem:
    i = candidate.index[k]
    psi, s, w = base.psi.clone(), base.s.clone(), base.w.clone()
    psi[i], s[i], w[i] = candidate.psi[k], candidate.s[k], candidate.w[k]
    return dataclasses.replace(base, psi=psi, s=s, w=w)


def objective(base: LinearProblem, theta: torch.Tensor) -> torch.Tensor:
    r, tau = base.s - base.v @ theta, base.threshold
    loss = r**2 if math.isinf(tau) else torch.where(r.abs() <= tau, r**2, 2 * tau * r.abs() - tau**2)
    return loss.mean() + base.ridge * theta @ theta


def check_against_single_solves(
    base: LinearProblem, given: Replacements, found: torch.Tensor, atol: float = 1e-9
) -> None:
    """Each refit is that of one solve; a solve that gives up leaves it to the tests by autograd."""
    compared = 0
    for k, theta in enumerate(found):
        with contextlib.suppress(NumericalError):
            single = solve(neighbour(base, given, k)).theta
            torch.testing.assert_close(theta, single, rtol=0, atol=atol)
            compared += 1
    assert compared >= 0.9 * len(found)


def refits(base: LinearProblem, given: Replacements) -> torch.Tensor:
    return refit.refit(base, given.index, given.psi, given.s, given.w)


@pytest.mark.parametrize("ridge", [1e-3, 0.01])
@pytest.mark.parametrize("threshold", [math.inf, 0.5, 0.1])
def test_refits_are_those_of_one_solve_each(threshold, ridge):
    base = problem(threshold, ridge=ridge)
    given = candidates(base)
    found = refits(base, given)
    check_against_single_solves(base, given, found)
    assert float((found - solve(base).theta).norm(dim=1).max()) > 1e-3


# In the last, Newton steps that accept any fall of the gradient go to and fro between two pieces for ever.
@pytest.mark.parametrize(("threshold", "ridge"), [(math.inf, 0.01), (0.3, 0.01), (0.02, 1e-4)])
def test_every_refit_is_stationary_by_autograds_gradient(threshold, ridge):
    base = problem(threshold, ridge=ridge)
    given = candidates(base)
    for k, theta in enumerate(refits(base, given)):
        gradient = torch.func.grad(lambda t, k=k: objective(neighbour(base, given, k), t))(theta)
        assert float(gradient.norm()) <= 1.01 * base.tolerance


@pytest.mark.parametrize("threshold", [math.inf, 1.0])
def test_a_record_that_carries_the_whole_curvature_may_leave(threshold):
    """Without it the curvature falls by a factor of a million."""
    base = problem(threshold, n=3, p=4, ridge=1e-6)
    given = candidates(base, 50)
    check_against_single_solves(base, given, refits(base, given), atol=base.tolerance / base.ridge)


@pytest.mark.parametrize("threshold", [math.inf, 0.3])
@pytest.mark.parametrize("elements", [1, 500, 2**30])
def test_chunks_of_any_size_agree(threshold, elements, monkeypatch):
    base = problem(threshold)
    given = candidates(base)
    expected = refits(base, given)
    monkeypatch.setattr(refit, "_CHUNK_ELEMENTS", elements)
    torch.testing.assert_close(refits(base, given), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("threshold", [math.inf, 0.3])
def test_curvature_is_half_autograds_hessian(threshold):
    base = problem(threshold)
    given, rhs = candidates(base, 20), torch.randn(20, 5, dtype=torch.float64)
    theta = refits(base, given)
    solved = ReplaceOne(base).solve_curvature(given, theta, rhs)
    for k in range(20):
        hessian = torch.func.hessian(lambda t, k=k: objective(neighbour(base, given, k), t))(theta[k])
        torch.testing.assert_close(hessian @ solved[k] / 2, rhs[k], rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    threshold=st.sampled_from([math.inf, 2.0, 1.0, 0.3, 0.01]),
    ridge=st.floats(1e-4, 1.0),
    n=st.integers(2, 40),
    p=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    extreme=st.booleans(),
)
def test_no_refit_exceeds_the_proved_sensitivity(threshold, ridge, n, p, seed, extreme):
    """Extreme: every record and candidate at the bounds, aligned with one direction or its opposite."""
    base = problem(threshold, n=n, p=p, ridge=ridge, seed=seed)
    given = candidates(base, 64, seed + 1)
    if extreme:
        base, given = (
            dataclasses.replace(
                one,
                psi=torch.nn.functional.one_hot((one.psi[:, 0] > 0).long() % p, p).double(),
                s=S * one.s.sign(),
                w=B * one.w.sign(),
            )
            for one in (base, given)
        )
    try:
        theta = solve(base).theta
    except NumericalError:
        reject()  # what cannot be fitted has no refits
    assert float((refits(base, given) - theta).norm(dim=1).max()) <= sensitivity(base)


def test_a_tolerance_that_is_missed_is_an_error(monkeypatch):
    base = problem(0.1)
    monkeypatch.setattr("torchdpcate.fit.descent._MOST_STEPS", 1)
    with pytest.raises(NumericalError, match="a refit stopped at a gradient norm"):
        refits(base, candidates(base))
