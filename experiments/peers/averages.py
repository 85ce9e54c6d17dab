"""Average effects by the library's default and by DoubleML, on the same records."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from experiments.defaults.sources import Case
from experiments.peers.effects import CERTIFIED, NO_PRIVACY, OURS
from torchdpcate.estimators.average.lines import AverageEffect
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """An average effect with its interval of 95 %, nan where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AverageMethod:
    """One way to an average effect.

    Attributes:
        library: Who makes it.
        guarantee: Of what it returns.
        private: Whether it spends a budget.
        run: From case, epsilon and a seed to the estimate.
    """

    library: str
    guarantee: str
    private: bool
    run: Callable[[Case, float, int], Estimate]


def _ours(case: Case, epsilon: float, seed: int) -> Estimate:
    noise = NoiseSource.fixed(zlib.crc32(f"average {epsilon} {seed}".encode()))
    learner = AverageEffect(case.schema, PrivacyBudget(epsilon, DELTA), noise=noise)
    release = learner.fit(case.records.x, case.records.a, case.records.y).release()
    low, high = release.average(LEVEL)
    return Estimate(release.average_effect, float(low), float(high))


def _doubleml(kind: str, case: Case, epsilon: float, seed: int) -> Estimate:
    """DoubleML with gradient-boosted nuisances and its defaults: interactive or partially linear."""
    import numpy as np
    from doubleml import DoubleMLData, DoubleMLIRM, DoubleMLPLR
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    np.random.seed(seed)  # noqa: NPY002 - DoubleML draws its folds from the global generator
    records = case.records
    data = DoubleMLData.from_arrays(records.x.numpy(), records.y.numpy(), records.a.numpy())
    trees, classes = HistGradientBoostingRegressor(random_state=seed), HistGradientBoostingClassifier(random_state=seed)
    model = DoubleMLIRM(data, trees, classes) if kind == "irm" else DoubleMLPLR(data, trees, classes)
    model.fit()
    low, high = model.confint(level=LEVEL).to_numpy()[0]
    return Estimate(float(model.coef[0]), float(low), float(high))


def _difference(case: Case, epsilon: float, seed: int) -> Estimate:
    """The difference in means of the arms, not adjusted."""
    y, treated = case.records.y, case.records.a == 1
    one, zero = y[treated], y[~treated]
    half = 1.959964 * torch.sqrt(one.var() / len(one) + zero.var() / len(zero)).item()
    value = (one.mean() - zero.mean()).item()
    return Estimate(value, value - half, value + half)


AVERAGES: dict[str, AverageMethod] = {
    "AverageEffect": AverageMethod(OURS, CERTIFIED, True, _ours),
    "DoubleMLIRM": AverageMethod("doubleml", NO_PRIVACY, False, partial(_doubleml, "irm")),
    "DoubleMLPLR": AverageMethod("doubleml", NO_PRIVACY, False, partial(_doubleml, "plr")),
    "difference in means": AverageMethod("-", NO_PRIVACY, False, _difference),
}
