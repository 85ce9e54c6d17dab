"""A propensity that the domain knows, in learners of effects: taken as it is, and not paid for."""

import pandas as pd
import pytest
import torch

from torchdpcate import Domain, DRLearner, LinearSecondStage, PrivacyBudget, RLearner
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.errors import InputError
from torchdpcate.fit.convex import ConvexNuisanceConfig

BUDGET = PrivacyBudget(4.0, 1e-5)
STRATA = {"x1": {0: 0.3, 1: 0.6}}
TWO_BLOCKS = {"nuisance": ConvexNuisanceConfig(), "second_stage": LinearSecondStage()}
N = 600


def domain(propensity, overlap: float = 0.1) -> Domain:
    return Domain([-1, 0], [1, 1], -2.0, 2.0, overlap, two_levels=[False, True], propensity=propensity)


def drawn() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(N, 2, generator=generator, dtype=torch.float64) - 1
    x[:, 1] = (x[:, 1] > 0).double()
    p = torch.tensor([0.3, 0.6], dtype=torch.float64)[x[:, 1].long()]
    a = (torch.rand(N, generator=generator, dtype=torch.float64) < p).double()
    return x, a, (x[:, 0] * a - 0.5 * x[:, 1]).clamp(-2, 2), p


X, A, Y, P = drawn()


@pytest.mark.parametrize("kind", [RLearner, DRLearner])
def test_a_column_and_strata_are_the_same_propensity(kind) -> None:
    by_strata = kind(domain(STRATA), None, **TWO_BLOCKS).fit(X, A, Y)
    by_column = kind(domain("p"), None, **TWO_BLOCKS).fit(X, A, Y, propensity=P)
    frame = pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "p": P})
    by_frame = kind(domain("p"), None, **TWO_BLOCKS).fit(frame, A, Y)
    assert torch.equal(by_strata.stage_.block.w, by_column.stage_.block.w)
    assert torch.equal(by_column.stage_.block.s, by_frame.stage_.block.s)
    if kind is RLearner:
        assert torch.equal(by_strata.stage_.block.w, (A - P)[by_strata.blocks_["second_stage"]])


def test_the_noise_of_a_trial_follows_from_its_propensity() -> None:
    settings = TWO_BLOCKS | {"second_stage": LinearSecondStage(threshold=0.5, ridge=0.02)}  # else they differ too
    known, estimated = (RLearner(domain(given), BUDGET, **settings) for given in (0.5, None))
    first, second = (fitted.fit(X, A, Y).stage_.sensitivity for fitted in (known, estimated))
    assert first < 0.7 * second


def test_a_search_of_the_covariates_refuses_a_column() -> None:
    learner = RLearner(domain("p"), BUDGET, **TWO_BLOCKS)
    with pytest.raises(InputError, match="each record's propensity is the column 'p'"):
        learner.check(N, "influence")


def test_a_missing_column_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="propensity is the column 'p'"):
        RLearner(domain("p"), None, **TWO_BLOCKS).fit(X, A, Y)


def test_the_composition_takes_it() -> None:
    fits = []
    for given in (STRATA, "p"):
        learner = RLearner(domain(given), None, second_stage=AdaptiveSecondStage()).fit(
            X, A, Y, propensity=P if given == "p" else None
        )
        fits.append(learner.composed_)
        assert learner.plan_.known_propensity
    assert torch.equal(fits[0].propensity, fits[1].propensity)
    assert torch.equal(fits[0].propensity, P)
