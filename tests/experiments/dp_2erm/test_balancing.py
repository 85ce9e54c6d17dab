"""Weights that are fitted without privacy: their bounds, and the worst neighbours that a search finds."""

import pytest
import torch

from experiments.dp_2erm.balancing import LogisticWeights, TiltingWeights, with_indirect
from experiments.dp_2erm.mmd import MMDWeights
from tests.experiments.dp_2erm.cases import DOMAIN, confounded, unpaid, with_first, worst_movement
from tests.sessions import noted
from torchdpcate.errors import InputError
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.privacy.noise import NoiseSource


def test_bounds_of_the_note():
    spilling = with_indirect(4.0, 21.908902)
    assert (spilling.first, spilling.second) == pytest.approx((29.908902, 25.908902))
    assert not spilling.own
    assert with_indirect(4.0, 0.0) == WeightBounds.per_record(4.0)
    assert with_indirect(4.0, 6.075154).first == pytest.approx(14.075154)
    with pytest.raises(InputError, match="indirect"):
        with_indirect(4.0, -1.0)


def test_noise_multipliers():
    """W1 at epsilon = 1, weights about one, least propensity 1/4; section 4.4 ends with 7, 15."""
    found = [LogisticWeights(ridge).bounds(400, DOMAIN).first for ridge in (1.0, 0.1)]
    assert found == pytest.approx([2.9, 6.5], abs=0.05)


@pytest.mark.parametrize("scheme", [LogisticWeights(), TiltingWeights(), MMDWeights()], ids=lambda s: s.name)
def test_balancing_weights_belong_to_their_records(scheme):
    records, domain = confounded(30, 1)
    known = scheme.fit(records, domain, budget=None, session=noted(NoiseSource.fixed(0), unpaid))
    assert torch.equal(known.weights(records.subset(torch.arange(30))), known.weights(records))
    assert known.propensity(records.x) is None  # nobody paid for it
    with pytest.raises(InputError, match="other records than the 30"):
        known.weights(with_first(records, 0.0, 1.0 - records.a[0].item()))


@pytest.mark.parametrize("make", [LogisticWeights, TiltingWeights, MMDWeights], ids=lambda make: make.name)
def test_a_spill_is_never_said_to_exceed_what_there_is_to_move(make):
    scheme = make(ridge=1e-9)
    least, most = scheme.span(DOMAIN)
    assert scheme.bounds(5, DOMAIN).first - 2 * most == pytest.approx(4 * (most - least))


SEARCHES = {  # a scheme, generations, and the least share of its certificate that the search reaches
    "entropy, little ridge": (LogisticWeights(0.1), 6, 0.08),
    "entropy": (LogisticWeights(1.0), 6, 0.08),
    "tilting, little ridge": (TiltingWeights(0.1), 4, 0.12),
    "tilting": (TiltingWeights(1.0), 4, 0.12),
    "both arms": (MMDWeights(0.1), 8, 0.2),
    "everybody": (MMDWeights(1.0, alpha=1.0), 8, 0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["indirect", "first", "second"])
@pytest.mark.parametrize("search", SEARCHES)
def test_the_worst_neighbours_found_keep_the_certificate(search, aim):
    scheme, generations, least = SEARCHES[search]
    assert least < worst_movement(scheme, n=24, aim=aim, generations=generations) < 1


REFUSED = {
    "entropy without ridge": (lambda: LogisticWeights(ridge=0.0), r"weights.ridge = 0"),
    "tilting without ridge": (lambda: TiltingWeights(ridge=0.0), r"weights.ridge = 0"),
    "mmd without ridge": (lambda: MMDWeights(ridge=0.0), r"weights.ridge = 0"),
    "cap without room": (lambda: TiltingWeights(cap=2.0).check(100, DOMAIN, None), r"weights.cap = 2: "),
    "too many records": (lambda: MMDWeights().check(5001, DOMAIN, None), r"n = 5001 .* use the tilting ones"),
    "alpha": (lambda: MMDWeights(alpha=0.0), "alpha = 0"),
    "bandwidth": (lambda: MMDWeights(bandwidth=-1.0), "bandwidth = -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_and_the_ways(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make()
