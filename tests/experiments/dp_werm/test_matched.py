"""The pairwise rule against its double sum, and its bounds against optimised worst neighbours."""

import math

import pytest
import torch

from experiments.dp_werm.matched import GAPS, AllPairs, CellPairs, GaussianPairs, PairwiseRule, pair_bounds
from torchdpcate.data.domain import Domain
from torchdpcate.estimators.rules.outcome import SignedResidual
from torchdpcate.fit.losses import HuberHinge
from torchdpcate.fit.minimise import minimise
from torchdpcate.privacy.budget import PrivacyBudget

DOMAIN = Domain([-1.0, 0.0], [1.0, 2.0], -3.0, 3.0, better="higher")
LOSS = HuberHinge()


def records(n: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64) * 2 - torch.tensor([1.0, 0.0])
    x[:, 1] = x[:, 1].floor()
    a = (torch.rand(n, generator=generator) < 0.5).double()
    a[:2] = torch.tensor([0.0, 1.0])
    y = ((2 * a - 1) * x[:, 0] + torch.randn(n, generator=generator, dtype=torch.float64)).clamp(-3, 3)
    return x, a, y


@pytest.mark.first(2)
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("matching", [AllPairs(), GaussianPairs(0.7), CellPairs(["x1"])])
def test_the_objective_is_the_double_sum(matching, gap):
    x, a, y = records(40)
    outcome = SignedResidual(clip=1.0)
    learner = PairwiseRule(DOMAIN, None, matching=matching, gap=gap, outcome=outcome, ridge=2.0).fit(x, a, y)
    problem, theta = learner.problem_, torch.tensor([0.4, -0.8, 0.3], dtype=torch.float64)
    value = (problem.weights * LOSS(problem.psi @ theta, problem.target).value).sum().item()
    z, r = DOMAIN.scale(x), y.clamp(-1, 1)
    u = torch.cat([torch.ones(40, 1), z], 1) @ theta / math.sqrt(3)
    total = 0.0
    for i in range(40):
        for j in range(40):
            kappa = {
                "all": 1.0,
                "gaussian": math.exp(-(z[i] - z[j]).square().sum().item() / (2 * 0.7**2)),
                "cells": float(x[i, 1] == x[j, 1]),
            }[matching.name]
            weight = abs(r[i] - r[j]).item() / 2 if gap == "difference" else float(r[i] != r[j])
            label = (2 * a[i] - 1) * torch.sign(r[i] - r[j])
            if a[i] != a[j] and weight > 0:
                total += kappa * weight * LOSS(u[i], label).value.item() / 39
    assert value == pytest.approx(total, rel=1e-10)


class Pair:
    """Many candidate neighbours at once: n records, the first of them replaced; kernel rows are free in [0, 1]."""

    n, size = 4, 2

    def __init__(self, genes: torch.Tensor, gap: str) -> None:
        # genes [B, ...] of any size: every number is brought into its range here
        n, p = self.n, self.size
        parts = genes.split([(n + 1) * p, n + 1, n + 1, 2 * n, 1, p], dim=1)
        psi = parts[0].reshape(-1, n + 1, p)
        self.psi = psi / psi.norm(dim=2, keepdim=True).clamp_min(1.0)
        self.arm, self.r = (parts[1] > 0).double(), parts[2].clamp(-1, 1) / 2
        self.kappa = parts[3].clamp(0, 1).reshape(-1, 2, n)
        self.ridge, self.theta, self.gap = parts[4][:, 0].clamp(-3, 4).exp(), parts[5], gap

    def weights(self, dataset: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [B, 2n, p] and weights [B, 2n]; the last record stands in for the first in dataset 1."""
        index = [self.n if dataset and k == 0 else k for k in range(self.n)]
        psi, a, r = self.psi[:, index], self.arm[:, index], self.r[:, index]
        gap = r[:, :, None] - r[:, None]
        kappa = torch.ones_like(gap)
        kappa[:, 0], kappa[:, :, 0] = self.kappa[:, dataset], self.kappa[:, dataset]
        g = kappa * (a[:, :, None] != a[:, None]) * (gap.abs() if self.gap == "difference" else gap.sign().abs())
        label = (2 * a - 1)[:, :, None] * gap.sign()
        sums = [(g * (label == side)).sum(2) / (self.n - 1) for side in (1, -1)]
        return torch.cat([psi, psi], 1), torch.cat(sums, 1)

    def target(self) -> torch.Tensor:
        one = torch.ones(len(self.psi), self.n, dtype=torch.float64)
        return torch.cat([one, -one], 1)

    def output(self) -> torch.Tensor:
        """By how much the minimiser moves, of the certified bound."""
        zero = torch.zeros(len(self.psi), self.size, dtype=torch.float64)
        ends = []
        for dataset in (0, 1):
            psi, w = self.weights(dataset)
            ends.append(minimise(psi, self.target(), w, LOSS, self.ridge, zero, 1e-9))
        return (ends[0] - ends[1]).norm(dim=1) * self.ridge / pair_bounds(self.gap).first

    def _sums(self, dataset: int) -> tuple[torch.Tensor, torch.Tensor]:
        psi, w = self.weights(dataset)
        slopes = LOSS((psi @ self.theta[:, :, None])[:, :, 0], self.target())
        hessian = (psi.mT * (w * slopes.second)[:, None]) @ psi
        return ((w * slopes.first)[:, None] @ psi)[:, 0], hessian + self.ridge[:, None, None] * torch.eye(self.size)

    def linear_term(self) -> torch.Tensor:
        """By how much the summed gradient moves at theta, of W_1."""
        return (self._sums(0)[0] - self._sums(1)[0]).norm(dim=1) / pair_bounds(self.gap).first

    def determinants(self) -> torch.Tensor:
        """Log ratio of the determinants at theta, of J."""
        ratio = torch.logdet(self._sums(0)[1]) - torch.logdet(self._sums(1)[1])
        most = torch.tensor([pair_bounds(self.gap).jacobian(LOSS.curvature, g) for g in self.ridge.tolist()])
        return ratio / most


def searched(gap: str, measure: str, generations: int = 25, width: int = 300) -> float:
    """Largest share of a bound that an evolving population of neighbours reaches."""
    generator = torch.Generator().manual_seed(0)
    count = (Pair.n + 1) * (Pair.size + 2) + 2 * Pair.n + 1 + Pair.size
    genes = 2 * torch.randn(width, count, generator=generator, dtype=torch.float64)
    best = 0.0
    for step in range(generations):
        scores = getattr(Pair(genes, gap), measure)()
        best = max(best, scores.max().item())
        parents = genes[scores.topk(width // 10).indices]
        mutants = parents.repeat(10, 1)
        change = torch.randn(mutants.shape, generator=generator, dtype=torch.float64)
        sparse = torch.rand(mutants.shape, generator=generator) < 0.3
        genes = mutants + change * sparse * (2 if step % 3 else 0.3)
        genes[: len(parents)] = parents
    return best


@pytest.mark.parametrize("measure", ["output", "linear_term", "determinants"])
@pytest.mark.parametrize("gap", GAPS)
def test_no_neighbour_found_exceeds_a_bound(gap, measure):
    assert 0.95 < searched(gap, measure) <= 1 + 1e-9


@pytest.mark.parametrize("gap", GAPS)
def test_the_sensitivity_is_attained(gap):
    """One treated record among untreated ones alike: all comparisons are with it, and turn round."""
    x, a = torch.zeros(5, 2, dtype=torch.float64), torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)
    x[:] = torch.tensor([1.0, 2.0])
    ends = [
        PairwiseRule(DOMAIN, None, gap=gap, ridge=20.0)
        .fit(x, a, torch.tensor([y, 0, 0, 0, 0], dtype=torch.float64))
        .problem_.minimiser
        for y in (-3.0, 3.0)
    ]
    sensitivity = pair_bounds(gap).first * LOSS.slope / 20.0
    assert sensitivity == {"difference": 0.1, "sign": 0.2}[gap]
    assert (ends[0] - ends[1]).norm().item() == pytest.approx(sensitivity, rel=1e-8)


def test_a_rule_learns_who_gains():
    x, a, y = records(3000)
    learner = PairwiseRule(DOMAIN, PrivacyBudget(4.0, 0.0), outcome=SignedResidual(clip=1.5)).fit(x, a, y)
    release, best = learner.release(), (x[:, 0] > 0).numpy()
    assert (release.decide(x) == best).mean() > 0.9
    assert ((learner.nonprivate_score(x) > 0) == best).mean() > 0.9
    assert (release.privacy.level, release.privacy.epsilon) == (
        "conditional",
        pytest.approx(4.0),
    )  # a learner outside the library
    public = release.privacy.public
    assert (public["matching"], public["gap"]) == ("all", "difference")


def test_sums_of_changes_of_pairwise_weights_are_at_most_the_bounds():
    """All pairwise terms of one record flip: the sums that the definition requests, term by term."""
    n, g = 7, 1.0
    before, after = (torch.zeros(n, n, dtype=torch.float64) for _ in range(2))
    for weights in (before, after):
        weights[0, 1:] = weights[1:, 0] = g / (n - 1)
    # terms that a record takes part in count with both weights, for its features and labels change
    assert (before + after).sum().item() == pytest.approx(pair_bounds("sign").first)
    assert before.sum().item() == pytest.approx(pair_bounds("sign").second)
