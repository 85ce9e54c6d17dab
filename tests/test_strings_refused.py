import inspect
import re

import pytest
from sklearn.base import clone

import torchdpcate
from torchdpcate import Domain, NoiseSource, PrivacyBudget, RLearner
from torchdpcate.candidates.kinds import Constants
from torchdpcate.errors import InputError

DOMAIN = Domain([0.0], [1.0], -1.0, 1.0, overlap=0.25, propensity=0.5, better="higher")
BUDGET = PrivacyBudget(4.0, 1e-5)
NEEDED = {
    "DPSGD": {"plan": None, "noise": NoiseSource.system()},
    "Ledger": {"blocks": {"all": BUDGET}},
    "PolicySelector": {"policies": [Constants([0, 1])]},
    "SharedLedger": {"path": "no folder/ledger.sqlite", "records": "abc"},
    "SubgroupEffects": {"subgroups": [{"x0": [0.5]}]},
    "TableSchema": {"treatment": "a", "outcome": "y", "covariates": (), "domain": DOMAIN},
}
MADE = re.compile(r"Release$|^(CausalData|Domain|OnlineService|SemiSynthetic|TableStream)$")
"""Classes that the library makes, or that read files; a domain is made of numbers and words, and checks each."""
PLAIN = {"None", "Any", "Callable", "Path", "PathLike", "Mapping", "Sequence"}


def objects(kind: type) -> list[str]:
    """Return the parameters of a constructor that take objects, and no string."""
    found = []
    for name, parameter in inspect.signature(kind).parameters.items():
        annotation = parameter.annotation
        text = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
        while "[" in text:
            text = re.sub(r"\[[^\[\]]*\]", "", text)
        words = {word.strip().rpartition(".")[2] for word in text.split("|")}
        takes = {word for word in words if word[0].isupper()} - PLAIN
        if takes and "str" not in words and name != "domain":  # which may be the file of a domain
            found.append(name)
    return found


KINDS = {name: getattr(torchdpcate, name) for name in torchdpcate.__all__ if not MADE.search(name)}
CASES = [(name, key) for name, kind in KINDS.items() if inspect.isclass(kind) for key in objects(kind)]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_a_string_for_an_object_names_the_class_and_its_import(name, key):
    kind = KINDS[name]
    own = {"domain": DOMAIN, "budget": BUDGET} if {"domain", "budget"} <= {*inspect.signature(kind).parameters} else {}
    with pytest.raises(
        InputError, match=rf"^{key} = 'some': is a string; give an object of \w+.* \(from torchdpcate"
    ) as line:
        kind(**own | NEEDED.get(name, {}) | {key: "some"})
    module, names = re.search(r"from ([\w.]+) import ([\w, ]+)", str(line.value)).groups()
    for one in names.split(", "):
        exec(f"from {module} import {one}")
    assert "\n" not in str(line.value)


def test_the_cases_are_all_there():
    assert {("RLearner", "second_stage"), ("DRLearner", "nuisance")} < {*CASES}
    assert {("DPSGD", "ledger"), ("Ledger", "unit"), ("PrivateWeights", "features")} < {*CASES}


def test_one_that_is_set_later_is_refused_before_anything_is_spent():
    learner = clone(RLearner(DOMAIN, BUDGET)).set_params(second_stage="neural")
    with pytest.raises(InputError, match="second_stage = 'neural': is a string; give an object of NeuralSecondStage"):
        learner.fit([[0.5]] * 4, [0, 1, 0, 1], [0, 1, 0, 1])
    assert not hasattr(learner, "ledger_")


@pytest.mark.parametrize(
    ("given", "message"), [({"seed": "1"}, "give int"), ({"trainer": "gpu"}, "give Callable or None")]
)
def test_one_for_a_number_or_a_function_says_what_is_taken(given, message):
    with pytest.raises(InputError, match=rf"is a string; {message}"):
        RLearner(DOMAIN, BUDGET, **given)
