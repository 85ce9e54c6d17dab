import pytest
import torch

from tests.heads.cases import box, circle_head, draws, kernel_head, neural_head, random_linear_head, real, relative
from torchdpcate.heads import influence as influence_module
from torchdpcate.heads.influence import StreamedHessian, solve_by_products, solve_densely
from torchdpcate.heads.neural import _trust_region


@pytest.fixture(scope="module")
def network():
    return neural_head()


def records(head, count=6):
    return (
        box(count, head.x.shape[1], seed=20),
        draws(count, seed=21),
        box(count, seed=22),
    )


def test_value_5_circle_head():
    head = circle_head()
    torch.testing.assert_close(head.theta, real(0.7867975938, 1.0407157720), rtol=0, atol=1e-10)
    F = head.influence()
    assert float(torch.func.grad(head.objective)(head.theta).norm()) < 1e-14
    assert relative(F.at(head.x, head.s, head.w), head.closed_form(head.x, head.s, head.w)) < 1e-12


@pytest.mark.parametrize(("p", "d"), [(7, 4), (3, 11), (5, 1)])
@pytest.mark.parametrize("ridge", [1e-6, 0.05, 3.0])
@pytest.mark.parametrize("solver", [solve_densely, solve_by_products])
def test_linear_head_has_the_closed_form(p, d, ridge, solver, monkeypatch):
    head = random_linear_head(p=p, d=d, ridge=ridge)
    monkeypatch.setattr(influence_module, "solve_hessian", solver)
    F = head.influence()
    x, s, w = records(head)
    expected = head.closed_form(x, s, w)
    assert relative(F.at(x, s, w), expected) < 1e-8
    assert relative(F.norm(x, s, w), expected.norm(dim=1)) < 1e-8


@pytest.mark.parametrize("make", [circle_head, kernel_head, random_linear_head, neural_head])
def test_the_sample_average_is_zero(make):
    head = make()
    moved = head.influence().at(head.x, head.s, head.w)
    assert float(moved.mean(0).norm()) < 1e-9 * float(moved.norm(dim=1).max())


def refit(head, x, s, w, weight):
    """Minimiser of ``(1 - weight) mean + weight record + ridge``, from the head's own."""

    def objective(theta):
        record = ((s - w * head.model(theta, x)) ** 2).mean()
        sample = ((head.s - head.w * head.model(theta, head.x)) ** 2).mean()
        return (1 - weight) * sample + weight * record + head.ridge * (theta @ theta)

    return _trust_region(objective, head.theta, 1e-13, 50)[0]


@pytest.mark.parametrize(
    "make",
    [
        circle_head,
        random_linear_head,
        neural_head,
        pytest.param("small ridge", marks=pytest.mark.slow),
    ],
)
def test_finite_differences_of_refits(make):
    step = 1e-5
    if make == "small ridge":
        head, least = neural_head(n=200, ridge=5e-4), 1e-4
    else:
        head, least = make(), 1e-6
    x, s, w = records(head, 3)
    moved = head.influence().at(x, s, w)
    for i in range(3):
        ends = [head.model(refit(head, x[i : i + 1], s[i], w[i], weight), head.queries) for weight in (step, -step)]
        assert relative((ends[0] - ends[1]) / (2 * step), moved[i]) < least


def test_network_agrees_with_dense_torch_func(network, monkeypatch):
    x, s, w = records(network)
    H = torch.func.hessian(network.objective)(network.theta)
    J = torch.func.jacrev(network.model)(network.theta, network.queries)
    G = torch.func.jacrev(network.model)(network.theta, x)
    c = 2 * w * (s - w * network.model(network.theta, x))
    expected = (J @ torch.linalg.solve(H, (c[:, None] * G - 2 * network.ridge * network.theta).T)).T
    assert relative(network.influence().at(x, s, w), expected) < 1e-9
    monkeypatch.setattr(influence_module, "solve_hessian", solve_by_products)
    assert relative(network.influence().at(x, s, w), expected) < 1e-7


def test_routes_of_large_heads_agree(network, monkeypatch):
    x, s, w = records(network)
    F = network.influence()
    expected, points = F.norm(x, s, w), x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.norm(points, s, w).sum(), points)
    monkeypatch.setattr(influence_module, "_CHUNK_ELEMENTS", 100)
    assert relative(F.norm(x, s, w), expected) < 1e-13
    monkeypatch.setattr(influence_module, "DENSE_PARAMETERS", 5)
    assert relative(F.norm(x, s, w), expected) < 1e-12
    (other,) = torch.autograd.grad(F.norm(points, s, w).sum(), points)
    assert relative(other, gradient) < 1e-10


def test_a_large_head_is_solved_in_float32_to_the_residual_of_float64(network, monkeypatch):
    expected, types = network.influence().rows, []
    monkeypatch.setattr(influence_module, "DENSE_PARAMETERS", 5)
    matmat = StreamedHessian.matmat

    def watched(self, V):
        types.append(V.dtype)
        return matmat(self, V)

    monkeypatch.setattr(StreamedHessian, "matmat", watched)
    F = network.influence()
    H = torch.func.hessian(network.objective)(network.theta)
    J = torch.func.jacrev(network.model)(network.theta, network.queries)
    assert float(((F.rows @ H - J).norm(dim=1) / J.norm(dim=1)).max()) <= 1.1e-10
    assert relative(F.rows, expected) < 1e-7
    assert types.count(torch.float32) > 2 * types.count(torch.float64) > 0
    assert F.rows.dtype == torch.float64
