"""Statistics are data: they can be sent to where the records are, and know nothing of what pays for them."""

import pickle
from dataclasses import fields, replace
from functools import partial

import pytest
import torch

from tests.composition.cases import batch, rows
from torchdpcate.composition.censoring import FollowUpCells
from torchdpcate.composition.covariates import MomentsWithin, PairsAbout, Total, Waves, WavesAbout, WindowCells
from torchdpcate.composition.interval_events import Average, Correction, Counts, EffectStatistic, Matrix
from torchdpcate.composition.linear_fit import Gradient
from torchdpcate.composition.lines import LineSums, Squares
from torchdpcate.composition.pure_fits import EffectSums
from torchdpcate.composition.regressions import (
    HUBER,
    TWO_VALUES,
    ArmsFits,
    EffectFits,
    OutcomeFits,
    PropensityFits,
    simplex,
)
from torchdpcate.composition.remainders import Remainders, Shapes
from torchdpcate.composition.steps import NoisySteps, Statistic
from torchdpcate.composition.summaries import Cells, Curvatures, Moments, Weights, sizes
from torchdpcate.data.censoring import Censoring
from torchdpcate.fit.weighted_basis import Levels, Standardisation, WeightedBasis, all_features
from torchdpcate.privacy.session import FitSession

N = 50
BASIS = WeightedBasis(all_features([False, False], "12"), torch.full((5,), 0.2).double())
THETA = torch.linspace(-1, 1, 5).double()
RANDOM = torch.Generator().manual_seed(0)
X = 2 * torch.rand(N, 2, generator=RANDOM).double() - 1
A = (torch.rand(N, generator=RANDOM) < 0.5).double()
Y, PI = torch.randn(N, generator=RANDOM).double(), torch.full((N,), 0.4).double()
FOLLOWED = torch.stack([4 * torch.rand(N, generator=RANDOM), (2 * torch.rand(N, generator=RANDOM)).round()], 1).double()
HORIZON = Censoring("t", "d", 3.0, bins=4)
RECORDS = batch(X, Y, A, PI).with_weight(torch.rand(N, generator=RANDOM).double())
RECORDS = replace(RECORDS, follow_up=HORIZON.within(FOLLOWED))
FACTS = BASIS, (0.3, 0.6)
FITS = {
    "outcome": OutcomeFits(1.0, BASIS, 1.0, 0.5, HUBER),
    "two values": OutcomeFits(1.0, BASIS, 1.0, 0.5, TWO_VALUES),
    "propensity": PropensityFits(0.9, BASIS),
    "effect": EffectFits(1.0, BASIS),
}
STATISTICS = {
    "weights": Weights(),
    "follow-up": FollowUpCells(HORIZON),
    "follow-up by arm": FollowUpCells(replace(HORIZON, by_arm=True)),
    "follow-up of several events": FollowUpCells(replace(HORIZON, kind="event_by_horizon", levels=())),
    "cells": Cells(partial(sizes, centre=0.5), torch.tensor([0.5, 1.0]).double()),
    "moments": Moments(),
    "moments within": MomentsWithin(Standardisation(torch.zeros(1), torch.ones(1)), torch.tensor([True, False])),
    "windows": WindowCells(torch.tensor([True, False]), torch.tensor([True])),
    "windows with missing values": WindowCells(torch.tensor([True, False]), torch.tensor([True]), (1, None)),
    "waves": Waves(),
    "total": Total(),
    "waves about": WavesAbout(0.1),
    "pairs about": PairsAbout(0.1, (False, True), 3),
    "remainders": Remainders(Shapes.of(Levels([False, False]), None, torch.cat([X, -X])), 1.0),
    "sums": EffectSums(1.0, 2, True),
    "matrix": Matrix(*FACTS, 2.0, 5),
    "counts": Counts(*FACTS, THETA, 1.0),
    "correction": Correction(*FACTS, THETA, 2.0),
    "average": Average(*FACTS, THETA, 1.0),
    **{f"gradient of {name}": Gradient(fits, THETA) for name, fits in FITS.items()},
    **{f"curvatures of {name}": Curvatures(fits, 5) for name, fits in FITS.items()},
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_travels_and_says_what_one_record_moves(name):
    statistic = STATISTICS[name]
    assert torch.equal(pickle.loads(pickle.dumps(statistic))(RECORDS), statistic(RECORDS))
    assert all(number > 0 for number in statistic.moved())
    if name != "weights" and "follow-up" not in name:
        assert rows(X, Y, A, PI).total(statistic).shape == statistic(RECORDS).shape
    assert not any(isinstance(getattr(statistic, f.name), FitSession | NoisySteps) for f in fields(statistic))


def test_the_regression_of_many_arms_travels():
    fits = ArmsFits(1.0, BASIS, simplex(3))
    records = batch(X, Y, A, torch.full((N, 3), 1 / 3).double())
    assert torch.equal(pickle.loads(pickle.dumps(fits))(records).weights, fits(records).weights)


def test_every_statistic_is_here():
    def under(kind: type) -> set[type]:
        return {kind}.union(*map(under, kind.__subclasses__()))

    own = {kind for kind in under(Statistic) if kind.__module__.startswith("torchdpcate.")}
    of_lines = {Squares, LineSums}  # of scored records: test_lines
    assert own - {Statistic, EffectStatistic, *of_lines} == {type(statistic) for statistic in STATISTICS.values()}
