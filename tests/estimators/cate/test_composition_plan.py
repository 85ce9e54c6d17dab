"""Releases of a composition keep the contract of plans."""

import pickle
from typing import ClassVar

import torch

from tests.contract import PlanContract, plan_of, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.verify.test_composed import BUDGET, MADE, N
from torchdpcate.composition.settings import AdaptiveSecondStage
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.cate.learner import DRLearner, RLearner
from torchdpcate.release.composed import ComposedRelease
from torchdpcate.release.file import load_release

LEFT_OUT = ("fixed noise", "own solver", "queries")
"""Nothing is claimed, a condition is open, or answers follow from a function that is not in the file."""


def released(learner: type = RLearner, kind: str = "continuous", **settings: object) -> ComposedRelease:
    """A release of confounded records with an effect of each."""
    generator = torch.Generator().manual_seed(3)
    low, high = {"continuous": (-1.0, 1.0), "binary": (0.0, 1.0), "count": (0.0, 9.0)}[kind]
    domain = Domain([0.0, 0.0], [1.0, 1.0], low, high, overlap=0.25, outcome_kind=kind)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = (torch.rand(N, generator=generator) < 0.3 + 0.4 * x[:, 1]).double()
    y = low + (high - low) * torch.rand(N, generator=generator, dtype=torch.float64) ** (2 - a * x[:, 0])
    y = y if kind == "continuous" else y.round()
    return learner(domain, BUDGET, second_stage=AdaptiveSecondStage(**settings)).fit(x, a, y).release_function()


def of_arms(known: bool = False, kind: str = "continuous", **settings: object) -> ComposedRelease:
    """A release of three arms."""
    generator = torch.Generator().manual_seed(4)
    arms = {"name": "arm", "categories": ["low", "high", "placebo"], "reference": "placebo"}
    covariates = {name: {"low": 0, "high": 1} for name in ("x0", "x1")}
    facts = {"treatment": arms, "outcome": {"name": "y", "low": 0, "high": 1, "kind": kind}, "covariates": covariates}
    facts |= {"propensity": [0.25, 0.25, 0.5]} if known else {"overlap": 0.1}
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    a = 1 + torch.multinomial(torch.tensor([0.5, 0.25, 0.25]), N, True, generator=generator).double()
    y = torch.rand(N, generator=generator, dtype=torch.float64) ** (2 - (a == 3) * x[:, 0])
    learner = RLearner(TableSchema.from_dict(facts), BUDGET, second_stage=AdaptiveSecondStage(**settings))
    return learner.fit(x, a, y if kind == "continuous" else y.round()).release_function()


OTHERS = {
    "arms": of_arms,
    "arms of a trial": lambda: of_arms(known=True),
    "arms, binary": lambda: of_arms(kind="binary"),
    "arms, one number": lambda: of_arms(constant_only=True),
    "estimated propensity, intervals": lambda: released(intervals=True),
    "binary": lambda: released(kind="binary"),
    "count": lambda: released(kind="count"),
    "scores": lambda: released(DRLearner),
    "scores, one number": lambda: released(DRLearner, constant_only=True),
    "scores, binary": lambda: released(DRLearner, "binary"),
    "scores, count": lambda: released(DRLearner, "count"),
}


class TestContract(PlanContract):
    made: ClassVar = {name: MADE[name] for name in MADE if name not in LEFT_OUT} | OTHERS
    default = ("trial", "arms")
    untold = ("learner", "rule", "columns", "features")
    untold_in: ClassVar = dict.fromkeys(  # whose plan is that of one number anyway
        ("small budget", "pure and constant", "binary", "scores, binary", "arms, binary"), ("constant_only",)
    )
    followed = ("standardisation", "estimates", "scale", "interval", "curvatures")

    def test_the_plan_is_made_anew_from_the_file(self, case, written):
        release = load_release(written(case))
        plan = plan_of(release)
        assert list(plan.problems(release)) == []
        assert pickle.loads(pickle.dumps(plan)).public() == plan.public()
