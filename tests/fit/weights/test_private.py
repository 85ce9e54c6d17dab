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
    """Notes when it is drawn from and what passes through it."""

    def __init__(self):
        super().__init__(0)
        self.log = []

    def _bytes(self, count):
        self.log.append("drawn")
        return super()._bytes(count)

    def released(self, output):
        self.log.append("released")
        return torch.zeros_like(output)


def test_the_ledger_comes_before_the_noise_and_the_coefficients_pass_as_paid():
    records, domain = confounded(100, 2)
    noise = Watched()

    def refuse(*charge):
        raise BudgetError("nothing is left")

    with pytest.raises(BudgetError):
        PrivateWeights().fit(records, domain, budget=BUDGET, session=noted(noise, refuse))
    assert noise.log == []
    fitted, _ = fit_privately(PrivateWeights(), records, domain, noise=noise)
    assert set(noise.log) == {"drawn", "released"}
    assert noise.log[-1] == "released"
    assert fitted.weights(records).tolist() == [1.0] * 100  # frozen at zero, so that nothing else was used
    assert fitted.bounds.most == 1.0


def test_without_a_budget_the_fit_is_scikit_learns():
    records, domain = confounded(400, 3)
    fitted = PrivateWeights(ridge=2.0).fit(records, domain, budget=None, session=FitSession(NoiseSource.fixed(0)))
    psi = Identity().setup(domain)(records.x).numpy()
    reference = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=1000).fit(psi, records.a.numpy())
    assert fitted.theta.numpy() == pytest.approx(reference.coef_[0], abs=1e-5)
    assert fitted.propensity(records.x).numpy() == pytest.approx(reference.predict_proba(psi)[:, 1], abs=1e-6)
    assert fitted.bounds == PrivateWeights().bounds(400, domain)  # nothing was paid for, so nothing is public


def test_a_large_budget_buys_the_fit_without_noise():
    records, domain = confounded(2000, 2)
    exact = PrivateWeights(ridge=1.0).fit(records, domain, budget=None, session=FitSession(NoiseSource.fixed(0)))
    private, _ = fit_privately(PrivateWeights(ridge=1.0), records, domain, PrivacyBudget(1000.0, 0.0))
    assert torch.allclose(private.theta, exact.theta, atol=1e-2)


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


@pytest.mark.parametrize("epsilon", [0.025, 0.25, 1.0])
@pytest.mark.parametrize("n", [400, 4000])
def test_weights_of_the_default_ridge_are_no_worse_than_equal_ones(n, epsilon):
    """Mean squared error of the true weights, over 40 fits."""
    records, domain = confounded(n, 4)
    truth = torch.sigmoid(records.x[:, 0])
    noise, errors = NoiseSource.fixed(1), []
    for _ in range(40):
        pi = fit_privately(PrivateWeights(), records, domain, PrivacyBudget(epsilon, 0.0), noise)[0].propensity(
            records.x
        )
        errors.append(truth * (0.5 / pi - 0.5 / truth) ** 2 + (1 - truth) * (0.5 / (1 - pi) - 0.5 / (1 - truth)) ** 2)
    equal = truth * (1 - 0.5 / truth) ** 2 + (1 - truth) * (1 - 0.5 / (1 - truth)) ** 2
    assert torch.stack(errors).mean() < 1.1 * equal.mean()


@pytest.mark.parametrize("epsilon", [1e4, 1e6, 1e8])
def test_a_budget_without_end_has_a_ridge(epsilon):
    ridge = PrivateWeights().ridge_for(400, 5, PrivacyBudget(epsilon, 0.0))
    assert 4e-7 <= ridge < 1e-4
