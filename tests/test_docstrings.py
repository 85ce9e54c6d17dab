import inspect

import pytest

import torchdpcate
from torchdpcate._lazy import constructor_arguments, entries, sections

PUBLIC = {name: getattr(torchdpcate, name) for name in torchdpcate.__all__}
CLASSES = [name for name, public in PUBLIC.items() if isinstance(public, type)]


def own_members(kind: type) -> dict[str, object]:
    """Return the public methods and properties that the library's classes give a class."""
    found: dict[str, object] = {}
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "torchdpcate":
            members = {name: getattr(member, "__func__", member) for name, member in vars(each).items()}
            of_use = {
                name: member
                for name, member in members.items()
                if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
            }
            found = of_use | found
    return found


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_described_where_a_user_looks(name):
    public = PUBLIC[name]
    shown = sections(public.__doc__)
    told = entries(shown.get("Args", [])) | entries(shown.get("Attributes", []))
    arguments = constructor_arguments(public) if name in CLASSES else list(inspect.signature(public).parameters)
    assert [argument for argument in arguments if argument not in told] == []


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_is_described_and_none_sends_the_reader_to_a_base(name):
    kind = PUBLIC[name]
    for method, member in own_members(kind).items():
        said = inspect.getdoc(member) or inspect.getdoc(getattr(kind, method))
        assert said, f"{name}.{method}"
        assert not said.startswith("See "), f"{name}.{method}: {said}"
    assert not [line for line in sections(kind.__doc__)[""] if "See ``" in line]


def test_a_learner_is_described_in_the_words_of_its_base_and_its_own():
    said = sections(torchdpcate.RLearner.__doc__)
    assert said[""][0] == "R-learner (Nie & Wager 2021): overlap weights, no inverse propensity."
    assert "CATELearner" not in torchdpcate.RLearner.__doc__
    assert list(entries(said["Args"]))[:4] == ["domain", "budget", "nuisance", "second_stage"]
    assert "ledger_" in entries(said["Attributes"])
    assert "Guarantee" in said
