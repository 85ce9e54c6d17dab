"""Neighbouring records on which sums of centred outcomes are attacked, with their exact likelihood ratio."""

import torch
from torch import Tensor

from torchdpcate.causal.estimand import ATE
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.erm.records import Batch, StackedRecords
from torchdpcate.estimators.average.balanced_difference import SUMS
from torchdpcate.estimators.average.centred_sums import CentredSums, contrast
from torchdpcate.estimators.average.known_propensity import KnownPropensityEffect
from torchdpcate.estimators.average.sum_and_squares import sum_and_half_squares
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.events import PureEvent
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.session import FitSession
from torchdpcate.privacy.worst_case import Game, worst_case

_RECORDS = 20  # so few that the centre stays at a half, where an outcome moves the contrast as far as an arm does


def _records(world: int, replaced: int) -> StackedRecords:
    """Records at the middle of the outcome's range, and treated ones at either end of it."""
    z = (torch.arange(_RECORDS) % 2).double()
    y = torch.full_like(z, 0.5)
    z[:replaced], y[:replaced] = 1.0, 1.0 - world
    half = torch.full((_RECORDS, 1), 0.5, dtype=torch.float64)
    return StackedRecords(Batch(half, half, z, y))


@worst_case(
    "known_propensity",
    KnownPropensityEffect,
    pair="a treated record among others at the middle, its outcome at either end; all three sums are shown",
)
def _known_propensity(budget: PrivacyBudget) -> Game:
    return centred_sums_game(budget, 1)


def centred_sums_game(budget: PrivacyBudget, replaced: int) -> Game:
    """Return the game on neighbours of which so many records differ; the budget is by record.

    Args:
        budget: Its epsilon is spent on the sums.
        replaced: Number of records.
    """
    domain = Domain([0.0], [1.0], 0.0, 1.0, propensity=0.5)
    plan = CentredSums(_RECORDS, TableSchema.of(domain), ATE(0.1), PrivacyBudget(budget.epsilon, 0.0))
    facts, worlds = plan.facts, [_records(world, replaced) for world in (0, 1)]
    (unit,) = facts.sensitivities(torch.full((1,), 0.5, dtype=torch.float64))["centre"].tolist()

    def draw(world: int, runs: int, noise: NoiseSource) -> Tensor:
        return torch.cat(list(plan.sums(worlds[world], FitSession(noise), {}, runs).values()), 1)

    def log_density(shown: Tensor, records: StackedRecords) -> Tensor:
        """Of the sum of outcomes, and of contrast and squares given it, both of places in the terms' range."""
        total, places = shown[:, 0], shown[:, 1:]
        centre = facts.centre(total * unit, plan.epsilons[SUMS])
        exact = sum_and_half_squares(facts.terms(centre).places(contrast(records.batch, facts, centre)))
        of_centre = (total - records.batch.y.sum() / unit).abs() / plan.scale("centre")
        return -of_centre - (places - exact).abs().sum(1) / plan.scale(SUMS)

    return Game(
        draw,
        PureEvent(budget.epsilon),
        plan.guarantee(),
        evidence=lambda shown: log_density(shown, worlds[1]) - log_density(shown, worlds[0]),
    )
