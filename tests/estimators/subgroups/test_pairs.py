"""Pairs of which one record is treated, and crossovers: their differences, their intervals, and what is refused."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from tests.registered import RLearner, SubgroupEffects
from torchdpcate.data.checked import checked_records
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.table import Table
from torchdpcate.errors import InputError
from torchdpcate.estimators.subgroups.plan import record_numbers
from torchdpcate.pages.reader import reader_page
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.cell_effects import BASES, GAUSSIAN, LAPLACE
from torchdpcate.release.combination import combine
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import Findings

FACTS = {
    "treatment": "treat",
    "outcome": {"name": "score", "low": 0, "high": 60},
    "covariates": {"age": {"low": 18, "high": 90}, "sex": {"categories": ["f", "m"]}},
    "propensity": 0.5,
    "out_of_bounds": "clip",
}
PAIRED = FACTS | {"assignment": {"pairs": "pair"}}
CROSSED = FACTS | {"assignment": {"crossover": "pair", "period": "visit"}}
COUNTED = {"name": "score", "low": 0, "high": 60, "exposure": {"name": "years", "high": 5}}
BY_HORIZON = {"time": "t", "event": "d", "horizon": 2.0, "kind": "event_by_horizon"}
MANY = PrivacyBudget(1e5, 0.0)


def table(pairs=750, seed=7, period=0.0):
    """Pairs that differ by a spread of 8, of an effect of 3 and a spread of 2 within, in shuffled rows."""
    rng = np.random.default_rng(seed)
    pair, treat = np.repeat(np.arange(pairs), 2), np.tile([0, 1], pairs)
    visit = np.where(np.repeat(rng.random(pairs) < 0.5, 2), treat, 1 - treat)
    score = 30 + 3 * treat + period * visit + np.repeat(rng.normal(0, 8, pairs), 2) + rng.normal(0, 2, 2 * pairs)
    age, sex = np.repeat(rng.integers(20, 90, pairs), 2), np.repeat(rng.choice(["f", "m"], pairs), 2)
    frame = pd.DataFrame({"pair": pair, "treat": treat, "visit": visit, "score": score, "age": age, "sex": sex})
    return frame.sample(frac=1, random_state=seed)


def fitted(frame, facts=PAIRED, budget=MANY, cells="everybody"):
    learner = SubgroupEffects(TableSchema.from_dict(facts), budget, subgroups=cells)
    return learner.fit(frame, frame["treat"], frame["score"])


def differences(frame):
    wide = frame.pivot(index="pair", columns="treat", values="score").clip(0, 60)
    return wide[1] - wide[0]


@pytest.mark.parametrize("facts", [PAIRED, CROSSED])
def test_an_average_is_the_mean_of_differences_with_its_standard_error(facts):
    frame = table()
    d, learner = differences(frame), fitted(frame, facts)
    release, exact = learner.release(), learner.nonprivate_effects()
    assert f"in the 750 {'pairs' if facts is PAIRED else 'persons'}: age" in Findings.of(release).whom[0]
    page, unit = reader_page(release), "pair" if facts is PAIRED else "person"
    assert f"{unit.capitalize()}s, about" in page
    assert f'<th scope="row">{unit.capitalize()}s</th><td>750</td>' in page
    assert "Records" not in page.split("Guarantee")[1].split("Event tree")[0]
    assert "counts as one of the records" in release.privacy.unit
    assert release.estimate[0] == pytest.approx(d.mean(), abs=0.01)
    assert exact.estimate.item() == pytest.approx(d.mean(), abs=1e-6)
    assert exact.gaussian.item() == pytest.approx(d.std(ddof=0) / 750**0.5, rel=1e-6)
    assert release.records.round() == [750] == [release.privacy.n]
    unpaired = {key: fact for key, fact in FACTS.items() if key != "assignment"}
    assert np.ptp(fitted(frame, unpaired).release().interval()) > 3.5 * np.ptp(release.interval())


def test_subgroups_are_of_what_a_pair_has_in_common():
    frame = table()
    frame.loc[frame["sex"] == "m", "score"] += 5 * frame["treat"]
    frame["age"] = (frame["age"] + 6 * frame["treat"] - 3).clip(18, 90)
    found = fitted(frame, cells=[{"sex": True}, {"age": [53.5]}]).release().lines()
    d, sex = differences(frame), frame.groupby("pair")["sex"].first()
    age = frame.groupby("pair")["age"].mean()
    exact = [d[sex == "f"].mean(), d[sex == "m"].mean(), d[age < 53.5].mean(), d[age >= 53.5].mean()]
    assert found["estimate"].to_numpy() == pytest.approx(exact, abs=0.02)


def test_files_give_the_records_of_a_frame_and_the_claim_of_a_pair(tmp_path):
    frame = table(60)
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = Table(tmp_path / "t.csv", PAIRED)
    study, learner = source.load(), SubgroupEffects(TableSchema.from_dict(PAIRED), MANY, subgroups="everybody")
    assert (study.n, source.unit.column, source.unit.records) == (60, "pair", 1)
    release = learner.fit(study.records.x, study.records.a, study.outcomes, **study.own).release()
    path = release.save(tmp_path / "release.safetensors")
    assert release.estimate == pytest.approx(fitted(frame).release().estimate, abs=0.1)
    assert dict(verify_release(path))["level"].startswith("certified")
    saved = load_release(path).privacy
    assert (saved.protected, saved.claim.rpartition(", ")[2]) == (source.unit, "replace-one pair")
    assert "it was drawn with probability 1/2 who is treated" in release.assumptions
    with pytest.raises(InputError, match="pairs together"):
        SubgroupEffects(TableSchema.from_dict(PAIRED), MANY, subgroups="everybody").check_stream()
    with pytest.raises(InputError, match=r"pairs \(pair\) are protected as they are"):
        Table(tmp_path / "t.csv", PAIRED, person="pair").load()


@pytest.mark.parametrize("law", BASES)
@pytest.mark.parametrize("whole", [False, True])
def test_a_replaced_record_or_pair_moves_the_sums_no_further_than_its_noise_is_made_for(law, whole):
    """Of all pairs at the ends of the outcome; the worst attains it, and one record no more than half of its width."""
    schema, frame, moved = TableSchema.from_dict(PAIRED), table(4), []
    ends = [(0, 0), (0, 60), (60, 0), (60, 60), (0, 31)]
    cells = [20, 80] if whole else [20]
    norm = {LAPLACE: 1, GAUSSIAN: 2}[law]

    def numbers(control, treated, age):
        own = frame.copy()
        own.loc[own["pair"] == 0, "age"] = age
        own.loc[(own["pair"] == 0) & (own["treat"] == 0), "score"] = float(control)
        own.loc[(own["pair"] == 0) & (own["treat"] == 1), "score"] = float(treated)
        records = checked_records(schema, own, own["treat"], own["score"], None, (1,))
        each = record_numbers(records.y, torch.ones(4), law, *schema.summed)
        return torch.stack([each[records.x[:, 0] < 50].sum(0), each[records.x[:, 0] >= 50].sum(0)])

    sums = {(end, age): numbers(*end, age) for end in ends for age in cells}
    for (first, _), one in sums.items():
        for (second, _), two in sums.items():
            if whole or first[0] == second[0] or first[1] == second[1]:
                moved.append((one - two).norm(norm).item())
    assert max(moved) <= 2 + 1e-12
    assert not whole or max(moved) == pytest.approx(2)


def test_a_public_bound_of_a_difference_lessens_the_noise(tmp_path):
    noise = [
        SubgroupEffects(TableSchema.from_dict(FACTS | {"assignment": entry}), MANY, subgroups="everybody")
        .expected_noise(750)
        .parts["noise"]
        for entry in ({"pairs": "pair"}, {"pairs": "pair", "most": 12})
    ]
    assert noise[0] == pytest.approx(5 * noise[1])
    bounded = PAIRED | {"assignment": {"pairs": "pair", "most": 2}}
    d = differences(table())
    with pytest.warns(
        UserWarning, match="pairs differ by more than most = 2 and were moved to it, and so is the effect"
    ):
        learner = fitted(table(), bounded)
    assert learner.release().estimate[0] == pytest.approx(d.clip(-2, 2).mean(), abs=0.01)
    beyond = {"differences within pairs beyond most": (d.abs() > 2).sum()}
    assert (learner.clipped_.rows, learner.clipped_.moved) == (1500, beyond)
    table().to_csv(tmp_path / "t.csv")
    own = Table(tmp_path / "t.csv", bounded).load()
    assert own.records.clipped == learner.clipped_  # of which a summary and the curator's page tell
    with warnings.catch_warnings(record=True) as warned:
        SubgroupEffects(own.schema, MANY, subgroups="everybody").fit(own.records.x, own.records.a, own.outcomes)
    assert [str(one.message).split(":")[0] for one in warned] == ["column 'pair'"]
    with pytest.raises(InputError, match="pairs whose outcomes differ by more than most = 2"):
        fitted(table(), bounded | {"out_of_bounds": "refuse", "outcome": FACTS["outcome"] | {"low": -60, "high": 120}})


def test_a_pair_with_a_missing_outcome_counts_nothing():
    facts = PAIRED | {"outcome": FACTS["outcome"] | {"missing": "drop"}}
    frame = table()
    frame.loc[(frame["pair"] < 100) & (frame["treat"] == 1), "score"] = np.nan
    release = fitted(frame, facts).release()
    assert release.estimate[0] == pytest.approx(differences(frame).mean(), abs=0.01)
    assert (release.privacy.n, release.records.round()) == (750, [650])
    most = float(differences(frame).abs().max()) + 1  # less than from the number in the place of a missing one
    fitted(frame, facts | {"out_of_bounds": "refuse", "assignment": {"pairs": "pair", "most": most}})


@pytest.mark.slow
def test_intervals_hold_the_effect_of_pairs_and_of_crossovers_with_a_period_effect():
    """Of 400 runs each: fewer than 356 of a coverage of .95 come by chance less than once in a million times."""
    for facts, period in ((PAIRED, 0.0), (CROSSED, 4.0)):
        runs = (fitted(table(seed=seed, period=period), facts, PrivacyBudget(1.0, 0.0)) for seed in range(400))
        ends = np.array([learner.release().interval(0.95)[0] for learner in runs])
        assert ((ends[:, 0] <= 3) & (ends[:, 1] >= 3)).sum() >= 356


def change(where, **columns):
    frame = table(20)
    return frame.assign(**{name: frame[name].where(~where(frame), value) for name, value in columns.items()})


@pytest.mark.parametrize(
    ("frame", "facts", "words"),
    [
        (table(20)[1:], PAIRED, "column 'pair' has 1 name without one treated and one untreated record; bring both"),
        (change(lambda f: f["pair"] == 3, treat=1), PAIRED, "has 1 name without one treated"),
        (change(lambda f: f["pair"] == 3, pair=4), PAIRED, "has 1 name without one treated"),
        (change(lambda f: (f["pair"] == 3) & (f["treat"] == 1), sex="?"), PAIRED, "sex"),
        (table(20).drop(columns="pair"), PAIRED, "X lacks the column 'pair' of assignment"),
        (change(lambda f: f["pair"] == 3, visit=1), CROSSED, "column 'visit' has not two periods"),
        (change(lambda f: f["pair"] == 3, visit=2), CROSSED, "column 'visit' has not two periods"),
    ],
)
def test_pairs_that_are_none_are_refused(frame, facts, words):
    with pytest.raises(InputError, match=words):
        fitted(frame, facts)


def test_levels_that_differ_in_a_pair_divide_no_subgroups():
    frame = table(20)
    frame.loc[frame["treat"] == 1, "sex"] = "m"
    assert len(fitted(frame, cells=["everybody", {"age": [50]}]).release().estimate) == 3
    with pytest.raises(InputError, match=r"subgroups: pairs differ in sex, which has no mean; leave it out$"):
        fitted(frame, cells=[{"age": [50]}, {"sex": True}])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"assignment": {"rule": "age >= 60"}}, "nobody with the same covariates got the other arm.*regression disco"),
        ({"assignment": {"stepped_wedge": "ward", "period": "m"}}, "a cluster is in both arms, in periods that differ"),
        ({"assignment": "pairs"}, "assignment is 'pairs'; give randomised, cohort, {clusters"),
        ({"assignment": "randomised", "propensity": None}, "assignment is randomised; state propensity"),
        ({"assignment": "cohort"}, "assignment is cohort; leave propensity: out"),
        ({"propensity": 0.4}, "one of each pair is treated: give propensity: 0.5, or leave it out"),
        (
            CROSSED | {"propensity": None},
            "propensity is not stated, and must be 0.5: where one arm came first more often",
        ),
        ({"assignment": {"crossover": "pair"}}, "assignment has no entry 'period'"),
        ({"assignment": {"pairs": "pair", "most": 0}}, "most of pairs 'pair' is 0; give a public bound above 0"),
        ({"assignment": {"pairs": "age"}}, "column 'age' has another role"),
        ({"weights": {"name": "w", "high": 2}}, "assignment by pairs: weights"),
        ({"outcome": COUNTED}, "assignment by pairs: weights and exposures are of a record; leave them out"),
        ({"outcome": BY_HORIZON}, "assignment by pairs: an outcome by a horizon has no difference where follow-up"),
        ({"treatment": {"name": "treat", "categories": [0, 1, 2]}, "propensity": None}, "more than two arms"),
        ({"cluster": "school"}, "unknown entry 'cluster'"),
    ],
)
def test_designs_that_are_not_done_are_refused_in_one_line(entries, words):
    facts = {key: fact for key, fact in (PAIRED | entries).items() if fact is not None}
    with pytest.raises(InputError, match=words) as refused:
        TableSchema.from_dict(facts)
    assert "\n" not in str(refused.value)


def test_words_say_what_the_propensity_says_and_what_needs_records_refuses_pairs():
    cohort = {key: fact for key, fact in FACTS.items() if key != "propensity"}
    for word, facts in (("randomised", FACTS), ("cohort", cohort)):
        assert TableSchema.from_dict(facts | {"assignment": word}) == TableSchema.from_dict(facts)
    with pytest.raises(InputError, match=r"pairs \(pair\) have differences, and RLearner needs records; task=average"):
        RLearner(TableSchema.from_dict(PAIRED), PrivacyBudget(1.0, 1e-5)).expected_noise(100)


def test_two_eyes_of_a_person_give_the_difference_of_mcnemar():
    """As in a trial of laser on one eye of 197 people: of 3 in 10 treated and 5 in 10 other eyes sight is lost."""
    rng = np.random.default_rng(0)
    frail, treat = np.repeat(rng.normal(0, 0.15, 197), 2), np.tile([0, 1], 197)
    lost = rng.random(394) < (0.5 - 0.2 * treat + frail).clip(0, 1)
    frame = table(197).sort_values(["pair", "treat"]).assign(score=np.where(lost, "lost", "kept"))
    eyes = PAIRED | {"outcome": {"name": "score", "categories": ["kept", "lost"]}}
    release, second = (fitted(frame, eyes).release() for _ in range(2))
    more, less = ((lost[1::2] > lost[::2]).sum(), (lost[1::2] < lost[::2]).sum())
    error = np.sqrt(more + less - (more - less) ** 2 / 197) / 197
    assert release.estimate[0] == pytest.approx((more - less) / 197, abs=1e-3)
    assert release.effects.gaussian.item() == pytest.approx(error, rel=0.01)
    both = combine([release, second], ["a", "b"])
    assert both.schema.assignment == release.schema.assignment
    assert any("In each pair it was drawn who is treated" in words for words in Findings.of(both).rests_on)
