"""Searches for neighbours that move weights most: the records and the replaced one are optimised together."""

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import differential_evolution

from experiments.dp_2erm.balancing import BalancingWeights
from tests.sessions import noted
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.privacy.noise import NoiseSource

DOMAIN = Domain([-1.0], [1.0], -1.0, 1.0, overlap=0.25)


def omega(scheme, records: CausalData, domain: Domain = DOMAIN) -> torch.Tensor:
    """Weights of the records by a scheme that spends nothing."""
    fitted = scheme.fit(records, domain, budget=None, session=noted(NoiseSource.fixed(0), unpaid))
    return fitted.weights(records)


def unpaid(*charge) -> None:
    """The ledger of what must be free."""
    raise AssertionError(f"charged {charge}")


def two_crowds(v: np.ndarray, n: int) -> tuple[CausalData, CausalData]:
    """Neighbours of n records: two crowds at v[:2], treated to the shares v[2:4], and the replaced record in front."""
    first = round(float(v[4]) * (n - 1))
    sizes = (first, n - 1 - first)
    x = [float(2 * v[k] - 1) for k in (0, 1) for _ in range(sizes[k])]
    a = [float(i < round(float(v[2 + k]) * sizes[k])) for k in (0, 1) for i in range(sizes[k])]
    datasets = []
    for place, arm in ((v[5], v[6]), (v[7], v[8])):
        xs = torch.tensor([float(2 * place - 1), *x], dtype=torch.float64)[:, None]
        datasets.append(CausalData(xs, torch.tensor([float(arm > 0.5), *a], dtype=torch.float64), torch.zeros(n)))
    return datasets[0], datasets[1]


def worst_movement(scheme: BalancingWeights, n: int, aim: str, generations: int) -> float:
    """Largest share of the certificate ``aim`` (indirect, first or second) that differential evolution finds."""
    bounds = scheme.bounds(n, DOMAIN)
    certified = bounds.first - 2 * bounds.most if aim == "indirect" else getattr(bounds, aim)

    def minus_share(v: np.ndarray) -> float:
        before, after = (omega(scheme, dataset) for dataset in two_crowds(v, n))
        moved, own = (before - after)[1:], (before[0].item(), after[0].item())
        indirect, up = moved.abs().sum().item(), moved.clamp(min=0).sum().item()
        return -{"indirect": indirect, "first": indirect + sum(own), "second": up + own[0]}[aim] / certified

    found = differential_evolution(minus_share, [(0, 1)] * 9, maxiter=generations, popsize=4, polish=False, rng=0)
    return -float(found.fun)


def confounded(n: int, columns: int, seed: int = 0) -> tuple[CausalData, Domain]:
    """Records whose treatment follows their first covariate."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, columns, generator=generator, dtype=torch.float64) * 2 - 1
    a = (torch.rand(n, generator=generator, dtype=torch.float64) < torch.sigmoid(x[:, 0])).double()
    box = [1.0] * columns
    domain = Domain([-1.0] * columns, box, -1.0, 1.0, overlap=0.05)
    return CausalData(x, a, torch.zeros(n, dtype=torch.float64)), domain


def with_first(records: CausalData, x: float, a: float) -> CausalData:
    """The records with another first one."""
    xs, arms = records.x.clone(), records.a.clone()
    xs[0], arms[0] = x, a
    return replace(records, x=xs, a=arms)
