"""Balance statistics."""

import pytest
import torch

from tests.estimators.average.confounded import DOMAIN, FEATURES, arrays
from torchdpcate import NoiseSource
from torchdpcate.causal.estimand import ATE, ESTIMANDS, make_estimand
from torchdpcate.estimators.average.balance import BalanceStatistics, names_of
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.stacked_records import Batch, StackedRecords
from torchdpcate.fit.user_maps import on_domain
from torchdpcate.release.average_effect import BalanceTable

THETA = torch.tensor([[0.2, 1.0, -0.5, 0.3, 0.1]], dtype=torch.float64)


def _records(n: int) -> StackedRecords:
    x, z, y = arrays(n, 8)
    return StackedRecords(Batch(x, FEATURES(x), z, y))


def drawn(statistics: BalanceStatistics, records: StackedRecords, size: float, seed: int) -> BalanceTable:
    """The statistics with noise of this seed."""
    laws, noise = statistics.laws, NoiseSource.fixed(seed)
    answers = statistics.ask(records.total, lambda part, exact: laws[part].draw(noise, 1, exact))
    return statistics.table(statistics.numbers(answers), size)


@pytest.mark.parametrize("estimand", ESTIMANDS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_one_record_moves_every_sum_by_at_most_its_unit(estimand, share):
    """All corners of (treatment, covariates) in the domain, and coefficients that reach every propensity."""
    estimand = make_estimand(estimand, 0.1)
    treated, n = torch.tensor([1000 * share]).double(), 1000
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
    moved = []
    for theta in (40 * THETA, -40 * THETA):
        rows = []
        sums = BalanceStatistics(n, 1.0, estimand, FEATURES, theta).sums("sums", {"treated": treated})
        for arm in (0.0, 1.0):
            for x in corners:
                one = Batch(x[None], FEATURES(x[None]), torch.tensor([arm]).double(), torch.zeros(1).double())
                rows.append(sums.exact(one)[0])
        each = torch.stack(rows)
        moved.append((each[:, None] - each).abs().amax((0, 1)))
    largest = torch.stack(moved).amax(0)
    assert largest.max().item() <= 1 + 1e-12
    assert largest.max().item() >= 1 - 1e-12  # attained


def test_statistics_are_those_of_the_records_but_for_noise():
    records, statistics = _records(4_000), BalanceStatistics(4_000, 1e6, ATE(0.1), FEATURES, THETA)
    exact = statistics.without_noise(records)
    size = records.total(lambda b: ATE(0.1).weights(b.psi @ THETA[0], b.z).sum(-1, keepdim=True)[None] / 2)
    noisy = drawn(statistics, records, size.item(), 1)
    assert noisy.before == pytest.approx(exact.before, abs=1e-4)
    assert noisy.after == pytest.approx(exact.after, abs=1e-4)
    x, z = records.batch.x, records.batch.z
    means = x[z == 1].mean(0) - x[z == 0].mean(0)
    assert exact.before == pytest.approx(means.tolist(), rel=1e-9)


@pytest.mark.slow
def test_their_noise_is_what_they_say():
    """400 runs: the ratio of standard deviations is within six standard errors of one.

    Before weighting the stated one is a bound: it counts the noise of p at its worst, where all records agree.
    """
    records, statistics = _records(2_000), BalanceStatistics(2_000, 0.5, ATE(0.1), FEATURES, THETA)
    runs = [drawn(statistics, records, 2_000.0, k) for k in range(400)]
    after = torch.tensor([run.after for run in runs]).std(0) / torch.tensor(runs[0].after_sd)
    before = torch.tensor([run.before for run in runs]).std(0) / torch.tensor(runs[0].before_sd)
    assert (after - 1).abs().max().item() < 0.3
    assert before.max().item() < 1.3
    assert before.min().item() > 0.4


def test_features_have_names():
    assert names_of(FEATURES) == list(DOMAIN.names)
    assert names_of(on_domain(Legendre(2), DOMAIN))[:2] == ["feature 1", "feature 2"]
