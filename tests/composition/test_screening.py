"""The choice of covariates: what it is charged, what one record moves, and what it finds."""

import math
from functools import partial

import pytest
import torch

from tests.composition.cases import batch, rows
from tests.sessions import noted
from torchdpcate.composition import records
from torchdpcate.composition.builder import plan_within
from torchdpcate.composition.covariates import PairsAbout, Waves, WavesAbout, chosen_about, chosen_by, chosen_pairs
from torchdpcate.composition.records import with_pulls
from torchdpcate.composition.steps import NoisySteps, Shares
from torchdpcate.data.domain import Domain
from torchdpcate.fit.weighted_basis import PAIRED, Feature, all_features
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import GaussianEvent
from torchdpcate.privacy.noise import NoiseSource


def steps(mu: float, paid: list) -> NoisySteps:
    """Steps whose charges are noted."""
    session = noted(NoiseSource.system(), lambda *charge: paid.append(charge))
    return NoisySteps(session, Shares(mu, {"screening": 0.16}))


def covariates(n: int, q: int) -> torch.Tensor:
    return 2 * torch.rand(n, q, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1


def test_it_finds_slopes_and_humps_and_is_charged_a_gaussian_event_a_choice():
    u, paid = covariates(4_000, 20), []
    residual = (u[:, 3] + torch.cos(math.pi * u[:, 11])).clamp(-1, 1)
    assert chosen_by(rows(u, residual), Waves(), 2, steps(2.0, paid)) == (3, 11)
    [(part, event, _, count)] = paid
    assert (part, count, type(event)) == ("screening", 2, GaussianEvent)
    assert event.noise_multiplier == pytest.approx(math.sqrt(2) / 0.8, rel=1e-8)


def test_a_centred_choice_finds_what_differs_though_everybody_has_it(monkeypatch):
    z, paid = 3 * covariates(4_000, 20), []
    own = steps(20.0, paid)
    r = (0.8 + 0.2 * z[:, 7].sign()).clamp(-1, 1)  # a slope beside a mean that is far larger
    skewed = (z + (torch.arange(20) < 10).double()).clamp(-3, 3)
    assert chosen_about(rows(skewed, r), WavesAbout, 1, "screening", own) == (7,)
    multipliers = [event.noise_multiplier for _, event, _, _ in paid]
    assert multipliers == pytest.approx([1 / (8 * math.sqrt(0.1)), 1 / (8 * math.sqrt(0.9))], rel=1e-8)
    assert chosen_about(rows(skewed, r), WavesAbout, 1, "screening", steps(math.inf, paid)) == (7,)


@pytest.mark.parametrize("feature", [Feature("t", 1, 4), Feature("q", 1, 4), Feature("p", 1, 4, 5)])
def test_pairs_are_chosen_by_what_a_step_a_hump_or_a_product_of_others_makes_of_one(feature):
    z, paid = math.sqrt(3) * covariates(4_000, 6), []
    others = {"t": z[:, 4] > 0, "q": z[:, 4].abs() > 1.2, "p": z[:, 4] * z[:, 5]}
    r = (0.3 + 0.5 * z[:, 1] * others[feature.kind]).clamp(-1, 1)
    levels = (False,) * 5 + (True,)
    assert feature in chosen_pairs(rows(z, r), levels, 2, "screening", steps(20.0, paid))
    assert [(count, event.noise_multiplier) for _, event, _, count in paid] == [
        (1, pytest.approx(1 / (8 * math.sqrt(0.1)), rel=1e-8)),
        (2, pytest.approx(math.sqrt(2) / (8 * math.sqrt(0.9)), rel=1e-8)),
    ]


def test_each_kind_of_product_moves_by_what_the_choice_declares_and_no_more():
    """The worst pair over a grid of one record: 2 with a hump or two slopes, 1.51 / 1.52 of that with a step."""
    levels, sums = (False,) * 3, PairsAbout(0.0, (False,) * 3, 13)
    ends = torch.tensor([-9.0, -3.0, -1.5, 0.0, 0.707, 2.0]).double()
    x = torch.cartesian_prod(ends, ends, ends).repeat(2, 1)
    r = torch.ones(len(x)).double()
    r[: len(x) // 2] = -1.0
    each = torch.stack([sums(batch(x[i : i + 1], r[i : i + 1]))[0] for i in range(len(x))])
    moved = each.amax(0) - each.amin(0)
    declared = sums.moved()[0]
    for feature, most in zip(all_features(levels, PAIRED), moved.tolist(), strict=True):
        assert most <= declared
        assert most == pytest.approx(2 * 1.5108 / 1.52 if feature.kind == "t" else 2.0, abs=2e-3)


def test_modifiers_are_chosen_by_numbers_within_one():
    random = torch.Generator().manual_seed(3)
    pi = 0.01 + 0.98 * torch.rand(999, generator=random, dtype=torch.float64)
    a = (torch.rand(999, generator=random) < 0.5).double()
    pulls, none = partial(with_pulls, 2.0), torch.zeros(999, 1)
    assert pulls(batch(none, torch.full((999,), 7.0).double(), a - pi, pi)).y.abs().max() <= 1 + 1e-12
    one = batch(none[:1], torch.tensor([7.0]), torch.tensor([0.9]), torch.tensor([0.1]))
    assert pulls(one).y == pytest.approx(1.0)


class _Sums(Exception):
    """What a step would choose by."""


@pytest.mark.parametrize("kind", ["binary", "continuous"])
def test_either_kind_of_outcome_moves_the_scores_by_all_that_is_declared(kind, monkeypatch):
    """The worst pair over the corners of one record of a plan: 2, neither more nor half of it."""
    domain = Domain([-1.0] * 3, [1.0] * 3, 0.0, 1.0, outcome_kind=kind)
    plan = plan_within(2, PrivacyBudget(1.0, 1e-5), domain)
    object.__setattr__(plan, "retained", 1)

    def stop(requested, sums, *_):
        raise _Sums(requested.total(sums))

    monkeypatch.setattr("torchdpcate.composition.covariates.chosen_by", stop)
    monkeypatch.setattr("torchdpcate.composition.records.quantile_of", lambda *_: 0.5)

    def scores(x, y):
        own = NoisySteps(noted(NoiseSource.system(), lambda *_: None), plan.shares)
        data = rows(torch.stack([torch.ones(3).double(), x]), torch.tensor([1.0, y]).double())
        with pytest.raises(_Sums) as found:
            records.private_start(data, domain, plan, own, [False] * 3)
        return found.value.args[0].abs().amax(0)

    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0]).double()] * 3)
    found = torch.stack([scores(x, y) for x in corners for y in (0.0, 1.0)])
    moves = (found[:, None] - found[None]).abs().amax()
    assert moves == pytest.approx(2.0, abs=1e-12)
