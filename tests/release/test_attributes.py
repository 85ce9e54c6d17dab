import copy
import importlib
import inspect
import pickle
import pkgutil
from functools import partial

import pytest
import torch

from tests.registered import AverageEffect, KnownPropensityEffect, PolicySelector, RLearner
from tests.release.sites import combined, released
from torchdpcate import PrivacyBudget, TableSchema, release
from torchdpcate.candidates.kinds import Constants
from torchdpcate.data.domain import Domain
from torchdpcate.release import average_effect, composed, rule, subgroups
from torchdpcate.release import release as functions
from torchdpcate.release.file import RELEASES

BUDGET = PrivacyBudget(4.0, 1e-5)
THREE_ARMS = {
    "treatment": {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"},
    "outcome": {"name": "pay", "low": 0, "high": 10},
    "covariates": {"age": {"low": 16, "high": 60}, "sex": {"categories": ["f", "m"]}},
    "propensity": [0.25, 0.25, 0.5],
}
DOMAIN = Domain([0.0], [1.0], 0.0, 1.0, overlap=0.25, propensity=0.5, better="higher")


def fitted(learner):
    """Return a learner that is fitted to 300 records."""
    random, schema = torch.Generator().manual_seed(1), TableSchema.of(learner.domain)
    arms = torch.tensor(schema.actions, dtype=torch.float64)
    a = arms[torch.randint(0, len(arms), (300,), generator=random)]
    return learner.fit(schema.grid(300), a, torch.rand(300, generator=random, dtype=torch.float64))


KINDS = {
    "lines of an average": average_effect._example,
    "lines of a fit": lambda: fitted(KnownPropensityEffect(DOMAIN, BUDGET)).release(),
    "sites": partial(combined, "effect"),
    "sites of averages": partial(combined, "cohort"),
    "sites of subgroups": partial(combined, "subgroups"),
    "composed": partial(released, "effect"),
    "composed of an average": lambda: fitted(AverageEffect(DOMAIN, BUDGET, subgroups="everybody")).release(),
    "composed of three arms": lambda: fitted(RLearner(TableSchema.of(THREE_ARMS), BUDGET)).release_function(),
    "composed without intervals": lambda: composed._example().effect,
    "composed rule": composed._example,
    "function": functions._example,
    "decision by a policy": lambda: fitted(PolicySelector(DOMAIN, BUDGET, policies=[Constants([0, 1])])).release(),
    "queries": functions._answered_example,
    "decision by a rule": rule._example,
    "lines of subgroups": subgroups._example,
}


def test_every_kind_is_looked_over() -> None:
    for module in pkgutil.iter_modules(release.__path__, "torchdpcate.release."):
        importlib.import_module(module.name)
    own = {kind for kind, made in RELEASES.items() if made.__module__.startswith("torchdpcate.")}
    assert own == {name.partition(" ")[0] for name in KINDS}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k.startswith(("sites", "stat")) else k for k in KINDS]
)
def test_attributes_are_there_or_are_not(kind: str) -> None:
    made = KINDS[kind]()
    assert made.kind == kind.partition(" ")[0]
    for name in dir(made):
        getattr(made, name, None)  # raises nothing else than that it is not there
    assert {"schema", "privacy"} <= {name for name, _ in inspect.getmembers(made)}
    assert repr(made)
    assert made._repr_html_()
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again.summary() == made.summary()
