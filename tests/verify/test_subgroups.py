"""Released effects in subgroups that contradict themselves do not verify; honest ones do."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from torchdpcate.audit.report import shipped_results
from torchdpcate.data.domain import Domain
from torchdpcate.errors import VerificationError
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Purpose
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import load_release
from torchdpcate.release.subgroups import SubgroupRelease
from torchdpcate.verify.card import make_card
from torchdpcate.verify.file import verify_release

PURE, SOME = PrivacyBudget(2.0, 0.0), PrivacyBudget(2.0, 1e-6)
FACTS = {"overlap": 0.2, "two_levels": [True, False]}
DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 2.0, **FACTS)
KNOWN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 2.0, **FACTS, propensity={"x0": {0: 0.3, 1: 0.6}})
CELLS = [{"x0": True}, {"x1": [0.5]}]
SETTINGS = {
    "laplace": (DOMAIN, SOME, {"propensity": "randomised"}),
    "separate": (DOMAIN, PURE, {"propensity": "randomised", "released": "separate"}),
    "gaussian": (DOMAIN, SOME, {"propensity": "randomised", "law": "gaussian"}),
    "fitted": (DOMAIN, SOME, {"propensity": "fitted"}),
    "fitted, of everybody": (DOMAIN, PURE, {"estimand": "ATE", "overlap": 0.3}),
    "known": (KNOWN, PURE, {}),
    "known, of those who overlap": (KNOWN, SOME, {"estimand": "ATO", "law": "gaussian"}),
    "scores": (DOMAIN, SOME, {}),
    "scores, crossed": (DOMAIN, SOME, {"released": "crossed", "overlap": 0.3}),
    "scores, gaussian": (DOMAIN, PrivacyBudget(1.0, 1e-6), {"law": "gaussian"}),
    "scores, known": (KNOWN, SOME, {"propensity": "composed"}),
    "noise alone": (DOMAIN, PrivacyBudget(0.01, 0.0), {"propensity": "randomised"}),
}


@cache
def released(name: str) -> SubgroupRelease:
    domain, budget, settings = SETTINGS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1500, 2, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].round()
    a = (torch.rand(1500, generator=generator) < 0.3 + 0.3 * x[:, 0]).double()
    y = (torch.rand(1500, generator=generator) < 0.3 + 0.3 * a).double()
    return SubgroupEffects(domain, budget, subgroups=CELLS, **settings).fit(x, a, y).release()


def refused(release: SubgroupRelease, folder) -> str:
    with pytest.raises(VerificationError) as problem:
        verify_release(release.save(folder / "release.safetensors", overwrite=True))
    return str(problem.value)


def with_public(release: SubgroupRelease, **public) -> SubgroupRelease:
    return replace(release, privacy=replace(release.privacy, public={**release.privacy.public, **public}))


@pytest.mark.parametrize("name", SETTINGS)
def test_honest_releases_verify_and_load(name, tmp_path):
    release = released(name)
    path = release.save(tmp_path / "release.safetensors")
    assert dict(verify_release(path))["level"].startswith("certified")
    loaded = load_release(path)
    assert loaded.table().equals(release.table())
    assert (loaded.interval(0.9, simultaneous=True) == release.interval(0.9, simultaneous=True)).all()
    card = make_card(release, audit=shipped_results())
    assert [row["cell"] for row in card["summary"]["cells"]] == release.subgroups.labels
    assert next(iter(card["audit"]["lower_bounds"])) == {"gaussian": "subgroups_gaussian"}.get(release.law, "subgroups")


FORGED = {
    "less noise than was paid": lambda r: replace(with_public(r, scale=r.scale / 2), scale=r.scale / 2),
    "a scale beside the statement's": lambda r: replace(r, scale=r.scale * 2),
    "another sensitivity": lambda r: with_public(r, sensitivity=1.0),
    "fewer partitions": lambda r: with_public(r, partitions=1),
    "numbers off the grid": lambda r: replace(r, statistics=r.statistics + 1e-7),
    "numbers without noise": lambda r: replace(r, statistics=r.statistics.round()),
    "numbers beyond the records": lambda r: replace(r, statistics=r.statistics + 2.0**14),
    "weights that are no way": lambda r: with_public(r, weights="guessed"),
    "a largest weight of another kind": lambda r: with_public(r, weight_treated=3.0),
    "words that are not its own": lambda r: with_public(r, holds_if="always"),
    "an estimand that is none": lambda r: with_public(r, estimand="ATT"),
    "a constant of no release": lambda r: with_public(r, extra=1.0),
    "a constant of a fit that was not made": lambda r: with_public(r, weights_ridge=1.0),
    "Gaussian noise in words": lambda r: with_public(r, law="gaussian"),
}


@pytest.mark.parametrize("change", FORGED)
def test_forged_releases_do_not_verify(change, tmp_path):
    forged = FORGED[change](released("laplace"))
    assert "changed or inconsistent" in refused(forged, tmp_path)


def with_scores(release: SubgroupRelease, **scores) -> SubgroupRelease:
    return replace(release, scores=replace(release.scores, **scores))


def with_charges(release: SubgroupRelease, charges) -> SubgroupRelease:
    (block,) = release.privacy.blocks
    return replace(release, privacy=replace(release.privacy, blocks=(replace(block, charges=tuple(charges)),)))


def without_charge(release: SubgroupRelease, part: str) -> SubgroupRelease:
    return with_charges(release, (charge for charge in release.privacy.charges if charge.charge.part != part))


def with_sums(release: SubgroupRelease, event: PureEvent) -> SubgroupRelease:
    charges = release.privacy.charges
    return with_charges(release, (replace(c, event=event) if c.purpose is Purpose.RELEASE else c for c in charges))


FORGED_SCORES = {
    "a clip off its grid": lambda r: with_scores(r, clip=r.scores.clip * 1.01),
    "a centre beyond the range": lambda r: with_scores(r, centre=4.0),
    "an error beyond the range": lambda r: with_scores(r, error=4.0),
    "numbers of arms": lambda r: replace(r, statistics=r.statistics.expand(-1, 2, -1).clone(), scores=None),
    "scores without their plan": lambda r: with_public(r, steps_epsilon=0.5),
    "other constants": lambda r: with_public(r, kept=1),
    "another overlap": lambda r: with_public(r, eta=0.1),
    "no epsilon of the steps": lambda r: with_public(r, steps_epsilon=None),
    "weights that are all alike": lambda r: with_public(r, weights="equal"),
    "another estimand": lambda r: with_public(r, estimand="ATO"),
    "a step without its charge": lambda r: without_charge(r, "propensity"),
    "sums that cost less": lambda r: with_sums(r, PureEvent(0.1)),
    "less noise than was paid": FORGED["less noise than was paid"],
    "numbers off the grid": FORGED["numbers off the grid"],
    "numbers beyond the records": lambda r: replace(r, statistics=r.statistics + 2.0**20),
}


@pytest.mark.parametrize("change", FORGED_SCORES)
def test_forged_scores_do_not_verify(change, tmp_path):
    assert "inconsistent" in refused(FORGED_SCORES[change](released("scores")), tmp_path)


def test_sums_of_outcomes_state_no_composition(tmp_path):
    assert "sums no scores" in refused(with_public(released("laplace"), kept=1), tmp_path)


def test_a_propensity_needs_its_charge_and_its_settings(tmp_path):
    release = released("fitted")
    assert "clipped" in refused(with_public(release, eta=0.3), tmp_path)
    assert "propensity" in refused(replace(release, weights=None), tmp_path)
    (block,) = release.privacy.blocks
    kept = tuple(charge for charge in block.charges if charge.purpose is not Purpose.WEIGHTS)
    bare = replace(release, privacy=replace(release.privacy, blocks=(replace(block, charges=kept),)))
    assert "inconsistent" in refused(bare, tmp_path)
    assert "(ridge)" in refused(with_public(release, weights_ridge=1.0), tmp_path)


def test_a_charge_that_is_no_release_does_not_verify(tmp_path):
    release = released("separate")
    (block,) = release.privacy.blocks
    twice = replace(block.charges[0], event=PureEvent(1.0), count=2)
    forged = replace(release, privacy=replace(release.privacy, blocks=(replace(block, charges=(twice,)),)))
    assert "its charges are not one for its sums" in refused(forged, tmp_path)


def test_noise_of_a_seed_claims_nothing(tmp_path):
    x = torch.rand(300, 2, dtype=torch.float64)
    a = (torch.arange(300) % 2).double()
    learner = SubgroupEffects(DOMAIN, PURE, subgroups=[{"x1": [0.5]}], noise=NoiseSource.fixed(1))
    release = learner.fit(x, a, a).release()
    assert not release.privacy.claims
    assert load_release(release.save(tmp_path / "r.safetensors")).estimate == pytest.approx(release.estimate)
