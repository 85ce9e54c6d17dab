import ast
from importlib import import_module
from pathlib import Path

import pytest
import torch

import torchdpcate
from tests.registered import OutcomeWeightedLearner, targets
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.outcome import OUTCOMES
from torchdpcate.estimators.rules.weighted_erm import RULE_MECHANISMS, stated_mechanism
from torchdpcate.fit.arms.base import GUARANTEES
from torchdpcate.fit.weights import WEIGHTS
from torchdpcate.privacy.budget import PrivacyBudget

DOMAIN = Domain([0.0], [1.0], -1.0, 1.0, propensity=0.5, better="higher")
REGISTRIES = {
    "name": (WEIGHTS, OUTCOMES),
    "guarantee": (GUARANTEES,),
    "way": (RULE_MECHANISMS,),
}


def test_a_rule_s_mechanism_is_called_by_its_way_and_its_noise():
    for way, mechanism in RULE_MECHANISMS.items():
        for kind in mechanism.kinds:
            assert stated_mechanism(f"{way}_{kind}").name == f"{way}_{kind}"
    assert stated_mechanism("objective_magic") is stated_mechanism("objective") is None


@pytest.mark.parametrize("attribute", REGISTRIES)
def test_a_class_is_called_as_its_yaml_is(attribute):
    for registry in REGISTRIES[attribute]:
        assert registry
        assert {name: getattr(found, attribute) for name, found in registry.items()} == {
            name: name for name in registry
        }


def _release(learner):
    x, a = torch.rand(2000, 1, dtype=torch.float64), torch.arange(2000) % 2
    return learner.fit(x, a, (2 * a - 1) * x[:, 0]).release()


BUDGET = PrivacyBudget(20.0, 1e-6)
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.25, 0.5])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("registry", "name", "make"),
    [
        (RULE_MECHANISMS, "objective", lambda: OutcomeWeightedLearner(DOMAIN, BUDGET)),
        (RULE_MECHANISMS, "output", lambda: OutcomeWeightedLearner(DOMAIN, BUDGET, mechanism="output")),
        (OUTCOMES, "private_residual", lambda: OutcomeWeightedLearner(DOMAIN, BUDGET)),
    ],
)
def test_a_class_of_the_users_under_a_name_of_the_librarys_is_not_certified(registry, name, make, monkeypatch):
    own = registry[name]
    assert _release(make()).privacy.level == "certified"
    monkeypatch.setitem(registry, name, type("Own", (own,), {"__module__": __name__}))
    statement = _release(make()).privacy
    assert statement.level == "conditional"
    assert statement.conditions


def test_no_name_leads_out_of_the_configuration():
    for name in ("../learner/r", "objective.yaml", "/etc/passwd", "", "..", "os.system", None, ["objective"]):
        with pytest.raises(InputError, match="choose one of"):
            RULE_MECHANISMS.find(name)


def test_what_tests_of_all_families_ask_for_is_there():
    """A class that is gone is skipped by those tests, until its name is taken out of them."""
    texts = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py"))
    imports = (node for text in texts if "tests.registered" in text for node in ast.walk(ast.parse(text)))
    found = (node for node in imports if isinstance(node, ast.ImportFrom) and node.module == "tests.registered")
    asked = {alias.name for node in found for alias in node.names} - {"shipped", "targets"}
    assert asked <= targets().keys() | set(torchdpcate.__all__)


def test_no_name_of_a_package_hides_a_module_on_the_way_to_a_class():
    """Hydra takes the attributes of a package before its modules."""
    for name, module in targets().items():
        package, _, last = module.rpartition(".")
        assert last not in getattr(import_module(package), "__all__", ()), f"{module}.{name}"
