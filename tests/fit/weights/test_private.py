"""Private propensities: what is charged and when, the tightened bound, scikit-learn's fit, the ridge."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tests.experiments.dp_2erm.cases import confounded, with_first
from tests.sessions import noted
from torchdpcate.data.domain import Domain
from torchdpcate.errors import BudgetError
from torchdpcate.fit.feature_maps import Fourier, Identity, Legendre, on_domain
from torchdpcate.fit.weights import PrivatePropensity, PrivateWeights, largest_weight
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.guarantee import Level
from torchdpcate.privacy.noise import FixedNoise, NoiseSource
from torchdpcate.privacy.session import FitSession

BUDGET = PrivacyBudget(1.0, 1e-5)


def fit_privately(scheme, records, domain, budget=BUDGET, noise=None):
    """Fitted weights and what was charged for them."""
    charges = []
    noise = noise or NoiseSource.fixed(0)
    return scheme.fit(records, domain, budget=budget, session=noted(noise, lambda *c: charges.append(c))), charges


def test_the_budget_is_charged_once():
    _, charges = fit_privately(PrivateWeights(), *confounded(100, 2))
    assert charges == [(PureEvent(1.0), Level.CERTIFIED, 1)]


class Watched(FixedNoise):
    """Counts what is drawn, and hands out nothing of what passes through it."""

    drawn = 0

    def _bytes(self, count):
        self.drawn += count
        return super()._bytes(count)

    def released(self, output):
        return 0 * output


def test_the_ledger_comes_before_the_noise_and_the_coefficients_pass_as_paid():
    (records, domain), noise = confounded(100, 2), Watched(0)

    def refuse(*charge):
        raise BudgetError("nothing is left")

    with pytest.raises(BudgetError):
        PrivateWeights().fit(records, domain, budget=BUDGET, session=noted(noise, refuse))
    assert noise.drawn == 0
    fitted, _ = fit_privately(PrivateWeights(), records, domain, noise=noise)
    assert noise.drawn > 0
    assert fitted.weights(records).tolist() == [1.0] * 100  # frozen at zero, so that nothing else was used


def test_without_a_budget_the_fit_is_scikit_learns():
    records, domain = confounded(400, 3)
    fitted = PrivateWeights(ridge=2.0).fit(records, domain, budget=None, session=FitSession(NoiseSource.fixed(0)))
    psi = Identity().setup(domain)(records.x).numpy()
    reference = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=1000).fit(psi, records.a.numpy())
    assert fitted.theta.numpy() == pytest.approx(reference.coef_[0], abs=1e-5)
    assert fitted.propensity(records.x).numpy() == pytest.approx(reference.predict_proba(psi)[:, 1], abs=1e-6)
    assert fitted.bounds == PrivateWeights().bounds(400, domain)  # nothing was paid for, so nothing is public


def test_given_the_coefficients_no_record_moves_another_ones_weight():
    records, domain = confounded(50, 1)
    neighbour = with_first(records, 1.0, 1 - records.a[0].item())
    fitted, _ = fit_privately(PrivateWeights(), records, domain)
    assert torch.equal(fitted.weights(records)[1:], fitted.weights(neighbour)[1:])
    assert fitted.bounds.own


@pytest.mark.parametrize("features", [Identity(), Legendre(3), Fourier(pairs=4)], ids=lambda f: type(f).__name__)
def test_the_largest_weight_is_a_bound_over_the_domain(features):
    domain = Domain([0.0, -2.0], [1.0, 5.0], -1.0, 1.0, overlap=0.001)
    psi = on_domain(features, domain)
    generator = torch.Generator().manual_seed(0)
    corners = torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([-2.0, 5.0])).double()
    x = torch.cat([corners, domain.grid(512)])
    for _ in range(20):
        theta = torch.randn(psi.dimension, generator=generator, dtype=torch.float64)
        most = largest_weight(theta, psi)
        u = psi.product(theta, x)
        reached = (1 + u.abs().max().exp().item()) / 2
        assert reached <= most * (1 + 1e-12)
        if isinstance(features, Identity):
            assert reached == pytest.approx(most)
    assert math.isfinite(largest_weight(1e9 * theta, psi))


def test_a_bought_propensity_tightens_the_bound_and_is_clipped_to_the_overlap():
    domain = Domain([-1.0], [1.0], -1.0, 1.0, overlap=0.1)
    psi, records = on_domain(None, domain), confounded(200, 1)[0]
    noise = NoiseSource.fixed(0)
    mild, _ = fit_privately(PrivateWeights(ridge=1000.0), records, domain, noise=noise)
    assert mild.bounds.most == largest_weight(mild.theta, psi) < 1.2
    wild, _ = fit_privately(PrivateWeights(ridge=0.5), records, domain, PrivacyBudget(0.45, 0.0), noise)
    assert wild.bounds.most == 5.0
    assert wild.propensity(records.x).min().item() >= 0.1
    assert isinstance(wild, PrivatePropensity)


def test_the_default_ridge_leaves_seven_tenths_of_epsilon_to_the_objective_noise():
    many = PrivateWeights().ridge_for(10**6, 5, BUDGET)
    assert math.log1p(0.25 / many) == pytest.approx(0.3)
    assert PrivateWeights().ridge_for(400, 5, BUDGET) == pytest.approx(2.5)
    assert PrivateWeights(ridge=7.0).ridge_for(400, 5, BUDGET) == 7.0


@pytest.mark.parametrize("epsilon", [1e4, 1e6, 1e8])
def test_a_budget_without_end_has_a_ridge(epsilon):
    ridge = PrivateWeights().ridge_for(400, 5, PrivacyBudget(epsilon, 0.0))
    assert 4e-7 <= ridge < 1e-4
