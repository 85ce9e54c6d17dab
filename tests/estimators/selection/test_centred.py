"""A choice of a policy by scores about a private centre of the outcome, the default of trials."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.selection.scores import score_step
from torchdpcate.estimators.selection.selector import PolicySelector
from torchdpcate.fit.arms.base import GuaranteedNuisances
from torchdpcate.fit.arms.fixed import PublicNumbers
from torchdpcate.fit.arms.private import CentredNuisances, CentrePlan, centred_range
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

DOMAIN = Domain(
    [0.0, -1.0], [1.0, 1.0], outcome_low=0.0, outcome_high=100.0, overlap=0.1, propensity=0.4, better="higher"
)
POLICIES = [Constants([0, 1]), Thresholds("x0", [0.25, 0.5, 0.75])]


def records(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Treatment helps where x0 is above a half; outcomes use a twentieth of their range."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=random, dtype=torch.float64)
    a = (torch.rand(n, generator=random, dtype=torch.float64) < 0.4).double()
    noise = torch.randn(n, generator=random, dtype=torch.float64).clamp(-2, 2)
    return x, a, 4 + 2 * a * (x[:, 0] - 0.5).sign() + noise


def selector(budget: PrivacyBudget | None, domain: Domain = DOMAIN, **settings) -> PolicySelector:
    return PolicySelector(domain, budget, policies=POLICIES, **{"noise": NoiseSource.fixed(0), **settings})


def test_a_centre_finds_what_scores_about_the_middle_do_not():
    budget, records_of = PrivacyBudget(2.0, 0.0), records(4_000)
    likely = []
    for guarantee in (None, "fixed"):
        chosen = selector(budget, nuisance_guarantee=guarantee).fit(*records_of)
        likely.append(chosen.mechanism_.probabilities(chosen.utilities_)[3].item())  # x0 > 0.5
    assert likely[0] > 0.9 > likely[1]


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("n", [1_000, 4_000])
def test_the_scoring_block_pays_for_centre_and_choice_and_all_is_verified(n, delta, tmp_path):
    chosen = selector(PrivacyBudget(1.0, delta), noise=None).fit(*records(n))
    release = chosen.release()
    plan = CentrePlan(n, 1.0)
    (block,) = release.privacy.blocks
    assert [charge.event.epsilon for charge in block.charges] == [pytest.approx(plan.cost), chosen.mechanism_.epsilon]
    assert chosen.mechanism_.epsilon == pytest.approx(1 - plan.cost)
    assert release.privacy.level == "certified"
    assert release.privacy.epsilon <= 1.0
    path = release.save(tmp_path / "release.safetensors")
    assert verify_release(path)
    assert load_release(path).privacy.public["centre"] == release.privacy.public["centre"]


@dataclass(frozen=True)
class Released(CentredNuisances):
    """A centre and a clip that are released already."""

    centre: float = 30.0
    clip: float = 20.0

    def fit(self, records, facts, *, session=None):
        means = torch.full((facts.arms,), self.centre, dtype=torch.float64)
        span = facts.propensity_range()
        bound = centred_range(self.clip, span.min().item())
        return GuaranteedNuisances(PublicNumbers(span[:, 0], means), bound, {}, clip=self.clip)


THREE = TableSchema.from_dict(
    {
        "treatment": {"name": "a", "categories": [0, 1, 2]},
        "outcome": {"name": "y", "low": 0, "high": 100, "better": "higher"},
        "covariates": {"x0": {"low": 0, "high": 1}, "x1": {"low": -1, "high": 1}},
        "overlap": 0.1,
        "propensity": [0.3, 0.2, 0.5],
    }
)


@pytest.mark.parametrize(("domain", "actions", "needed"), [(DOMAIN, (0, 1), 100.0), (THREE, (0, 1, 2), 200.0)])
def test_no_neighbour_moves_policies_farther_apart_than_the_range_which_one_attains(domain, actions, needed):
    policies = [Constants(list(actions)), Thresholds(["x0", "x1"], [0.3, 0.6], above=1, below=0)]
    x, _, y = records(30, seed=3)
    a = torch.arange(30).double() % len(actions)

    def replaced(at: list[float], action: int, outcome: float) -> PolicySelector:
        x2, a2, y2 = x.clone(), a.clone(), y.clone()
        x2[0], a2[0], y2[0] = torch.tensor(at), action, outcome
        return PolicySelector(domain, None, policies=policies, nuisance=Released(), actions=actions).fit(x2, a2, y2)

    def apart(one: PolicySelector, other: PolicySelector) -> float:
        move = other.utilities_ - one.utilities_
        return (move.max() - move.min()).item()

    first, random = replaced([0.1, -0.5], 1, 100.0), np.random.default_rng(0)
    bound = first.range_sensitivity_
    for _ in range(60):
        at = random.uniform([0, -1], [1, 1]).tolist()
        other = replaced(at, int(random.choice(actions)), float(random.choice([0.0, 30.0, 50.0, 100.0])))
        assert apart(first, other) <= bound
    assert apart(first, replaced([0.1, -0.5], 1, 0.0)) == pytest.approx(needed, abs=1e-9)
    assert bound == pytest.approx(needed, rel=1e-9)


def test_rounding_leaves_room_for_the_clip_too():
    """Scores are at most half as large as the grid is for, which the two operations of the clip take from."""
    chosen = PolicySelector(DOMAIN, None, policies=POLICIES, nuisance=Released()).fit(*records(8))
    step = score_step(8, DOMAIN, 0.1)
    margin = chosen.range_sensitivity_ - chosen.guaranteed_.range_sensitivity - 2 * step
    assert margin >= 2.0**-48 * 100.0 * (0.5 + 1 / 0.1)
