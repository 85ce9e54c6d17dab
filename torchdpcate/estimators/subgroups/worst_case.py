"""Neighbouring records on which effects in subgroups are attacked, with their exact likelihood ratios."""

import torch
from torch import Tensor

from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.subgroups import Subgroups
from torchdpcate.estimators.subgroups.learner import SubgroupEffects
from torchdpcate.estimators.subgroups.plan import SubgroupPlan, plan_subgroups
from torchdpcate.estimators.subgroups.terms import Weighting, cell_sums, record_numbers
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.charge import Charge, Purpose
from torchdpcate.privacy.worst_case import Game, Target, worst_case
from torchdpcate.release.cell_effects import GAUSSIAN, LAPLACE

_DOMAIN = Domain([0.0, 0.0], [1.0, 1.0], 0.0, 1.0)
_CELLS = [{"x0": [0.5]}, {"x1": [0.5]}]
_RECORDS = 50
_RUNS = 30_000  # each of 24 exact draws


def _planned(budget: PrivacyBudget, law: str) -> SubgroupPlan:
    cells = Subgroups.of(_CELLS, TableSchema.from_domain(_DOMAIN))
    weighting = Weighting.of("randomised", TableSchema.from_domain(_DOMAIN))
    return plan_subgroups(_RECORDS, TableSchema.from_domain(_DOMAIN), cells, budget, weighting, law, "separate")


def worst_sums(plan: SubgroupPlan, same_cell: bool) -> tuple[Tensor, Tensor]:
    """Return the sums of two neighbouring data sets, each [strata, 2, 3].

    A treated record of the highest outcome becomes one of the lowest in its cells, or a control in other cells.

    Args:
        plan: The plan, of two covariates in [0, 1].
        same_cell: Whether it stays where it is.
    """
    datasets = []
    for moved in (False, True):
        x = torch.full((_RECORDS, 2), 0.4, dtype=torch.float64)
        a, y = (torch.arange(_RECORDS) % 2).double(), torch.full((_RECORDS,), 0.5, dtype=torch.float64)
        x[0], a[0], y[0] = 0.9, 1.0, 1.0
        if moved:
            y[0] = 0.0
            if not same_cell:
                x[0], a[0] = 0.1, 0.0
        numbers = record_numbers(y, torch.ones_like(y), plan.law, _DOMAIN)
        datasets.append(cell_sums(numbers, a, plan.strata.positions(x), plan.strata.size))
    return datasets[0], datasets[1]


@worst_case(
    "subgroups",
    SubgroupEffects,
    pair="a treated record of the highest outcome becomes a control of the lowest one in other cells of two partitions",
)
def _laplace(budget: PrivacyBudget) -> Game:
    plan = _planned(PrivacyBudget(budget.epsilon, 0.0), LAPLACE)
    return plan.game("sums", *worst_sums(plan, same_cell=False), most_runs=_RUNS)


@worst_case(
    "subgroups_gaussian",
    SubgroupPlan,
    attacks=[Target(Charge(Purpose.RELEASE, SubgroupPlan.name), {"law": GAUSSIAN})],
    pair="a treated record turns from the highest outcome to the lowest one in its cells of two partitions",
)
def _gaussian(budget: PrivacyBudget) -> Game:
    plan = _planned(budget, GAUSSIAN)
    return plan.game("sums", *worst_sums(plan, same_cell=True), most_runs=_RUNS)
