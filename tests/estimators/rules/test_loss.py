"""Losses of rules: what is refused, what is checked, and that no accepted one loses more than is claimed."""

import math

import pytest
import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE, make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner
from torchdpcate.estimators.rules.weighted_erm import make_loss
from torchdpcate.fit.losses import BalancingLoss, CrossEntropy, Huber, HuberHinge, Logistic, Loss, Slopes, Squared
from torchdpcate.privacy.budget import PrivacyBudget

DOMAIN = Domain([-1.0], [1.0], outcome_low=-1.0, outcome_high=1.0, overlap=0.25, propensity=0.5, better="higher")
PURE = PrivacyBudget(1.0, 0.0)


class Smooth(Loss):
    """sqrt(1 + (1 - t u)^2): slope 1, curvature 1; what a user might write."""

    targets = (-1.0, 1.0)
    slope = 1.0
    curvature = 1.0

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        gap = 1 - target * u
        root = (1 + gap.square()).sqrt()
        return Slopes(root, -target * gap / root, target * target / root**3)


class Undeclared(Smooth):
    targets = None


class Shares(Smooth):
    targets = (0.0, 1.0)


class TooSteep(Smooth):
    slope = 0.9


class SteepFarOut(Smooth):
    """Within its bound but for a bump of the slope between 30 and 31."""

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        value, first, second = super().__call__(u, target)
        return Slopes(value, first + 2 * ((target * u > 30) & (target * u < 31)), second)


class TooCurved(Smooth):
    curvature = 0.9


class Hides(Smooth):
    """Says that it is straight, and is not."""

    curvature = 0.25

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        return super().__call__(u, target)._replace(second=torch.zeros_like(u))


class Concave(Smooth):
    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        value, first, second = super().__call__(u, target)
        return Slopes(-value, -first, second)


class TwoSlopes(Smooth):
    monotone = True


class OneSided(Smooth):
    """Right for the label 1 alone."""

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        value, first, second = super().__call__(u, target)
        return Slopes(value, torch.where(target < 0, 3 * first, first), second)


class Undefined(Smooth):
    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        value, first, second = super().__call__(u, target)
        return Slopes(value, torch.where(u.abs() > 40, torch.nan, first), second)


class SeesAll(Smooth):
    """A record's slope depends on the others."""

    def __call__(self, u: Tensor, target: Tensor) -> Slopes:
        value, first, second = super().__call__(u, target)
        return Slopes(value, first / u.shape[-1], second)


def outcome_weighted(loss, **settings) -> OutcomeWeightedLearner:
    return OutcomeWeightedLearner(DOMAIN, PURE, loss=loss, **{"outcome": "signed_residual", "ridge": 20.0, **settings})


def records(x: float, a: float) -> tuple[Tensor, Tensor, Tensor]:
    """One record of full weight, and three that weigh nothing."""
    y = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    return torch.tensor([[x], [0.0], [0.0], [0.0]]).double(), torch.tensor([a, 1.0, 1.0, 0.0]).double(), y


@pytest.mark.parametrize("loss", [CrossEntropy(), Shares()])
@pytest.mark.parametrize("mechanism", ["objective", "output"])
def test_losses_for_other_targets_are_refused(loss, mechanism):
    """Fed labels of -1 and 1 they lost 1.95, 2.50 and more at a claim of one."""
    learner = outcome_weighted(loss, mechanism=mechanism)
    with pytest.raises(InputError, match=rf"loss = {type(loss).__name__}: is for targets in \[0, 1\].*-1 and 1"):
        learner.fit(*records(1.0, 0.0))


def test_the_remedy_for_cross_entropy_is_the_same_loss_in_labels():
    with pytest.raises(InputError, match="loss=logistic"):
        make_loss(CrossEntropy())
    u, shares, labels = torch.linspace(-5, 5, 41).double(), torch.tensor([[0.0], [1.0]]), torch.tensor([[-1.0], [1.0]])
    for one, other in zip(CrossEntropy()(u, shares), Logistic()(u, labels), strict=True):
        torch.testing.assert_close(one.expand_as(other), other)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (Undeclared(), "declares no targets"),
        (TooSteep(), r"slope.* 0\.9"),
        (SteepFarOut(), "slope"),
        (TooCurved(), r"curvature.* 0\.9"),
        (Hides(), "curvature"),
        (Concave(), "convex"),
        (TwoSlopes(), "sign"),
        (OneSided(), "slope"),
        (Undefined(), "finite"),
        (SeesAll(), "other records"),
        (Huber(math.inf), "slope"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_losses_that_break_what_they_declare_are_refused(loss, why):
    with pytest.raises(InputError, match=f"loss = {type(loss).__name__}.*{why}"):
        make_loss(loss)


@pytest.mark.parametrize(
    "loss",
    [
        *(HuberHinge(h) for h in (1e-3, 0.5, 3.0, 100.0)),
        Logistic(),
        *(Huber(tau) for tau in (1e-3, 0.5, 40.0)),
        *(BalancingLoss(make_estimand(estimand, 0.1)) for estimand in ("ATE", "ATT", "ATC", "ATO")),
        Smooth(),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_that_keep_what_they_declare_are_taken(loss):
    assert make_loss(loss) == loss


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
@pytest.mark.parametrize(
    "loss",
    [HuberHinge(0.5), Logistic(), Huber(0.5), BalancingLoss(ATE(0.1)), Smooth()],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("ridge", [20.0, 400.0])
def test_no_accepted_loss_loses_more_than_is_claimed(loss, ridge):
    """The exact log likelihood ratio over a grid of answers, for pairs of records that pull apart."""
    grid = torch.cat([torch.linspace(-8, 8, 161), torch.linspace(-0.05, 0.05, 41)]).double()
    theta, worst, level = torch.cartesian_prod(grid, grid), 0.0, set()
    pairs = [((1.0, 0.0), (-1.0, 0.0)), ((1.0, 1.0), (1.0, 0.0)), ((1.0, 1.0), (-1.0, 0.0))]
    for pair in pairs:
        fitted = [outcome_weighted(loss, ridge=ridge).fit(*records(*end)) for end in pair]
        told = [learner.release().privacy for learner in fitted]
        level |= {statement.level for statement in told}
        assert told[0].public["perturbation_scale"] == told[1].public["perturbation_scale"]
        one, other = (log_density(learner, theta, told[0].public["perturbation_scale"]) for learner in fitted)
        worst = max(worst, (one - other).abs().max().item())
    assert worst <= 0.99 + 1e-9  # a hundredth of the claim is the solver's
    assert worst > 0.4  # the pairs say something
    assert level == {"conditional" if isinstance(loss, Smooth) else "certified"}


def test_a_user_s_loss_makes_the_release_conditional_and_says_why():
    statement = outcome_weighted(Smooth()).fit(*records(1.0, 0.0)).release().privacy
    assert statement.level == "conditional"
    assert statement.epsilon == pytest.approx(1.0)
    (condition,) = statement.conditions
    assert condition["holds"] is None
    assert "loss = Smooth" in condition["text"]
    assert {charge.level for charge in statement.charges} == {"conditional"}
    assert outcome_weighted(Logistic()).fit(*records(1.0, 0.0)).release().privacy.conditions == []


def test_a_subclass_of_a_library_s_loss_is_a_user_s():
    class Flatter(Logistic):
        curvature = 0.2

    with pytest.raises(InputError, match="curvature"):
        make_loss(Flatter())

    class Same(Logistic):
        pass

    assert Same().conditions
    assert Logistic().conditions == Squared(1.0).conditions == ()
