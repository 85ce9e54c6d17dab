import math

import pytest
import torch

from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose, dp_sgd_noise_multiplier, privacy_curve
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import (
    analytic_gaussian_sigma,
    classical_gaussian_sigma,
    gaussian_epsilon,
    laplace_scale,
    largest_smoothness,
    smooth_gaussian_delta,
    smooth_gaussian_multiplier,
    smooth_sensitivity_multiplier,
    smoothness,
    theorem1_multiplier,
)
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import ApproximateEvent, DPSGDEvent, GaussianEvent, PureEvent, event_from_dict
from torchdpcate.privacy.exact_sums import sum_grid
from torchdpcate.privacy.guarantee import Condition, Guarantee, Level
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.mechanisms import GaussianMechanism, KNormMechanism, LaplaceMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.selection import SELECTIONS

NAN, INF = math.nan, math.inf
BUDGET = PrivacyBudget(1.0, 1e-5)
NOISE, FIXED = NoiseSource.system(), NoiseSource.fixed(0)
BLOCKS = {"a": BUDGET, "b": BUDGET}
OPEN, FAILED = Condition("C2", "the bound is smooth", None), Condition("C3", "n is large", False)


def ledger() -> Ledger:
    return Ledger(BLOCKS)


CASES = {
    "budget": [
        *((lambda e=e: PrivacyBudget(e, 1e-5), "epsilon") for e in (0, -1.0, INF, NAN, "much", None)),
        *((lambda d=d: PrivacyBudget(1.0, d), "delta") for d in (-1e-9, 1.0, 2, NAN)),
        (lambda: PrivacyBudget.from_dict({"epsilon": 1.0}), "keys"),
    ],
    "guarantee": [
        (lambda: Guarantee(Level.CERTIFIED, None), "budget"),
        (lambda: Guarantee(Level.CONDITIONAL, None), "budget"),
        (lambda: Guarantee(Level.CERTIFIED, BUDGET, (OPEN,)), "certified"),
        (lambda: Guarantee(Level.CERTIFIED, BUDGET, (FAILED,)), "certified"),
        (lambda: Guarantee("sure", BUDGET), "level"),
    ],
    "charge": [
        (lambda fields=fields: Charge.from_dict(fields), "charge")
        for fields in (
            {"purpose": "none"},
            {"purpose": "release", "mechanism": 3},
            {"purpose": "release", "mechanism": "a\nb"},
            {"purpose": "release", "text": "my words"},
            {"purpose": ["release"]},
        )
    ],
    "events": [
        (lambda: DPSGDEvent(0.0, 0.1), "noise_multiplier"),
        (lambda: DPSGDEvent(1.0, 0.0), "sampling_rate"),
        (lambda: DPSGDEvent(1.0, 1.1), "sampling_rate"),
        (lambda: GaussianEvent(-1.0), "noise_multiplier"),
        (lambda: PureEvent(NAN), "epsilon"),
        (lambda: ApproximateEvent(1.0, 1.0), "delta"),
        *(
            (lambda values=values: event_from_dict(values), "event")
            for values in ({}, {"kind": "magic"}, {"kind": "pure"}, {"kind": "pure", "epsilon": 1.0, "more": 2}, [1])
        ),
    ],
    "accounting": [
        (lambda: compose([(PureEvent(1.0), 1.5)], 1e-5), "count"),
        (lambda: compose([], 1.0), "delta"),
        (lambda: privacy_curve([], [1.0]), "charges"),
        (
            lambda: dp_sgd_noise_multiplier(1.0, 1e-5, 0.1, 211, also=[(PureEvent(1.0), 1)]),
            "charges alone cost 1",
        ),
        (lambda: dp_sgd_noise_multiplier(1.0, 0.0, 0.1, 211), "delta > 0"),
        (lambda: dp_sgd_noise_multiplier(1.0, 1e-13, 0.1, 211), "delta above 1e-11"),
        (lambda: dp_sgd_noise_multiplier(1.0, 1e-5, 0.1, 0), "steps"),
        (lambda: dp_sgd_noise_multiplier(1.0, 1e-5, 0.0, 211), "sampling_rate"),
    ],
    "calibration": [
        (lambda: analytic_gaussian_sigma(0.0, 1e-5), "epsilon"),
        (lambda: analytic_gaussian_sigma(1.0, 1e-5, -1.0), "sensitivity"),
        (lambda: laplace_scale(1.0, 0.0), "sensitivity"),
        (lambda: theorem1_multiplier(1.0, 1e-5, 1), "n ="),
        (lambda: smoothness(1.0, 1e-5, 0), "dimension"),
        (lambda: gaussian_epsilon(INF, 1e-5), "noise_multiplier"),
        *(
            (call, r"delta = 0: .* needs delta > 0")
            for call in (
                lambda: analytic_gaussian_sigma(1.0, 0.0),
                lambda: classical_gaussian_sigma(0.5, 0.0),
                lambda: theorem1_multiplier(1.0, 0.0, 100),
                lambda: smooth_sensitivity_multiplier(1.0, 0.0),
                lambda: smoothness(1.0, 0.0, 3),
            )
        ),
    ],
    "smooth Gaussian": [
        (lambda: largest_smoothness(0.0, 1), "epsilon"),
        (lambda: largest_smoothness(1.0, 0), "dimension"),
        (lambda: smooth_gaussian_delta(1.0, 4.0, 10, 0.05), "smoothness"),
        (lambda: smooth_gaussian_delta(1.0, 0.5, 10, 0.01), "multiplier"),
        (lambda: smooth_gaussian_multiplier(1.0, 0.0, 10, 0.01), "delta"),
        (lambda: smooth_gaussian_multiplier(1.0, 1e-5, 10, 0.0), "smoothness"),
    ],
    "mechanisms": [
        (lambda: GaussianMechanism(PrivacyBudget(1.0, 0.0), 1.0), "needs delta > 0"),
        (lambda: GaussianMechanism(BUDGET, 0.0), "sensitivity"),
        (lambda: GaussianMechanism(BUDGET, 1.0).release(torch.tensor([0.0, NAN]), NOISE), "not finite"),
        (lambda: GaussianMechanism(BUDGET, 1.0).release(torch.tensor([0.0, INF]), NOISE), "not finite"),
        (lambda: LaplaceMechanism(0.0, 1.0), "epsilon"),
        (lambda: KNormMechanism(1.0, 1.0, order=1), "order = 1"),
    ],
    "noise": [
        (lambda: NOISE.gaussian(3, 0.0), "scale"),
        (lambda: NOISE.laplace(-1, 1.0), "size"),
        (lambda: NOISE.k_norm(2, 2, 1.0, order=3), "order = 3"),
        (lambda: NOISE.k_norm(2, 0, 1.0), "dimension"),
        (lambda: NOISE.select(torch.tensor([1.0, NAN]), 1.0), "scores"),
        (lambda: NOISE.select(torch.zeros(0), 1.0), "scores"),
        (lambda: NOISE.select(torch.zeros(2), 0.0), "epsilon"),
        (lambda: FIXED.select(torch.zeros(2), 1.0, law="laplace"), "law = 'laplace'"),
        (lambda: NOISE.coins(3, 1.5), "probability"),
        (lambda: NOISE.uniform(-1), "size"),
        (lambda: NOISE.fine_gaussian(1, 0.0), "scale"),
        (lambda: NoiseSource.fixed(-1), "seed"),
    ],
    "exact sums": [(lambda n=n, b=b: sum_grid(n, b), "=") for n, b in ((0, 1.0), (10, 0.0), (2**42, 1.0))],
    "selection mechanisms": [
        *(
            (lambda call=call, kind=kind: call(kind), words)
            for kind in SELECTIONS.values()
            for call, words in (
                (lambda kind: kind(0.0, 1.0), "epsilon"),
                (lambda kind: kind(1.0, -2.0), "range_sensitivity"),
                (lambda kind: kind(1.0, INF), "range_sensitivity"),
                (lambda kind: kind(1.0, 1.0).select(torch.zeros(0), NOISE), "utilities"),
                (lambda kind: kind(1.0, 1.0).select(torch.zeros(2, 2), NOISE), "utilities"),
                (lambda kind: kind(1.0, 1.0).select(torch.tensor([0.0, NAN]), NOISE), "utilities"),
                (lambda kind: kind(1.0, 1.0).probabilities(torch.tensor([0.0, -INF])), "utilities"),
                (lambda kind: kind(1.0, 1.0).probabilities(torch.tensor(0.0)), "utilities"),
                (lambda kind: kind(1.0, 1.0).select(torch.zeros(2), NOISE, runs=0), "runs"),
            )
        ),
    ],
    "ledger": [
        (lambda: ledger().charge("third", "x", PureEvent(0.1)), "block = 'third'"),
        (lambda: ledger().charge("b", "x", PureEvent(0.1), count=0), "count"),
        (lambda: ledger().charge("b", "x", PureEvent(0.1), count=3, planned=2), "planned"),
        (lambda: ledger().charge("b", "x", PureEvent(0.1), level="sure"), "level"),
        (lambda: ledger().charge("b", "x", "noise"), "event"),
        (lambda: ledger().advance(7, 1), "entry = 7"),
        (lambda: ledger().spent("third"), "block = 'third'"),
        (lambda: ledger().remaining("third"), "block = 'third'"),
        (lambda: Ledger({}), "blocks"),
        (lambda: Ledger({"total": BUDGET}), "total"),
        (lambda: Ledger({"a": 1.0}), "PrivacyBudget"),
        (lambda: Ledger.load("no/such/file"), "no such file"),
    ],
}


@pytest.mark.parametrize(
    ("call", "words"),
    [pytest.param(*case, id=f"{part}-{i}") for part, cases in CASES.items() for i, case in enumerate(cases)],
)
def test_a_bad_argument_is_named_in_one_line(call, words):
    with pytest.raises(InputError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)
