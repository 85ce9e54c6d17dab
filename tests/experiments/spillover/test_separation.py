"""Double robustness is no privacy certificate: the separation of Theorem 1 by numbers, and spillover of neighbours.

Both constructions have two policies, which give everybody arm 0 or arm 1, and a rare region that holds a share of 1 / m
of the population: training records may miss it, and any data set may have all its scoring records there.
"""

import math

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from experiments.spillover.diagnostics import diagnostics
from experiments.spillover.learned import LearnedNuisances
from experiments.spillover.likelihood import MECHANISMS, log_likelihood_ratio
from experiments.spillover.refits import Refits
from experiments.spillover.replacements import Replacements
from tests.experiments.spillover.cells import EDGE, CellFunctions, CellMeans
from torchdpcate.candidates.kinds import Constants
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.fit.arms.base import SelectionFacts
from torchdpcate.fit.arms.stable import CONSTANTS, StableNuisances

pytestmark = pytest.mark.studies

FLOOR, EPSILON, N = 0.1, 1.0, 1500
NAIVE = 2 / FLOOR  # 2 S for outcomes of range one
DOMAIN = Domain([0.0], [1.0], 0.0, 1.0, overlap=FLOOR)
HALF = torch.full((2, 2), 0.5, dtype=torch.float64)
RARE, COMMON = 0.95, 0.5


def block(n: int, place: float, arms, outcomes) -> CausalData:
    x = torch.full((n, 1), place, dtype=torch.float64)
    a, y = (torch.as_tensor(part, dtype=torch.float64).expand(n) for part in (arms, outcomes))
    return CausalData(x, a.clone(), y.clone())


def refits(recipe, n: int, train: CausalData, score: CausalData) -> Refits:
    facts = SelectionFacts(DOMAIN, (0, 1), FLOOR, train.n, n)
    library = PolicyLibrary.of(Constants([0, 1])).setup(DOMAIN, (0, 1))
    return Refits("learner", recipe, train, score, facts, library, 0)


def one(place: float, arm: int, y: float) -> Replacements:
    """Record 0 leaves, this one comes."""
    x = torch.tensor([[place]], dtype=torch.float64)
    return Replacements(torch.tensor([0]), x, torch.tensor([arm]), torch.tensor([y], dtype=torch.float64))


def outcome_switch(n: int):
    """Propensities are exact, one half; one record decides the treated outcome model of the rare region.

    All scoring records are there and untreated, as happens to some data set whatever the propensity is.
    """
    train = block(n, COMMON, torch.arange(n) % 2, 0.5)
    return CellMeans(e=HALF), train, block(n, RARE, 0, 0.5), one(RARE, 1, 1.0), 0.5 * n


def propensity_switch(n: int):
    """Outcome models are exact, one half; one record moves the rare region's propensity from 0.9 to 0.5.

    All scoring records are there and treated, and had good luck.
    """
    train = block(n, COMMON, torch.arange(n) % 2, 0.5)
    train.x[1] = RARE  # treated
    return CellMeans(mu=HALF), train, block(n, RARE, 1, 1.0), one(RARE, 0, 0.5), 0.5 * n * (1 / 0.5 - 1 / 0.9)


CONSTRUCTIONS = [outcome_switch, propensity_switch]


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("n", [300, 1500, 6000])
def test_one_training_record_moves_the_utilities_by_order_n(construction, n):
    recipe, train, score, pair, expected = construction(n)
    delta = refits(recipe, n, train, score).movements(pair)[0]
    assert float(delta.max() - delta.min()) == pytest.approx(expected)
    assert float(delta.abs().max()) >= 0.4 * n


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("dataset", [0, 1])
def test_double_robustness_sees_nothing_of_it(construction, dataset):
    """Against a truth that agrees with the exact nuisance: zero bias of every policy, in both datasets, and an error of
    the other nuisance that vanishes as the region becomes rarer."""
    for share in (1e-2, 1e-4):
        recipe, train, _, pair, _ = construction(N)
        population = round(1 / share)
        score = block(population, COMMON, torch.arange(population) % 2, 0.5)
        score.x[0] = RARE
        truth = CellFunctions(HALF, HALF)
        fitted = refits(recipe, population, pair.neighbour(train, 0) if dataset else train, score)
        errors = diagnostics(fitted, truth)
        assert errors.bias == 0
        assert errors.product == 0
        assert max(errors.outcome, errors.propensity) <= 0.5 * math.sqrt(share)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_calibration_for_frozen_nuisances_loses_tens_of_epsilon(construction, mechanism):
    recipe, train, score, pair, spread = construction(N)
    made = refits(recipe, N, train, score)
    after = made.base + made.movements(pair)[0]
    loss = log_likelihood_ratio(mechanism, EPSILON, NAIVE, made.base, after)
    assert loss > 15 * EPSILON
    # a certificate of what was moved would do, if somebody had one
    assert log_likelihood_ratio(mechanism, EPSILON, spread, made.base, after) <= EPSILON * (1 + 1e-9)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize("constants", CONSTANTS)
def test_stable_nuisances_keep_their_certificate_there(construction, constants):
    _, train, score, pair, spread = construction(N)
    made = refits(StableNuisances(constants=constants), N, train, score)
    delta = made.movements(pair)[0]
    certified = made.certified.range_sensitivity
    assert float(delta.max() - delta.min()) <= certified < spread
    for mechanism in MECHANISMS:
        assert log_likelihood_ratio(mechanism, EPSILON, certified, made.base, made.base + delta) <= EPSILON


@pytest.mark.parametrize("n", [500, 2000])
def test_one_record_is_the_nearest_neighbour_of_a_constant_share(n):
    """Nearest-neighbour nuisances: the treated are rare beyond 0.8, and one treated record that moves there becomes the
    nearest of its arm to all scoring records between 0.8 and 1: a share of 0.2 of them, at every n."""
    generator = torch.Generator().manual_seed(0)

    def records(count: int) -> CausalData:
        x = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        a = (torch.rand(count, generator=generator) < 0.5) & (x[:, 0] < 0.8)
        return CausalData(x, a.double(), torch.zeros(count, dtype=torch.float64))

    train, score = records(n), records(n)
    recipe = LearnedNuisances(KNeighborsRegressor(1), KNeighborsClassifier(1))
    made = refits(recipe, n, train, score)
    pair = one(EDGE, 1, 1.0)
    before, after = (fit.outcome(score.x)[:, 1] for fit in (made.certified.nuisances, made.fits(pair)[0]))
    share = float((before != after).double().mean())
    beyond = float((score.x[:, 0] > 0.85).double().mean())  # nearer to 0.9 than to any treated record below 0.8
    assert share >= beyond > 0.1
    delta = made.movements(pair)[0]
    spread = float(delta.max() - delta.min())
    assert spread >= beyond * n  # nobody there is treated, so that phi(1) = mu_1 jumps from 0 to 1
    for mechanism in MECHANISMS:
        assert log_likelihood_ratio(mechanism, EPSILON, NAIVE, made.base, made.base + delta) > EPSILON
