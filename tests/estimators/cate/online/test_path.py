"""The path against dense Cholesky: values, law, restarts, and what is left out."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdpcate.estimators.cate.online.path import Revealed, SamplePath

X = torch.tensor([[0.1], [0.4], [0.45]], dtype=torch.float64)


def gaussian(x: torch.Tensor, y: torch.Tensor, h: float = 0.3) -> torch.Tensor:
    return torch.exp(-(torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") ** 2) / (2 * h**2))


def rough(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(-torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / 0.3)


def points(n: int, q: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, q, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def one_by_one(path: SamplePath, x: torch.Tensor, z: torch.Tensor) -> Revealed:
    parts = [path.reveal(*pair) for pair in zip(x.split(1), z.split(1), strict=True)]
    return Revealed(*(torch.cat(column) for column in zip(*parts, strict=True)))


def law(path: SamplePath, x: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    """Covariance of the values: those of as many paths as queries, each with one of the noise numbers at 1."""
    eye = torch.eye(len(x), dtype=torch.float64)
    maps = torch.cat([path.reveal(*pair).values for pair in zip(x.split(blocks), eye.split(blocks), strict=True)])
    return maps @ maps.T


def test_the_path_of_the_theory_note():
    # dp_cate, test value 9
    z = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)
    expected = torch.tensor([0.5, -0.4917947678, -0.3638698790], dtype=torch.float64)
    for path in (SamplePath(gaussian).reveal(X, z), one_by_one(SamplePath(gaussian), X, z)):
        torch.testing.assert_close(path.values[:, 0], expected, rtol=0, atol=1e-9)


@settings(max_examples=5, deadline=None)
@given(order=st.permutations(range(40)), cuts=st.sets(st.integers(1, 39)))
def test_any_order_and_blocking_gives_the_path_of_the_batch(order, cuts):
    """chol(K) z of the queries in the order in which they come, however they are cut into blocks."""
    x, z = points(40)[order], normals(40, 1)
    edges = [0, *sorted(cuts), 40]
    path = SamplePath(rough, slack=1e-8)
    values = [path.reveal(x[a:b], z[a:b]).values for a, b in pairwise(edges)]
    torch.testing.assert_close(torch.cat(values), torch.linalg.cholesky(rough(x, x)) @ z, rtol=0, atol=1e-10)
    assert path.rows == 40


@pytest.mark.parametrize("blocks", [[600], [1] * 600, [7] * 85 + [5]])
def test_the_law_is_the_processes_and_the_factor_stays_small(blocks):
    x = points(600)
    path = SamplePath(gaussian, slack=1e-6)
    covariance, kernel = law(path, x, blocks), gaussian(x, x)
    torch.testing.assert_close(covariance, kernel, rtol=0, atol=1e-5)
    assert 50 < path.rows < 200
    eye = torch.eye(600, dtype=torch.float64)
    assert torch.linalg.eigvalsh((1 + 1e-3) * (covariance + 1e-3 * eye) - kernel).min() > 0


def test_what_is_left_out_is_paid_for():
    """With a slack a thousand times what a query may use, so that what is left out shows: the bound holds, and
    without the raised variance and the jitter it would not."""
    x, slack = points(300), 2.0
    kernel, eye = gaussian(x, x), torch.eye(300, dtype=torch.float64)
    path = SamplePath(gaussian, slack=slack)
    covariance = law(path, x, [1] * 300)
    assert path.rows < 100
    lacking = torch.linalg.eigvalsh(covariance - kernel).min().item()
    assert lacking < -1e-6
    spent = slack - path._slack
    for excess in (0.01, 1.0):
        assert torch.linalg.eigvalsh((1 + excess) * (covariance + spent / excess * eye) - kernel).min() > -1e-12


@pytest.mark.parametrize("slack", [0.0, 1e-8, 1e-6])
def test_a_path_taken_up_again_goes_on_with_the_same_law(slack):
    x = points(400)
    first, eye = SamplePath(gaussian, slack), torch.eye(400, dtype=torch.float64)
    revealed = first.reveal(x[:250], eye[:250])
    second = SamplePath(gaussian, slack)
    for part in (slice(0, 100), slice(100, 250)):
        second.restore(x[part], Revealed(*(column[part] for column in revealed)))
    assert second.rows == first.rows
    assert second._slack == pytest.approx(first._slack, rel=1e-12)
    values = torch.cat([revealed.values, second.reveal(x[250:], eye[250:]).values])
    torch.testing.assert_close(values @ values.T, gaussian(x, x), rtol=0, atol=1e-9 + 5 * slack)
