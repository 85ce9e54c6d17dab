"""One rule for all plans: they expect outcomes as spread as the domain states, and else a share of the range."""

import numpy as np
import pytest

from tests.registered import (
    AverageEffect,
    EffectRule,
    PolicySelector,
    PrivateResidual,
    RLearner,
    SubgroupEffects,
)
from torchdpcate.candidates.kinds import Constants
from torchdpcate.cli.main import main
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.effect_plan import ErrorPrior
from torchdpcate.estimators.selection.composed import ComposedScores
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget

SOME = PrivacyBudget(1.0, 1e-5)
N = 4000


def costs(sd: float | None, propensity: float | None = None) -> Domain:
    known = {} if propensity is None else {"propensity": propensity}
    return Domain([0.0] * 3, [1.0] * 3, 0.0, 60_000.0, outcome_sd=sd, better="lower", **known)


PLANNED = {
    "an effect": lambda domain: RLearner(domain, SOME).expected_noise(N).value,
    "two blocks": lambda domain: (
        RLearner(domain, SOME, second_stage=LinearSecondStage(), nuisance=ConvexNuisanceConfig(degree=1))
        .expected_noise(N)
        .value
    ),
    "a rule": lambda domain: EffectRule(domain, SOME).expected_noise(N).value,
    "an average": lambda domain: AverageEffect(domain, SOME).planned_error(N).total,
    "an average's sampling": lambda domain: AverageEffect(domain, SOME).planned_error(N).sampling,
    "subgroups": lambda domain: SubgroupEffects(domain, SOME, subgroups=[{"x0": [0.5]}]).expected_noise(N).value,
    "weights": lambda domain: PrivateResidual().unit(domain),
    "a choice": lambda domain: (
        PolicySelector(domain, SOME, policies=[Constants([0, 1])], nuisance=ComposedScores()).expected_noise(N).value
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_stated_deviation_is_what_plans_expect(name: str) -> None:
    usual, stated, larger = (PLANNED[name](costs(sd)) for sd in (None, 600.0, 1200.0))
    assert stated < 0.5 * usual
    assert stated < larger <= 2 * stated * (1 + 1e-9)


def test_shares_of_a_prior_are_those_of_the_deviation() -> None:
    usual, stated = ErrorPrior.of(costs(None)), ErrorPrior.of(costs(3000.0))
    for name in ("deviation", "effect", "confounding"):
        assert getattr(stated, name) == pytest.approx(getattr(usual, name) / 4)
    assert (stated.mean, stated.treated) == (usual.mean, usual.treated)


def test_plans_say_whose_number_it_is() -> None:
    for learner in (RLearner, AverageEffect, EffectRule):
        assert "(outcome.sd, as stated)" in " ".join(learner(costs(600.0), SOME).expected_noise(N).assumes)
        assert "as stated" not in " ".join(learner(costs(None), SOME).expected_noise(N).assumes)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["second_stage=linear", "nuisance=convex"], marks=pytest.mark.slow),
        ["task=average_effect"],
    ],
)
def test_every_task_says_n_and_epsilon_for_a_precision(words: list[str], tmp_path, capsys) -> None:
    """A stated deviation was refused of two blocks: residual_scale is for second_stage=adaptive alone."""
    (tmp_path / "domain.yaml").write_text(
        "treatment: a\noutcome: {name: y, low: 0, high: 60000, sd: 3000}\ncovariates: {x: {low: 0, high: 1}}\n"
        "propensity: 0.5\n"
    )
    given = ["data.path=none.csv", f"data.domain={tmp_path}/domain.yaml", "n=2000", "precision=300", *words]
    assert main(["plan", *given]) == 0
    said = " ".join(capsys.readouterr().out.split())
    least = said.partition("least n for noise of 300 ")[2].split()[0]
    assert 100 < float(least.replace(",", "")) < 10_000
    assert np.isfinite(float(said.partition("least epsilon for noise of 300 ")[2].split()[0]))
