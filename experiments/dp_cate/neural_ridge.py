"""The default ridge of neural heads: errors and gross-error sensitivities by ridge, on generated laws.

``python -m experiments.dp_cate.neural_ridge`` measures neural_ridge.csv anew (an hour of one core) and prints, by the
noise c of an answer over gamma, how much larger the error is with ``NeuralSecondStage.ridge_for`` than with the best of
the ridges. Outcomes are in [0, 1], a coin treats, effects have mean .2 and standard deviation .12: linear, of a smooth
index, with an interaction, with a threshold, of two to ten covariates. Errors are at 300 points, without nuisances.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.errors import NumericalError
from torchdpcate.heads.influence import InfluenceFunction
from torchdpcate.heads.neural import NeuralHead, _lbfgs, _trust_region
from torchdpcate.heads.recipes import NeuralSecondStage
from torchdpcate.heads.supremum import gross_error_sensitivity
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import theorem1_multiplier

TABLE = Path(__file__).with_suffix(".csv")
RIDGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
CASES = ((0, 1_000, 32), (1, 1_000, 32), (1, 8_000, 32), (4, 1_000, 32), (4, 8_000, 32), (0, 1_000, 8), (1, 1_000, 64))
"""Law, records and width."""
DELTA, QUERIES = 1e-5, 300


def law(k: int) -> tuple[int, Callable[[Tensor], Tensor]]:
    """Return a law's number of covariates and its effect, [B, q] -> [B]."""
    generator = torch.Generator().manual_seed(k)
    q, kind = (2, 5, 10)[k % 3], k // 3 % 4
    direction = torch.randn(q, dtype=torch.float64, generator=generator)

    def shape(x: Tensor) -> Tensor:
        z = (x - 0.5) @ direction / direction.norm() * 3.46
        if kind == 0:
            return z
        if kind == 1:
            return torch.sin(2 * z) + 0.5 * torch.cos(5 * x[:, 0])
        if kind == 2:
            return (x[:, 0] - 0.5) * (x[:, 1] - 0.5) * 12 + 0.3 * z
        return torch.tanh(6 * z)

    typical = shape(torch.rand(4_000, q, dtype=torch.float64, generator=generator))
    return q, lambda x: 0.2 + 0.12 * (shape(x) - typical.mean()) / typical.std()


def measured(k: int, n: int, width: int) -> Iterator[dict[str, float]]:
    """Yield error and gamma of heads without noise, in outcome ranges, by ridge; each starts from the one before."""
    q, effect = law(k)
    domain = Domain([0.0] * q, [1.0] * q, 0.0, 1.0, overlap=0.05)
    generator = torch.Generator().manual_seed(1_000 + k)
    x = torch.rand(n, q, dtype=torch.float64, generator=generator)
    a = (torch.rand(n, generator=generator) < 0.5).double()
    error = 0.07 * torch.randn(n, dtype=torch.float64, generator=generator)
    y = (0.5 + (a - 0.5) * effect(x) + error).clamp(0, 1)
    queries = torch.rand(QUERIES, q, dtype=torch.float64, generator=generator)

    def regression(x: Tensor, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y - 0.5, a - 0.5

    s, w = regression(x, a, y)
    start = torch.Generator().manual_seed(k)
    head = NeuralHead(domain, width=width, generator=start)
    model, theta = head.functional, head.theta.detach()
    for ridge in RIDGES:

        def objective(theta: Tensor, ridge: float = ridge) -> Tensor:
            return ((s - w * model(theta, x)) ** 2).mean() + ridge * (theta @ theta)

        theta, _ = _trust_region(objective, _lbfgs(objective, theta, 1e-6, 400)[0], 1e-7, 60)
        try:
            influence = InfluenceFunction(model, theta, x, s, w, ridge, queries)
        except NumericalError:  # no strict minimum
            continue
        gamma = gross_error_sensitivity(influence, regression, domain, starts=64).value
        bias = (model(theta, queries) - effect(queries)).square().mean().sqrt().item()
        yield {"law": k, "n": n, "width": width, "ridge": ridge, "error": bias, "gamma": gamma}


def ratios(table: pd.DataFrame, budgets: Sequence[tuple[int, float]]) -> pd.DataFrame:
    """Return the error with the default ridge over that with the best one: rows are laws, columns (n, epsilon).

    Args:
        table: As ``measured`` yields it.
        budgets: Records and epsilon, of which the noise of an answer follows.
    """
    found: dict[tuple[int, float], dict[object, float]] = {}
    for n, epsilon in budgets:
        ridge = NeuralSecondStage().ridge_for(n, PrivacyBudget(epsilon, DELTA))
        noise = theorem1_multiplier(epsilon, DELTA, n)
        for case, rows in table.groupby(["law", "n", "width"]):
            errors = (rows["error"] ** 2 + (noise * rows["gamma"]) ** 2) ** 0.5
            nearest = (rows["ridge"] / ridge).map(math.log).abs().idxmin()
            found.setdefault((n, epsilon), {})[case] = errors[nearest] / errors.min()
    return pd.DataFrame(found)


BUDGETS = [(n, epsilon) for n in (1_000, 3_000, 10_000, 30_000, 100_000) for epsilon in (1.0, 3.0, 10.0, 30.0)]
"""Records and budgets at which the default is held against the best."""

if __name__ == "__main__":
    pd.DataFrame([row for case in CASES for row in measured(*case)]).to_csv(TABLE, index=False, float_format="%.4g")
    print(ratios(pd.read_csv(TABLE), BUDGETS).T.round(2).to_string())
