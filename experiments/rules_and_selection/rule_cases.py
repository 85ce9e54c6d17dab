"""Records on which rules matter: effects of mixed sign, in a trial or as observed.

Niu's designs A, B, D and E and Dataset 2 of Oprescu et al., each with the mean of its effect taken from it, so that
treating everybody is about as good as treating nobody. In a trial a fair coin decides on the treatment and the domain
knows it; the observational variants keep the propensity of the law, which the domain does not know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from experiments.designs.niu import Niu
from torchdpcate.data.records import CausalData, public_generator
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.study import GeneratedStudy
from torchdpcate.papers.oprescu import Dataset2

QUERIES = 3_000
MEANS = {"A": 0.5, "B": 0.806, "D": 0.127, "E": 3.37, "2": 4.435}  # of the effect under each law
TRIAL, OBSERVED = "trial", "observational"


@dataclass(frozen=True, eq=False)
class RuleCase:
    """Records, and how a rule is judged.

    Attributes:
        schema: Public facts.
        records: The records.
        queries: Covariates of others under the same law, [m, q].
        truth: Their effects, [m].
    """

    schema: TableSchema
    records: CausalData
    queries: Tensor
    truth: Tensor

    def regret(self, decision: Tensor) -> float:
        """Return the regret of decisions at the queries over that of the best constant rule."""
        lost = (self.truth.abs() * ((self.truth > 0) != (decision > 0))).mean()
        return (lost / torch.stack([self.truth.clamp_min(0).mean(), (-self.truth).clamp_min(0).mean()]).min()).item()


def rule_case(law: str, design: str, n: int, seed: int) -> RuleCase:
    """Return n records of a law, A, B, D, E or 2, in a ``trial`` or ``observational``."""
    make: Callable[..., GeneratedStudy] = Dataset2 if law == "2" else partial(Niu, law)
    total = n + QUERIES
    generator = make(n=total, train_fraction=n / total, queries=QUERIES, seed=seed)
    study, mean = generator.load(), MEANS[law]
    x, a, y = study.records.x, study.records.a, study.records.y
    untreated = y - a * generator.effect(x)
    if design == TRIAL:
        coin = torch.rand(n, generator=public_generator(seed, "coin"), dtype=torch.float64)
        a = (coin < 0.5).double()
    facts = study.schema.to_dict()
    low, high = facts["outcome"]["low"] - mean, facts["outcome"]["high"]
    facts["outcome"] |= {"low": low, "high": high}
    facts.pop("propensity", None)
    if design == TRIAL:
        facts["propensity"] = 0.5
    y = (untreated + a * (generator.effect(x) - mean)).clamp(low, high)
    assert study.queries is not None
    truth = generator.effect(study.queries) - mean
    return RuleCase(TableSchema.from_dict(facts), CausalData(x, a, y), study.queries, truth)
