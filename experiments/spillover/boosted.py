"""Nuisances of the spillover paper: XGBoost outcome models and a logistic propensity."""

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from experiments.spillover.design import OVERLAP, Block, Law
from torchdpcate.causal.score import dr_scores

RATE = 0.06


@dataclass(frozen=True)
class Trees:
    """XGBoost of squared error, without subsampling, one thread, a fixed seed.

    Attributes:
        depth: Of each tree.
        count: Trees.
        ridge: XGBoost's lambda.
    """

    depth: int
    count: int
    ridge: float

    def predict(self, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        """Return predictions at covariates ``at`` of a fit to (x, y), clipped to the outcome's bounds."""
        from xgboost import XGBRegressor

        settings: dict[str, Any] = {"max_depth": self.depth, "n_estimators": self.count, "reg_lambda": self.ridge}
        model = XGBRegressor(learning_rate=RATE, n_jobs=1, random_state=0, **settings).fit(x.numpy(), y.numpy())
        return torch.from_numpy(model.predict(at.numpy())).double().clamp(0, 1)


UNSTABLE, STABLE = Trees(7, 180, 1e-8), Trees(3, 100, 6.0)


@dataclass(frozen=True, eq=False)
class Nuisances:
    """Fitted values at all rows of a population.

    Attributes:
        e: Propensities [rows].
        mu: Outcome models [rows, 2].
    """

    e: Tensor
    mu: Tensor


def propensity(law: Law, block: Block, penalty: float = 1.0) -> Tensor:
    """Return logistic propensities of all rows, clipped, by a penalty of penalty / 2 times the squared norm."""
    fit = LogisticRegression(C=1 / penalty, max_iter=1000).fit(law.x[block.rows].numpy(), block.a.numpy())
    return torch.from_numpy(fit.predict_proba(law.x.numpy())[:, 1]).clamp(OVERLAP, 1 - OVERLAP)


def outcome_model(law: Law, block: Block, arm: int, trees: Trees) -> Tensor:
    """Return an arm's predictions at all rows."""
    own = block.a == arm
    return trees.predict(law.x[block.rows[own]], block.y[own], law.x)


def boosted(law: Law, block: Block, trees: Trees, e: Tensor) -> Nuisances:
    """Return nuisances with a propensity that is there already."""
    return Nuisances(e, torch.stack([outcome_model(law, block, arm, trees) for arm in (0, 1)], 1))


def with_new_outcome(fitted: Nuisances, law: Law, block: Block, index: int, trees: Trees) -> Nuisances:
    """Return the nuisances of a neighbour whose record ``index`` has another outcome: one arm is fitted again."""
    arm, mu = int(block.a[index]), fitted.mu.clone()
    mu[:, arm] = outcome_model(law, block, arm, trees)
    return Nuisances(fitted.e, mu)


def utilities(law: Law, block: Block, fitted: Nuisances) -> Tensor:
    """Return the sum of each policy's doubly robust scores over a scoring block [M]."""
    e = fitted.e[block.rows]
    scores = dr_scores(block.a, block.y, torch.stack([1 - e, e], 1), fitted.mu[block.rows])
    return law.decisions[block.rows].T @ (scores[:, 1] - scores[:, 0]) + scores[:, 0].sum()


def errors(law: Law, fitted: Nuisances) -> dict[str, float]:
    """Return root mean squares over all rows: their average, and the doubly robust product."""
    mu = (fitted.mu - law.outcomes).square().mean(0).sqrt()
    e = (fitted.e - law.propensities).square().mean().sqrt()
    return {
        "nuisance_rmse": float((mu.sum() + e) / 3),
        "dr_product_proxy": float(mu.mean() * e),
    }
