"""A basis that is not the library's: one record of age 90 loses no more than is charged, and the release says so."""

import math

import pytest
import torch
from torch import Tensor

from tests.fit import own_maps
from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect, make_plan
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.losses import BalancingLoss, Logistic
from torchdpcate.fit.stacked_records import Batch, StackedRecords, arm
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

AGE = Domain([0.0], [90.0], 0.0, 1.0, overlap=0.1)
BUDGET = PrivacyBudget(1.0, 0.0)


def records(n: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.linspace(0, 90, n)[:, None].double()
    return x, torch.arange(n).double() % 2, torch.full((n,), 0.5).double()


def dataset(treated: float, n: int = 200) -> StackedRecords:
    """All are newborn, half in either arm, but for one of 90 years."""
    x, z, y = torch.zeros(n, 1).double(), torch.arange(n).double() % 2, torch.full((n,), 0.5).double()
    x[0], z[0] = 90.0, treated
    return StackedRecords(Batch(x, on_domain(own_maps.RawCovariates(), AGE)(x), z, y))


def log_density(theta: Tensor, of: StackedRecords, loss, ridge: float, scale: float) -> Tensor:
    psi, t = of.batch.psi, 2 * of.batch.z - 1
    slopes = loss(theta @ psi.T, t)
    b = slopes.first @ psi + ridge * theta
    H = torch.einsum("kn,ni,nj->kij", slopes.second, psi, psi) + ridge * torch.eye(2).double()
    return torch.logdet(H) - b.abs().amax(1) / scale


@pytest.mark.parametrize("loss", ["logistic", "balancing"])
def test_one_old_record_loses_no_more_than_stage_one_charges(loss):
    """Exact ratios at what is drawn; with its norm of 90 the record gave 4.4 where 0.3 was charged."""
    features = on_domain(own_maps.RawCovariates(), AGE)
    plan = make_plan(200, features, ATE(0.1), BUDGET, loss=loss)
    datasets, public = [dataset(treated) for treated in (1.0, 0.0)], plan.propensity.public
    chosen = Logistic() if loss == "logistic" else BalancingLoss(ATE(0.1))
    theta = torch.cat([plan.propensity.draw(of, arm, NoiseSource.fixed(k), 100) for k, of in enumerate(datasets)])
    grid = torch.linspace(-10, 10, 41).double()
    theta = torch.cat([theta, torch.cartesian_prod(grid, grid)])
    one, other = (log_density(theta, of, chosen, public["ridge"], public["perturbation_scale"]) for of in datasets)
    found = (one - other).abs().max().item()
    assert found <= plan.epsilons["stage_one"]
    assert found > plan.epsilons["stage_one"] / 4


def test_released_weights_are_those_of_the_bounded_rows():
    release = CovariateBalancingEffect(AGE, BUDGET, basis=own_maps.RawCovariates()).fit(*records()).release()
    length = math.hypot(1, 90)
    theta = release.weights.theta
    score = (theta[0] / length + theta[1] * 90 / length).item()
    expected = min(max(1 / (1 + math.exp(-score)), 0.1), 0.9)
    assert release.weights.propensity(torch.tensor([[90.0]]).double()).item() == pytest.approx(expected, rel=1e-9)
