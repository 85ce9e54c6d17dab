"""The loss of rules: no pair of records loses more than is claimed."""

import pytest
import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
from torchdpcate.privacy.budget import PrivacyBudget

DOMAIN = Domain([-1.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.25, propensity=0.5, better="higher")
PURE = PrivacyBudget(1.0, 0.0)


def outcome_weighted(**settings) -> OutcomeWeightedLearner:
    return OutcomeWeightedLearner(DOMAIN, PURE, **{"outcome": "signed_residual", "ridge": 20.0, **settings})


def records(x: float, a: float) -> tuple[Tensor, Tensor, Tensor]:
    """One record of full weight, and three that weigh nothing."""
    y = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    return torch.tensor([[x], [0.0], [0.0], [0.0]]).double(), torch.tensor([a, 1.0, 1.0, 0.0]).double(), y


def log_density(learner: OutcomeWeightedLearner, theta: Tensor, scale: float) -> Tensor:
    """Log density of the perturbed minimiser at theta [k, 2], by the stationarity of a dense sum of its own."""
    of = learner.problem_
    u = theta @ of.psi.T
    slopes = of.loss(u, of.target)
    b = (of.weights * slopes.first) @ of.psi + of.ridge * theta
    H = torch.einsum("kn,ni,nj->kij", of.weights * slopes.second, of.psi, of.psi)
    H = H + of.ridge * torch.eye(theta.shape[1]).double()
    det = H[:, 0, 0] * H[:, 1, 1] - H[:, 0, 1] * H[:, 1, 0]
    return det.log() - b.abs().amax(1) / scale


@pytest.mark.first(1)
@pytest.mark.parametrize("ridge", [20.0, 400.0])
def test_the_loss_loses_no_more_than_is_claimed(ridge):
    """The exact log likelihood ratio over a grid of answers, for pairs of records that pull apart."""
    grid = torch.cat([torch.linspace(-8, 8, 161), torch.linspace(-0.05, 0.05, 41)]).double()
    theta, worst, level = torch.cartesian_prod(grid, grid), 0.0, set()
    pairs = [((1.0, 0.0), (-1.0, 0.0)), ((1.0, 1.0), (1.0, 0.0)), ((1.0, 1.0), (-1.0, 0.0))]
    for pair in pairs:
        fitted = [outcome_weighted(ridge=ridge).fit(*records(*end)) for end in pair]
        told = [learner.release().privacy for learner in fitted]
        level |= {statement.level for statement in told}
        assert told[0].public["perturbation_scale"] == told[1].public["perturbation_scale"]
        one, other = (log_density(learner, theta, told[0].public["perturbation_scale"]) for learner in fitted)
        worst = max(worst, (one - other).abs().max().item())
    assert worst <= 0.99 + 1e-9  # a hundredth of the claim is the solver's
    assert worst > 0.4  # the pairs say something
    assert level == {"certified"}
