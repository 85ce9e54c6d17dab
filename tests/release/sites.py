"""Releases of three sites, and combinations of them, which tests share."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from tests.registered import AverageEffect, KnownPropensityEffect, RLearner, SubgroupEffects
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.schema import TableSchema
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.combination import combine
from torchdpcate.release.combined import SitesRelease
from torchdpcate.release.file import Release

NAMES = ("north", "south", "west")
SIZES = (400, 1200, 2500)
FACTS: dict[str, Any] = {
    "treatment": {"name": "arm", "categories": ["placebo", "drug"]},
    "outcome": {"name": "pain", "low": 0, "high": 20, "unit": "points", "better": "lower"},
    "covariates": {
        "age": {"low": 18, "high": 90, "unit": "years"},
        "sex": {"categories": ["f", "m"]},
        "dose": {"low": 0, "high": 1},
    },
    "propensity": 0.5,
}
PEOPLE = pd.DataFrame({"age": [20.0, 50.0, 80.0], "sex": ["f", "m", "f"], "dose": [0.1, 0.5, 0.9]})


def changed(**entries: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with some entries of outcome or of a covariate changed, by its name."""
    facts = FACTS | {
        "outcome": dict(FACTS["outcome"]),
        "covariates": {k: dict(v) for k, v in FACTS["covariates"].items()},
    }
    for name, entry in entries.items():
        place = facts if name in facts else facts["covariates"]
        place[name] = {**place.get(name, {}), **entry} if isinstance(entry, dict) else entry
    return facts


def records(n: int, seed: int, effect: float = -2.0) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Return records of a trial whose effect grows with the dose, and is ``effect`` on average."""
    draws = np.random.default_rng(seed)
    x = pd.DataFrame(
        {"age": draws.uniform(18, 90, n), "sex": draws.choice(["f", "m"], n), "dose": draws.uniform(0, 1, n)}
    )
    arm = draws.integers(0, 2, n)
    y = 10 + arm * (effect + 6 * (x["dose"] - 0.5)) + draws.normal(0, 1.5, n)
    return x, pd.Series(np.where(arm, "drug", "placebo")), pd.Series(y.clip(0, 20))


@cache
def released(task: str, k: int = 2, epsilon: float = 2.0, private: bool = True) -> Release:
    """Return the release of site k: of ``effect``, ``effect by law``, ``average``, ``subgroups`` or ``cohort``."""
    return fitted(task, FACTS, k, epsilon, NoiseSource.system() if private else NoiseSource.fixed(1))


def fitted(task: str, facts: dict[str, Any], k: int, epsilon: float, noise: NoiseSource) -> Release:
    """Return a release of site k by other public facts."""
    if task == "cohort":
        facts, epsilon = {**facts, "propensity": None, "overlap": 0.2}, 4 * epsilon
    schema, budget = TableSchema.from_dict(facts), PrivacyBudget(epsilon, 1e-5)
    x, a, y = records(SIZES[k], k)
    x = x.assign(**{name: 80.0 for name in schema.columns if name not in x})[list(schema.columns)]
    if task == "average":
        return KnownPropensityEffect(schema, budget, noise=noise).fit(x, a, y).release()
    if task == "subgroups":
        learner = SubgroupEffects(schema, budget, subgroups=[{"sex": True}], propensity="randomised", noise=noise)
        return learner.fit(x, a, y).release()
    if task == "cohort":
        cells = [{"sex": True}, {"age": [50]}] if k else [{"sex": True}]
        learner = AverageEffect(schema, budget, estimand="ATT", subgroups=cells, noise=noise)
        return learner.fit(x, a, y).release()
    stage = AdaptiveSecondStage(lines=False) if task == "effect by law" else None
    return RLearner(schema, budget, second_stage=stage, noise=noise).fit(x, a, y).release_function()


def combined(task: str, between: str = "random") -> SitesRelease:
    """Return the combination of the three sites."""
    return combine([released(task, k) for k in range(3)], NAMES, between)
