"""Sums of all readouts: data that can be pickled, the same in parts, and told from a release's numbers again."""

from dataclasses import replace

import pytest
import torch

from torchdpcate.causal.estimand import ATE, ATT
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.weighted import BalancedDifference, EffectFacts, Weighted, released_ranges
from torchdpcate.fit.feature_maps import on_domain
from torchdpcate.fit.stacked_records import Batch
from torchdpcate.privacy.noise import NoiseSource

N = 60
FEATURES = on_domain(None, Domain([0.0], [1.0], 0.0, 1.0))
THETA = torch.tensor([[0.2, 1.0]], dtype=torch.float64)


def uniform(seed: int) -> torch.Tensor:
    return torch.rand(1, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


FACTS = EffectFacts(N, ATT(0.1), 0.3, 0.7)
FACTS = replace(FACTS, ranges=released_ranges(FACTS, FEATURES, THETA, THETA))
Z, Y = (uniform(0) < 0.5).double(), uniform(1)
WEIGHTED = Weighted(Z, Y, FACTS.ranges.within(1 + uniform(2), Z), 0.5 + 0.1 * uniform(3))
X = uniform(4)[0][:, None]
DESIGNED = Batch(X, 0.3 + 0.3 * X, Z[0], Y[0])


def centred(estimand):
    known = pytest.importorskip("torchdpcate.estimators.average.known_propensity")
    return known.CentredSums(known.DesignFacts(N, estimand(0.1), 0.3, 0.6), 1.0)


READOUTS = {
    "balanced_difference": (lambda: BalancedDifference(FACTS, BalancedDifference.parts), WEIGHTED),
    "known, public size": (lambda: centred(ATE), DESIGNED),
    "known": (lambda: centred(ATT), DESIGNED),
}


def answered(name):
    make, batch = READOUTS[name]
    readout = make()
    noise = NoiseSource.fixed(0)
    return readout.ask(lambda exact: exact(batch), lambda query, exact: readout.laws[query].draw(noise, 1, exact))


@pytest.mark.parametrize("name", READOUTS)
def test_sums_of_two_parts_and_in_any_order_are_those_of_all_bit_by_bit(name):
    make, batch = READOUTS[name]
    readout = make()
    numbers = readout.numbers(answered(name))

    def part(of: slice | torch.Tensor):
        if isinstance(batch, torch.Tensor):
            return batch[:, of]
        if isinstance(batch, Batch):
            return Batch(batch.x[of], batch.psi[of], batch.z[of], batch.y[of])
        parts = [column[:, of] for column in batch]
        return Weighted(*parts) if isinstance(batch, Weighted) else tuple(parts)

    for query in readout.laws:
        sums = readout.sums(query, numbers)
        assert torch.equal(sums.exact(part(slice(0, 23))) + sums.exact(part(slice(23, N))), sums.exact(batch))
        assert torch.equal(sums.exact(part(torch.randperm(N))), sums.exact(batch))


@pytest.mark.parametrize("name", READOUTS)
def test_no_term_is_larger_than_its_grid_is_made_for(name):
    make, batch = READOUTS[name]
    readout = make()
    numbers = readout.numbers(answered(name))
    for query in readout.laws:
        sums = readout.sums(query, numbers)
        for terms, largest in zip(sums.terms(batch), sums.largest, strict=True):
            assert terms.abs().max().item() <= largest * (1 + 1e-12)
