"""Streamed normal equations against scikit-learn, the solver of the linear head, and one process against two."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.linear_model import Ridge

from torchdpcate.errors import InputError
from torchdpcate.fit.minimise import NormalEquations
from torchdpcate.heads.linear import LinearProblem, solve


def records(n: int = 300, p: int = 9, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(n, p, dtype=torch.float64, generator=generator)
    s = torch.randn(n, dtype=torch.float64, generator=generator).clamp(-1, 1)
    w = torch.rand(n, dtype=torch.float64, generator=generator) * 1.8 - 0.9
    return psi / psi.norm(dim=1, keepdim=True), s, w


def streamed(batch: int) -> NormalEquations:
    psi, s, w = records()
    equations = NormalEquations(psi.shape[1])
    for v, t in zip((w[:, None] * psi).split(batch), s.split(batch), strict=True):
        equations.add(v, t)
    return equations


@pytest.mark.parametrize("batch", [1, 7, 300])
def test_ridge_of_streamed_batches_is_ridge_of_all(batch):
    psi, s, w = records()
    ridges = torch.tensor([1e-4, 0.01, 3.0], dtype=torch.float64)
    found = streamed(batch).solve(ridges)
    for ridge, theta in zip(ridges.tolist(), found, strict=True):
        torch.testing.assert_close(theta, solve(LinearProblem(psi, s, w, ridge, 0.9, 1.0)).theta, rtol=1e-9, atol=1e-12)
        sklearn = Ridge(alpha=300 * ridge, fit_intercept=False, tol=1e-14).fit((w[:, None] * psi).numpy(), s.numpy())
        np.testing.assert_allclose(theta.numpy(), sklearn.coef_, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(streamed(batch).solve(0.01), found[1], rtol=0, atol=0)


def test_merged_parts_are_the_whole():
    psi, s, w = records()
    v, first, second = w[:, None] * psi, NormalEquations(9), NormalEquations(9)
    first.add(v[:100], s[:100])
    second.add(v[100:], s[100:])
    first.merge(second)
    every = streamed(300)
    assert first.n == every.n == 300
    torch.testing.assert_close(first.matrix, every.matrix, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(first.vector, every.vector, rtol=1e-13, atol=1e-13)


def _process(rank: int, store: str, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    psi, s, w = records()
    mine = slice(rank, None, 2)
    equations = NormalEquations(9)
    equations.add((w[:, None] * psi)[mine], s[mine])
    equations.all_reduce()
    results[rank] = (equations.matrix.tolist(), equations.vector.tolist(), equations.n)
    dist.destroy_process_group()


def test_two_processes_have_the_sums_of_one(tmp_path):
    context = mp.get_context("fork")
    with context.Manager() as manager:
        results = manager.dict()
        processes = [
            context.Process(target=_process, args=(r, str(tmp_path / "store"), results), daemon=True) for r in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
        found = dict(results)
    every = streamed(300)
    for rank in range(2):
        matrix, vector, n = found[rank]
        assert n == 300
        torch.testing.assert_close(torch.tensor(matrix, dtype=torch.float64), every.matrix, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(torch.tensor(vector, dtype=torch.float64), every.vector, rtol=1e-13, atol=1e-13)


def test_negative_directions_of_a_noisy_matrix_count_as_zero():
    matrix = torch.diag(torch.tensor([2.0, -5.0], dtype=torch.float64))
    equations = NormalEquations.of(matrix, torch.ones(2, dtype=torch.float64), n=2)
    torch.testing.assert_close(equations.solve(0.5), torch.tensor([1 / 3, 1.0], dtype=torch.float64))


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"give v \[B, 9\] and s \[B\]"):
        NormalEquations(9).add(torch.zeros(3, 8), torch.zeros(3))
    with pytest.raises(InputError, match="ridge = 0"):
        streamed(300).solve(0.0)
