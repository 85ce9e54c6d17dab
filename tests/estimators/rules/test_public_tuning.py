"""Choice of ridge on public records: the batched solves, the value, and what it chooses."""

import pytest
import torch

from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules import public_tuning
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.estimators.rules.pairwise import PairwiseRule
from torchdpcate.estimators.rules.public_tuning import Resamples, tune_on_public
from torchdpcate.evaluation.metrics import policy_value
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([-1.0] * 3, [1.0] * 3, -2.0, 2.0, better="higher")
RIDGES = [0.5, 5.0, 50.0, 500.0]


def records(n: int = 600, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=generator, dtype=torch.float64) * 2 - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = ((2 * a - 1) * (x[:, 0] - x[:, 1]) / 2 + torch.randn(n, generator=generator) / 2).clamp(-2, 2).double()
    return x, a, y


def learner(epsilon: float = 1.0, **settings):
    return OutcomeWeightedLearner(DOMAIN, PrivacyBudget(epsilon, 0.0), **settings)


def test_many_data_sets_are_solved_as_one_by_one():
    problems = [learner(ridge=2.0).fit(*records(80, seed)).problem_ for seed in range(4)]
    together = Resamples.of(problems).with_ridge(3.0)
    linear_terms = torch.randn(4, 4, dtype=torch.float64)
    alone = [p.with_ridge(3.0) for p in problems]
    expected = torch.cat(
        [p.solve(linear_term[None], 1e-10) for p, linear_term in zip(alone, linear_terms, strict=True)]
    )
    torch.testing.assert_close(together.solve(linear_terms, 1e-10), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(together.minimiser, torch.stack([p.minimiser for p in alone]), rtol=1e-7, atol=1e-9)
    assert (together.n, together.size) == (80, 4)


def test_values_are_the_self_normalised_estimate():
    x, a, y = records(50)
    from torchdpcate.data.records import CausalData

    treated = torch.rand(3, 50) < 0.5
    kept = torch.rand(3, 50) < 0.6
    propensity = 0.2 + 0.6 * torch.rand(3, 50, dtype=torch.float64)
    values = public_tuning._values(treated, kept, CausalData(x, a, y), propensity)
    for k in range(3):
        rest = kept[k]
        expected = policy_value(treated[k][rest].long(), a[rest], y[rest], propensity[k][rest])
        assert values[k].item() == pytest.approx(expected)


def test_records_kept_aside_are_not_fitted_to(monkeypatch):
    seen = {}
    monkeypatch.setattr(public_tuning, "choose_ridge", lambda *args: seen.update(drawn=args[2], held=args[3]))
    tune_on_public(learner(), *records(100), RIDGES, n=400, repeats=7)
    assert len(seen["drawn"]) == len(seen["held"]) == 7
    for drawn, held in zip(seen["drawn"], seen["held"], strict=True):
        assert len(drawn) == 400
        assert not set(drawn.tolist()) & set(held.tolist())


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "rule",
    [
        learner(),
        learner(mechanism="output", perturbation="gamma"),
        OutcomeWeightedLearner(DOMAIN, None),
        TwoStageRule(DOMAIN, PrivacyBudget(1.0, 1e-5)),
        PairwiseRule(DOMAIN, PrivacyBudget(1.0, 1e-5), perturbation="gaussian"),
    ],
    ids=["owl", "output", "without noise", "two stage", "pairwise"],
)
def test_every_rule_can_be_tuned(rule):
    before = dict(rule.get_params(deep=False))
    choice = tune_on_public(rule, *records(), RIDGES, n=300, repeats=4, seed=3)
    assert choice.ridge in RIDGES
    assert choice.table["ridge"].tolist() == RIDGES
    assert choice.table["value"].max() == choice.table.set_index("ridge")["value"][choice.ridge]
    again = tune_on_public(rule, *records(), RIDGES, n=300, repeats=4, seed=3)
    assert again.table.equals(choice.table)
    assert rule.get_params(deep=False) == before
    assert not hasattr(rule, "problem_")


@pytest.mark.slow
def test_the_choice_follows_records_and_budget():
    """Output noise of scale 1/ridge drowns a small ridge's rule, until n epsilon is large."""
    values = {}
    for n, epsilon in ((200, 2.0), (5000, 500.0)):
        rule = learner(epsilon, mechanism="output", perturbation="gamma")
        values[n] = tune_on_public(rule, *records(2000), [0.1, 100.0], n=n, repeats=40).table["value"].tolist()
    assert values[200][1] > values[200][0] + 0.05
    assert values[5000][0] > values[5000][1] - 0.02


def test_ridges_without_a_release_are_left_out_or_refused():
    choice = tune_on_public(learner(), *records(), [1e-3, 50.0], n=300, repeats=2)
    assert choice.ridge == 50.0
    assert choice.table["value"].isna().tolist() == [True, False]
    with pytest.raises(InputError, match="none of them allows a release"):
        tune_on_public(learner(), *records(), [1e-3], n=300, repeats=2)
    with pytest.raises(InputError, match="ridges is empty"):
        tune_on_public(learner(), *records(), [], n=300, repeats=2)


def test_the_trials_noise_is_no_private_noise():
    rule = learner(noise=NoiseSource.system())
    first = tune_on_public(rule, *records(), RIDGES, n=300, repeats=3, seed=1)
    assert first.table.equals(tune_on_public(rule, *records(), RIDGES, n=300, repeats=3, seed=1).table)
