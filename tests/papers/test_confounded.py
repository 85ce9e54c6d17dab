import math

import pytest
import torch

from tests.papers.moments import SDS, near
from torchdpcate.errors import InputError
from torchdpcate.papers.confounded import Confounded

N = 400_000


@pytest.fixture(scope="module")
def records():
    return Confounded().draw(N, torch.Generator().manual_seed(0))


def test_treatment_outcome_and_domain_are_as_stated(records) -> None:
    study = Confounded()
    domain, pi, mean = study.domain(), study.propensity(records.x), study.outcome(records.x)
    domain.check_covariates(records.x)
    domain.check_outcome(records.y)
    assert near(records.x.flatten(), 0.0)
    assert near(records.x.square().flatten(), 1 / 3)
    assert set(records.y.tolist()) == {0.0, 1.0}
    corners = 2.0 * torch.cartesian_prod(*[torch.arange(2.0).double()] * 4) - 1.0
    at_corners = study.propensity(corners)
    assert (float(at_corners.min()), float(at_corners.max())) == pytest.approx((0.0691, 0.9427), abs=5e-5)
    assert float(torch.minimum(at_corners, 1 - at_corners).min()) >= domain.overlap
    for weight in (1.0, *records.x.T):  # whole and along each covariate
        assert near((records.a - pi) * weight, 0.0)
        assert near((records.y - mean.gather(1, records.a.long()[:, None])[:, 0]) * weight, 0.0)


def test_the_logits_are_those_of_the_note() -> None:
    x = torch.tensor([[0.5, -1.0, 0.25, 1.0]], dtype=torch.float64)
    study = Confounded()
    assert study.propensity(x).logit().item() == pytest.approx(0.1 + 0.4 - 0.8 - 0.125 - 0.6)
    untreated = -0.3 + 0.5 - 0.8 - 0.15 + 0.5
    assert study.outcome(x).logit()[0].tolist() == pytest.approx([untreated, untreated + 0.8])
    assert study.effect(x).item() == pytest.approx(torch.tensor([untreated + 0.8, untreated]).sigmoid().diff().neg())


def test_averages_are_those_of_a_large_sample(records) -> None:
    study = Confounded()
    pi, effect = study.propensity(records.x), study.effect(records.x)
    h = {"ATE": torch.ones_like(pi), "ATT": pi, "ATC": 1 - pi, "ATO": pi * (1 - pi)}
    for estimand, weight in h.items():
        assert near(weight * (effect - study.average_effect(estimand)), 0.0)
    assert study.average_effect("ATE") == pytest.approx(0.16964, abs=1e-4)  # the note's, of a simulation
    with pytest.raises(InputError, match="estimand = 'LATE': choose one of ATE, ATC, ATT, ATO"):
        study.average_effect("LATE")


def test_the_plain_difference_is_biased_as_the_note_says(records) -> None:
    treated = records.a == 1
    naive = records.y[treated].mean() - records.y[~treated].mean()
    assert float(naive) - Confounded().average_effect("ATE") == pytest.approx(0.0905, abs=SDS * 1 / math.sqrt(N))
