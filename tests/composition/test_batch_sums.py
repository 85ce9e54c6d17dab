"""Sums in memory are made batch by batch, so that their rounding adds next to nothing to the noise of long tables."""

import math

import pytest
import torch

from tests.composition.cases import Given, batch
from torchdpcate.composition import steps as composition_steps
from torchdpcate.composition.covariates import Waves
from torchdpcate.composition.interval_events import Average
from torchdpcate.composition.linear_fit import HuberFit
from torchdpcate.composition.steps import BATCH, NoisySteps, Shares
from torchdpcate.composition.summaries import Curvatures, Moments
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession


@pytest.mark.parametrize("n", [1_000, 10**7])
def test_curvatures_and_gradients_of_long_tables_have_the_noise_of_short_ones(n):
    """At 10^7 records the rounding of sums in any order would be 126 % of a curvature's sensitivity."""
    steps, p = NoisySteps(FitSession(NoiseSource.system()), Shares(1.0, {"curvatures": 1.0})), 40
    assert steps.sensitivity(Curvatures(Given(), p), n) == pytest.approx(math.sqrt(2), rel=1e-3)
    assert steps.rounding(n, 1.0) * math.sqrt(p) < 1e-3


THIRD = torch.full((3 * BATCH + 1, 1), 1 / 3, dtype=torch.float64)
ONE = torch.ones(len(THIRD), dtype=torch.float64)
SUMS = {
    "gradient": lambda: HuberFit(THIRD, ONE, -ONE, 1.0).gradient(torch.zeros(1).double()),
    "curvatures": lambda: Curvatures(Given(), 1)(batch(THIRD, ONE)),
    "moments": lambda: Moments()(batch(THIRD)),
    "screening": lambda: Waves()(batch(THIRD, ONE)),
    "intervals": lambda: Average(lambda z: z, (0.3, 0.6), ONE[:1], 1.0)(batch(THIRD, ONE, ONE, ONE / 3)),
}


@pytest.mark.parametrize("kind", SUMS)
def test_no_sum_takes_more_records_than_a_batch_at_once(kind, monkeypatch):
    parts = []
    monkeypatch.setattr(composition_steps, "added", lambda each: parts.extend(each) or sum(parts))
    SUMS[kind]()
    assert len(parts) == 4
