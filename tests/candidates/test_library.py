import pytest
import torch

from tests.candidates.cases import BINARY, DOMAIN, older, points
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.candidates.library import POLICY_FAMILIES, FunctionPolicies, PolicyLibrary
from torchdpcate.errors import InputError

YAML = """
- kind: constants
  actions: [0, 1]
- kind: thresholds
  covariate: age
  cuts: [20, 4e1]
- kind: linear
  covariates: [age, bmi]
  coefficients: [[1, -2]]
- tests.candidates.cases:older
"""
ALLOW = ["tests.candidates.cases"]
NAMES = (
    "always 0",
    "always 1",
    "age > 20",
    "age > 40",
    "age - 2 bmi > 0",
    "tests.candidates.cases:older",
)


def test_a_yaml_list_becomes_a_library(tmp_path):
    path = tmp_path / "policies.yaml"
    path.write_text(YAML)
    library = PolicyLibrary.of(path, ALLOW)
    assert library.names == NAMES
    assert sorted(family.kind for family in library.families) == sorted(POLICY_FAMILIES)
    ready, x = library.setup(DOMAIN, BINARY), points()
    age, bmi = x[:, 0], x[:, 1]
    columns = [age < -1, age > -1, age > 20, age > 40, age - 2 * bmi > 0, age > 40]
    assert torch.equal(ready.decide(x), torch.stack(columns, 1).to(torch.int8))
    back = PolicyLibrary.of(library.config(), ALLOW)
    assert back.config() == library.config()
    assert torch.equal(back.setup(DOMAIN, BINARY).decide(x), ready.decide(x))
    assert PolicyLibrary.of(str(path), ALLOW).names == NAMES


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], "policies is empty; give one policy at least"),
        ([Thresholds("age", [1, 1])], "the name 'age > 1' is there twice; give each policy its own by names"),
        ([Constants([0]), Constants([0], names=["never"])], "'always 0' and 'never' are the same policy; give it once"),
        ([FunctionPolicies([older, older], names=["a", "b"])], "'a' and 'b' are the same policy"),
        (7, "policies is of type int; give a policy family, a function"),
        ([{"kind": "thresholds", "covariate": "age"}], r"policies\[0\]: thresholds needs 'cuts'"),
        ("nowhere.yaml", "policies = nowhere.yaml: no such file, and no import path"),
    ],
)
def test_what_is_no_library_is_refused_in_one_line(policies, words):
    with pytest.raises(InputError, match=words) as caught:
        PolicyLibrary.of(policies)
    assert "\n" not in str(caught.value)


def test_the_same_policy_in_other_words_is_found_by_setup():
    library = PolicyLibrary([Thresholds("age", [1]), Thresholds("age", [1], 1, 0)])
    with pytest.raises(InputError, match="are the same policy"):
        library.setup(DOMAIN, BINARY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it holds no list; start each policy with '- kind: ...'"),
        ("- kind: constants\n  actions: [0", "policies.yaml: "),
        ("- kind: constants\n  actions: [yes]", r"policies\[0\]: actions is \['yes'\]; actions are integers"),
        (
            "- {kind: functions, functions: ['os:system']}",
            r"policies\[0\]: function 'os:system': Python code",
        ),
        ("- os:system", r"policies\[0\]: function 'os:system': .*by policies.allow=\[os\]"),
        ("- {kind: functions, functions: [!!python/name:os.system x]}", "it has a tag"),
        ("- &a {kind: constants, actions: [0]}\n- *a", "it has an alias"),
    ],
)
def test_errors_of_a_file_name_it_and_the_entry(tmp_path, text, words):
    path = tmp_path / "policies.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        PolicyLibrary.of(path)
    assert str(caught.value).startswith(f"policy file {path}: ")
    assert "\n" not in str(caught.value)
