"""The rare-region design of the spillover paper: covariates, nuisances, and the policies to choose from."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Constants, LinearPolicies
from torchdpcate.candidates.library import FunctionPolicies, PolicyLibrary
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData

OVERLAP = 0.1  # zeta
NOISE = 0.06  # standard deviation of outcomes
RANDOM = 142  # random linear policies
CONTROL_COVARIATES = 20
NUMERIC = 0.9  # share of readable entries from which a column is numeric
WHOLE, SCALED = "58 covariates", "20 covariates in [-1, 1]"
CONTROL = f"{SCALED}, no rare region"


def encode(table: pd.DataFrame) -> Tensor:
    """Return covariates as the paper encodes them, columns of mean 0 and deviation 1 [n, q].

    Entries that cannot be read as numbers become the median of a numeric column. A column of letters becomes one of
    codes, by which the 58 columns of ACIC 2016 stay 58.

    Args:
        table: Raw covariates.
    """
    columns = []
    for name in table.columns:
        values = pd.to_numeric(table[name], errors="coerce")
        if values.notna().mean() < NUMERIC:
            values = pd.Series(pd.Categorical(table[name]).codes, dtype=float)
        values = values.fillna(values.median())
        columns.append(torch.tensor(values.to_numpy(float)))
    x = torch.stack(columns, 1)
    return (x - x.mean(0)) / x.std(0, correction=0)


@dataclass(frozen=True, eq=False)
class Block:
    """Observed records of a population.

    Attributes:
        rows: Which rows of the population they are [n].
        a: Treatments, int64 [n].
        y: Outcomes [n].
    """

    rows: Tensor
    a: Tensor
    y: Tensor

    def part(self, chosen: slice) -> "Block":
        """Return some of the records."""
        return Block(self.rows[chosen], self.a[chosen], self.y[chosen])

    def flipped(self, index: int, outcome: float, treatment: bool = False) -> "Block":
        """Return a neighbour: one record with another outcome and, if ``treatment``, the other treatment."""
        a, y = self.a.clone(), self.y.clone()
        y[index] = outcome
        if treatment:
            a[index] = 1 - a[index]
        return Block(self.rows, a, y)


@dataclass(frozen=True, eq=False)
class Law:
    r"""A population of rows, and what the paper's formulas make of them; columns count from 0.

    .. math::
        h(x) = c^\top x_{0:8} + \tfrac12 \sin x_8 + \tfrac14 x_{11} x_{15}, \quad R = 1\{h \ge q_{.95}\}, \quad
        e = [\sigma(g_e + 1.7 R)], \quad \mu_0 = [\tfrac14 + .45\, \sigma(g_0)], \quad \mu_1 = [\mu_0 + \tau]

    Args:
        x: Covariates of all rows, more than 15 [rows, q].
        region: Whether the rare region has a propensity and an effect of its own; the policies are the same without.
    """

    x: Tensor
    region: bool = True

    def score(self, x: Tensor) -> Tensor:
        """Return h at covariates [n, q]."""
        return x[:, :8] @ _line(1.2, -0.9, 8) + 0.5 * x[:, 8].sin() + 0.25 * x[:, 11] * x[:, 15]

    @cached_property
    def cut(self) -> float:
        """The score's 95th percentile over all rows."""
        return float(self.score(self.x).quantile(0.95))

    def rare(self, x: Tensor) -> Tensor:
        """Return whether covariates lie in the rare region [n]."""
        return self.score(x) >= self.cut

    def propensity(self, x: Tensor) -> Tensor:
        """Return P(A = 1 | x) [n]."""
        line = 1.2 * x[:, :10] @ _line(0.85, -0.65, 10) / 10**0.5
        score = line + 0.4 * x[:, 1].sin() - 0.25 * x[:, 2] * _positive(x[:, 3])
        return (score + 1.7 * self._own(x)).sigmoid().clamp(OVERLAP, 1 - OVERLAP)

    def outcome(self, x: Tensor) -> Tensor:
        """Return the mean outcomes of both treatments [n, 2]."""
        line = x[:, :10] @ _line(0.55, -0.35, 10) / 10**0.5
        score = line + 0.3 * (x[:, 1] * x[:, 4]).sin() + 0.21 * _positive(x[:, 5])
        effect = 0.2 * (1.4 * x[:, :10] @ _effect_line() / 10**0.5).tanh()
        effect = effect + 0.11 * _positive(x[:, 1]) - 0.07 * _positive(x[:, 6]) + 0.45 * self._own(x)
        untreated = (0.25 + 0.45 * score.sigmoid()).clamp(0.02, 0.98)
        return torch.stack([untreated, (untreated + effect).clamp(0.02, 0.98)], 1)

    @cached_property
    def propensities(self) -> Tensor:
        """Propensities of all rows [rows]."""
        return self.propensity(self.x)

    @cached_property
    def outcomes(self) -> Tensor:
        """Mean outcomes of all rows [rows, 2]."""
        return self.outcome(self.x)

    @cached_property
    def regions(self) -> tuple[Tensor, Tensor]:
        """Rows inside and outside of the rare region."""
        inside = self.rare(self.x)
        return inside.nonzero()[:, 0], (~inside).nonzero()[:, 0]

    @cached_property
    def domain(self) -> Domain:
        """Public facts: the ends of each column over the population, which is public here."""
        low, high = self.x.amin(0), self.x.amax(0)
        return Domain(low.tolist(), high.tolist(), 0.0, 1.0, overlap=OVERLAP, better="higher")

    @cached_property
    def policies(self) -> PolicyLibrary:
        """18 structured policies and 142 random linear ones, drawn once; the region's two are Python functions."""
        q = self.x.shape[1]
        structured = torch.zeros(7, q, dtype=torch.float64)
        structured[range(6), range(1, 7)] = 1.0
        structured[6, :10] = _effect_line()
        structured = torch.stack([structured, -structured], 1).flatten(0, 1)
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(RANDOM, q, generator=generator, dtype=torch.float64)
        few = torch.rand(RANDOM, 1, generator=generator) < 0.7
        rank = torch.rand(RANDOM, q, generator=generator).argsort(1).argsort(1)
        weights = torch.where(few & (rank >= min(8, q)), torch.zeros_like(weights), weights)
        weights = weights / weights.norm(dim=1, keepdim=True)
        through = 0.2 * torch.randn(RANDOM, generator=generator, dtype=torch.float64)
        linear = LinearPolicies(
            torch.cat([structured, weights]).tolist(), torch.cat([torch.zeros(len(structured)), through]).tolist()
        )
        region = FunctionPolicies([self._inside, self._outside], names=["rare region", "outside the rare region"])
        return PolicyLibrary.of([Constants([1, 0]), linear, region]).setup(self.domain, (0, 1))

    @cached_property
    def decisions(self) -> Tensor:
        """What each policy does with each row [rows, M]."""
        return self.policies.decide(self.x).double()

    @cached_property
    def regrets(self) -> Tensor:
        """True regret of each policy over all rows, against the best of them [M]."""
        values = self.decisions.T @ (self.outcomes[:, 1] - self.outcomes[:, 0]) / len(self.x)
        return values.max() - values

    def observe(self, rows: Tensor, generator: torch.Generator, noise: float = NOISE) -> Block:
        """Draw treatments and outcomes of some rows [n]."""
        coin = torch.rand(len(rows), generator=generator, dtype=torch.float64)
        a = (coin < self.propensities[rows]).long()
        error = noise * torch.randn(len(rows), generator=generator, dtype=torch.float64)
        return Block(rows, a, (self.outcomes[rows, a] + error).clamp(0, 1))

    def records(self, block: Block) -> CausalData:
        """Return a block with its covariates."""
        return CausalData(self.x[block.rows], block.a.double(), block.y)

    def _own(self, x: Tensor) -> Tensor:
        return self.rare(x).double() if self.region else x.new_zeros(len(x))

    def _inside(self, x: np.ndarray) -> np.ndarray:
        return self.rare(torch.from_numpy(x)).long().numpy()

    def _outside(self, x: np.ndarray) -> np.ndarray:
        return 1 - self._inside(x)


@lru_cache
def law(path: Path, name: str = WHOLE) -> Law:
    """Return the law on the covariates of ACIC 2016.

    Args:
        path: Folder that holds ``x.csv``.
        name: ``WHOLE`` for all columns, ``SCALED`` for the first 20, clipped to [-3, 3] and over 3, ``CONTROL`` for
            these without the rare region's own propensity and effect.
    """
    x = encode(pd.read_csv(path / "x.csv"))
    if name == WHOLE:
        return Law(x)
    return Law(x[:, :CONTROL_COVARIATES].clamp(-3, 3) / 3, region=name == SCALED)


def _line(first: float, last: float, count: int) -> Tensor:
    return torch.linspace(first, last, count, dtype=torch.float64)


def _positive(x: Tensor) -> Tensor:
    return (x > 0).double()  # a factor of Python with a bool tensor would be single precision


def _effect_line() -> Tensor:
    return _line(-0.75, 0.95, 10)
