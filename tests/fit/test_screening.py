import math

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.fit.screening import Screening, _strengths, outcome_median, relevance
from torchdpcate.papers.oprescu import Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([0.0] * 4, [1.0] * 4, outcome_low=-1.0, outcome_high=1.0)


class Recorder:
    """Stands in for a noise source and keeps the scores."""

    def __init__(self):
        self.requested = []

    def released(self, output):
        return output

    def select(self, scores, epsilon, sensitivity=1.0):
        self.requested.append((scores, epsilon, sensitivity))
        return int(scores.argmax())


def records(generator, n=9, ends=False):
    x = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    y = 2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    return CausalData((2 * x).round() / 2 if ends else x, a, y.sign() if ends else y)


def replaced(first, second):
    return CausalData(*(torch.cat([getattr(second, k)[:1], getattr(first, k)[1:]]) for k in ("x", "a", "y")))


@pytest.mark.parametrize("ends", [True, False])
def test_a_neighbour_moves_the_scores_of_the_median_by_one_and_of_columns_by_two(ends):
    generator, most = torch.Generator().manual_seed(0), torch.zeros(2)
    for _ in range(500):
        one = records(generator, ends=ends)
        other = replaced(one, records(generator, ends=ends))
        requested = []
        for data in (one, other):
            recorder = Recorder()
            outcome_median(data, DOMAIN, 0.5, recorder)
            assert [(e, s) for _, e, s in recorder.requested] == [(0.5, 1.0)]
            requested.append(torch.cat([scores for scores, _, _ in recorder.requested]))
        columns = [relevance(data, DOMAIN, 0.0) for data in (one, other)]
        moved = torch.stack([(requested[0] - requested[1]).abs().max(), (columns[0] - columns[1]).abs().max()])
        most = torch.maximum(most, moved)
    assert bool((most <= torch.tensor([1.0, 2.0]) + 1e-9).all())
    assert bool((most > torch.tensor([0.9, 1.9])).all()) or not ends


def test_a_choice_asks_for_the_sensitivities_that_hold_and_spends_no_more_than_its_price():
    recorder, screening = Recorder(), Screening(most=2, power=0.9)
    screening.choose(records(torch.Generator().manual_seed(1), n=400), DOMAIN, 0.4, recorder)
    assert [s for _, _, s in recorder.requested] == [1.0, 2.0, 2.0]
    assert sum(e for _, e, _ in recorder.requested) == pytest.approx(0.4)


def test_slopes_humps_and_modifiers_are_found_and_skewed_covariates_are_not():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(20_000, 12, generator=generator, dtype=torch.float64)
    x[:, 6:] = x[:, 6:] ** 8  # most of them near an end: their waves have large means
    a = (torch.rand(20_000, generator=generator) < 0.8).double()
    u = 2 * x - 1
    y = 2 * a * (1 + u[:, 3]) + u[:, 0] + 3 * u[:, 1] ** 2 + torch.rand(len(a), generator=generator) - 0.5
    domain = Domain([0.0] * 12, [1.0] * 12, outcome_low=-10.0, outcome_high=10.0)
    data = CausalData(x, a, y)
    assert Screening(most=3).choose_openly(data, domain) == (0, 1, 3)
    # the least of the three is 2,000 above the rest, noise has scale 65: a miss has probability below 1e-9
    assert Screening(most=3).choose(data, domain, 0.2, NoiseSource.system()) == (0, 1, 3)


def test_how_many_follows_from_public_facts():
    screening = Screening()
    counts = [screening.count(30, n, 0.3) for n in (100, 1350, 2700, 5000, 10**6)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == screening.most
    assert screening.count(5, 10**6, 0.3) == 5
    # noise of the best of q, in scores, against what is looked for
    k = screening.count(30, 2700, 0.3)
    noise = 4 * torch.tensor(30.0).log() / (0.3 * 0.93)
    assert k * noise <= 0.1 * 2700 < (k + 1) * noise


def test_nothing_is_paid_where_everything_is_kept():
    budget = PrivacyBudget(1.0, 1e-5)
    assert Screening().event(8, budget) is None
    assert Screening().event(9, budget) == PureEvent(0.3)


def test_the_two_covariates_of_the_effect_are_found():
    study = Dataset2(n=30_000, seed=0).load()
    chosen = Screening().choose(study.records, study.domain, 0.3, NoiseSource.fixed(0))
    assert {0, 1} <= set(chosen)
    assert len(chosen) == 8


@pytest.mark.parametrize("bad", [{"share": 0.0}, {"share": 1.0}, {"power": 0.0}, {"most": 0}, {"most": 2.5}])
def test_bad_settings_are_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Screening(**bad)


@pytest.mark.slow
def test_sums_of_more_than_eight_million_records_are_exact():
    """They are the sums of whole numbers of steps, in int64; multiples of 2^-30 of so many are none."""
    n = 2**24
    near = torch.full((n, 1), 2.0**-20, dtype=torch.float64)  # its cosine is next to 1
    near[::2] = 2.0**-10
    r = torch.ones(n, dtype=torch.float64)
    step = sum_grid(n, 1.0)
    whole = torch.round((math.pi * near[:2]).cos() / step).long().sum().item() * (n // 2)
    assert _strengths(near, r).tolist() == [whole * step]
