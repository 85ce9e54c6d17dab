"""Effects by the library's defaults and by other libraries, on the same records and queries."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.defaults.sources import Case
from experiments.peers import dp_ebm
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.estimators.cate.learner import RLearner
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource

DELTA = 1e-5
CERTIFIED, CLAIMED, NO_PRIVACY = "certified", "as InterpretML claims it", "none"
OURS, ECONML, INTERPRET = "torchdpcate", "econml", "interpret"


@dataclass(frozen=True)
class Method:
    """One way to an effect.

    Attributes:
        library: Who makes it.
        guarantee: Of what it returns.
        private: Whether it spends a budget.
        run: From case, epsilon and a seed to effects at the queries [m].
    """

    library: str
    guarantee: str
    private: bool
    run: Callable[[Case, float, int], Tensor]


def _ours(constant: bool, case: Case, epsilon: float, seed: int) -> Tensor:
    noise = NoiseSource.fixed(zlib.crc32(f"RLearner {constant} {epsilon} {seed}".encode()))
    stage = AdaptiveSecondStage(constant_only=constant)
    fit = RLearner(case.schema, PrivacyBudget(epsilon, DELTA), second_stage=stage, noise=noise)
    fit.fit(case.records.x, case.records.a, case.records.y)
    return fit.release_function().effect_tensor(case.queries)


def _nonprivate(case: Case, epsilon: float, seed: int) -> Tensor:
    learner = RLearner(case.schema, None).fit(case.records.x, case.records.a, case.records.y)
    return torch.from_numpy(learner.nonprivate_effect(case.queries))


def _ebm(learner: Callable[[Case, dp_ebm.Budget], Tensor], case: Case, epsilon: float, seed: int) -> Tensor:
    return learner(case, dp_ebm.Budget(epsilon, DELTA, seed))


def _econml(kind: str, case: Case, epsilon: float, seed: int) -> Tensor:
    """EconML's learner with gradient-boosted nuisances, the rest by its defaults."""
    from econml.dml import CausalForestDML, NonParamDML
    from econml.dr import DRLearner as EconDRLearner
    from econml.dr import ForestDRLearner
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    trees, classes = HistGradientBoostingRegressor(random_state=seed), HistGradientBoostingClassifier(random_state=seed)
    common: dict[str, Any] = {"random_state": seed}
    makers: dict[str, Callable[[], Any]] = {
        "r": lambda: NonParamDML(model_y=trees, model_t=classes, model_final=trees, discrete_treatment=True, **common),
        "forest_r": lambda: CausalForestDML(
            model_y=trees, model_t=classes, discrete_treatment=True, n_jobs=1, **common
        ),
        "dr": lambda: EconDRLearner(model_propensity=classes, model_regression=trees, model_final=trees, **common),
        "forest_dr": lambda: ForestDRLearner(model_propensity=classes, model_regression=trees, n_jobs=1, **common),
    }
    x, a, y = case.records.x.numpy(), case.records.a.numpy().astype(int), case.records.y.numpy()
    return torch.from_numpy(makers[kind]().fit(y, a, X=x).effect(case.queries.numpy()))


def _zero(case: Case, epsilon: float, seed: int) -> Tensor:
    return torch.zeros(len(case.queries), dtype=torch.float64)


METHODS: dict[str, Method] = {
    "zero": Method("-", "nothing is looked at", False, _zero),
    "private constant": Method(OURS, CERTIFIED, True, partial(_ours, True)),
    "RLearner": Method(OURS, CERTIFIED, True, partial(_ours, False)),
    "S-learner of DP-EBM": Method(INTERPRET, CLAIMED, True, partial(_ebm, dp_ebm.single)),
    "DR-learner of DP-EBM": Method(INTERPRET, CLAIMED, True, partial(_ebm, dp_ebm.doubly_robust)),
    "R-learner of DP-EBM": Method(INTERPRET, CLAIMED, True, partial(_ebm, dp_ebm.residual)),
    "RLearner, no budget": Method(OURS, NO_PRIVACY, False, _nonprivate),
    "NonParamDML": Method(ECONML, NO_PRIVACY, False, partial(_econml, "r")),
    "CausalForestDML": Method(ECONML, NO_PRIVACY, False, partial(_econml, "forest_r")),
    "econml DRLearner": Method(ECONML, NO_PRIVACY, False, partial(_econml, "dr")),
    "ForestDRLearner": Method(ECONML, NO_PRIVACY, False, partial(_econml, "forest_dr")),
}
