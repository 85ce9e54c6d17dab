import pytest
import torch

from tests.heads.cases import box, draws, relative
from torchdpcate.heads import influence as feed_forward_module
from torchdpcate.heads.hessian import HessianVectorProduct
from torchdpcate.heads.influence import FeedForwardHessian, FeedForwardModel
from torchdpcate.heads.neural import FeedForward


class Softplus(FeedForward):
    def activation(self, z):
        return torch.nn.functional.softplus(z)


def dense_and_objective(network, widths, n=17, ridge=0.03):
    q = widths[0]
    model = network(widths, torch.full((q,), 0.3, dtype=torch.float64), torch.full((q,), 1.2, dtype=torch.float64))
    theta, x, s, w = 0.7 * draws(model.size), box(n, q, seed=1), draws(n, seed=2), box(n, seed=3)

    def objective(theta):
        return ((s - w * model(theta, x)) ** 2).mean() + ridge * (theta @ theta)

    return FeedForwardHessian(model, theta, x, s, w, ridge, objective), objective, theta


@pytest.mark.parametrize("network", [FeedForward, Softplus])
@pytest.mark.parametrize("widths", [(1, 1), (3, 1), (2, 5, 1), (3, 4, 2, 1), (2, 3, 4, 2, 1)])
def test_dense_is_the_hessian_of_torch_func(network, widths):
    hessian, objective, theta = dense_and_objective(network, widths)
    exact = torch.func.hessian(objective)(theta)
    assert relative(hessian.dense(), exact) < 1e-12
    assert relative(HessianVectorProduct.dense(hessian), exact) < 1e-12


def test_records_may_come_in_chunks(monkeypatch):
    hessian, _, _ = dense_and_objective(FeedForward, (3, 4, 2, 1))
    dense = hessian.dense()
    monkeypatch.setattr(feed_forward_module, "_CHUNK_ELEMENTS", 400)
    assert relative(hessian.dense(), dense) < 1e-13


def test_it_is_not_the_gauss_newton_matrix():
    hessian, _, theta = dense_and_objective(FeedForward, (3, 4, 1))
    J = torch.func.jacrev(hessian._model)(theta, hessian._records[0])
    w = hessian._records[2]
    gauss_newton = 2 * (w[:, None] * J).T @ (w[:, None] * J) / len(w) + 0.06 * torch.eye(len(theta))
    assert relative(gauss_newton, hessian.dense()) > 0.01


def test_a_plain_function_is_no_feed_forward_model():
    network = FeedForward((2, 3, 1), torch.zeros(2), torch.ones(2))
    assert isinstance(network, FeedForwardModel)
    assert not isinstance(lambda theta, x: x @ theta, FeedForwardModel)
