"""S-, DR- and R-learner of Niu et al. (2022) with the DP-EBM of InterpretML, by public bounds.

A quarter of the records for the propensity, a quarter for the outcome, half for the effect, each with the whole budget;
propensities are clipped to [.05, .95]. Where theirs takes bounds from the records, all bounds here are public: the
domain's, and for scores what they can be within it. DP-EBM's noise grows with the range of what it fits. With
``public=False`` bounds are the records' own, as in their notebook: no epsilon holds for that.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.defaults.sources import Case

CLIP = 0.05


@dataclass(frozen=True)
class Budget:
    """What each fit may spend.

    Attributes:
        epsilon: Of a fit.
        delta: Of a fit.
        seed: Of its noise: for tables alone, nothing here is private.
        public: Whether bounds are public, or those of the records.
    """

    epsilon: float
    delta: float
    seed: int
    public: bool = True


def single(case: Case, budget: Budget) -> Tensor:
    """One outcome model with the treatment as a covariate: its difference. [m]."""
    x, a, y = _arrays(case)
    bounds = [*_covariate_bounds(case), (0.0, 1.0)]
    model = _regressor(bounds, _outcome_bounds(case, budget), budget).fit(np.column_stack([x, a]), y)
    queries = case.queries.numpy()
    one, zero = (model.predict(np.column_stack([queries, np.full(len(queries), v)])) for v in (1.0, 0.0))
    return torch.from_numpy(one - zero)


def doubly_robust(case: Case, budget: Budget) -> Tensor:
    """Regression of doubly robust scores. [m]."""
    x, a, y = _arrays(case)
    first, second, last = _quarters(len(y))
    bounds, (low, high) = _covariate_bounds(case), _outcome_bounds(case, budget)
    pi = _propensity(bounds, x[first], a[first], budget)
    arms = [*bounds, (0.0, 1.0)]
    outcome = _regressor(arms, (low, high), budget).fit(np.column_stack([x[second], a[second]]), y[second])
    rows = x[last]
    m0, m1 = (outcome.predict(np.column_stack([rows, np.full(len(rows), v)])).clip(low, high) for v in (0.0, 1.0))
    e = pi(rows)
    residual = y[last] - np.where(a[last] == 1, m1, m0)
    score = m1 - m0 + (a[last] - e) / (e * (1 - e)) * residual
    most = (high - low) * (1 + 1 / CLIP)
    model = _regressor(bounds, (-most, most), budget).fit(rows, score)
    return torch.from_numpy(model.predict(case.queries.numpy()))


def residual(case: Case, budget: Budget) -> Tensor:
    """Weighted regression of residuals over residuals. [m]."""
    x, a, y = _arrays(case)
    first, second, last = _quarters(len(y))
    bounds, (low, high) = _covariate_bounds(case), _outcome_bounds(case, budget)
    pi = _propensity(bounds, x[first], a[first], budget)
    mean = _regressor(bounds, (low, high), budget).fit(x[second], y[second])
    rows = x[last]
    treatment = a[last] - pi(rows)
    target = (y[last] - mean.predict(rows).clip(low, high)) / treatment
    most = (high - low) / CLIP
    model = _regressor(bounds, (-most, most), budget).fit(rows, target, sample_weight=treatment**2)
    return torch.from_numpy(model.predict(case.queries.numpy()))


def _propensity(bounds: list[tuple[float, float]], x: np.ndarray, a: np.ndarray, budget: Budget) -> Any:
    from interpret.privacy import DPExplainableBoostingClassifier

    model = DPExplainableBoostingClassifier(**_settings(bounds, budget))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, a.astype(int))
    return lambda rows: model.predict_proba(rows)[:, 1].clip(CLIP, 1 - CLIP)


def _regressor(bounds: list[tuple[float, float]], target: tuple[float, float], budget: Budget) -> Any:
    from interpret.privacy import DPExplainableBoostingRegressor

    ends = dict(zip(("privacy_target_min", "privacy_target_max"), target, strict=True)) if budget.public else {}
    return DPExplainableBoostingRegressor(**_settings(bounds, budget), **ends)


def _settings(bounds: list[tuple[float, float]], budget: Budget) -> dict[str, Any]:
    common = {"epsilon": budget.epsilon, "delta": budget.delta, "random_state": budget.seed, "n_jobs": 1}
    if not budget.public:
        return common
    return common | {"privacy_bounds": np.array(bounds), "feature_types": ["continuous"] * len(bounds)}


def _quarters(n: int) -> tuple[slice, slice, slice]:
    """Records are drawn independently, so that their order is as good as any."""
    return slice(0, n // 4), slice(n // 4, n // 2), slice(n // 2, n)


def _arrays(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    records = case.records
    return records.x.numpy(), records.a.numpy(), records.y.numpy()


def _covariate_bounds(case: Case) -> list[tuple[float, float]]:
    domain = case.schema.domain
    return list(zip(domain.covariate_low.tolist(), domain.covariate_high.tolist(), strict=True))


def _outcome_bounds(case: Case, budget: Budget) -> tuple[float, float]:
    """The domain's; none where the records' own are taken."""
    domain = case.schema.domain
    return (domain.outcome_low, domain.outcome_high) if budget.public else (-math.inf, math.inf)
