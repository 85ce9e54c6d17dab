import pytest
import torch

from tests.contract import passing
from tests.verify import forgeries as forge
from tests.verify import test_average, test_composed, test_policy, test_subgroups
from tests.verify import test_file as others
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.average.composed import ComposedAverageEffect
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.fit.convex import ConvexNuisanceConfig
from torchdpcate.heads.recipes import LinearSecondStage
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.verify.file import verify_release

AVERAGES = ("ATE", "strata of ATE", "ATT")


def composed_average():
    domain = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2, better="higher")
    return test_average.fitted(ComposedAverageEffect(domain, PrivacyBudget(8.0, 1e-6)))


KINDS = {
    **others.MADE,
    **{f"composed, {name}": make for name, make in test_composed.MADE.items()},
    **{f"subgroups, {name}": lambda name=name: test_subgroups.released(name) for name in test_subgroups.SETTINGS},
    **{f"average, {name}": lambda name=name: test_average.fitted(test_average.LEARNERS[name]()) for name in AVERAGES},
    "average, composed": composed_average,
    "policy, fixed": test_policy.released,
}
DEFAULT = ("objective", "owl", "composed, trial", "subgroups, laplace", "average, ATE", "policy, fixed")
"""One kind of each family, which other tests run by default."""
WITHOUT_CONTRACT = (
    *("composed, queries", "plug_in", "fixed", "influence", "neural", "cross_fit", "squared kernel"),
    *("composed, fixed noise", "composed, own solver"),
)
"""Kinds that ``PlanContract`` is not tested on, which forges all others."""


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return the path of a release of a kind; made once."""
    return forge.written(KINDS, tmp_path_factory.mktemp("every"))


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", WITHOUT_CONTRACT)
def test_a_release_verifies_and_no_forgery_of_it(kind, written, tmp_path):
    verify_release(written(kind))
    passed, refused = passing(written(kind), forge.EVERY.items(), tmp_path)
    assert passed == []
    assert refused >= 4


@pytest.mark.parametrize("names", forge.LOOK_ALIKE)
def test_names_that_look_alike_are_refused(names, written, tmp_path):
    passed, refused = passing(written("objective"), [(names, forge.LOOK_ALIKE[names])], tmp_path)
    assert (passed, refused) == ([], 1)


def test_every_forgery_applies_to_some_kind(written):
    for name, edit in forge.EVERY.items():
        applied = 0
        for kind in DEFAULT:
            try:
                edit(forge.opened(written(kind)))
            except forge.DoesNotApplyError:
                continue
            applied += 1
        assert applied, name


@pytest.mark.parametrize(("epsilon", "delta"), [(6.695, 1e-6), (7.28, 1e-6), (7.709, 1e-5)])
def test_a_budget_whose_plan_is_made_anew_one_place_beside_verifies(epsilon, delta, tmp_path):
    domain = Domain([0.0], [1.0], outcome_low=-1.0, outcome_high=2.0, overlap=0.2, better="higher")
    release = test_average.fitted(ComposedAverageEffect(domain, PrivacyBudget(epsilon, delta)))
    verify_release(release.save(tmp_path / "release.safetensors"))


def test_nuisances_of_a_known_propensity_fit_none_and_verify(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 5, generator=generator, dtype=torch.float64)
    a = (torch.rand(600, generator=generator) < 0.5).double()
    domain = Domain([0.0] * 5, [1.0] * 5, -1.0, 2.0, propensity=0.5, better="higher")
    blocks = {"nuisance": ConvexNuisanceConfig(), "second_stage": LinearSecondStage()}
    learner = RLearner(domain, PrivacyBudget(4.0, 1e-6), **blocks)
    release = learner.fit(x, a, x[:, 0] * a).release_function()
    assert not release.nuisances.propensity.any()
    verify_release(release.save(tmp_path / "release.safetensors"))
