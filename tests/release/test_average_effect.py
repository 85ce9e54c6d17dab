import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.verify.forgery import rewritten, statement
from torchdpcate import load_release
from torchdpcate.causal.estimand import make_estimand
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, ReleaseFileError
from torchdpcate.fit.feature_maps import Fourier, Identity, Legendre
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.average_effect import AverageEffectRelease, BalanceTable, ReleasedWeights
from torchdpcate.release.estimate import Estimate, IntervalLaw
from torchdpcate.release.file import read_release_file, save_release

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], -2.0, 2.0, names=["age", "dose"], better="higher")
SCHEMA = TableSchema.from_domain(DOMAIN)
LAW = IntervalLaw(0.1, (0.05, 0.02))
MAIN = Estimate(0.25, LAW)
BALANCE = BalanceTable(["age", "dose"], before=[0.3, -0.2], expected=[0.01, 0.0], expected_sd=[0.2, 0.2])


def weights(features=None, estimand: str = "ATT", eta: float = 0.2) -> ReleasedWeights:
    psi = (features or Identity()).setup(DOMAIN)
    return ReleasedWeights(torch.linspace(-3, 3, psi.dimension, dtype=torch.float64), psi, make_estimand(estimand, eta))


def released(main: Estimate = MAIN, **parts) -> AverageEffectRelease:
    numbers = {"difference": 10.5, "size": 100.0}
    return AverageEffectRelease("ATT", main, numbers, SCHEMA, statement(Level.CERTIFIED), **parts)


def full(features=None) -> AverageEffectRelease:
    w = weights(features)
    return released(weights=w, outcome_theta=w.theta / 7, balance=BALANCE)


def test_the_interval_is_the_estimate_and_its_law():
    release = released()
    assert release.estimate.tolist() == [0.25]
    half = LAW.half_width(0.9)
    np.testing.assert_allclose(release.interval(0.9), [[0.25 - half, 0.25 + half]])
    assert release.interval(0.99)[0, 1] > release.interval(0.95)[0, 1]


def test_several_records_a_person_count_as_often_in_the_sampling():
    law = IntervalLaw(0.05, (0.02,))
    one = released(Estimate(0.25, law))
    four = replace(one, privacy=replace(one.privacy, person={"column": "id", "records": 4}))
    half = IntervalLaw(0.1, (0.02,)).half_width(0.95)  # var of a sum of k is at most k times that of independent ones
    np.testing.assert_allclose(four.interval(), [[0.25 - half, 0.25 + half]])
    assert np.diff(one.interval()) < 2 * half


def test_the_interval_stays_within_what_is_possible():
    ((low, high),) = released(Estimate(3.9, IntervalLaw(10.0))).interval()
    assert (low, high) == (-4.0, 4.0)
    assert released(Estimate(-4.0, IntervalLaw(1e300, (1e300,)))).interval().tolist() == [[-4.0, 4.0]]
    for level in (0, 1, 2, math.nan):
        with pytest.raises(InputError, match="level"):
            released().interval(level)


def test_a_denominator_dominated_by_noise_gives_the_full_range_and_says_so():
    unknown = released(Estimate(0.1, LAW, noise_dominated=True))
    assert (unknown.interval(0.5).tolist(), unknown.summary()["noise_dominated"]) == ([[-4.0, 4.0]], 1)


def test_an_estimate_without_a_law_has_no_interval():
    unknown = released(Estimate(0.1, None))
    with pytest.raises(InputError, match="no honest interval is known"):
        unknown.interval()
    assert unknown.summary()["lines"][0]["low"] is None
    assert "0.1" in " ".join(text.get_text() for text in unknown.plot().axes[0].texts)


def test_propensities_and_weights_of_anybody():
    release, x = released(weights=weights()), DOMAIN.grid(50)
    g = (-3 + 0 * x[:, 0] + 3 * x[:, 1]) / math.sqrt(3)
    e = torch.sigmoid(g).clamp(max=0.8)  # of the ATT weights could grow above alone
    np.testing.assert_allclose(release.propensity(x), e)
    frame = pd.DataFrame(x.numpy(), columns=["age", "dose"])[["dose", "age"]]
    np.testing.assert_allclose(release.propensity(frame), e)
    a = torch.arange(50) % 2
    np.testing.assert_allclose(release.weights.weights(x, a), np.where(a == 1, 1.0, e / (1 - e)))
    with pytest.raises(InputError, match="outside"):
        release.propensity([[2.0, 0.0]])
    with pytest.raises(InputError, match="releases none"):
        released().propensity(x)


@pytest.mark.parametrize("features", [Identity(), Identity(centred=False), Legendre(2), Fourier(pairs=5, seed=3)])
def test_a_file_gives_the_same_release_back(features, tmp_path):
    release, x = full(features), DOMAIN.grid(20)
    path = save_release(release, tmp_path / "effect.safetensors")
    back = load_release(path)
    assert isinstance(back, AverageEffectRelease)
    for name in ("estimand", "main", "numbers", "schema", "privacy"):
        assert getattr(back, name) == getattr(release, name), name
    assert back.balance.columns() == BALANCE.columns()
    np.testing.assert_allclose(back.interval(0.9), release.interval(0.9), rtol=1e-12)
    np.testing.assert_allclose(back.propensity(x), release.propensity(x), rtol=1e-12)
    assert torch.equal(back.outcome_theta, release.outcome_theta)
    again = save_release(back, path.with_name("again.safetensors"))
    assert read_release_file(again).metadata == read_release_file(path).metadata


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("estimand",), "all"),
        (("numbers",), ["difference"]),
        (("main", "law"), None),
        (("main", "law"), {"laplace": 1, "polytope": False}),
        (("main", "swamped"), "no"),
        (("beside",), {"law": None, "swamped": False}),
        (("balance",), ["age"]),
        (("weights", "eta"), 0.7),
        (("weights", "hidden"), 33.0),
        (("main", "law", "hidden"), 33.0),
        (("weights", "estimand"), "LATE"),
        (("weights", "features"), {"name": "representation"}),
        (("weights", "features"), {"name": "fourier", "pairs": 10**9}),
        (("weights",), None),
    ],
)
def test_made_up_facts_are_refused(path, value, tmp_path):
    facts = full().facts()
    place = facts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = save_release(full(), tmp_path / "effect.safetensors")
    with pytest.raises(ReleaseFileError):
        load_release(rewritten(file, facts=json.dumps(facts)))
