"""Releases of effects by a second stage keep the contract of plans."""

import pickle
from typing import ClassVar

from tests.contract import PlanContract, plan_of, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.test_file import MADE
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.fit.screening import Screening
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.papers.oprescu import Dataset2
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.release.file import load_release
from torchdpcate.release.release import EffectRelease

KINDS = (
    *("output", "objective", "statistics", "queries", "gaussian_process", "smooth_sensitivity", "dp_sgd_head"),
    *("convex", "kernel", "tangent", "public threshold", "fourier", "nystrom", "representation", "holding influence"),
)


def screened() -> EffectRelease:
    """A release of four covariates of thirty, which the nuisance block has chosen."""
    study = Dataset2(n=1_200, queries=5, seed=1).load()
    settings = {"nuisance": ConvexNuisanceConfig(), "second_stage": LinearSecondStage(ridge=0.05)}
    learner = RLearner(study.domain, PrivacyBudget(8.0, 1e-5), screen=Screening(most=4), **settings)
    return learner.fit(study.records.x, study.records.a, study.records.y).release_function("output")


class TestContract(PlanContract):
    made: ClassVar = {name: MADE[name] for name in KINDS} | {"screened": screened}
    default = ("convex",)
    untold = ("seed", "nuisances", "features", "head")
    untold_in: ClassVar = {
        "dp_sgd_head": ("max_grad_norm", "threshold", "ridge", "epsilon", "delta"),  # the run is as it was charged
        "tangent": ("coefficients",),
        "screened": ("columns",),  # which were chosen follows from the records alone
        "holding influence": ("ridge",),  # the scale of its noise is secret, and nothing public follows from it
    }
    followed = ("nuisances", "features", "queries", "answers")
    followed_in: ClassVar = {"dp_sgd_head": ("theta",), "tangent": ("noise_scales",)}

    def test_the_plan_is_made_anew_from_the_file(self, case, written):
        release = load_release(written(case))
        plan = plan_of(release)
        assert list(plan.problems(release)) == []
        assert pickle.loads(pickle.dumps(plan)).public() == plan.public()
