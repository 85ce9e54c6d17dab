import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t

from tests.registered import AverageEffect, RLearner
from tests.release.sites import FACTS, NAMES, PEOPLE, changed, combined, fitted, released
from tests.verify.words import check_words
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError, MissingError, VerificationError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.combination import combine, statement_of
from torchdpcate.release.combined import NEW_SITE, SitesRelease
from torchdpcate.release.composed import _example as rule_example
from torchdpcate.release.file import Release, load_release
from torchdpcate.verify.file import verify_release
from torchdpcate.verify.finding import numbers

TASKS = ("effect", "average", "subgroups", "cohort")


@pytest.mark.parametrize("task", TASKS)
def test_a_file_answers_what_the_combination_did(task: str, tmp_path) -> None:
    made = combined(task)
    again = load_release(made.save(tmp_path / "all.safetensors"))
    assert (again.function is again) == (made.function is made) == (task == "effect")
    assert (again.names, again.between) == (NAMES, "random")
    assert json.dumps(again.summary()) == json.dumps(made.summary())
    assert again.privacy.to_dict() == made.privacy.to_dict()
    assert again.lines().equals(made.lines())
    if task in ("effect", "subgroups"):
        np.testing.assert_array_equal(again.answer(again._covariates(PEOPLE)), made.answer(made._covariates(PEOPLE)))
    assert pickle.loads(pickle.dumps(made)).summary() == made.summary()


def dense(y: np.ndarray, v: np.ndarray, common: np.ndarray, tau2: float) -> tuple[np.ndarray, float, float]:
    """Return the weights of a mean over sites, half widths of its interval and a new site's, by matrices."""
    w, one, degrees = np.diag(1 / v), np.ones(len(y)), len(y) - 1
    counted = max(tau2, degrees * np.trace(w) / (np.trace(w) ** 2 - np.trace(w @ w)) / 2)
    w = np.linalg.inv(np.diag(v) + counted * np.eye(len(y)))
    gain = one @ w / (one @ w @ one)
    spread = (y - gain @ y) @ w @ (y - gain @ y) / (degrees * one @ w @ one)
    student, fixed, shared = t.ppf(0.975, degrees), gain @ np.diag(v) @ gain, 1.959964 * gain @ common
    own = max(student * spread**0.5, 1.959964 * fixed**0.5)
    return gain, np.hypot(own, shared), np.hypot(student * (counted + max(spread, fixed)) ** 0.5, shared)


def known(site: Release, name: str) -> tuple[float, float, float, float]:
    """Return a site's estimate of a line, its variance, its deviation by nuisances, and what is released of it."""
    if site.kind == "lines":
        return *site.main.moments(), 0.0, site.estimate[0]
    if site.averages is None:
        return site.law.average, site.law.average_variance, 0.0, site.average_effect
    parts, value = site.averages.variances[site.averages.place(name)].tolist(), site.averages.estimate(name)
    return value, sum(parts), parts[3] ** 0.5, site.average_effect if name == "average" else value


LINES = {
    "effect": {"average": "everybody"},
    "effect by law": {"average": "everybody"},
    "average": {"ATE": "everybody"},
    "cohort": {"average": "everybody", "sex = f": "sex = f", "sex = m": "sex = m", "ATT": "those who were treated"},
}
"""Those that all sites have; some have groups by effect, or cells, that others have not."""


@pytest.mark.parametrize("task", LINES)
def test_each_line_is_a_meta_analysis_of_the_line_of_that_name(task: str) -> None:
    made, sites = combined(task), [released(task, k) for k in range(3)]
    assert dict(zip(made.line_names, made.line_titles, strict=True)) == LINES[task]
    rows = made.lines().set_index(["group", "line"])[["estimate", "low", "high"]]
    for k, (name, title) in reversed([*enumerate(LINES[task].items())]):
        y, v, common, given = np.array([known(site, name) for site in sites]).T
        gain, half, wide = dense(y, v, common, made.pooled.tau2[k].item())
        value, middle = gain @ given, gain @ y
        for line, width in (("all sites", half), (NEW_SITE, wide)):
            ends = [min(middle - width, value), max(middle + width, value)]
            assert rows.loc[title, line].tolist() == pytest.approx([value, *ends])
        assert rows.loc[title, "south"].iloc[0] == pytest.approx(given[1])
    assert made.average().tolist() == rows.loc["everybody", "all sites"].tolist()[1:]
    if made.function is not None:
        found, (low, high) = made.effect(PEOPLE), made.interval(PEOPLE).T
        np.testing.assert_allclose(found, gain @ np.stack([site.effect(PEOPLE) for site in sites]))
        assert ((low <= found) & (found <= high)).all()


@pytest.mark.slow
def test_intervals_of_three_cohorts_hold_the_mean_over_sites() -> None:
    """Confounded, with effects that differ between sites by .04; as one common effect they would hold it half the time.

    Of 100 combinations 95 % intervals held it in .98, .96, .96 (everybody, both cells) and .95 (the treated), those of
    one common effect in .46, .67, .63 and .50.
    """
    entries = {"u": {"low": 0, "high": 1}, "sex": {"categories": ["f", "m"]}}
    outcome = {"name": "y", "low": 0, "high": 1}
    schema = TableSchema.from_dict({"treatment": "a", "outcome": outcome, "covariates": entries, "overlap": 0.1})
    draws = np.random.default_rng(7)
    grid = np.linspace(0, 1, 1001)
    treated = 1 / (1 + np.exp(-1.6 * (grid - 0.5)))
    truth = np.array([0.1, 0.1, 0.1, 0.1 + 0.1 * ((grid - 0.5) * treated).mean() / treated.mean()])

    def site(n: int, effect: float, seed: int) -> Release:
        x = pd.DataFrame({"u": draws.uniform(0, 1, n), "sex": draws.choice(["f", "m"], n)})
        a = (draws.uniform(size=n) < 1 / (1 + np.exp(-1.6 * (x["u"] - 0.5)))).astype(int)
        y = 0.3 + 0.2 * x["u"] + a * (effect + 0.1 * (x["u"] - 0.5)) + draws.normal(0, 0.12, n)
        budget, noise = PrivacyBudget(4.0, 1e-5), NoiseSource.fixed(seed)
        learner = AverageEffect(schema, budget, estimand="ATT", subgroups=[{"sex": True}], noise=noise)
        return learner.fit(x, a, y.clip(0, 1)).release()

    held = {"fixed": np.zeros(4), "random": np.zeros(4)}
    for draw in range(40):
        effects = draws.normal(0.1, 0.04, 3)
        sites = [site(n, effects[k], 3 * draw + k) for k, n in enumerate((1000, 2000, 4000))]
        for between, count in held.items():
            _, low, high = combine(sites, NAMES, between).means().numpy().T
            count += (low <= truth) & (truth <= high)
    assert (held["random"] >= 34).all()  # of 40: a probability of .95 misses it less than once in a hundred
    assert (held["fixed"] <= 34).all()


def test_a_contrast_over_sites_is_as_wide_as_the_intervals_of_both_lines() -> None:
    """Three sites tell little of how far they differ: 1.96 standard errors would hold .88 of contrasts, for .95."""
    made = combined("subgroups")
    rows = made.lines()
    pair = [name for name in rows.index if name.endswith(": all sites")][:2]
    value, low, high = made.contrast(*pair)
    one, two = (rows.loc[name] for name in pair)
    assert value == pytest.approx(one["estimate"] - two["estimate"])
    assert [low, high] == pytest.approx([one["low"] - two["high"], one["high"] - two["low"]])


def test_a_contrast_of_groups_counts_the_noise_that_their_sums_share() -> None:
    """Least squares with the sum of everybody: where that has no noise, three groups of one are correlated by -1/2."""
    site = released("effect", 2)
    assert site.averages.groups == ("group 1", "group 2", "group 3")
    noise = site.averages.variances.new_tensor([[0, 1, 0, 0]]).expand_as(site.averages.variances)
    _, low, high = replace(site, averages=replace(site.averages, variances=noise)).contrast("group 1", "group 3")
    assert (high - low) / 2 == pytest.approx(1.959964 * 3**0.5)


def test_errors_of_nuisances_do_not_average_out() -> None:
    """Twenty times one site, one effect: what is its own is a twentieth, what nuisances lost is all there."""
    site = released("cohort", 1)
    lines = replace(
        site.averages, variances=site.averages.variances.new_tensor([[1, 2, 3, 4]]).expand_as(site.averages.variances)
    )
    names = [str(k) for k in range(20)]
    privacy = [replace(site.privacy, chosen=name) for name in names]
    made = combine([replace(site, averages=lines, privacy=own) for own in privacy], names, "fixed")
    np.testing.assert_allclose(made.pooled.half_width(0.95), 1.959964 * (10 / 20 + 4) ** 0.5)


def test_what_effects_have_beyond_the_features_does_not_average_out() -> None:
    """Twenty times one site, fixed effects: sampling and noise are a twentieth, what is missed is all there."""
    site = released("effect", 1)
    names = [str(k) for k in range(20)]
    made = combine([replace(site, privacy=replace(site.privacy, chosen=name)) for name in names], names, "fixed")
    x = made._covariates(PEOPLE)
    _, variance, nuisances = site.law.moments(site.features(x))
    assert nuisances.tolist() == [0.0] * 3
    most = (variance + site.law.missed) / 20 + site.law.missed
    np.testing.assert_allclose(made.pooled_at(x).half_width(0.95), 1.959964 * most.sqrt(), rtol=1e-6)


def test_averages_of_several_arms_are_pooled_arm_by_arm() -> None:
    arms = {"treatment": {"name": "arm", "categories": ["placebo", "drug", "both"]}, "propensity": [1 / 3] * 3}
    schema, draws = TableSchema.from_dict({**FACTS, **arms, "overlap": 0.3}), np.random.default_rng(1)
    sites = []
    for seed in range(2):
        a = draws.integers(0, 3, 900)
        y = 10 + a + draws.normal(0, 1, 900)
        learner = RLearner(schema, PrivacyBudget(8.0, 1e-5), noise=NoiseSource.fixed(seed))
        people = schema.grid(900).numpy()[draws.permutation(900)]
        sites.append(learner.fit(people, np.array([*schema.actions])[a], y).release_function())
    made = combine(sites, ["a", "b"], "fixed")
    assert made.line_titles == ["drug instead of placebo", "both instead of placebo"]
    means = made.means()[:, 0].numpy()
    assert means == pytest.approx([1, 2], abs=0.5)
    each = np.array([site.average_effects for site in sites])
    assert (each.min(0) <= means).all()
    assert (means <= each.max(0)).all()


def test_effects_without_a_law_at_some_site_are_combined_by_lines() -> None:
    sites = [released("effect", 1), replace(released("effect", 2), law=None, without="none")]
    made = combine(sites, ["a", "b"])
    bare = released("effect by law", 0)
    for each in (sites, [bare, sites[1]]):
        made = combine(each, ["a", "b"])
        assert (made.function, made.reference, made.line_names) == (None, None, ("average",))
        with pytest.raises(InputError, match=r"^release of sites: these are averages, which give no column"):
            made.answer(made._covariates(PEOPLE))
        for ask in (made.mean_interval, made.plot):
            with pytest.raises(MissingError, match=r"^this combination has averages alone, see lines\(\)"):
                ask("age" if ask == made.plot else PEOPLE)
    with pytest.raises(InputError, match=r"^b: no interval, hence no known error to weigh it by: none$"):
        combine([bare, replace(bare, law=None, without="none")], ["a", "b"])


def test_averages_of_other_people_are_not_pooled() -> None:
    """A law alone is about those who might have got either, where propensities are estimated."""
    cohort, bare = released("cohort", 1), released("effect by law", 0)
    law = replace(bare.law, nuisances=torch.zeros_like(bare.law.covariance))
    with pytest.raises(InputError, match=r"^releases: no line with a known error is one of all sites \(a: average, .*"):
        combine([cohort, replace(bare, law=law)], ["a", "b"])


def test_a_line_that_noise_dominates_everywhere_may_be_anything() -> None:
    sites = [released("average", k) for k in range(2)]
    unknown = [replace(site, main=replace(site.main, noise_dominated=True)) for site in sites]
    for between in ("fixed", "random"):
        one = combine([sites[0], unknown[1]], ["a", "b"], between)
        assert one.average_effect == pytest.approx(sites[0].estimate)
        assert (one.average().tolist() == [-20.0, 20.0]) == (between == "random")
        assert combine(unknown, ["a", "b"], between).average().tolist() == [-20.0, 20.0]


def test_rows_have_the_effect_of_their_cell() -> None:
    cells, place = combined("subgroups"), [0, 1, 0]
    assert cells.line_titles == ["sex = f", "sex = m"]
    np.testing.assert_array_equal(cells.effect(PEOPLE), cells.means()[place, 0])
    np.testing.assert_array_equal(cells.interval(PEOPLE), cells.means()[place, 1:])
    assert ((cells.means()[:, 1] < -2) & (cells.means()[:, 2] > -2)).all()


def test_a_new_site_is_none_of_two_or_of_one_effect_at_all() -> None:
    made = combined("average")
    assert made.lines().iloc[-1][["line", "records", "weight"]].tolist() == [NEW_SITE, 0, 0]
    assert (made.named.means, "a new site is another" in made.assumptions) == ((*[False] * 3, True, False), True)
    for other in (combined("average", "fixed"), combine([released("average", k) for k in range(2)], ["a", "b"])):
        assert (NEW_SITE in other.named.titles, "a new site" in other.assumptions) == (False, False)


@pytest.mark.parametrize("task", TASKS)
def test_a_combination_is_combined_with_further_sites(task: str, tmp_path) -> None:
    """As the sites that it is of, each once; its own model of what differs does not count."""
    sites = [released(task, k) for k in range(3)]
    inner = load_release(combine(sites[:2], NAMES[:2], "fixed").save(tmp_path / "inner.safetensors"))
    made, whole = combine([inner, sites[2]], ["inner", "west"]), combined(task)
    assert (made.names, made.privacy.to_dict()) == (NAMES, whole.privacy.to_dict())
    assert made.lines().equals(whole.lines())
    assert combine([made], ["all"], "fixed").lines().equals(combined(task, "fixed").lines())
    verify_release(made.save(tmp_path / "all.safetensors"))
    with pytest.raises(InputError, match=r"^inner: south and other: south are one and the same release"):
        combine([inner, combine(sites[1:], NAMES[1:])], ["inner", "other"])


def test_the_file_says_whose_guarantee_is_whose() -> None:
    sites = [released("effect", 0, 1.0), released("effect", 1, 2.0)]
    privacy = combine(sites, ["a", "b"]).privacy
    assert (privacy.n, privacy.level) == (1600, "certified")
    assert privacy.epsilon == max(site.privacy.epsilon for site in sites)
    assert [block.name for block in privacy.blocks] == ["a: records", "b: records"]
    assert privacy.public["site_epsilon"] == pytest.approx([1.0, 2.0])
    assert "the sum of what these sites spent, at all of them (3, 2e-05)" in privacy.public["person_at_several_sites"]


def test_nothing_is_claimed_where_a_site_claims_nothing() -> None:
    privacy = combine([released("effect", 0), released("effect", 1, private=False)], ["a", "b"]).privacy
    assert (privacy.epsilon, privacy.level, privacy.private_noise) == (None, "heuristic", False)
    assert privacy.claim.startswith("NOT PRIVATE")
    assert not privacy.public
    assert all(charge.event is None for charge in privacy.charges)


DIFFERENCES = {
    "the treatment is 'arm' in the one and 'drug' in the other": {"treatment": {"name": "drug"}},
    "unit of pain is 'points' in the one and 'cm' in the other": {"outcome": {"unit": "cm"}},
    "better of pain is 'lower' in the one and 'higher' in the other": {"outcome": {"better": "higher"}},
    "high of age is 90 in the one and 100 in the other": {"age": {"high": 100}},
    "categories of sex is ['f', 'm'] in the one and ['m', 'f'] in the other": {"sex": {"categories": ["m", "f"]}},
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_the_first_difference_is_named(difference: str) -> None:
    other = fitted("average", changed(**DIFFERENCES[difference]), 0, 1.0, NoiseSource.fixed(1))
    with pytest.raises(InputError) as refused:
        combine([released("average", 0), other], ["a", "b"])
    assert str(refused.value) == f"a and b cannot be combined: {difference}"


def test_a_covariate_of_one_site_alone_is_one_of_all() -> None:
    more = fitted("effect", changed(weight={"low": 30, "high": 200}), 2, 2.0, NoiseSource.system())
    fewer = FACTS | {"covariates": {name: FACTS["covariates"][name] for name in ("dose", "age")}}
    less = fitted("effect", fewer, 1, 2.0, NoiseSource.system())
    made = combine([less, more], ["less", "more"])
    assert made.schema.columns == ("dose", "age", "sex", "weight")
    people = PEOPLE.assign(weight=80.0)
    each = [less.effect(PEOPLE), more.effect(people)]
    np.testing.assert_allclose(made.effect(people), made.shares[:, 0].numpy() @ np.stack(each))
    assert made.reference.shape == (256, 4)


def test_a_trial_of_equal_arms_may_say_so_by_its_overlap() -> None:
    facts = FACTS | {"overlap": 0.5}
    sites = [fitted("average", facts, k, 1.0, NoiseSource.system()) for k in range(2)]
    made = combine(sites, ["a", "b"])
    assert (made.domain.overlap, made.domain.known_propensity.middle) == (0.5, 0.5)
    other = fitted("average", FACTS | {"overlap": 0.3, "propensity": 0.6}, 0, 1.0, NoiseSource.system())
    assert combine([sites[0], other], ["a", "b"]).domain.known_propensity is None


@pytest.mark.parametrize("task", TASKS)
def test_one_release_is_combined_once(task: str, tmp_path) -> None:
    """Whether it is the same object or read from a file again: its noise would count as two sites'."""
    site, other = released(task, 1), released(task, 0)
    again = load_release(site.save(tmp_path / "site.safetensors"))
    with pytest.raises(InputError, match=r"^b and c are one and the same release; give each site's once$"):
        combine([other, site, again], ["a", "b", "c"])


def test_a_file_that_counts_a_site_twice_does_not_verify(tmp_path) -> None:
    site = released("average", 1)
    sites, names = (site, site), ("a", "b")
    twice = SitesRelease(sites, names, "fixed", site.schema, statement_of(sites, names, "fixed", site.schema))
    with pytest.raises(VerificationError, match="one and the same release"):
        verify_release(twice.save(tmp_path / "all.safetensors"))


def test_what_has_no_known_error_is_refused() -> None:
    site = released("effect", 0)
    with pytest.raises(InputError, match=r"^releases: 1 given; a combination needs two or more$"):
        combine([site], ["a"])
    with pytest.raises(InputError, match="give each of the 2 sites a name of its own"):
        combine([site, site], ["a", "a"])
    with pytest.raises(InputError, match="is none of a site"):
        combine([site, site], ["a", "b\n"])
    with pytest.raises(InputError, match="between = none: choose one of fixed, random"):
        combine([site, site], ["a", "b"], "none")
    with pytest.raises(InputError, match=r"^a: a decision has no known error"):
        combine([rule_example(), rule_example()], ["a", "b"])
    with pytest.raises(InputError, match="a is a release of composed, b one of lines; combine one kind"):
        combine([site, released("average", 0)], ["a", "b"])


def test_one_number_everywhere() -> None:
    """Sites of few records, whose effects are one number each: so is the combination's, with one interval."""
    made = combine([released("effect", 0, 1.0), released("effect", 0, 1.1)], ["a", "b"])
    assert made.form == "constant"
    value, (low, high) = made.average_effect, made.average()
    assert low <= value <= high
    np.testing.assert_allclose(made.effect(PEOPLE), value)
    persons = made.interval(PEOPLE)
    np.testing.assert_allclose(persons, persons[:1].repeat(3, 0))
    assert not np.allclose(persons[0], [low, high])
    np.testing.assert_allclose(made.mean_interval(PEOPLE), [[low, high]])
    assert made.ate_interval(PEOPLE) == pytest.approx((low, high))
    shown, last = made.summary()["estimates"][0], made.lines().iloc[-1]
    assert [shown[name] for name in ("estimate", "low", "high")] == pytest.approx([value, low, high])
    assert last[["estimate", "low", "high"]].tolist() == pytest.approx([value, low, high])
    said = check_words(made)
    shown = numbers([value, low, high], (high - low) / 2)
    if low <= 0 <= high:  # by noise
        assert f"{shown[0]} points (95% interval {shown[1]} to {shown[2]})." in " ".join(said.head)
    else:
        middle, *ends = (text.lstrip("−") for text in (shown[0], *reversed(shown[1:])))
        assert f"lowers pain by {middle} points on average (95% interval {ends[0]} to {ends[1]})." in said.head[0]
    assert said.person == ("Everybody has the same number here: so many records carry no more.",)
