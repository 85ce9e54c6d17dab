"""What errors of nuisances do to intervals: formulas against simulation and closed forms."""

import pytest
import torch
from torch import Tensor

from torchdpcate.composition.builder import composed_plan
from torchdpcate.composition.effect_law import Estimates, NuisanceNoise
from torchdpcate.composition.effect_law import with_nuisances as widened
from torchdpcate.composition.fit_plans import logistic_variances, outcome_variances
from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.errors import InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.effect_law import EffectLaw

N, P, TAU = 60, 3, 1.5


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def low_rank(rank: int, size: float, seed: int) -> tuple[Tensor, Tensor]:
    root = size * (uniform(N, rank, seed=seed) - 0.5)
    return root, root @ root.T


def setting() -> tuple[EffectLaw, Estimates, NuisanceNoise, Tensor, Tensor]:
    psi = torch.cat([torch.full((N, 1), 0.7).double(), uniform(N, P - 1, seed=0) - 0.4], 1)
    pi = 0.2 + 0.6 * uniform(N, seed=1)
    weight = 1 / (psi.norm(dim=1) * torch.maximum(pi, 1 - pi))
    h = pi * (1 - pi)
    matrix = (psi * (weight * h)[:, None]).T @ psi / N
    t = torch.tensor([1.0, TAU, -0.5]).double()
    zero = torch.zeros(P, P, dtype=torch.float64)
    centre = (psi * h[:, None]).sum(0) / h.sum()
    found = Estimates(t, zero, torch.eye(P, dtype=torch.float64), matrix, float(h.mean()))
    law = EffectLaw(t, zero, found.directions, centre, 0.3, 0.0, 2.0, 0.0)
    (root_pi, of_pi), (root_m, of_m) = low_rank(2, 0.07, 2), low_rank(3, 1.0, 3)
    return law, found, NuisanceNoise(psi, weight, pi, of_pi, of_m), root_pi, root_m


def test_the_law_is_that_of_simulated_errors_of_both_nuisances() -> None:
    """Each draw solves the estimating equations anew, with errors of propensity and outcome regression."""
    law, found, noise, root_pi, root_m = setting()
    runs, h = 40_000, noise.pi * (1 - noise.pi)
    generator = torch.Generator().manual_seed(4)
    dpi = torch.randn(runs, 2, generator=generator, dtype=torch.float64) @ root_pi.T
    dm = torch.randn(runs, 3, generator=generator, dtype=torch.float64) @ root_m.T
    b = dpi * (dm - dpi * (noise.psi @ law.estimates))  # t itself has no noise here
    u = (b * noise.weight) @ noise.psi / N @ torch.linalg.inv(found.matrix)
    shift = b.mean(1) / h.mean()
    at = torch.tensor([[0.7, 0.3, 0.2], [0.7, -0.4, 0.5]]).double()
    errors = u @ (at - law.centre).T + shift[:, None]
    wider = widened(law, found, noise)
    assert wider is not None
    middle = at @ wider.estimates + wider.correction
    plain = at @ law.estimates + law.correction
    sd = errors.std(0)
    assert torch.allclose(middle - plain, -errors.mean(0), atol=float(6 * sd.max() / runs**0.5))
    variances = ((at @ wider.nuisances) * at).sum(1)  # type: ignore[operator]
    assert torch.allclose(variances, errors.var(0), rtol=0.1)  # of heavier tails than normal
    assert wider.average - law.average == pytest.approx(-float(shift.mean()), abs=float(6 * shift.std() / runs**0.5))
    assert wider.average_variance == pytest.approx(float(shift.var()), rel=0.1)
    low, high = wider.contrast(at[:1], at[1:], 0.95)[0]
    assert float(high - low) / 2 / 1.959964 == pytest.approx(float((errors[:, 0] - errors[:, 1]).std()), rel=0.05)


def test_beyond_the_gate_there_is_no_law() -> None:
    law, found, noise, *_ = setting()
    large = NuisanceNoise(noise.psi, noise.weight, noise.pi, noise.propensity * (0.07 / noise.size) ** 2, noise.outcome)
    assert large.size == pytest.approx(0.07)
    assert widened(law, found, large) is None


def test_a_stated_bias_widens_by_what_such_errors_could_do() -> None:
    law, found, noise, *_ = setting()
    wider = widened(law, found, noise)
    assert wider is not None
    at, h = torch.tensor([[0.7, 0.3, 0.2], [0.7, -0.4, 0.5]]).double(), float((noise.pi * (1 - noise.pi)).mean())
    for seed in range(20):
        dpi, dmu = uniform(N, seed=seed) - 0.5, uniform(N, seed=100 + seed) * torch.linspace(-1, 1, N).double()
        bias = float(dpi.square().mean().sqrt() * dmu.square().mean().sqrt()) / found.overlap
        b = dpi * dmu
        u = torch.linalg.solve(found.matrix, (noise.weight * b) @ noise.psi / N)
        off = (at - law.centre) @ u + b.mean() / h
        more = (wider.interval(at, 0.5, bias) - wider.interval(at, 0.5))[:, 1]
        assert (off.abs() <= more).all()
        apart = float(((at[:1] - at[1:]) @ u).abs())
        assert apart <= float((wider.contrast(at[:1], at[1:], 0.5, bias) - wider.contrast(at[:1], at[1:], 0.5))[0, 1])
        assert abs(float(b.mean()) / h) <= bias
        assert float((wider.average_interval(0.5, bias) - wider.average_interval(0.5))[1]) == pytest.approx(bias)
    with pytest.raises(InputError, match="bias = -1"):
        wider.interval(at, 0.95, -1)
    with pytest.raises(InputError, match="propensity is known"):
        law.average_interval(0.95, 0.1)


def test_several_records_a_person_count_as_often_in_the_sampling_of_nuisances() -> None:
    """Without noise 3 n records, k = 3 of each person, tell as little as n; noise is not counted more often."""
    curvatures = torch.tensor([[1.0, 0.2], [0.2, 0.5]], dtype=torch.float64)

    def of_propensity(plan: ComposedPlan, k: int) -> Tensor:
        return logistic_variances(plan, "propensity", curvatures, k)

    def of_outcome(plan: ComposedPlan, k: int) -> Tensor:
        return outcome_variances(plan, curvatures, 2.0, k)

    for variances in (of_propensity, of_outcome):
        free = [composed_plan(n, None, 2, overlap=0.1, intervals=True) for n in (10**9, 3 * 10**9)]
        torch.testing.assert_close(variances(free[1], 3), variances(free[0], 1), rtol=1e-9, atol=0)
        private = composed_plan(4000, PrivacyBudget(0.1, 1e-5), 2, overlap=0.1, intervals=True)
        one, two, three = (variances(private, k) for k in (1, 2, 3))
        torch.testing.assert_close(three - two, two - one)
        assert (two.diagonal() < 2 * one.diagonal()).all()
