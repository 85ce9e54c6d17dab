"""Random laws with known effects, by which the public rule's constants are tuned; none is in the study's table.

A law has 2 to 40 covariates (normal, uniform, skewed or 0/1, correlated or not, within public ranges up to three times
as wide as they need be), an effect, a baseline and a logit that are random sums of lines, squares, kinks, waves, steps
and products of at most five of them, and normal, heavy-tailed or uneven noise. A fifth of the effects are constant.

Of a binary outcome baseline and effect are of logits, at rates from 2 to 60 %, so that effects are small beside the
outcome's range; of a count they are of logarithms of means from .3 to 10, with a Poisson or an overdispersed law, below
a public bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from experiments.defaults.sources import Case
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema

QUERIES = 2_000
SIZES = (500, 16_000)  # records, drawn evenly in their logarithm
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
_TERMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "line": lambda v: v,
    "square": lambda v: v**2,
    "kink": lambda v: np.maximum(v, 0.0),
    "wave": lambda v: np.sin(2.0 * v),
    "step": lambda v: np.tanh(3.0 * v),
}


@dataclass(frozen=True, eq=False)
class Setting:
    """One draw of a law, a number of records and a budget.

    Attributes:
        case: Records and queries.
        epsilon: Budget.
        noise: Standard deviation of the outcome's noise.
        name: For seeds and tables.
        effects: Of the records, [n].
        propensities: Of the records, [n].
    """

    case: Case
    epsilon: float
    noise: float
    name: str
    effects: torch.Tensor
    propensities: torch.Tensor


def random_setting(
    seed: int,
    n: int | None = None,
    epsilon: float | None = None,
    covariates: int | None = None,
    kind: str = "continuous",
) -> Setting:
    """Return the setting of a seed.

    Args:
        seed: Of the law.
        n: Number of records; None draws it.
        epsilon: Budget; None draws it.
        covariates: Number of covariates; None draws it.
        kind: Of the outcome: ``continuous``, ``binary`` or ``count``.
    """
    rng = np.random.default_rng([seed, 23])
    drawn = round(math.exp(rng.uniform(*np.log(SIZES))))
    n = drawn if n is None else n
    any_q = int(rng.choice([2, 4, 6, 10, 20, 40]))
    q = any_q if covariates is None else covariates
    x, low, high, indicators = _covariates(n + QUERIES, q, rng)
    z = (x - x.mean(0)) / x.std(0)
    relevant = rng.permutation(q)[: int(rng.integers(1, 6))]
    sizes = (rng.choice([0.0, 0.3, 0.7, 1.5, 3.0]), rng.choice([0.3, 1.0, 2.0]), rng.choice([0.0, 0.5, 1.5]))
    effect, baseline, logit = (size * _function(z, relevant, rng) for size in sizes)
    effect, logit = effect + rng.normal(), logit + 0.7 * rng.normal()
    overlap = float(rng.choice([0.05, 0.1]))
    pi = np.clip(1.0 / (1.0 + np.exp(-logit)), overlap, 1.0 - overlap)
    a = (rng.uniform(size=len(x)) < pi).astype(float)
    if kind == "continuous":
        sd = 10.0 ** rng.uniform(-1.0, 3.0)  # units of the outcome
        y = sd * (baseline + a * effect + _noise(z, rng))
        wide = float(rng.uniform(4.0, 10.0)) * float(np.std(y))
        bounds = (float(y.mean()) - wide * float(rng.uniform(0.7, 1.3)), float(y.mean()) + wide)
    else:
        y, effect, bounds = _events(kind, baseline, effect, a, rng)
        sd = 1.0
    entries = {f"x{j}": {"categories": [0, 1]} if indicators[j] else {"low": low[j], "high": high[j]} for j in range(q)}
    outcome: dict[str, object] = {"name": "y", "low": bounds[0], "high": bounds[1], "better": "higher"}
    if kind != "continuous":
        outcome["kind"] = kind
    facts = {"treatment": "a", "outcome": outcome, "covariates": entries, "overlap": overlap}
    schema = TableSchema.from_dict(facts).handling("clip")
    inside, truth = schema.within(torch.from_numpy(x)), torch.from_numpy(sd * effect)
    records = CausalData(inside[:n], torch.from_numpy(a[:n]), torch.from_numpy(np.clip(y[:n], *bounds)))
    case, any_epsilon = Case(schema, records, inside[n:], truth[n:]), float(rng.choice(EPSILONS))
    epsilon, known = any_epsilon if epsilon is None else epsilon, torch.from_numpy(pi[:n])
    return Setting(case, epsilon, sd, f"law {seed}", truth[:n], known)


def _events(
    kind: str, baseline: np.ndarray, effect: np.ndarray, a: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Return outcomes of two values, or counts, their mean effects, [n] each, and public bounds.

    Args:
        kind: ``binary`` or ``count``.
        baseline: Of the logit, or of the logarithm of the mean, in units of which half is taken.
        effect: On it, as it is drawn for other outcomes: from a tenth to a half is taken.
        a: Treatments [n].
        rng: Of the law.
    """
    size = float(rng.uniform(0.1, 0.5)) * effect
    if kind == "binary":
        rate = math.exp(rng.uniform(math.log(0.02), math.log(0.6)))
        middle = math.log(rate / (1 - rate)) + 0.5 * baseline
        chance = [1 / (1 + np.exp(-(middle + arm * size))) for arm in (0, 1)]
        y = (rng.uniform(size=len(a)) < np.where(a == 1, chance[1], chance[0])).astype(float)
        return y, chance[1] - chance[0], (0.0, 1.0)
    level = rng.uniform(math.log(0.3), math.log(10.0)) + 0.5 * baseline
    mean = [np.exp(np.minimum(level + arm * size, 5.0)) for arm in (0, 1)]
    spread = rng.gamma(2.0, 0.5, size=len(a)) if rng.uniform() < 0.5 else np.ones(len(a))
    y = rng.poisson(spread * np.where(a == 1, mean[1], mean[0])).astype(float)
    high = float(math.ceil(float(rng.uniform(1.0, 3.0)) * float(np.quantile(y, 0.99)) + 1))
    return y, mean[1] - mean[0], (0.0, high)


def _covariates(n: int, q: int, rng: np.random.Generator) -> tuple[np.ndarray, list[float], list[float], list[bool]]:
    """Return values [n, q], public bounds, and which are 0 or 1."""
    share = float(rng.choice([0.0, 0.3, 0.7]))
    latent = math.sqrt(share) * rng.normal(size=(n, 1)) + math.sqrt(1.0 - share) * rng.normal(size=(n, q))
    x, low, high, indicators = np.empty((n, q)), [0.0] * q, [1.0] * q, [False] * q
    for j in range(q):
        kind, wide = rng.choice(["normal", "uniform", "skewed", "indicator"], p=[0.4, 0.2, 0.2, 0.2]), rng.uniform(1, 3)
        if kind == "indicator":
            x[:, j], indicators[j] = latent[:, j] > rng.normal() * 0.7, True
        elif kind == "uniform":
            x[:, j] = 0.5 + 0.5 * np.vectorize(math.erf)(latent[:, j] / math.sqrt(2.0))
            high[j] = float(wide)
        elif kind == "skewed":
            x[:, j] = np.exp(0.7 * latent[:, j])
            high[j] = float(8.0 * wide)
        else:
            x[:, j], low[j], high[j] = latent[:, j], -3.0 * float(wide), 3.0 * float(wide)
    return np.clip(x, low, high), low, high, indicators


def _function(z: np.ndarray, relevant: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a random sum of terms of some covariates, of mean zero and variance one."""
    total = np.zeros(len(z))
    for j in relevant:
        term = rng.choice([*_TERMS, "product"], p=[0.35, 0.15, 0.15, 0.1, 0.1, 0.15])
        value = z[:, j] * z[:, rng.choice(relevant)] if term == "product" else _TERMS[term](z[:, j])
        total += rng.normal() * value / max(value.std(), 1e-9)
    return (total - total.mean()) / max(total.std(), 1e-9)


def _noise(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return noise of variance one: normal, Student's t of four degrees, or uneven."""
    kind = rng.choice(["normal", "heavy", "uneven"], p=[0.5, 0.25, 0.25])
    if kind == "heavy":
        return rng.standard_t(4, len(z)) / math.sqrt(2.0)
    value = rng.normal(size=len(z))
    if kind == "normal":
        return value
    width = 0.5 + np.abs(z[:, 0])
    return value * width / np.sqrt(np.mean(width**2))
