"""A propensity that the domain knows, in learners of rules: their weights, for nothing."""

import pandas as pd
import pytest
import torch

from tests.registered import OutcomeWeightedLearner, TwoStageRule
from torchdpcate import Domain, PrivacyBudget
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.papers.rules import ITR, OWL
from torchdpcate.privacy.charge import Purpose
from torchdpcate.release.file import load_release
from torchdpcate.verify.card import card_html
from torchdpcate.verify.file import verify_release

PURE = PrivacyBudget(4.0, 0.0)
N = 1000


def domain(propensity=None) -> Domain:
    return Domain([-1, 0], [1, 1], -1.0, 1.0, 0.1, two_levels=[False, True], propensity=propensity, better="higher")


def drawn() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(N, 2, generator=generator, dtype=torch.float64) - 1
    x[:, 1] = (x[:, 1] > 0).double()
    p = torch.tensor([0.3, 0.6], dtype=torch.float64)[x[:, 1].long()]
    a = (torch.rand(N, generator=generator, dtype=torch.float64) < p).double()
    return x, a, (2 * a - 1) * x[:, 0], p


X, A, Y, P = drawn()
STRATA = {"x1": {0: 0.3, 1: 0.6}}


@pytest.mark.parametrize("kind", [OutcomeWeightedLearner, TwoStageRule])
@pytest.mark.parametrize("given", [0.4, STRATA, "p"])
def test_rules_weigh_by_it_and_pay_nothing(kind, given, tmp_path) -> None:
    learner = kind(domain(given), PURE).fit(X, A, Y, P if given == "p" else None)
    release = learner.release()
    public = release.privacy.public
    assert public["weights"] == "known"
    assert public["propensity"] == learner.schema_.domain.known_propensity.stated
    assert all(charge.purpose is not Purpose.WEIGHTS for charge in release.privacy.charges)
    release.save(tmp_path / "r.safetensors")
    assert verify_release(tmp_path / "r.safetensors")
    again = load_release(tmp_path / "r.safetensors")
    assert again.decide([[-1.0, 0.0], [1.0, 0.0]]).tolist() == [0, 1]
    assert again.domain.known_propensity is not None
    assert "known by the design" in card_html(again)


def test_weights_are_those_of_the_design() -> None:
    by_strata = OutcomeWeightedLearner(domain(STRATA), None).fit(X, A, Y)
    frame = pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "p": P})
    by_column = OutcomeWeightedLearner(domain("p"), None).fit(frame, A, Y)
    assert torch.equal(by_strata.problem_.weights, by_column.problem_.weights)


def test_a_private_propensity_is_not_paid_for_where_it_is_known() -> None:
    learner = OutcomeWeightedLearner(domain(0.4), PURE, weights="private").fit(X, A, Y)
    assert learner.settings_["weights"] == "known"
    assert TwoStageRule(domain(), PURE).scheme().name == "private"
    assert TwoStageRule(domain(0.4), PURE, weights="constant").scheme().name == "constant"


def test_a_table_without_one_is_refused() -> None:
    schema = TableSchema.from_domain(domain())
    with pytest.raises(InputError, match=r"give propensity: 0.5 in the domain .* or weights=private"):
        OutcomeWeightedLearner(schema, PURE).fit(X, A, Y)
    assert OutcomeWeightedLearner(schema, PURE, weights="private").scheme().name == "private"


def test_generated_trials_state_theirs() -> None:
    assert OWL().domain().known_propensity.bounds == (0.5, 0.5)
    assert ITR().domain().known_propensity.bounds == (0.5, 0.5)
    assert ITR(confounded=True).domain().known_propensity is None
