"""Composed scores of more than two actions: range, charges, files, and what is chosen."""

from itertools import pairwise

import pytest
import torch

from torchdpcate.candidates.kinds import Constants, LinearPolicies, Thresholds
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.selection.scores import Scores, clipped, clipped_range, gains_as_scores, utilities
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

DOMAIN = Domain([-3.0] * 3, [3.0] * 3, -8.0, 8.0, overlap=0.1, better="higher")
BUDGET, ACTIONS = PrivacyBudget(4.0, 1e-5), (1, 2, 5)
WEIGHTS = [[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
POLICIES = [Constants(ACTIONS), LinearPolicies(WEIGHTS, [[0.0] * 3] * 2, names=["best", "worst"])]


def records(n: int, seed: int = 0, binary: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The second action helps by x0, the third by x1; x0 and x2 decide who gets which."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64).clamp(-3, 3)
    pi = torch.softmax(torch.stack([0 * x[:, 0], 0.5 * x[:, 0], 0.5 * x[:, 2]], 1), 1)
    a = torch.multinomial(pi, 1, generator=random)[:, 0]
    gain = torch.stack([0 * x[:, 0], x[:, 0], x[:, 1]], 1).gather(1, a[:, None])[:, 0]
    y = gain + x[:, 2] + 0.5 * torch.randn(n, generator=random, dtype=torch.float64)
    return x, torch.tensor(ACTIONS)[a], (y > 0).double() if binary else y.clamp(-8, 8)


def selector(
    domain: Domain | TableSchema = DOMAIN, budget: PrivacyBudget | None = BUDGET, **settings
) -> PolicySelector:
    return PolicySelector(domain, budget, policies=POLICIES, actions=ACTIONS, **settings)


@pytest.fixture(scope="module")
def chosen() -> PolicySelector:
    return selector().fit(*records(4_000))


def test_scores_of_one_record_lie_at_most_a_clip_apart_and_of_two_actions_are_clipped_differences():
    random = torch.Generator().manual_seed(0)
    values = 4 * torch.randn(5_000, 4, generator=random, dtype=torch.float64)
    own = torch.randint(4, (5_000,), generator=random)
    found = clipped(values, own, 2.0)
    assert 2.0 - 1e-9 < float((found.amax(1) - found.amin(1)).max()) <= 2.0 + 1e-12
    # where nothing is clipped they are as they were, up to a constant of the record's own
    inside = values.amax(1) - values.amin(1) <= 2.0
    difference = (found - values)[inside]
    assert torch.allclose(difference, difference[:, :1].expand(-1, 4), atol=1e-12)
    two = Scores(values[:, :2], own.clamp(max=1), 0.0)
    difference = values[:, 1] - values[:, 0]
    assert torch.allclose(two.gains(2.0)[:, 0], difference.clamp(-2, 2), atol=1e-12)


def test_no_neighbours_move_two_policies_further_apart_than_two_clips():
    random, most = torch.Generator().manual_seed(1), 0.0
    cuts = [f for b in (0, 1, 2) for f in [Thresholds("x0", [-1.0, 0.0, 1.0], above=b, below=(b + 1) % 3)]]
    library = PolicyLibrary.of([Constants([0, 1, 2]), *cuts]).setup(DOMAIN, (0, 1, 2))
    x = 6 * torch.rand(1_000, 1, 3, generator=random, dtype=torch.float64) - 3
    values = 50 * torch.randn(1_000, 1, 3, generator=random, dtype=torch.float64)
    own = torch.randint(3, (1_000, 1), generator=random)
    found = [utilities(gains_as_scores(Scores(values[k], own[k], 0.0).gains(1.0)), library, x[k]) for k in range(1_000)]
    for before, after in pairwise(found):
        most = max(most, float((after - before).max() - (after - before).min()))
    assert most == pytest.approx(2.0)
    assert most <= clipped_range(1, 1.0)


def test_the_best_policy_is_chosen_and_its_file_verifies(chosen, tmp_path):
    # it is ahead by more than 40 scales: any other has probability below e^-20
    ahead = chosen.utilities_.topk(2).values
    assert float(ahead[0] - ahead[1]) / chosen.range_sensitivity_ * chosen.mechanism_.epsilon > 20
    release = chosen.release()
    assert release.name == "best"
    assert release.privacy.level == "certified"
    path = release.save(tmp_path / "release.safetensors")
    verify_release(path)
    assert load_release(path).decide([[1.0, 0.5, 0.0], [-1.0, 0.5, 0.0], [-1.0, -1.0, 0.0]]).tolist() == [2, 5, 1]


def test_known_propensities_are_not_paid_for(tmp_path):
    facts = {
        "treatment": {"name": "a", "categories": list(ACTIONS)},
        "outcome": {"name": "y", "low": -8, "high": 8, "better": "higher"},
    }
    facts["covariates"] = {f"x{j}": {"low": -3, "high": 3} for j in range(3)}
    domain = TableSchema.from_dict({**facts, "overlap": 0.1, "propensity": [0.2, 0.3, 0.5]})
    assert selector(domain).nuisances().guarantee == "centred"
    requested = selector(domain, nuisance_guarantee="composed")
    assert not any(step.startswith("propensity") for step in requested.plan(4_000).composed.shares.shares)
    requested.fit(*records(2_000))
    assert requested.plan(2_000).most == 16.0 / 0.2
    assert requested.composed_.fit.propensity[0].tolist() == [0.2, 0.3, 0.5]
    verify_release(requested.release().save(tmp_path / "release.safetensors"))
