import math

import pytest
import torch

from torchdpcate.causal.estimand import ATE, ESTIMANDS, make_estimand
from torchdpcate.errors import InputError
from torchdpcate.fit.losses import BalancingLoss

ETA = 0.1
# treated, controls, W_1, W_0, kappa: the note's table in section 1
TABLE = {
    "ATE": (lambda e: 1 / e, lambda e: 1 / (1 - e), 1 / ETA, 1 / ETA, (1 - ETA) / ETA),
    "ATC": (lambda e: (1 - e) / e, torch.ones_like, (1 - ETA) / ETA, 1.0, (1 - ETA) / ETA),
    "ATT": (torch.ones_like, lambda e: e / (1 - e), 1.0, (1 - ETA) / ETA, (1 - ETA) / ETA),
    "ATO": (lambda e: 1 - e, lambda e: e, 1 - ETA, 1 - ETA, 0.25),
}


@pytest.mark.parametrize("estimand", TABLE)
def test_weights_and_constants_are_those_of_the_table(estimand: str) -> None:
    treated, control, most_treated, most_control, curvature = TABLE[estimand]
    of, e = make_estimand(estimand, ETA), torch.linspace(ETA, 1 - ETA, 101, dtype=torch.float64)
    arms = of.at(e, torch.ones_like(e)), of.at(e, torch.zeros_like(e))
    torch.testing.assert_close(arms[0], treated(e), rtol=1e-13, atol=0)
    torch.testing.assert_close(arms[1], control(e), rtol=1e-13, atol=0)
    assert math.isclose(of.most_treated, most_treated, rel_tol=1e-13)
    assert math.isclose(of.most_control, most_control, rel_tol=1e-13)
    assert math.isclose(BalancingLoss(of).curvature, curvature, rel_tol=1e-13)
    assert math.isclose(of.largest, torch.cat(arms).amax().item(), rel_tol=1e-13)
    assert math.isclose(of.smallest, torch.cat(arms).amin().item() if all(of.clips) else 0.0, rel_tol=1e-13)


def test_the_propensity_is_clipped_to_eta() -> None:
    e = ATE(ETA).propensity(torch.tensor([-50.0, 0.0, 50.0], dtype=torch.float64))
    torch.testing.assert_close(e, torch.tensor([ETA, 0.5, 1 - ETA], dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("estimand", "sign"), [("ATT", 1.0), ("ATC", -1.0)])
def test_the_treated_and_the_controls_are_clipped_where_a_weight_could_grow_alone(estimand: str, sign: float) -> None:
    of, g = make_estimand(estimand, ETA), sign * torch.tensor([-9.0, 0.0, 9.0], dtype=torch.float64)
    other = torch.full_like(g, float(estimand == "ATC"))
    expected = torch.tensor([math.exp(-9.0), 1.0, (1 - ETA) / ETA], dtype=torch.float64)
    torch.testing.assert_close(of.weights(g, other), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("eta", [0.0, -0.1, 1e-12, 0.51, math.nan])
def test_a_clip_out_of_range_is_refused(eta: float) -> None:
    with pytest.raises(InputError, match="overlap"):
        ATE(eta)


@pytest.mark.parametrize("estimand", ESTIMANDS)
@pytest.mark.parametrize("eta", [1e-9, 1e-4, 0.1, 0.499999])
def test_no_record_weighs_more_than_the_constants_say(estimand: str, eta: float) -> None:
    of, g = make_estimand(estimand, eta), torch.linspace(-60, 60, 4001, dtype=torch.float64)
    weights = torch.stack([of.weights(g, torch.full_like(g, z)) for z in (0.0, 1.0)])
    assert weights.max().item() <= of.largest * (1 + 1e-15)
    assert weights.min().item() >= of.smallest * (1 - 1e-15)


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_noise_of_the_logistic_score_is_amplified_by_the_slope_of_the_weights(estimand: str) -> None:
    of, g = make_estimand(estimand, ETA), torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(of.weights(g, torch.full_like(g, z)).sum(), g)[0].abs().item() for z in (0.0, 1.0)]
    assert math.isclose(sum(slopes) / 2 / 0.25, of.amplification, rel_tol=1e-12)
