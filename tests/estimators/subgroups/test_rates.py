"""Counts over unequal follow-up: the sum of outcomes over that of an exposure, by arm."""

import numpy as np
import pandas as pd
import pytest
import torch

from torchdpcate.cli.plan import planned_targets
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.words import outcome_axis
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.estimators.planned_noise import worth_asking
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.cell_effects import RATE, cell_effects, rate_numbers

EXPOSURE = {"name": "fu", "high": 5, "unit": "year"}
FACTS = {
    "treatment": "treat",
    "outcome": {"name": "events", "low": 0, "high": 8, "better": "lower", "exposure": EXPOSURE},
    "covariates": {"age": {"low": 0, "high": 1}, "site": {"categories": [0, 1]}},
}
TRIAL = TableSchema.from_dict(FACTS | {"propensity": 0.5})
RATES = torch.tensor([0.8, 0.5]).double()


def records(n=3000, seed=0, propensity=None):
    """Arms of other rates, of which the treated are followed longer."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=random, dtype=torch.float64)
    x[:, 1] = x[:, 1].round()
    chance = torch.full((n,), 0.5).double() if propensity is None else propensity[x[:, 1].long()]
    a = (torch.rand(n, generator=random, dtype=torch.float64) < chance).double()
    fu = (torch.empty(n).double().exponential_(generator=random) * (1 + a)).clamp(0.05, 5)
    y = torch.poisson(fu * RATES[a.long()] * (1 + x[:, 1]), generator=random).clamp(0, 8)
    return pd.DataFrame({"age": x[:, 0], "site": x[:, 1], "fu": fu}), a, y


@pytest.mark.parametrize("propensity", [0.5, {"site": {0: 0.3, 1: 0.6}}])
def test_without_noise_it_is_the_difference_of_two_ratios_of_sums(propensity):
    chance = torch.tensor([0.5, 0.5] if propensity == 0.5 else [0.3, 0.6]).double()
    frame, a, y = records(propensity=chance)
    schema = TableSchema.from_dict(FACTS | {"propensity": propensity})
    found = SubgroupEffects(schema, None, subgroups="everybody").fit(frame, a, y).nonprivate_effects()
    t, e = torch.tensor(frame["fu"].to_numpy()), chance[torch.tensor(frame["site"].to_numpy()).long()]
    rates, variances = [], []
    for arm, own in enumerate((1 - e, e)):
        w = (a == arm) * own.min() / own
        rates.append((w * y).sum() / (w * t).sum())
        variances.append(((w * (y - rates[-1] * t).square()).sum() + 1) / (w * t).sum().square())  # one event more
    assert found.estimate.item() == pytest.approx((rates[1] - rates[0]).item(), abs=1e-6)
    assert found.gaussian.item() == pytest.approx(sum(variances).sqrt().item(), rel=1e-4)
    assert sum(found.size[0]) == pytest.approx(3000) if propensity == 0.5 else sum(found.size[0]) < 3000


@pytest.mark.parametrize("events", [(0.0, 2.0), (0.0, 5.0), (1.0, 6.0), (20.0, 30.0)])
@pytest.mark.parametrize("scale", [1e-6, 2.0])
def test_intervals_hold_rates_of_few_events(events, scale):
    """Of 2,000 draws 94 %: without one event more .86, .88 and .93 of the first three, at little noise."""
    random, runs = torch.Generator().manual_seed(5), 2000
    happened = torch.poisson(torch.tensor(events).expand(runs, 2), generator=random).double()
    one, none = (rate_numbers(torch.tensor([y]).double(), torch.ones(1).double())[0] for y in (1.0, 0.0))
    sums = happened[..., None] * one + (500 - happened)[..., None] * none
    sums += torch.from_numpy(np.random.default_rng(5).laplace(0, scale, sums.shape))
    found = cell_effects(sums, torch.eye(runs).double(), RATE, scale, 1.0, 1, 1.0)
    held = (found.estimate - (events[1] - events[0]) / 500).abs() <= found.half_width(0.95)
    assert held.double().mean() >= 0.94


def test_an_interval_holds_a_rate_that_follow_up_shorter_than_planned_makes_large():
    """Of a mean time of .4 where 1 is planned, an effect of 2.5 a year; noise that hides an arm leaves any effect."""
    facts = FACTS | {"outcome": {"name": "events", "low": 0, "high": 1, "exposure": EXPOSURE}, "propensity": 0.5}
    schema, random = TableSchema.from_dict(facts), torch.Generator().manual_seed(0)
    a = (torch.arange(2000) % 2).double()
    time, end = (torch.empty(2000).double().exponential_(generator=random) for _ in range(2))
    time, end = time / (0.5 + 2.5 * a), 2 * end
    frame = pd.DataFrame({"age": 0.5, "site": 0.0, "fu": torch.minimum(time, end).clamp_max(5)})
    learner = SubgroupEffects(schema, PrivacyBudget(50.0, 0.0), subgroups="everybody")
    [(low, high)] = learner.fit(frame, a, (time <= end).double()).release().interval(1 - 1e-9)
    assert low < 2.5 < high
    hidden = SubgroupEffects(schema, PrivacyBudget(0.01, 0.0), subgroups="everybody").fit(frame, a, 0 * a).release()
    assert hidden.interval().tolist() == [[-torch.inf, torch.inf]]
    assert hidden.named.rows()[0]["low"] is None
    [line] = [part for part in hidden.plot().axes[0].collections if "noise" in str(part.get_label())]
    assert np.isfinite(line.get_segments()).all()


def test_rates_are_called_by_their_unit_and_travel_with_their_facts():
    assert TableSchema.from_dict(TRIAL.to_dict()) == TRIAL
    assert outcome_axis(TRIAL) == "effect on events per year (lower is better)"
    release = SubgroupEffects(TRIAL, PrivacyBudget(8.0, 0.0), subgroups=[{"site": True}]).fit(*records()).release()
    assert release.lines()["records"].sum() == pytest.approx(3000, abs=30)
    assert "events per year" in repr(release)


@pytest.mark.parametrize(("sd", "said"), [(None, (3.2, "range")), (2, (0.8, "standard deviation"))])
def test_plans_and_findings_judge_a_rate_by_that_of_the_mean_exposure(sd, said):
    """By 8 events, or 2, over 2.5 years."""
    outcome = FACTS["outcome"] | {"exposure": {**EXPOSURE, "mean": 2.5}} | ({} if sd is None else {"sd": sd})
    schema = TableSchema.from_dict(FACTS | {"propensity": 0.5, "outcome": outcome})
    planned = SubgroupEffects(schema, PrivacyBudget(0.05, 0.0), subgroups="everybody").expected_noise(3000)
    assert (schema.effect_scale, planned.outcome_range) == (said, 3.2)
    targets = planned_targets(schema, 3000, PrivacyBudget(0.05, 0.0))
    assert (targets[0].noise.value, targets[2].verdict) == (planned.value, "not to be had")
    assert worth_asking(0.32, schema) == "for large effects"


def test_what_has_no_rates_says_what_has():
    cohort = TableSchema.from_dict(FACTS)
    with pytest.raises(InputError, match="exposure: AverageEffect has no rates; trials have them by task=subgroups"):
        AverageEffect(TRIAL, PrivacyBudget(1.0, 1e-5)).fit(*records())
    with pytest.raises(InputError, match="exposure: rates are of trials; state propensity: in the domain"):
        SubgroupEffects(cohort, PrivacyBudget(1.0, 0.0), subgroups="everybody").fit(*records())
    for more in ({"low": -1}, {"low": 0, "kind": "binary", "high": 1}):
        with pytest.raises(InputError, match="exposure: is of counts from 0"):
            TableSchema.from_dict(FACTS | {"outcome": FACTS["outcome"] | more})
    with pytest.raises(InputError, match="exposure: is of counts from 0"):  # which cells' sensitivity rests on
        Domain([0.0], [1.0], -9.0, 1.0, weights={"name": "w", "high": 5, "unit": "year"})
