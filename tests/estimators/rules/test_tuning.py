"""Choice of settings on the private records: the blocks, the budget, the selection, and what is claimed."""

import pytest
import torch

from torchdpcate import load_release
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.rules.learner import OutcomeWeightedLearner, TwoStageRule
from torchdpcate.estimators.rules.pairwise import PairwiseRule
from torchdpcate.estimators.rules.plan import SELECTION
from torchdpcate.estimators.rules.tuning import CrossValidatedRule, PrivatelyTunedRule, _rule_tuning
from torchdpcate.estimators.rules.weighted_erm import WeightedERM, agreement
from torchdpcate.fit.feature_maps import Identity, Legendre
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.private_fit import WeightBounds
from torchdpcate.fit.weights.private import PrivateWeights
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([-1.0] * 2, [1.0] * 2, -2.0, 2.0, better="higher")
BUDGET = PrivacyBudget(2.0, 1e-5)


def records(n: int = 1200, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64) * 2 - 1
    a = (torch.rand(n, generator=generator) < 0.5).double()
    y = ((2 * a - 1) * (x[:, 0] - x[:, 1]) / 2 + torch.randn(n, generator=generator) / 4).clamp(-2, 2).double()
    return x, a, y


def owl(**settings):
    return OutcomeWeightedLearner(DOMAIN, BUDGET, **settings)


def test_a_record_pays_in_one_block_and_all_cost_the_budget(tmp_path):
    path = tmp_path / "ledger.json"
    tuned = PrivatelyTunedRule(owl(ledger_path=path), [5.0, 50.0], features=[Identity(), Legendre(2)])
    release = tuned.fit(*records()).release()
    together = torch.cat(list(tuned.blocks_.values()))
    assert together.sort().values.tolist() == list(range(1200))
    assert list(tuned.blocks_) == ["candidate 1", "candidate 2", "candidate 3", "candidate 4", SELECTION]
    ledger = Ledger.load(path)
    assert [entry.block for entry in ledger.entries] == list(tuned.blocks_)
    assert all(spent["epsilon"] == pytest.approx(2.0) for spent in ledger.spent().values())
    privacy = release.privacy
    assert (privacy.level, privacy.epsilon, privacy.delta, privacy.n) == ("certified", pytest.approx(2.0), 1e-5, 1200)
    assert privacy.tuning["runs"] == 4
    assert torch.equal(tuned.learner_.release().theta, release.theta)
    assert privacy.public["ridge"] == tuned.chosen_["ridge"]
    assert type(release.features) is type(tuned.chosen_["features"])
    assert privacy.public["candidates"][2] == "ridge 5, features Legendre degree 2"
    release.save(tmp_path / "release")
    assert load_release(tmp_path / "release").decide([[0.9, -0.9]]).tolist() == [1]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "learner",
    [
        TwoStageRule(DOMAIN, BUDGET),
        TwoStageRule(DOMAIN, BUDGET, weights=PrivateWeights(block_fraction=0.3)),
        TwoStageRule(DOMAIN, BUDGET, weights="ipw"),
        PairwiseRule(DOMAIN, BUDGET),
        PairwiseRule(DOMAIN, PrivacyBudget(2.0, 0.0), mechanism="output"),
    ],
    ids=["private weights", "split", "indirect sensitivity", "pairs", "pure output"],
)
def test_every_rule_can_be_tuned(learner):
    tuned = PrivatelyTunedRule(learner, [300.0, 3000.0]).fit(*records(3000))
    privacy = tuned.release().privacy
    assert (privacy.level, privacy.epsilon) == ("certified", pytest.approx(2.0))
    assert privacy.delta == pytest.approx(learner.budget.delta)


def test_a_block_moves_nothing_but_its_own_candidate(monkeypatch):
    """With the noise fixed, replacing a record of one block leaves every other candidate's rule as it was."""
    x, a, y = records(400)
    fits = {}
    for changed in (None, "candidate 1", "candidate 2", SELECTION):
        moved = y.clone()
        blocks = PrivatelyTunedRule(owl(), [20.0, 40.0])._blocks(400)
        if changed is not None:
            moved[blocks[changed][0]] = -2.0 * y[blocks[changed][0]].sign()
        seen = []
        with monkeypatch.context() as patch:
            patch.setattr(
                PrivatelyTunedRule, "_best", lambda self, judge, records, rules, seen=seen: seen.extend(rules) or 0
            )
            PrivatelyTunedRule(owl(noise=NoiseSource.fixed(1)), [20.0, 40.0]).fit(x, a, moved)
        fits[changed] = [rule.theta for rule in seen]
    same = {name: [torch.equal(t, u) for t, u in zip(fits[None], fit, strict=True)] for name, fit in fits.items()}
    assert same == {
        None: [True, True],
        "candidate 1": [False, True],
        "candidate 2": [True, False],
        SELECTION: [True, True],
    }


@pytest.mark.slow
def test_the_better_candidate_is_chosen():
    """An intercept alone, and the covariates that decide: over 20 seeds a coin would miss once in a million."""
    feature_maps = [Fixed(), Identity()]
    chosen = [
        PrivatelyTunedRule(owl(seed=seed), [20.0], features=feature_maps).fit(*records()).chosen_["features"]
        for seed in range(20)
    ]
    assert all(type(features) is Identity for features in chosen)


class Fixed(Identity):
    """The intercept alone."""

    @property
    def dimension(self) -> int:
        return 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(x), 1, dtype=torch.float64)


def random_problem(generator: torch.Generator, n: int) -> list[WeightedERM]:
    """Neighbours whose weights lie in [0, 1]; the first record is replaced, everything about it extreme."""
    psi = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    target = torch.randn(n, generator=generator, dtype=torch.float64).sign()
    weights = torch.rand(n, generator=generator, dtype=torch.float64)
    problems = []
    for side in (1.0, -1.0):
        psi, target, weights = psi.clone(), target.clone(), weights.clone()
        psi[0], target[0], weights[0] = side, 1.0, 1.0
        problems.append(WeightedERM(psi, target, weights, HuberHinge(), 1.0, WeightBounds.per_record(1.0)))
    return problems


def test_one_record_moves_a_utility_by_no_more_than_its_bound():
    generator, most, widest = torch.Generator().manual_seed(0), 0.0, 0.0
    for _ in range(50):
        problems = random_problem(generator, 6)
        theta = torch.randn(100, 2, generator=generator, dtype=torch.float64)
        moved = agreement(problems[0], theta) - agreement(problems[1], theta)
        most = max(most, moved.abs().max().item() / problems[0].bounds.second)
        widest = max(widest, (moved.max() - moved.min()).item() / problems[0].bounds.first)
    assert most == pytest.approx(1.0)
    assert widest == pytest.approx(1.0)


def test_the_weights_of_the_others_move_two_rules_apart_by_no_more_than_the_range():
    """What permute-and-flip hides is half the range, which every pair of weights within the bounds keeps."""
    generator = torch.Generator().manual_seed(1)
    psi, target = torch.eye(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    turned = torch.cat([-target[:1], target[1:]])  # the replaced record's label
    theta = 2.0 * torch.cartesian_prod(*8 * [torch.tensor([0.0, 1.0], dtype=torch.float64)]) - 1
    bounds, worst = WeightBounds.with_indirect(1.0, 2.0), 0.0
    for _ in range(50):
        moves = torch.randn(7, generator=generator, dtype=torch.float64)
        moves = torch.cat([moves.new_zeros(1), 2.0 * moves / moves.abs().sum()]).clamp(-1, 1)
        before = torch.cat([moves.new_ones(1), (1 + moves[1:]) / 2])
        ends = [
            agreement(WeightedERM(psi, labels, weights, HuberHinge(), 1.0, bounds), theta)
            for labels, weights in ((target, before), (turned, before - moves))
        ]
        moved = ends[0] - ends[1]
        worst = max(worst, ((moved.max() - moved.min()) / bounds.first).item())
    assert 0.8 < worst <= 1 + 1e-12


def test_the_squared_loss_values_rules_by_magnitudes_as_the_others_do():
    """Its magnitudes are in the targets: a record at the centre of the outcome must count for nothing."""
    x, a, y = records(60)
    y[:30] *= 1e-6
    theta = torch.randn(50, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    settings = {"outcome": "signed_residual", "ridge": 20.0}
    hinge, squared = (
        OutcomeWeightedLearner(DOMAIN, None, loss=loss, radius=1.0, **settings).fit(x, a, y).problem_
        for loss in ("huber_hinge", "squared")
    )
    torch.testing.assert_close(agreement(squared, theta), agreement(hinge, theta), rtol=1e-12, atol=1e-12)
    assert agreement(squared, theta).max() <= squared.stakes.sum()


@pytest.mark.parametrize("gap", ["difference", "sign"])
def test_one_record_moves_the_utility_of_pairs_by_no_more_than_its_bound(gap):
    """The worst record is compared with all others, and every comparison turns round."""
    x, a = torch.ones(6, 2, dtype=torch.float64), torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
    rest, reached = torch.zeros(6, dtype=torch.float64), []
    for other in (-2.0, -1.0, 0.0, 1.0, 2.0):
        ends = []
        for own in (-2.0, 2.0):
            y = rest + other
            y[0] = own
            ends.append(PairwiseRule(DOMAIN, None, gap=gap, ridge=20.0).fit(x, a, y).problem_)
        theta = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
        moved = (agreement(ends[0], theta) - agreement(ends[1], theta)).abs().max().item()
        reached.append(moved / ends[0].bounds.second)
    assert max(reached) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_audited_pair_moves_every_utility_by_the_whole_bound():
    game, noise = _rule_tuning(PrivacyBudget(4.0, 0.0)), NoiseSource.fixed(0)
    first = [(game.draw(dataset, 3000, noise) == 0).double().mean().item() for dataset in (0, 1)]
    # exact: the largest of one candidate and 29 rivals, exponential noise of scale 1/2 each
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(1_000_000, 30, dtype=torch.float64, generator=generator).log().neg() / 2
    exact = [((u[:, 0] + own) > (u[:, 1:].amax(1) + rest)).double().mean().item() for own, rest in ((1, 0), (0, 1))]
    for seen, expected in zip(first, exact, strict=True):
        assert seen == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 3000) ** 0.5 + 2e-3)
    assert 10 < exact[0] / exact[1] < 58  # e^4 = 54.6, and a million draws tell it to 2 %


def test_cross_validation_claims_nothing(tmp_path):
    path = tmp_path / "ledger.json"
    tuned = CrossValidatedRule(owl(ledger_path=path), [1e-3, 20.0, 2000.0], folds=4).fit(*records(402))
    privacy = tuned.release().privacy
    assert (privacy.level, privacy.epsilon, privacy.claims) == ("heuristic", None, False)
    assert "epsilon =" not in privacy.to_markdown().split("## Blocks")[0].replace("epsilon jacobian", "")
    assert "-differentially private" not in privacy.to_markdown()
    assert Ledger.load(path).spent()["total"]["epsilon"] is None
    assert tuned.choice_.ridge in (20.0, 2000.0)
    assert tuned.choice_.table["value"].isna().tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: PrivatelyTunedRule(owl(ledger_path=path), []), "ridges is empty"),
        (lambda path: PrivatelyTunedRule(owl(ledger_path=path), [1.0], features=[]), "features is empty"),
        (lambda path: PrivatelyTunedRule(owl(ledger_path=path), [20.0, 1e-3]), "ridge = 0.001"),
        (lambda path: PrivatelyTunedRule(owl(ledger_path=path), [20.0] * 300), "too few records for 300 candidates"),
        (lambda path: PrivatelyTunedRule(owl(ledger_path=path), [20.0], selection_fraction=1.0), "split fraction"),
        (lambda path: PrivatelyTunedRule(OutcomeWeightedLearner(DOMAIN, None), [20.0]), "budget = None"),
        (lambda path: CrossValidatedRule(owl(ledger_path=path), [20.0], folds=300), "folds = 300"),
        (lambda path: CrossValidatedRule(owl(ledger_path=path), [20.0], folds=1), "folds = 1"),
    ],
)
def test_refusals_come_before_any_spending(make, message, tmp_path):
    path = tmp_path / "ledger.json"
    tuned = make(path)
    with pytest.raises(InputError, match=message):
        tuned.fit(*records(400))
    assert not path.exists()
    with pytest.raises(InputError, match="not fitted"):
        tuned.release()


def test_blocks_that_lack_an_arm_are_fitted_like_any_other():
    """Three treated records among 1,200: which blocks lack one must not be known."""
    x, a, y = records()
    a[:] = 0
    a[:3] = 1
    release = PrivatelyTunedRule(owl(), [5.0, 50.0]).fit(x, a, y).release()
    assert release.privacy.level == "certified"


def test_a_heuristic_statement_has_no_number_of_a_mechanism():
    rule = CrossValidatedRule(owl(), [5.0, 50.0]).fit(*records()).release()
    assert rule.privacy.epsilon is None
    assert not {"perturbation_scale", "epsilon_jacobian", "solver_scale", "ridge"} & set(rule.privacy.public)
