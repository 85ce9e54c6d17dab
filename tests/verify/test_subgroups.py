import html
from dataclasses import replace
from functools import cache
from typing import ClassVar
from unittest.mock import patch

import pytest
import torch

from tests.audit.shipped import audits_of, shipped_results
from tests.contract import PlanContract, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.forgery import card_html
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.subgroups import learner as learners
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.estimators.subgroups.plan import plan_subgroups
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.cell_effects import GAUSSIAN
from torchdpcate.release.file import load_release
from torchdpcate.release.subgroups import CROSSED, SEPARATE, SubgroupRelease

PURE, SOME = PrivacyBudget(2.0, 0.0), PrivacyBudget(2.0, 1e-6)
FACTS = {"overlap": 0.2, "two_levels": [True, False]}
DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 2.0, **FACTS, better="higher")
ARMS = TableSchema.from_dict(
    {
        "treatment": {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"},
        "outcome": {"name": "y", "low": -1, "high": 2, "kind": "continuous"},
        "covariates": {"x0": {"categories": [0, 1]}, "x1": {"low": 0, "high": 1}},
        "propensity": [0.25, 0.25, 0.5],
    }
)
TWO = {key: fact for key, fact in ARMS.to_dict().items() if key != "treatment"} | {"treatment": "a", "propensity": 0.5}
CLUSTERS, PAIRS = (
    TableSchema.from_dict(TWO | {"assignment": entry})
    for entry in ({"clusters": {"name": "school", "size": 20, "correlation": 0.1}}, {"pairs": "pair"})
)
KNOWN = Domain([0.0, 0.0], [1.0, 1.0], -1.0, 2.0, **FACTS, propensity={"x0": {0: 0.3, 1: 0.6}}, better="higher")
WEIGHTS = {"weights": {"name": "w", "high": 2}}
CELLS = [{"x0": True}, {"x1": [0.5]}]
SETTINGS = {
    "laplace": (DOMAIN, SOME, {"propensity": "randomised"}),
    "separate": (DOMAIN, PURE, {"propensity": "randomised", "released": SEPARATE}),
    "gaussian": (DOMAIN, SOME, {"propensity": "randomised", "law": GAUSSIAN, "released": SEPARATE}),
    "known": (KNOWN, PURE, {}),
    "crossed": (DOMAIN, SOME, {"propensity": "randomised", "released": CROSSED}),
    "weights": (Domain.from_dict(DOMAIN.to_dict() | WEIGHTS), SOME, {"propensity": "randomised"}),
    "noise alone": (DOMAIN, PrivacyBudget(0.01, 0.0), {"propensity": "randomised"}),
}
END = {"time": "t", "event": "d", "horizon": 1.0, "censoring": {"bins": 3}}
BY_HORIZON = TableSchema.from_dict({k: v for k, v in ARMS.to_dict().items() if k != "outcome"} | {"outcome": END})
END = END | {"event": {"name": "d", "success": 1, "censored": 0}, "kind": "event_by_horizon"}
COMPETING = TableSchema.from_dict(BY_HORIZON.to_dict() | {"outcome": END})
RATES = TableSchema.from_dict(
    CLUSTERS.to_dict() | {"outcome": {"name": "y", "low": 0, "high": 3, "exposure": {"name": "w", "high": 2}}}
)
OF_ARMS = {
    "rates": (RATES, PrivacyBudget(20.0, 0.0), {}),
    "arms, by a horizon": (BY_HORIZON, SOME, {}),
    "arms, of competing events, gaussian": (COMPETING, SOME, {"law": GAUSSIAN, "released": SEPARATE}),
    "arms": (ARMS, SOME, {}),
    "arms, gaussian": (ARMS, SOME, {"propensity": "randomised", "law": GAUSSIAN}),
    "clusters": (CLUSTERS, SOME, {}),
    "pairs": (PAIRS, SOME, {}),
    "arms, of everybody": (ARMS, SOME, {"subgroups": "everybody"}),
}


@cache
def released(name: str) -> SubgroupRelease:
    domain, budget, settings = (SETTINGS | OF_ARMS)[name]
    changed = {key: value for key, value in settings.items() if key in ("law", "released")}
    settings = {key: value for key, value in settings.items() if key not in changed}
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1500, 2, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].round()
    a = (torch.rand(1500, generator=generator) < 0.3 + 0.3 * x[:, 0]).double()
    y = (torch.rand(1500, generator=generator) < 0.3 + 0.3 * a).double()
    if domain in (ARMS, BY_HORIZON, COMPETING):
        y = y if domain is ARMS else torch.stack([x[:, 1] + 0.3, y * (1 + (domain is COMPETING) * x[:, 0])], 1)
        a = 1 + torch.multinomial(torch.tensor([0.5, 0.25, 0.25]), 1500, True, generator=generator).double()
    if domain is PAIRS:
        a, y = torch.ones_like(a), torch.stack([y.roll(1), y], 1)
    facts = domain.domain if isinstance(domain, TableSchema) else domain
    own = {} if facts.weights is None else {"weight": 1 + x[:, 1]}
    with patch.object(
        learners, "plan_subgroups", lambda *facts, **more: replace(plan_subgroups(*facts, **more), **changed)
    ):
        return SubgroupEffects(domain, budget, **{"subgroups": CELLS, **settings}).fit(x, a, y, **own).release()


class TestContract(PlanContract):
    made: ClassVar = {name: lambda name=name: released.__wrapped__(name) for name in SETTINGS | OF_ARMS}
    default = ("laplace", "arms, of competing events, gaussian", "rates")
    untold = ("learner", "subgroups")


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_loaded_release_reads_as_it_did(name, tmp_path):
    release = released(name)
    loaded = load_release(release.save(tmp_path / "release.safetensors"))
    assert loaded.lines().equals(release.lines())
    assert (loaded.interval(0.9, simultaneous=True) == release.interval(0.9, simultaneous=True)).all()
    assert all(label in html.unescape(card_html(release)) for label in release.subgroups.labels)
    (first, *_) = audits_of(release.privacy, shipped_results())
    assert first == {"gaussian": "subgroups_gaussian"}.get(release.law, "subgroups")
