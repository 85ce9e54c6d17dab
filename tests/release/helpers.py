"""A small second-stage block and releases made from it, shared by the release tests."""

import torch

from torchdpcate.causal.score import RegressionScore, RScore
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.fit.feature_maps import Legendre
from torchdpcate.fit.nuisance_kinds import Nuisances
from torchdpcate.heads.stage import LinearStage, SecondStageBlock
from torchdpcate.privacy.guarantee import Level

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], -2.0, 2.0, overlap=0.1, better="higher")
SCHEMA = TableSchema.from_domain(DOMAIN)
QUERIES = DOMAIN.grid(8)


class Charges:
    """Records what a mechanism charges."""

    def __init__(self) -> None:
        self.made: list = []

    def __call__(self, event, level: Level, count: int) -> None:
        self.made.append((event, level))


def nuisances(domain: Domain = DOMAIN) -> Nuisances:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Nuisances(domain, width=6).double().eval().requires_grad_(False)


def block(n: int = 400, seed: int = 0, kind: type[RegressionScore] = RScore) -> SecondStageBlock:
    generator = torch.Generator().manual_seed(seed)
    eta, score = nuisances(), kind()
    x = DOMAIN.covariate_low + torch.rand(n, 2, generator=generator, dtype=torch.float64) * (
        DOMAIN.covariate_high - DOMAIN.covariate_low
    )
    a = (torch.rand(n, generator=generator) < 0.5).double()
    noise = torch.rand(n, generator=generator, dtype=torch.float64) - 0.5
    y = DOMAIN.clip_outcome(a * torch.sin(3 * x[:, 0]) + noise)

    def regression(x, a, y):
        values = eta.predict(x)
        return score.regression(a, y, values, values.mu1 - values.mu0)

    s, w = regression(x, a, y)
    return SecondStageBlock(x, s, w, regression, DOMAIN, score.bounds(DOMAIN))


def stage(
    n: int = 400, ridge: float = 0.02, threshold: float = 0.5, kind: type[RegressionScore] = RScore
) -> LinearStage:
    return LinearStage(block(n, kind=kind), Legendre(2).setup(DOMAIN), ridge, threshold)
