"""Exact refits: the utilities that a learner's nuisances give when one training record is replaced."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from experiments.spillover.replacements import Replacements
from torchdpcate.candidates.library import PolicyLibrary
from torchdpcate.causal.score import dr_scores
from torchdpcate.data.records import CausalData
from torchdpcate.errors import InputError
from torchdpcate.estimators.selection.scores import utilities
from torchdpcate.fit.arms.base import FittedNuisances, GuaranteedNuisances, ScoreNuisances, SelectionFacts
from torchdpcate.fit.arms.stable import StableNuisances
from torchdpcate.privacy.exact_sums import sum_grid

_NUMBERS = 2**22  # scores in memory at once


class Refits:
    """The utilities of one learner on a training block and on its neighbours; every fit is exact.

    Args:
        name: Of the learner, for errors.
        recipe: The learner, deterministic.
        train: The training block, its actions as positions.
        score: The scoring block, alike.
        facts: Public facts.
        library: The policies, set up.
        seed: Of the learner's initial weights.

    Attributes:
        certified: The fit to the training block.
        base: U, [M].

    Raises:
        InputError: Two fits to the same records differ, so that nothing can be said of one record.
    """

    def __init__(
        self,
        name: str,
        recipe: ScoreNuisances,
        train: CausalData,
        score: CausalData,
        facts: SelectionFacts,
        library: PolicyLibrary,
        seed: int,
    ) -> None:
        if isinstance(recipe, StableNuisances):  # a private target stays as released; default ridges are sought once
            recipe = recipe.settle(train, facts)
        self.recipe, self.train, self.score, self.library = recipe, train, score, library
        self.facts = replace(facts, seed=seed)
        self.certified = self._fit(train)
        self.base = self._utilities([self.certified.nuisances])[0]
        if not torch.equal(self.base, self._utilities([self._fit(train).nuisances])[0]):
            raise InputError(f"nuisances: two fits of {name} to the same records differ; give it a fixed random_state")

    @property
    def batched(self) -> bool:
        """Whether neighbours are refitted side by side, differentiably in the record that comes."""
        return isinstance(self.recipe, StableNuisances)

    def movements(self, replacements: Replacements, on_refit: Callable[[], None] = lambda: None) -> Tensor:
        """Return DeltaU, float64 [R, M]: the utilities on each neighbour less those on the training block."""
        rows = max(1, _NUMBERS // (self.score.n * self.facts.arms))
        parts = []
        for start in range(0, len(replacements), rows):
            batch = replacements[start : start + rows]
            parts.append(self._utilities(self.fits(batch)) - self.base)
            for _ in range(len(batch)):
                on_refit()
        return torch.cat(parts)

    def fits(self, replacements: Replacements) -> list[FittedNuisances]:
        """Return the nuisances of these neighbours: one a neighbour, or all side by side in one."""
        if isinstance(self.recipe, StableNuisances):
            comers = CausalData(replacements.x, replacements.arm.double(), replacements.y)
            return [self.recipe.refit(self.train, self.facts, replacements.index, comers)]  # type: ignore[arg-type]
        return [self._fit(replacements.neighbour(self.train, k)).nuisances for k in range(len(replacements))]

    def scores(self, fits: list[FittedNuisances]) -> Tensor:
        """Return the scoring records' scores by several fits, [R, n, K]."""
        x = self.score.x
        propensity, outcome = (
            torch.cat([part.reshape(-1, *part.shape[-2:]) for part in parts])
            for parts in ([fit.propensity(x) for fit in fits], [fit.outcome(x) for fit in fits])
        )
        return dr_scores(self.score.a.long(), self.score.y, propensity, outcome)

    def sums(self, values: Tensor) -> Tensor:
        """Return each policy's sum of what scoring records have per action, [..., n, K] to [..., M]."""
        return utilities(values, self.library, self.score.x)

    def _utilities(self, fits: list[FittedNuisances]) -> Tensor:
        """U of several fits, [R, M], exact sums of scores on the public grid, as a selector has them."""
        domain = self.facts.domain
        bound = max(abs(domain.outcome_low), abs(domain.outcome_high)) + domain.outcome_range / self.facts.overlap
        step = sum_grid(self.score.n, bound)
        return self.sums(torch.round(self.scores(fits) / step) * step)

    def _fit(self, train: CausalData) -> GuaranteedNuisances:
        return self.recipe.fit(train if self.recipe.trains else None, self.facts)
