"""Names of the registries are those that classes give themselves; old names of arguments answer with one warning."""

import pytest

from torchdpcate.candidates.library import POLICY_FAMILIES
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.matching import MATCHINGS
from torchdpcate.estimators.rules.mechanisms import RULE_MECHANISMS, STATED_MECHANISMS
from torchdpcate.estimators.rules.outcome import OUTCOMES, Outcome, PrivateResidual
from torchdpcate.estimators.rules.owl import OutcomeWeightedLearner
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.nuisance.arms.by_name import GUARANTEES
from torchdpcate.nuisance.weights.private import PrivateWeights
from torchdpcate.nuisance.weights.scheme import WEIGHTS
from torchdpcate.privacy.selection_mechanisms import SELECTIONS

DOMAIN = Domain([0.0], [1.0], -1.0, 1.0)
REGISTRIES = {
    "name": (WEIGHTS, OUTCOMES, MATCHINGS, SELECTIONS, STATED_MECHANISMS),
    "guarantee": (GUARANTEES,),
    "kind": (POLICY_FAMILIES,),
    "way": (RULE_MECHANISMS,),
}


@pytest.mark.parametrize("attribute", REGISTRIES)
def test_a_class_is_called_as_its_yaml_is(attribute):
    for registry in REGISTRIES[attribute]:
        assert registry
        assert {name: getattr(found, attribute) for name, found in registry.items()} == {
            name: name for name in registry
        }


@pytest.mark.parametrize(
    ("old", "new", "make"),
    [
        ("share", "budget_fraction", PrivateWeights),
        ("block", "block_fraction", PrivateWeights),
        ("gamma", "ridge", lambda **given: OutcomeWeightedLearner(DOMAIN, None, **given)),
        ("gamma_bound", "ridge_bound", lambda **given: OutcomeWeightedLearner(DOMAIN, None, **given)),
        ("floor", "overlap", lambda **given: PolicySelector(DOMAIN, None, policies=[], **given)),
    ],
)
def test_old_arguments_and_attributes_answer_with_one_warning(old, new, make):
    with pytest.warns(FutureWarning, match=f"{old} is now {new}") as said:
        made = make(**{old: 0.3})
    assert len(said) == 1
    assert getattr(made, new) == 0.3
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        assert getattr(made, old) == 0.3


def test_old_choices_are_found_with_a_warning():
    with pytest.warns(FutureWarning, match="bought_residual is now private_residual"):
        assert isinstance(OUTCOMES.make("bought_residual", Outcome), PrivateResidual)
