"""Ridge logistic weights: the certificate's numbers, scikit-learn's fit, and neighbours that move weights most."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from sklearn.linear_model import LogisticRegression

from experiments.dp_2erm.balancing import LogisticWeights, logistic_bound, logistic_indirect_sensitivity
from tests.experiments.dp_2erm.cases import DOMAIN, confounded, omega, with_first
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.feature_maps import Identity


@pytest.mark.parametrize(
    ("overlap", "ridge", "indirect"),
    [(0.25, 0.1, 21.908902), (0.25, 1.0, 6.0), (0.1, 0.1, 94.868330), (0.2, 0.05, 44.721360)],
)
def test_certificate(overlap, ridge, indirect):
    """Section 8 has one of 1 / pi, of which the weights are half; stationarity leaves less of it."""
    assert logistic_indirect_sensitivity(overlap, ridge) < 0.6 * indirect / 2


@pytest.mark.parametrize("ridge", [0.01, 0.1, 0.17, 0.18, 1.0, 10.0])
def test_no_fit_goes_beyond_its_reach(ridge):
    """Of all fits those of one covariate and one label go farthest or, with little ridge, two crowds may."""
    radius = logistic_bound(ridge)
    s = np.linspace(0, radius, 2001)
    assert ridge * radius**2 == pytest.approx((s / (1 + np.exp(s))).max(), rel=1e-6)
    records = CausalData(torch.ones(50, 1).double(), torch.ones(50).double(), torch.zeros(50).double())
    domain = Domain([-1.0], [1.0], -1.0, 1.0, overlap=1e-4)
    own = 0.5 / omega(LogisticWeights(ridge), records, domain)
    assert torch.logit(own).max() <= radius + 1e-9


def test_a_certificate_by_linear_programming():
    """The same supremum over mixtures of predictors and movements, which a linear program finds on a coarse grid."""
    overlap, ridge = 0.25, 0.1
    radius, edge = logistic_bound(ridge), np.log(3)
    s, c = (grid.ravel() for grid in np.meshgrid(np.linspace(-radius, radius, 201), np.linspace(0, 1, 41)))
    held = np.maximum(s, -edge)
    steep, curved = np.exp(-held) / 2 * c, c**2 / (2 + 2 * np.cosh(held))
    stationary = s / (1 + np.exp(s)) - ridge * s**2
    # mixtures p scaled by t so that t (ridge + mean curvature) = 1: maximise the mean steepness
    found = linprog(
        -steep, A_ub=[-stationary], b_ub=[0.0], A_eq=[ridge + curved], b_eq=[1.0], bounds=(0, None), method="highs"
    )
    angle = np.linspace(0, np.pi, 301)
    p = 1 / (1 + np.exp(radius * np.cos(angle)))
    pull = np.sqrt(np.max(p[:, None] ** 2 + p**2 - 2 * p[:, None] * p * np.cos(angle[:, None] + angle)))
    assert 0.99 < -found.fun * pull / logistic_indirect_sensitivity(overlap, ridge) < 1


def test_the_fit_is_that_of_scikit_learn():
    records, domain = confounded(300, 3)
    psi = Identity().setup(domain)(records.x)
    reference = LogisticRegression(C=1 / (300 * 0.02), fit_intercept=False, tol=1e-10, max_iter=1000)
    treated = reference.fit(psi.numpy(), records.a.numpy()).predict_proba(psi.numpy())[:, 1]
    own = np.clip(np.where(records.a == 1, treated, 1 - treated), 0.05, 0.95)
    assert omega(LogisticWeights(0.02), records, domain).numpy() == pytest.approx(0.5 / own, rel=1e-6)


def test_the_own_weight_moves_however_many_records_there_are():
    """Why W1 counts it twice: a bound of order 1/n for all weights together, as printed elsewhere, is false."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(5000, 1, generator=generator, dtype=torch.float64) * 2 - 1
    a = (torch.rand(5000, generator=generator, dtype=torch.float64) < torch.sigmoid(3 * x[:, 0])).double()
    records = CausalData(x, a, torch.zeros(5000))
    datasets = [with_first(records, 1.0, arm) for arm in (0.0, 1.0)]
    before, after = (omega(LogisticWeights(0.001), dataset, DOMAIN) for dataset in datasets)
    assert abs(before[0] - after[0]) > 0.95
    assert (before - after)[1:].abs().max() < 0.0272
