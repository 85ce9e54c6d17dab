"""An estimand that a user adds: one class and its entry, which every estimator that can estimates."""

import pytest
import torch

from torchdpcate.causal.estimand import ESTIMANDS, Estimand
from torchdpcate.data.domain import Domain
from torchdpcate.errors import InputError
from torchdpcate.estimators.average.covariate_balancing import CovariateBalancingEffect
from torchdpcate.estimators.average.doubly_robust import DoublyRobustEffect
from torchdpcate.estimators.average.outcome_table import DifferenceInMeansEffect
from torchdpcate.estimators.average.peers import HorvitzThompsonEffect, SubsampleAggregateEffect
from torchdpcate.papers.confounded import Confounded
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.verify.file import verify_release

DOMAIN, BUDGET = Domain([-1.0] * 4, [1.0] * 4, 0.0, 1.0), PrivacyBudget(400.0, 1e-5)


class HalfOverlap(Estimand):
    """h = sqrt(e (1 - e)), half way between ATE and ATO."""

    name = "HALF"
    powers = (-0.5, -0.5)


@pytest.fixture(autouse=True)
def _added(monkeypatch):
    monkeypatch.setitem(ESTIMANDS, HalfOverlap.name, HalfOverlap)


@pytest.mark.parametrize(
    "make",
    [
        lambda **known: CovariateBalancingEffect(DOMAIN, BUDGET, **known),
        lambda **known: CovariateBalancingEffect(DOMAIN, BUDGET, readout="outcome_table", **known),
        lambda **known: SubsampleAggregateEffect(DOMAIN, BUDGET, groups=20, **known),
        lambda **known: DifferenceInMeansEffect(DOMAIN, BUDGET, **known),
    ],
    ids=["balanced_difference", "outcome_table", "subsample_aggregate", "difference_in_means"],
)
def test_it_is_estimated_released_and_verified(make, tmp_path):
    records = Confounded().draw(20_000, torch.Generator().manual_seed(0))
    release = make(estimand="HALF", overlap=0.05).fit(records.x, records.a, records.y).release()
    assert (release.estimand, release.privacy.level) == ("HALF", "conditional")  # whose bounds are not proved
    tolerance = 0.12 if release.privacy.mechanism == "difference_in_means" else 0.03
    assert abs(release.estimate - Confounded().average_effect("HALF")) < tolerance
    assert verify_release(release.save(tmp_path / "release.safetensors"))


def test_what_cannot_estimate_it_says_what_it_can():
    records = Confounded().draw(500, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"HorvitzThompsonEffect estimates ATE$"):
        HorvitzThompsonEffect(DOMAIN, BUDGET, estimand="HALF").fit(records.x, records.a, records.y)
    with pytest.raises(InputError, match=r"DoublyRobustEffect estimates ATE, ATC, ATT, ATO$"):
        DoublyRobustEffect(DOMAIN, BUDGET, estimand="HALF").fit(records.x, records.a, records.y)
    with pytest.raises(InputError, match="loss = balancing: none is known for estimand = HALF"):
        CovariateBalancingEffect(DOMAIN, BUDGET, estimand="HALF", loss="balancing").fit(records.x, records.a, records.y)
