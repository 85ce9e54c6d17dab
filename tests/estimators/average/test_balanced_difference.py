"""Stage two by a balanced difference."""

import math

import pytest
import torch

from tests.estimators.average.drawn import drawn
from tests.estimators.average.eight import ETA, PHI, THETA, Y, Z
from torchdpcate.causal.estimand import ESTIMANDS, Estimand, make_estimand
from torchdpcate.estimators.average.ratio_of_sums import UPPER
from torchdpcate.estimators.average.weighted import BalancedDifference, EffectFacts, Weighted

ATE = make_estimand("ATE", ETA)
EPSILONS = {"difference": 0.40, "size": 0.05, "spread": 0.10}


def _weighted(estimand: Estimand = ATE, m: float = 0.4) -> Weighted:
    w = estimand.weights(PHI @ THETA, Z)[None]
    return Weighted(Z[None], Y[None], w, torch.full_like(w, m))


def test_sums_of_the_note() -> None:
    found = BalancedDifference(EffectFacts(8, ATE, 0.4, 0.4), EPSILONS).without_noise(lambda exact: exact(_weighted()))
    assert abs(found.released["difference"].item() - 1.31877828) < 5e-9
    assert abs(found.released["size"].item() - 11.10323404) < 5e-9
    assert abs(found.released["spread"].item() - 11.33179688) < 5e-9
    assert math.isclose(found.estimate.item(), 1.31877828 / 11.10323404, rel_tol=1e-8)


@pytest.mark.parametrize("estimand", ESTIMANDS)
@pytest.mark.parametrize(("low", "high"), [(0.3, 0.7), (0.5, 0.5), (0.1, 0.4), (0.0, 1.0)])
def test_sensitivities_are_attained_by_the_worst_pair_of_records(estimand: str, low: float, high: float) -> None:
    """Every corner of (treatment, outcome, propensity, outcome model): the largest difference of two records' terms."""
    of, ends = make_estimand(estimand, ETA), torch.tensor([0.0, 1.0], dtype=torch.float64)
    z, y, e, m = (part.flatten() for part in torch.meshgrid(ends, ends, ends, ends, indexing="ij"))
    w = of.at(ETA + (1 - 2 * ETA) * e, z)
    m = low + (high - low) * m
    one = Weighted(z[:, None], y[:, None], w[:, None], m[:, None])  # a run a record
    readout = BalancedDifference(EffectFacts(1, of, low, high), EPSILONS)
    found = readout.without_noise(lambda exact: exact(one)).released
    for part, bound in BalancedDifference.sensitivities(EffectFacts(1, of, low, high)).items():
        moved = (found[part][:, None] - found[part]).abs().max().item()
        assert moved <= bound * (1 + 1e-12)
        if part != "spread":  # whose least value is 0 only inside the interval of outcomes
            assert moved >= bound * (1 - 1e-12)


def test_the_law_of_the_error_follows_section_3_6() -> None:
    facts = EffectFacts(100_000, ATE, 0.3, 0.7, imbalance=50.0, slope_bound=0.25)
    batch = _weighted()
    many = Weighted(*(part.repeat(1, 12_500) for part in batch))
    found = drawn(BalancedDifference(facts, EPSILONS), lambda exact: exact(many), 2)
    size = found.released["size"]
    scales = {
        part: bound / EPSILONS[part] * 0.4079 / 0.55 for part, bound in BalancedDifference.sensitivities(facts).items()
    }
    upper = found.released["spread"] + UPPER * scales["spread"]
    gaussian = (upper / size**2 + (0.25 * 50.0 / size) ** 2).sqrt()
    torch.testing.assert_close(found.gaussian, gaussian, rtol=1e-4, atol=0.0)
    laplace = torch.stack([scales["difference"] / size, found.estimate.abs() * scales["size"] / size], -1)
    torch.testing.assert_close(found.laplace, laplace, rtol=1e-4, atol=0.0)
    assert math.isclose(UPPER, 1.609438, abs_tol=5e-7)
    assert not found.noise_dominated.any()


def test_where_all_weights_are_equal_the_size_is_public_and_free() -> None:
    equal = make_estimand("ATE", 0.5)
    facts = EffectFacts(8, equal, 0.5, 0.5)
    scales = BalancedDifference(facts, EPSILONS).scales({})
    assert list(scales) == ["difference", "spread"]
    # all of the three shares is for the other two, and the squares are free: 2 P / epsilon
    assert scales["difference"].item() == pytest.approx(2 / 0.55, rel=1e-4)
