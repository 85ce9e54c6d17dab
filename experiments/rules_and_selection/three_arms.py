"""Observational laws of three arms, and 160 public policies that choose among them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdpcate.candidates.kinds import Constants, LinearPolicies
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema

ARMS, COVARIATES, POLICIES, QUERIES, OVERLAP = 3, 5, 160, 3_000, 0.05
THREE = "three arms"
THREE_ARMS = (f"{THREE}: linear", f"{THREE}: squares", f"{THREE}: weak")


@dataclass(frozen=True, eq=False)
class ThreeArms:
    """Records, policies, and what each policy loses.

    Attributes:
        schema: Public facts.
        records: The records, arms as 0, 1, 2.
        policies: The library.
        lost: Each policy's true regret at covariates of the same law, [160].
    """

    schema: TableSchema
    records: CausalData
    policies: list[object]
    lost: Tensor


def three_arms(law: str, n: int, seed: int) -> ThreeArms:
    """Return n records of a law of ``THREE_ARMS``.

    Normal covariates; the logits of the second and third arm are .7 x0 and .7 x1. By law their effects are
    .6 x0 + .2 x2 and .6 x1 - .3 x2; .4 (x0^2 - 1) and .6 x1; or .35 of the first.
    """
    generator = public_generator(seed, law)
    x = torch.randn(n + QUERIES, COVARIATES, generator=generator, dtype=torch.float64).clamp(-3, 3)
    pi = torch.softmax(torch.stack([0 * x[:, 0], 0.7 * x[:, 0], 0.7 * x[:, 1]], 1), 1)
    pi = OVERLAP + (1 - ARMS * OVERLAP) * pi
    a = torch.multinomial(pi[:n], 1, generator=generator)[:, 0]
    second, third = 0.6 * x[:, 0] + 0.2 * x[:, 2], 0.6 * x[:, 1] - 0.3 * x[:, 2]
    if law.endswith("squares"):
        second, third = 0.4 * (x[:, 0].square() - 1), 0.6 * x[:, 1]
    effects = (0.35 if law.endswith("weak") else 1.0) * torch.stack([0 * second, second, third], 1)
    untreated = x[:, 0] + 0.5 * x[:, 1].square() + x[:, 3]
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    y = (untreated[:n] + effects[:n].gather(1, a[:, None])[:, 0] + noise).clamp(-8, 8)
    facts: dict[str, Any] = {
        "treatment": {"name": "a", "categories": list(range(ARMS))},
        "outcome": {"name": "y", "low": -8.0, "high": 8.0, "better": "higher"},
        "covariates": {f"x{j}": {"low": -3.0, "high": 3.0} for j in range(COVARIATES)},
        "overlap": OVERLAP,
    }
    schema, policies = TableSchema.from_dict(facts), _library()
    decisions = PolicyLibrary.of(policies).setup(schema.domain, tuple(range(ARMS))).decide(x[n:])
    values = effects[n:].gather(1, decisions.long()).mean(0)
    return ThreeArms(schema, CausalData(x[:n], a.double(), y), policies, values.max() - values)


def _library() -> list[object]:
    """Return each arm for all, and linear policies of public random coefficients."""
    generator = torch.Generator().manual_seed(7)
    shape = POLICIES - ARMS, ARMS
    weight = torch.randn(*shape, COVARIATES, generator=generator, dtype=torch.float64)
    through = 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    return [Constants(list(range(ARMS))), LinearPolicies(weight.tolist(), through.tolist())]
