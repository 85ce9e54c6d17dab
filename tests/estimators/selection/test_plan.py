"""The bound of the regret: each term against what it bounds, all of them by simulation, and the search for a plan.

Simulations use fixed seeds; a bound that held with probability 1 - beta alone would fail less often than 1e-6.
"""

import math

import pytest
import torch
from scipy.stats import binom

from torchdpcate.causal.score import dr_scores
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.selection.plan import TRAINED, NuisanceFacts, plan, regret_bound
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.privacy.selection_mechanisms import ExponentialMechanism, PermuteAndFlip

FACTS = {"overlap": 0.1, "features": 21}
ALARM = 1e-6


def test_terms_by_hand():
    # S = 10 and a spread of 20 for frozen nuisances; 2 * 159 / 0.05 = 6360, 2 * 160 / 0.05 = 6400
    bound = regret_bound(40_000, 0, 160, 0.5, nuisance_guarantee="frozen", errors=(0.2, 0.1), **FACTS)
    assert bound.concentration == pytest.approx(10 * math.sqrt(2 * math.log(6360) / 40_000))
    assert bound.remainder == pytest.approx(0.4)
    assert bound.privacy == pytest.approx(20 / 20_000 * math.log(6400))
    assert bound.total == pytest.approx(0.2092580 + 0.4 + 0.0087641, abs=1e-6)
    assert (bound.dominates, bound.expected, bound.split, bound.ridge) == ("remainder", False, None, None)


def test_the_spread_is_that_of_the_certificate():
    stable = regret_bound(1500, 1500, 160, 1.0, ridge=50.0, radius=math.sqrt(21), **FACTS)
    assert stable.range_sensitivity == pytest.approx(2.862845, abs=1e-6)
    assert stable.split == 0.5
    for actions, width in ((2, 1.0), (4, 3.0)):
        facts = SelectionFacts(Domain([0.0], [1.0], 0.0, width, better="higher"), tuple(range(actions)), 0.1, 0, 1500)
        constants = FixedNuisances().fit(None, facts)
        common = {"nuisance_guarantee": "fixed", "actions": actions, "outcome_range": width}
        assert regret_bound(1500, 0, 160, 1.0, **common, **FACTS).range_sensitivity == pytest.approx(
            constants.range_sensitivity
        )
    for certificate in ("frozen", "private_nuisances"):
        assert regret_bound(
            1500, 1500, 160, 1.0, nuisance_guarantee=certificate, **FACTS
        ).range_sensitivity == pytest.approx(20.0)


def dataset(count: int, policies: int, generator):
    """Outcome means [n, 2] of a trial with equal arms, and what M thresholds decide [n, M]."""
    x = torch.rand(count, dtype=torch.float64, generator=generator)
    means = torch.stack([0.5 + 0 * x, 0.2 + 0.6 * x], 1)
    decided = (x[:, None] > torch.linspace(0, 1, policies, dtype=torch.float64)).long()
    return means, decided


@pytest.mark.slow
def test_observed_regret_stays_below_the_bound():
    generator, n, M, beta, runs = torch.Generator().manual_seed(0), 1500, 21, 0.2, 300
    bound = regret_bound(
        n,
        0,
        M,
        1.0,
        overlap=0.5,
        features=2,
        nuisance_guarantee="fixed",
        failure=beta,
        errors=(0.3, 0.0),
        outcome_range=1.0,
    )
    assert bound.total < 0.11  # of a range of one: it says something
    means, decided = dataset(200_000, M, generator)
    values = means.gather(1, decided).mean(0)
    means, decided = dataset(runs * n, M, generator)
    arm = torch.randint(2, (runs * n,), generator=generator)
    y = torch.bernoulli(means.gather(1, arm[:, None])[:, 0], generator=generator)
    half = torch.full((runs * n, 2), 0.5, dtype=torch.float64)
    scores = dr_scores(arm, y, half, half)
    utilities = scores.gather(1, decided).reshape(runs, n, M).sum(1)
    best = int(values.argmax())
    # concentration: uniformly over rivals, each of the runs
    missed = (values[best] - values) - (utilities[:, [best]] - utilities) / n
    excess = int((missed.amax(1) > bound.concentration).sum())
    assert binom.sf(excess - 1, runs, beta / 2) > ALARM
    for kind in (PermuteAndFlip, ExponentialMechanism):
        chances = kind(1.0, bound.range_sensitivity).probabilities(utilities)
        behind = (utilities.amax(1, keepdim=True) - utilities) / n
        assert (chances * (behind > bound.privacy)).sum(1).max() <= beta / 2
        worse = ((values[best] - values) > bound.total).double()
        assert (chances @ worse).mean() <= beta
        # the whole: far from vacuous, the 80 % quantile comes within a factor of the bound
        regret = (chances * (values[best] - values)).sum(1)
        assert bound.total / 40 < regret.quantile(1 - beta) < bound.total


def test_the_privacy_term_holds_for_every_utility_and_is_sharp():
    generator, failure, M = torch.Generator().manual_seed(1), 0.1, 50
    bound = regret_bound(100, 0, M, 0.7, nuisance_guarantee="fixed", failure=failure, errors=(0.1, 0.1), **FACTS)
    width = 10 ** (2 * torch.rand(400, 1, dtype=torch.float64, generator=generator))
    utilities = -width * torch.rand(400, M, dtype=torch.float64, generator=generator)
    # all rivals just beyond the term
    sharp = torch.full((1, M), -100 * bound.privacy * (1 + 1e-9), dtype=torch.float64)
    sharp[0, 0] = 0
    utilities = torch.cat([utilities, sharp])
    for kind, sharpness in ((PermuteAndFlip, 0.45), (ExponentialMechanism, 0.9)):
        far = (utilities.amax(1, keepdim=True) - utilities) / 100 > bound.privacy
        failed = (kind(0.7, bound.range_sensitivity).probabilities(utilities) * far).sum(1)
        assert failed.max() <= failure / 2
        assert failed[-1] > sharpness * failure / 2


@pytest.mark.parametrize("seed", range(5))
def test_the_remainder_bounds_the_bias_of_wrong_nuisances(seed):
    generator, least = torch.Generator().manual_seed(seed), 0.1
    draw = lambda: torch.rand(2000, dtype=torch.float64, generator=generator)  # noqa: E731
    e, e0 = (torch.stack([1 - p, p], 1) for p in (least + (1 - 2 * least) * draw(), least + (1 - 2 * least) * draw()))
    mu, mu0 = torch.stack([draw(), draw()], 1), torch.stack([draw(), draw()], 1)
    bias = (e - e0) * (mu - mu0) / e
    errors = (mu - mu0).square().mean(0).sqrt().max().item(), (e - e0)[:, 0].square().mean().sqrt().item()
    bound = regret_bound(100, 0, 2, 1.0, nuisance_guarantee="frozen", errors=errors, outcome_range=10.0, **FACTS)
    # the two policies whose biases differ most
    assert (bias.amax(1) - bias.amin(1)).mean() <= bound.remainder


def test_the_remainder_is_attained():
    # both outcome models too high by 0.2, propensities of a half where 0.6 and 0.4 are true: +0.04 and -0.04 over 1/2
    bound = regret_bound(100, 0, 2, 1.0, nuisance_guarantee="fixed", errors=(0.2, 0.1), **FACTS)
    bias = torch.tensor([0.1, -0.1]) * 0.2 / 0.5
    assert bound.remainder == pytest.approx((bias[0] - bias[1]).item())


def test_the_remainder_of_three_arms_counts_each():
    # on each third of the covariates another two of three arms are compared, and both models err there alone: 0.24
    wide = {**FACTS, "overlap": 0.05}
    bound = regret_bound(100, 0, 2, 1.0, nuisance_guarantee="fixed", actions=3, errors=(0.2, 0.02), **wide)
    two = regret_bound(100, 0, 2, 1.0, nuisance_guarantee="fixed", errors=(0.2, 0.02), **wide)
    assert bound.remainder * bound_least(3) == pytest.approx(3 * 0.2 * 0.02)
    assert two.remainder * bound_least(2) == pytest.approx(2 * 0.2 * 0.02)


def bound_least(arms: int) -> float:
    """Propensities of constants: 1 / K."""
    return 1 / arms


def total(certificate: str, n=20_000, m=20_000, M=50, epsilon=1.0, overlap=0.1, **more) -> float:
    facts = {"overlap": overlap, "features": 5, "errors": (0.1, 0.02), "ridge": 1.0, "outcome_range": 1.0, **more}
    return regret_bound(n, m, M, epsilon, nuisance_guarantee=certificate, **facts).total


@pytest.mark.parametrize("certificate", ["stability", "private_nuisances", "frozen", "fixed"])
def test_the_bound_falls_with_records_epsilon_and_overlap_and_grows_with_policies_and_doubt(certificate):
    at = total(certificate)
    assert 0 < at < 1
    assert total(certificate, n=40_000) < at
    assert total(certificate, epsilon=2.0) < at
    assert total(certificate, M=500) > at
    assert total(certificate, failure=0.01) > at
    assert total(certificate, errors=(0.2, 0.02)) > at
    assert total(certificate, overlap=0.2) <= at
    assert total(certificate, outcome_range=7.0, errors=(0.7, 0.02)) == pytest.approx(7 * at)
    assert total(certificate, M=1) == 0.0
    assert total(certificate, n=2) == 1.0


def test_without_a_ridge_the_best_of_the_grid_is_taken():
    free = regret_bound(2000, 2000, 100, 1.0, **FACTS)
    tried = [regret_bound(2000, 2000, 100, 1.0, ridge=ridge, **FACTS).total for ridge in (0.01, 0.1, 1.0, 10.0, 100.0)]
    assert free.total <= min(tried)
    assert free.total < max(tried)


@pytest.mark.slow
def test_a_plan_is_no_worse_than_any_split_of_its_grid():
    suggested = plan(30_000, 40, 1.0, overlap=0.2, features=4)
    for certificate in TRAINED:
        best = suggested.bounds[certificate]
        assert best.scoring + best.training == 30_000
        for share in (0.1, 0.3, 0.5, 0.8):
            m = round(share * 30_000)
            rival = regret_bound(30_000 - m, m, 40, 1.0, overlap=0.2, features=4, nuisance_guarantee=certificate)
            assert best.total <= rival.total
    assert suggested.best.total == min(bound.total for bound in suggested.bounds.values())


def test_a_plan_knows_a_trial():
    suggested = plan(3000, 160, 1.0, errors={"fixed": (0.3, 0.0)}, **FACTS)
    assert suggested.best.nuisance_guarantee == "fixed"
    assert suggested.best.dominates == "concentration"
    assert suggested.bounds["fixed"].remainder == 0
    assert "known propensities" in suggested.bounds["stability"].advice
    text = str(suggested)
    assert "160 policies, epsilon = 1" in text
    assert all(name in text for name in suggested.bounds)


def test_what_dominates_is_told_with_a_remedy():
    spilling = regret_bound(1500, 1500, 160, 1.0, ridge=0.05, errors=(0.1, 0.1), **FACTS)
    assert spilling.dominates == "privacy"
    assert "larger ridge" in spilling.advice
    assert "promises nothing" in str(spilling)
    small = regret_bound(1500, 0, 160, 0.01, nuisance_guarantee="frozen", errors=(0.0, 0.0), **FACTS)
    assert "larger epsilon" in small.advice
    assert "nothing is chosen" in regret_bound(10, 0, 1, 1.0, nuisance_guarantee="fixed", **FACTS).advice


def test_guessed_errors_lie_between_variance_and_the_unknown():
    facts = NuisanceFacts(1.0, 0.1, 7, 2, 1.0, 1.0)
    assert facts.of_ridge(500, 1e6) == pytest.approx(facts.unknown, rel=1e-4)
    assert facts.of_ridge(500, 1e-9) == pytest.approx((math.sqrt(7 / 1000), math.sqrt(7 / 2000)), rel=1e-3)


def test_the_guess_of_a_ridge_fit_is_that_of_a_simulated_one():
    generator, m, p, ridge, runs = torch.Generator().manual_seed(2), 400, 6, 0.02, 200
    x = torch.randn(runs, m, p, dtype=torch.float64, generator=generator)
    x = x / x.norm(dim=2, keepdim=True)
    b = torch.randn(runs, p, 1, dtype=torch.float64, generator=generator)
    b = b / b.norm(dim=1, keepdim=True) * math.sqrt(p / 12)  # means of variance 1/12
    y = x @ b + torch.randn(runs, m, 1, dtype=torch.float64, generator=generator) / 2
    treated = (torch.rand(runs, m, 1, generator=generator) < 0.5).double()
    gram = (x * treated).mT @ x / m + ridge * torch.eye(p)
    fitted = torch.linalg.solve(gram, (x * treated).mT @ y / m)
    error = ((fitted - b).square().sum(1).mean() / p).sqrt().item()
    assert NuisanceFacts(1.0, 0.1, p, 2, 1.0, 1.0).of_ridge(m, ridge)[0] == pytest.approx(error, rel=0.15)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"scoring": 0}, "scoring"),
        ({"training": 0}, "training"),
        ({"policies": 0}, "policies"),
        ({"epsilon": 0}, "epsilon"),
        ({"overlap": 0.6}, "overlap"),
        ({"overlap": 0.4, "actions": 3}, "overlap"),
        ({"features": 0}, "features"),
        ({"failure": 0}, "failure"),
        ({"ridge": -1}, "ridge"),
        ({"nuisance_guarantee": "none"}, "nuisance_guarantee"),
        ({"errors": (0.1, -0.1)}, "errors"),
        ({"errors": (0.1,)}, "errors"),
        ({"outcome_range": 0}, "outcome_range"),
    ],
)
def test_bad_arguments_are_named(given, name):
    with pytest.raises(InputError, match=name):
        regret_bound(**{"scoring": 100, "training": 100, "policies": 5, "epsilon": 1.0, **FACTS, **given})


def test_a_plan_refuses_what_it_cannot_use():
    with pytest.raises(InputError, match="total_records"):
        plan(1, 5, 1.0, **FACTS)
    with pytest.raises(InputError, match="magic"):
        plan(100, 5, 1.0, errors={"magic": (0.1, 0.1)}, **FACTS)
