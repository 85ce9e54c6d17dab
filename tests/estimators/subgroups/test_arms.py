"""Effects in subgroups, and of everybody, of more than two arms."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.composition.test_censoring import FINE, TAU, kaplan_meier, restricted_mean
from torchdpcate.data.censoring import Censoring, curve_errors
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.verify.finding import findings

FACTS = {
    "treatment": {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"},
    "outcome": {"name": "y", "low": -1, "high": 3},
    "covariates": {"age": {"low": 0, "high": 1}, "sex": {"categories": ["f", "m"]}},
}
TRIAL = TableSchema.from_dict(FACTS | {"propensity": [0.25, 0.25, 0.5]})
MANY, SOME = PrivacyBudget(1e4, 1e-5), PrivacyBudget(1.0, 1e-5)
CELLS = [{"sex": True}, {"age": [0.5]}]


def records(n=4000, seed=0):
    """Records whose arms are 1 (placebo), 2 (low) and 3 (high)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 1].round()
    a = 1 + torch.multinomial(torch.tensor([0.5, 0.25, 0.25]), n, True, generator=generator).double()
    noise = 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, a, (0.5 + 0.3 * (a == 2) + x[:, 1] * (a == 3) + noise).clamp(-1, 3)


def test_without_noise_each_effect_is_a_difference_in_means():
    x, a, y = records()
    fitted = SubgroupEffects(TRIAL, SOME, subgroups=CELLS).fit(x, a, y)
    found, places = fitted.nonprivate_effects(), fitted.subgroups_.positions(x)
    expected, deviations = [], []
    for cell in range(4):
        inside = (places == cell).any(1)
        parts = [y[inside & (a == arm)] for arm in (1, 2, 3)]
        expected += [(part.mean() - parts[0].mean()).item() for part in parts[1:]]
        each = [part.var(unbiased=False) / len(part) for part in parts]
        deviations += [(each[0] + own).sqrt().item() for own in each[1:]]
    assert found.estimate.tolist() == pytest.approx(expected, abs=1e-9)
    assert found.gaussian.tolist() == pytest.approx(deviations, rel=1e-6)


def test_a_release_names_the_arm_of_each_effect():
    x, a, y = records()
    release = SubgroupEffects(TRIAL, MANY, subgroups=CELLS).fit(x, a, y).release()
    table = release.lines()
    assert release.arms == ("low", "high")
    assert table.index.tolist()[:4] == [
        f"sex = {sex}: {arm} instead of placebo" for sex in "fm" for arm in ("low", "high")
    ]
    assert table["estimate"][:4].to_numpy() == pytest.approx(np.array([0.3, 0.0, 0.3, 1.0]), abs=0.05)
    assert release.interval(simultaneous=True).shape == (8, 2)
    one = SubgroupEffects(TRIAL, MANY, subgroups=[{"sex": True}]).fit(*records(seed=1)).release()
    assert one.answer(x[:5]).shape == (5, 2)
    assert one.interval_at(x[:5]).shape == (5, 2, 2)
    women, men = (f"sex = {sex}: high instead of placebo" for sex in "fm")
    assert one.contrast(men, women)[0] == pytest.approx(1.0, abs=0.08)
    with pytest.raises(InputError, match="choose one of sex = f: low instead of placebo"):
        one.contrast("sex = m", "sex = f")


def test_any_two_arms_are_compared_from_the_same_sums():
    release = SubgroupEffects(TRIAL, SOME, subgroups=CELLS).fit(*records()).release()
    found, table = release.against("low"), release.lines()
    low, high, placebo = table[::2], table[1::2], found[::2]
    assert found["line"].str.endswith(("placebo instead of low", "high instead of low")).all()
    assert placebo["estimate"].to_numpy() == pytest.approx(-low["estimate"].to_numpy())
    assert placebo["low"].to_numpy() == pytest.approx(-low["high"].to_numpy())
    other = found[1::2]["estimate"].to_numpy()
    assert other == pytest.approx(high["estimate"].to_numpy() - low["estimate"].to_numpy())
    with pytest.raises(InputError, match="arm = 'placebo': choose one of low, high"):
        release.against("placebo")


def test_effects_of_everybody_are_averages():
    x, a, y = records()
    release = SubgroupEffects(TRIAL, MANY, subgroups="everybody").fit(x, a, y).release()
    assert [*release.named.titles] == ["low instead of placebo", "high instead of placebo"]
    assert release.estimate == pytest.approx(np.array([0.3, 0.5]), abs=0.05)
    assert findings(release, x)[0].startswith("Among everybody, low instead of placebo raises y by 0.")
    assert "subgroups" not in repr(release).split(";")[0].partition(" ")[2]


@pytest.mark.slow
@pytest.mark.parametrize("simultaneous", [False, True])
def test_intervals_hold_as_often_as_they_say(simultaneous):
    """Of 400 fits 328 hold the truth at least but once in a million, if nine of ten do."""
    held = []
    for seed in range(400):
        learner = SubgroupEffects(TRIAL, SOME, subgroups="everybody").fit(*records(800, seed))
        low, high = learner.release().interval(0.9, simultaneous).T
        inside = (low <= [0.3, 0.5]) & (high >= [0.3, 0.5])
        held.append(inside.all() if simultaneous else inside.mean())
    assert np.mean(held) >= 0.82


# -- by a horizon

RATES = torch.tensor([0.5, 0.9, 0.4]).double()


def by_horizon(outcome: Censoring = FINE, propensity=(0.25, 0.25, 0.5)) -> TableSchema:
    entry = {name: value for name, value in outcome.entry().items() if name != "label"}
    return TableSchema.from_dict(FACTS | {"outcome": entry, "propensity": list(propensity)})


def followed(n=3000, seed=0):
    """As ``records``, with time and event: arms differ in the event's rate, and in how follow-up ends."""
    x, a, _ = records(n, seed)
    random = torch.Generator().manual_seed(seed + 1)
    event, end = (
        torch.empty(2, n).double().exponential_(generator=random) / torch.stack([RATES, RATES / 2])[:, a.long() - 1]
    ).unbind()
    return x, a, torch.stack([torch.minimum(event, end), (event <= end).double()], 1)


@pytest.mark.parametrize("kind", ["restricted_mean", "event_by_horizon"])
def test_without_noise_effects_by_a_horizon_are_those_of_kaplan_meier(kind):
    x, a, both = followed()
    outcome = replace(FINE, kind=kind)
    fitted = SubgroupEffects(by_horizon(outcome), None, subgroups="everybody").fit(x, a, both)
    expected = []
    for arm in (1, 2, 3):
        time, event = both[a == arm].numpy().T
        at, survival = kaplan_meier(time, event)
        expected.append(restricted_mean(time, event) if kind == "restricted_mean" else 1 - survival[at <= TAU][-1])
    found = fitted.nonprivate_effects().estimate.tolist()
    assert found == pytest.approx([own - expected[0] for own in expected[1:]], abs=3e-3)


def test_without_noise_the_chance_of_an_event_is_right_where_others_compete():
    """That of Aalen and Johansen, of a third of the events; the curve has as many cells as both kinds of them need."""
    x, a, both = followed()
    both[::3, 1] *= 2
    facts = FINE.entry() | {"kind": "event_by_horizon", "event": {"name": "d", "success": 1, "censored": 0}}
    schema, expected = TableSchema.from_dict(by_horizon().to_dict() | {"outcome": facts}), []
    for arm in (1, 2, 3):
        time, code = both[a == arm].numpy().T[:, both[a == arm, 0].argsort().numpy()]
        at_risk = np.arange(len(time), 0, -1)
        before = np.cumprod(np.append(1, 1 - (code > 0) / at_risk)[:-1])
        expected.append((before * (code == 1) / at_risk)[time <= TAU].sum())
    fitted = SubgroupEffects(schema, None, subgroups="everybody").fit(x, a, both)
    found = fitted.nonprivate_effects().estimate.tolist()
    assert found == pytest.approx([own - expected[0] for own in expected[1:]], abs=3e-3)
    release = SubgroupEffects(schema, PrivacyBudget(1e5, 0.0), subgroups="everybody").fit(x, a, both).release()
    assert release.follow_up.shape == (3 * (3 * FINE.bins + 1),)
    assert release.estimate == pytest.approx(found, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [PrivacyBudget(1.0, 0.0), PrivacyBudget(0.3, 1e-5)])
def test_intervals_by_a_horizon_count_the_noise_of_each_arm_s_curve(budget):
    """Of 300 fits 243 hold the truth at least but once in a million, if nine of ten do; few bins, much noise."""
    outcome = Censoring("t", "d", TAU, floor=0.3, bins=5)
    truth = (1 - (-RATES * TAU).exp()) / RATES
    held = torch.zeros(2)
    for seed in range(300):
        learner = SubgroupEffects(by_horizon(outcome), budget, subgroups="everybody").fit(*followed(800, seed))
        low, high = torch.from_numpy(learner.release().interval(0.9)).T
        held += (low <= truth[1:] - truth[0]) & (high >= truth[1:] - truth[0])
    assert held.min() >= 243


def test_a_curve_s_noise_widens_each_line_of_its_arm():
    release = SubgroupEffects(by_horizon(Censoring("t", "d", TAU)), SOME, subgroups=CELLS).fit(*followed()).release()
    scale = release.privacy.public["follow_up_scale"] * 2**0.5
    curve = curve_errors(release.follow_up, release.domain.censoring, scale, 3).repeat(4)
    plain = replace(release, follow_up=None).effects
    assert release.effects.gaussian.square() - plain.gaussian.square() == pytest.approx(curve.square())
    assert release.effects.noise.square() - plain.noise.square() == pytest.approx(curve.square())
    order = [
        release.against("high").set_index("line").loc[f"sex = f: {arm} instead of high"] for arm in ("low", "placebo")
    ]
    assert order[1]["estimate"] == pytest.approx(-release.lines().loc["sex = f: high instead of placebo", "estimate"])
    assert [own["high"] > own["low"] for own in order] == [True, True]
