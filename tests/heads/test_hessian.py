import pytest
import torch

from tests.heads.cases import draws, neural_head, relative
from torchdpcate.heads.influence import HessianVectorProduct, StreamedHessian


@pytest.fixture(scope="module")
def head():
    return neural_head()


@pytest.fixture(scope="module")
def exact(head):
    return torch.func.hessian(head.objective)(head.theta)


def test_dense_is_the_hessian_of_torch_func(head, exact):
    H = HessianVectorProduct(head.objective, head.theta).dense()
    assert relative(H, exact) < 1e-12
    assert torch.equal(H, H.T)


def test_products_are_those_of_the_dense_hessian(head, exact):
    product = HessianVectorProduct(head.objective, head.theta)
    V = draws(product.size, 11)
    assert relative(product.matmat(V), exact @ V) < 1e-12


@pytest.mark.parametrize("batch", [7, 1_000])
def test_streamed_products_are_those_of_the_dense_hessian(head, batch):
    theta = head.theta + 0.1
    expected = torch.func.hessian(head.objective)(theta)
    H = StreamedHessian(head.model, theta, head.x, head.s, head.w, head.ridge, batch=batch)
    V = draws(H.size, 5)
    assert relative(H.matmat(V), expected @ V) < 1e-12
    rough = H.matmat(V.float())
    assert rough.dtype == torch.float32
    assert 1e-9 < relative(rough.double(), expected @ V) < 1e-5
    assert relative(H.dense(), expected) < 1e-12
