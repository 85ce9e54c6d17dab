import pytest
import torch

from torchdpcate.errors import InputError, NumericalError
from torchdpcate.fit import minimise as solver
from torchdpcate.fit.losses import CrossEntropy, Logistic
from torchdpcate.fit.minimise import minimise_batches, summed


def records(*shape, p=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    psi = torch.randn(*shape, p, dtype=torch.float64, generator=generator)
    return psi / psi.norm(dim=-1, keepdim=True), torch.rand(*shape, dtype=torch.float64, generator=generator)


def in_batches(psi, target, size):
    return lambda: zip(psi.split(size, -2), target.split(size, -1), strict=True)


@pytest.mark.parametrize("numbers", [1, 1_000_000])
@pytest.mark.parametrize("runs", [None, 4])
def test_sums_in_batches_are_the_derivatives_of_one_sum(runs, numbers, monkeypatch):
    monkeypatch.setattr(solver, "MOST_NUMBERS", numbers)
    monkeypatch.setattr(solver, "_LEAST_RECORDS", 7)
    psi, target = records(*([50] if runs is None else [runs, 50]))
    theta = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    value, gradient, hessian = summed(in_batches(psi, target, 20), CrossEntropy(), theta)
    for run in range(4):
        own, aim = (psi, target) if runs is None else (psi[run], target[run])

        def total(point, own=own, aim=aim):
            return torch.nn.functional.binary_cross_entropy_with_logits(own @ point, aim, reduction="sum")

        torch.testing.assert_close(value[run], total(theta[run]))
        torch.testing.assert_close(gradient[run], torch.autograd.functional.jacobian(total, theta[run]))
        torch.testing.assert_close(hessian[run], torch.autograd.functional.hessian(total, theta[run]))


def test_what_has_no_minimiser_or_no_precision_is_refused():
    psi, target = records(20)
    batches = in_batches(psi, target, 6)
    with pytest.raises(InputError, match="ridge = 0: the sum is not strongly convex"):
        minimise_batches(batches, Logistic(), 0.0, torch.zeros(1, 3), 1e-9)
    with pytest.raises(NumericalError, match="nothing is released"):
        minimise_batches(batches, CrossEntropy(), 1.0, torch.zeros(1, 3), -1.0)
