"""A propensity that the domain knows, in the choice of a policy."""

import pytest
import torch

from torchdpcate import Domain, PolicySelector, PrivacyBudget
from torchdpcate.candidates.kinds import Constants, Thresholds
from torchdpcate.fit.arms.fixed import FixedNuisances
from torchdpcate.release.file import load_release
from torchdpcate.verify.file import verify_release

POLICIES = [Constants([0, 1]), Thresholds("x0", [0.0, 0.5])]
N = 2000
STRATA = {"x1": {0: 0.3, 1: 0.6}}


def domain(propensity=None) -> Domain:
    return Domain([-1, 0], [1, 1], -1.0, 1.0, 0.1, two_levels=[False, True], propensity=propensity, better="higher")


def drawn() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(N, 2, generator=generator, dtype=torch.float64) - 1
    x[:, 1] = (x[:, 1] > 0).double()
    p = torch.tensor([0.3, 0.6], dtype=torch.float64)[x[:, 1].long()]
    a = (torch.rand(N, generator=generator, dtype=torch.float64) < p).double()
    return x, a, x[:, 0] * a, p


X, A, Y, P = drawn()


def test_scores_weigh_by_each_records_own() -> None:
    settings = {"policies": POLICIES, "nuisance_guarantee": "fixed"}
    by_strata = PolicySelector(domain(STRATA), None, **settings).fit(X, A, Y)
    by_column = PolicySelector(domain("p"), None, **settings).fit(X, A, Y, P)
    assert torch.equal(by_strata.utilities_, by_column.utilities_)
    assert by_strata.range_sensitivity_ < by_column.range_sensitivity_
    # by hand: treat all against none, scores (y / p(a)) for a middle of 0
    value = (Y * A / P).sum() - (Y * (1 - A) / (1 - P)).sum()
    assert (by_strata.utilities_[1] - by_strata.utilities_[0]).item() == pytest.approx(value.item(), rel=1e-6)


def test_a_number_is_the_setting_of_fixed_nuisances() -> None:
    known = PolicySelector(domain(0.4), None, policies=POLICIES, nuisance_guarantee="fixed").fit(X, A, Y)
    given = PolicySelector(domain(), None, policies=POLICIES, nuisance=FixedNuisances(0.4)).fit(X, A, Y)
    assert torch.equal(known.utilities_, given.utilities_)
    assert known.range_sensitivity_ == given.range_sensitivity_


@pytest.mark.parametrize("guarantee", ["centred", "fixed"])
@pytest.mark.parametrize("given", [0.4, STRATA, "p"])
def test_choices_are_released_and_verified(guarantee, given, tmp_path) -> None:
    budget = PrivacyBudget(8.0, 0.0)
    selector = PolicySelector(domain(given), budget, policies=POLICIES, nuisance_guarantee=guarantee)
    release = selector.fit(X, A, Y, P if given == "p" else None).release()
    release.save(tmp_path / "r.safetensors")
    assert verify_release(tmp_path / "r.safetensors")
    assert load_release(tmp_path / "r.safetensors").domain.known_propensity is not None
