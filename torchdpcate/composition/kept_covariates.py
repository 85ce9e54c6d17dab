"""Which covariates the regressions of a composition have, in which order, and how they are standardised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchdpcate.composition.plan import ComposedPlan
from torchdpcate.composition.screening import CentredChoice, screening_by_sums, screening_sums
from torchdpcate.composition.steps import PROGNOSTIC, NoisySteps, summed
from torchdpcate.composition.summaries import moment_sums, standardisation_by_sums
from torchdpcate.composition.windows import private_moments, private_windows, starts_at_zero, window_cells, within
from torchdpcate.data.domain import Domain
from torchdpcate.features.weighted_basis import Standardisation

Terms = Callable[[Tensor, Tensor], Tensor]
"""From covariates scaled to [-1, 1], [b, q], and the residuals of a screening, [b], to a sum over these records."""


class CovariateSums(Protocol):
    """Records of which covariates are kept."""

    def total(self, terms: Terms) -> Tensor:
        """Return the sum over all records of what ``terms`` sums over some, on the CPU."""


@dataclass(frozen=True, eq=False)
class KeptCovariates:
    """Covariates that regressions have.

    Attributes:
        columns: Their positions among all, by that order; None for all as they are.
        standardisation: Of these, released.
        two_levels: Whether each has two levels.
    """

    columns: tuple[int, ...] | None
    standardisation: Standardisation
    two_levels: tuple[bool, ...]

    def of(self, u: Tensor) -> Tensor:
        """Return them standardised, [n, k], of all covariates u [n, q] scaled to [-1, 1]."""
        return self.standardisation(u if self.columns is None else u[:, list(self.columns)])

    def modifiers(self, chosen: Sequence[int]) -> "tuple[list[int], KeptCovariates]":
        """Return those that were chosen for the effect, by the order of all, with their positions among these.

        Args:
            chosen: Positions.
        """
        assert self.columns is not None
        places = sorted(chosen, key=self.columns.__getitem__)
        return places, self.at(places)

    def at(self, places: Sequence[int]) -> "KeptCovariates":
        """Return those at some positions among these, in that order."""
        every = range(len(self.two_levels)) if self.columns is None else self.columns
        scales = Standardisation(self.standardisation.mean[list(places)], self.standardisation.sd[list(places)])
        return KeptCovariates(tuple(every[j] for j in places), scales, tuple(self.two_levels[j] for j in places))


def kept_covariates(
    records: CovariateSums, domain: Domain, plan: ComposedPlan, steps: NoisySteps, two_levels: Sequence[bool]
) -> KeptCovariates:
    """Run the steps that choose and scale the covariates of the regressions.

    A wide plan keeps all, the ones that it chooses for the outcome first.

    Args:
        records: The records.
        domain: Public bounds.
        plan: The public plan.
        steps: Pays, and draws noise.
        two_levels: Whether each covariate has two levels, public, [q].
    """
    n, every = plan.n, tuple(two_levels)
    if not plan.windows:
        columns = None
        if plan.screens:
            columns = screening_by_sums(records.total(screening_sums), n, plan.kept, steps)
        levels = every if columns is None else tuple(every[column] for column in columns)
        if steps.private and "moments" not in plan.shares.shares:
            return KeptCovariates(columns, Standardisation.none(len(levels)), levels)
        sums = records.total(lambda u, _: moment_sums(u if columns is None else u[:, list(columns)]))
        return KeptCovariates(columns, standardisation_by_sums(sums, n, steps, plan.by_sums), levels)
    scales = _by_windows(records, domain, n, steps, torch.tensor(every))
    kept = KeptCovariates(None, scales, every)
    if not plan.wide:
        return kept
    choice = CentredChoice(PROGNOSTIC, plan.choices[PROGNOSTIC], n, steps)
    centre = choice.centre(records.total(lambda _, r: summed(lambda rows: rows.sum(0), r)))
    first = choice.by_sums(records.total(lambda u, r: choice.sums(scales(u), r, centre)))
    return kept.at([*first, *(j for j in range(len(every)) if j not in first)])


def _by_windows(
    records: CovariateSums, domain: Domain, n: int, steps: NoisySteps, two_levels: Tensor
) -> Standardisation:
    """Return the standardisation of all covariates by private windows, and moments within these."""
    numbers, windows = ~two_levels, Standardisation.none(0)
    if bool(numbers.any()):
        bent = starts_at_zero(domain)[numbers]
        windows = private_windows(lambda: records.total(lambda u, _: window_cells(u[:, numbers], bent)), bent, n, steps)
    sums = records.total(lambda u, _: moment_sums(within(u, windows, two_levels)))
    return private_moments(sums, windows, two_levels, n, steps)
