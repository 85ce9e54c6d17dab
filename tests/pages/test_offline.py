import json
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch

from tests.estimators.cate.test_composition_plan import of_arms
from tests.pages.releases import cohort
from tests.release.test_population import release as composed_effect
from tests.release.test_reader import RELEASES
from torchdpcate.candidates.kinds import Thresholds
from torchdpcate.composition.fit_plans import effect_variances
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.composition_plan import stated_plan
from torchdpcate.fit.feature_maps import Identity
from torchdpcate.fit.weighted_basis import HiddenUnits, Levels, Standardisation, WeightedBasis, all_features
from torchdpcate.pages.effect_points import FigurePoints
from torchdpcate.pages.figures import arm_panels
from torchdpcate.pages.reader import MOST_FEATURES, offline_model
from torchdpcate.release import rule
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.effect_law import EffectLaw

_CALL = """
const { evaluate } = require(process.argv[1]);
let text = "";
process.stdin.on("data", (part) => { text += part; }).on("end", () => {
  const { model, requested } = JSON.parse(text);
  console.log(JSON.stringify(requested.map((one) => evaluate(model, one))));
});
"""


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed, which runs the page's script here")
    return found


def answered(node: str, model: Any, requested: list[list[float]]) -> list[dict[str, Any]]:
    """Return what the page's script answers."""
    path = str(files("torchdpcate.templates") / "page.js")
    given = json.dumps({"model": model, "requested": requested})
    ran = subprocess.run([node, "-e", _CALL, path], input=given, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(ran.stdout)


def rich(nuisances: bool) -> ComposedRelease:
    """Return a composed effect with every kind of feature, and a law of its errors."""
    found, draws = composed_effect(), torch.Generator().manual_seed(3)
    schema = found.schema
    k = schema.domain.dimension
    own = all_features([False, True, True, True, True])
    base = WeightedBasis(own, torch.ones(1 + len(own)).double())
    public = torch.randn(500, k, generator=draws, dtype=torch.float64)
    hidden = HiddenUnits.beyond(
        torch.randn(6, k, generator=draws, dtype=torch.float64),
        torch.zeros(6).double(),
        base,
        torch.eye(k).double(),
        public,
    )
    assert hidden is not None
    features = (*own, *hidden.features)
    p = 1 + len(features)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    feature_weights = normal(p).exp()
    covariance, more = normal(p, p), normal(p, p)
    law = EffectLaw(
        normal(p) / 30, covariance @ covariance.T / (3e3 * p), torch.eye(p).double(), normal(p) / 5, 0.03, 0.002, 0.5,
        0.1, missed=0.01, nuisances=more @ more.T / (3e3 * p) if nuisances else None,
        pull=torch.eye(p).double() if nuisances else None,
    )  # fmt: skip
    basis = WeightedBasis(features, feature_weights / feature_weights.sum(), hidden)
    units = Standardisation(normal(k) / 4, normal(k).exp() / 2)
    theta = normal(p)
    return ComposedRelease(theta, theta, torch.eye(p).double(), 1.0, basis, units, schema, found.privacy, law=law)


def queries() -> tuple[list[list[float]], list[dict[str, Any]]]:
    """Return positions of sliders, and the same people as rows of a table."""
    draws = np.random.default_rng(5)
    ages, sexes, sites = draws.uniform(20, 60, 40), draws.integers(0, 2, 40), draws.integers(0, 3, 40)
    requested = [[float(a), int(s), int(t)] for a, s, t in zip(ages, sexes, sites, strict=True)]
    rows = {"age": ages, "sex": np.array(["f", "m"])[sexes], "site": np.array(["a", "b", "c"])[sites]}
    return requested, rows


@pytest.mark.parametrize("nuisances", [False, True])
def test_effects_and_intervals_agree(node: str, nuisances: bool) -> None:
    release, (requested, rows) = rich(nuisances), queries()
    found = answered(node, offline_model(release), requested)
    assert [one["value"] for one in found] == pytest.approx(release.effect(rows), abs=1e-9)
    ends = release.interval(rows)
    assert 10 < np.sum(np.abs(ends) < 1) < ends.size  # some are where effects must end
    assert np.array([one["ends"] for one in found]) == pytest.approx(ends, abs=1e-9)


def test_a_value_that_is_not_known_agrees(node: str) -> None:
    """The page takes it as the release does, by the released mean of the others."""
    release = with_missing()
    requested, rows = queries()
    rows["age"][::2] = np.nan
    requested = [[None, *one[1:]] if i % 2 == 0 else one for i, one in enumerate(requested)]
    answers = answered(node, offline_model(release), requested)
    assert [one["value"] for one in answers] == pytest.approx(release.effect(rows), abs=1e-9)


def with_missing() -> ComposedRelease:
    """Return a composed effect of covariates of which one may be missing."""
    found = rich(False)
    facts = found.schema.to_dict()
    facts["covariates"]["age"]["missing"] = "indicator"
    schema = TableSchema.from_dict(facts)
    levels = Levels(schema.domain.two_levels, schema.domain.indicators)
    features = all_features(levels, "12x")
    p, k = 1 + len(features), schema.domain.dimension
    draws = torch.Generator().manual_seed(4)
    theta, mean = torch.randn(p, generator=draws).double(), torch.randn(k, generator=draws).double() / 4
    basis = WeightedBasis(features, torch.full((p,), 1 / p).double())
    units = Standardisation(mean, torch.full((k,), 0.5).double())
    return ComposedRelease(theta, theta, torch.eye(p).double(), 1.0, basis, units, schema, found.privacy)


def banded(kind: str) -> ComposedRelease:
    """Return an effect without intervals whose regression a plan states."""
    if kind == "three arms":
        return of_arms()
    if kind == "two arms":
        return cohort()
    found = with_missing() if kind == "missing values" else rich(False)
    return replace(found, law=None, privacy=cohort().privacy)


@pytest.mark.parametrize("kind", ["two arms", "three arms", "missing values", "hidden units"])
def test_bands_are_those_of_figures(node: str, kind: str) -> None:
    release = banded(kind)
    first, profile, asked = {
        "two arms": ("x1", {"x0": 0.3}, lambda value: [0.3, value]),
        "three arms": ("x0", {"x1": 0.3}, lambda value: [value, 0.3]),
        "missing values": ("sex", {"age": "missing", "site": "b"}, lambda value: [None, int(value), 1]),
        "hidden units": ("age", {"sex": "m", "site": "b"}, lambda value: [value, 1, 1]),
    }[kind]
    where = FigurePoints(release.schema, first, profile)
    requested = [asked(value) for value in where.grid.tolist()]
    model = offline_model(release)
    assert isinstance(model, dict)
    panels = arm_panels(release, where, 0.95)
    assert len(panels) == max(len(release.arms), 1)
    for arm, panel in enumerate(panels):
        found = answered(node, model | {"arm": arm}, requested)
        assert np.array([one["band"] for one in found]) == pytest.approx(panel.band, abs=1e-9)
        assert {one["ends"] for one in found} == {None}
        assert np.ptp(panel.band, 1).min() > 0


def test_an_arm_s_band_is_that_of_both_functions_together() -> None:
    """Of three arms the second differs from the first by a sum of two functions, here by numpy."""
    release = of_arms()
    model = offline_model(release)
    assert isinstance(model, dict)
    v = effect_variances(stated_plan(release), release.curvatures, release.scale).view(2, -1).numpy()
    roots = release.basis.feature_weights.numpy()
    expected = np.stack([v[0], v[0] / 4 + 3 * v[1] / 4]) * roots  # points of a triangle with sides of one
    np.testing.assert_allclose(model["effect"]["variances"], expected, rtol=1e-9)


def test_a_rule_s_gain_has_the_band_of_its_effect(node: str) -> None:
    release = banded("hidden units")
    requested = queries()[0]
    effects = answered(node, offline_model(release), requested)
    gains = answered(node, offline_model(release.rule(cost=0.1)), requested)
    widths = [[np.ptp(one["band"]) for one in found] for found in (effects, gains)]
    assert widths[0] == pytest.approx(widths[1])
    assert [np.mean(one["band"]) for one in gains] == pytest.approx([one["value"] for one in gains])


def test_many_features_have_a_band_in_the_place_of_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    release = replace(rich(False), privacy=cohort().privacy)
    model = offline_model(release)
    assert isinstance(model, dict)
    assert "law" in model["effect"]
    assert release.basis.dimension < MOST_FEATURES
    monkeypatch.setattr("torchdpcate.pages.reader.MOST_FEATURES", release.basis.dimension - 1)
    model = offline_model(release)
    assert isinstance(model, dict)
    assert "law" not in model["effect"]
    assert len(model["effect"]["variances"][0]) == release.basis.dimension


def test_a_rule_s_gain_agrees(node: str) -> None:
    found, (requested, rows) = rich(False).rule(cost=0.2, threshold=0.1), queries()
    answers = answered(node, offline_model(found), requested)
    assert [one["value"] for one in answers] == pytest.approx(found.score(rows), abs=1e-9)
    assert [one["action"] for one in answers] == found.decide(rows).tolist()


@pytest.mark.parametrize("centred", [True, False])
def test_a_linear_rule_agrees(node: str, centred: bool) -> None:
    found = rule._example()
    found = replace(found, features=Identity(centred).setup(found.domain), theta=torch.tensor([-0.3, 0.9]).double())
    requested = [[float(x)] for x in np.linspace(0, 1, 21)]
    answers = answered(node, offline_model(found), requested)
    assert [one["value"] for one in answers] == pytest.approx(found.score(np.array(requested)), abs=1e-9)


def test_scales_and_typical_ranges_agree(node: str) -> None:
    facts = [("log", None), ("log", (1.0, 50.0)), ("linear", (0.0, 30.0)), ("linear", (200.0, 900.0)), ("linear", None)]
    scales, typical = zip(*facts, strict=True)
    domain = Domain([1.0] + [0.0] * 4, [1000.0] * 5, 0.0, 1.0, scales=scales, typical=typical, better="higher")
    found, features = rule._example(), Identity().setup(domain)
    theta = torch.tensor([0.1, 0.4, -0.3, 0.9, 0.5, 0.2]).double()
    schema = TableSchema.from_domain(domain)
    found = replace(found, schema=schema, features=features, theta=theta)
    requested = [
        *domain.grid(40).tolist(),
        [1.0, 0, 0, 0, 0],
        [1000.0] * 5,
        [5.0, 50, 30, 200, 1],
        [5.0, 1, 30, 900, 1],
    ]
    model = offline_model(found)
    assert isinstance(model, dict)
    assert model["covariates"][2]["typical"] == [0.0, 30.0]
    answers = answered(node, json.loads(json.dumps(model, allow_nan=False)), requested)
    assert [one["value"] for one in answers] == pytest.approx(found.score(np.array(requested)), abs=1e-9)


def test_policies_by_cuts_agree(node: str) -> None:
    cut = Thresholds("x0", [0.5])
    found = rule._policy_example()
    found = replace(found, policy=cut.setup(found.domain, (0, 1)))
    requested = [[float(x)] for x in (0.0, 0.25, 0.3, 0.5, 0.6, 1.0)]
    answers = answered(node, offline_model(found), requested)
    assert [one["action"] for one in answers] == found.decide(np.array(requested)).tolist()
    assert offline_model(found)["tree"]["column"] == 0


def test_other_releases_say_why_not() -> None:
    found = offline_model(RELEASES["function, identity"]())
    assert isinstance(found, str)
    assert "torchdpcate predict" in found


def test_the_effect_of_each_arm_is_the_release_s(node):
    arms = {"name": "arm", "categories": ["placebo", "low", "high"]}
    covariates = {"age": {"low": 0, "high": 1}, "sex": {"categories": ["f", "m"]}}
    facts = {"treatment": arms, "outcome": {"name": "y", "low": -1, "high": 3}, "covariates": covariates}
    basis = WeightedBasis(all_features([False, True], "1"), torch.full((3,), 0.25, dtype=torch.float64))
    one, draws = torch.ones(2, dtype=torch.float64), torch.Generator().manual_seed(1)
    theta, curvatures = torch.randn(6, generator=draws, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    schema, privacy = TableSchema.from_dict(facts), composed_effect().privacy
    release = ComposedRelease(theta, theta, curvatures, 1.0, basis, Standardisation(0 * one, one / 2), schema, privacy)
    model = offline_model(release)
    expected = release.effect([[0.3, 1.0], [0.9, 0.0]])
    for arm in (0, 1):
        found = answered(node, model | {"arm": arm}, [[0.3, 1], [0.9, 0]])
        assert [one["value"] for one in found] == pytest.approx(expected[:, arm].tolist())
