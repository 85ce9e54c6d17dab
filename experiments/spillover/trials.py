"""The neighbours that one search has tried, by exact refits, and the widest of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.spillover.refits import Refits
from experiments.spillover.replacements import Replacements
from experiments.spillover.report import Found

_PROPOSALS = 8  # refits a step of a climb


class Trials:
    """What one search has tried.

    Args:
        search: Its name.
        refits: The learner.
        on_refit: Called after each refit.

    Attributes:
        width: Largest spread, max DeltaU - min DeltaU; -1 before anything was tried.
        widest: The replacement that has it, one row.
        delta: Its DeltaU, [M].
        movement: Largest |DeltaU| of all.
        count: Refits.
    """

    def __init__(self, search: str, refits: Refits, on_refit: Callable[[], None]) -> None:
        self.search, self.refits, self._on_refit = search, refits, on_refit
        self.width, self.movement, self.count = -1.0, 0.0, 0
        self.widest: Replacements
        self.delta = torch.zeros_like(refits.base)

    def add(self, replacements: Replacements) -> Tensor:
        """Refit to these neighbours and return their spreads, [R]."""
        movements = self.refits.movements(replacements, self._on_refit)
        widths = movements.amax(1) - movements.amin(1)
        best = int(widths.argmax())
        if float(widths[best]) > self.width:
            self.width, self.delta = float(widths[best]), movements[best]
            self.widest = replacements[best : best + 1]
        self.movement = max(self.movement, float(movements.abs().max()))
        self.count += len(replacements)
        return widths

    def climb(self, start: "Trials", count: int, generator: torch.Generator) -> None:
        """Coordinate ascent from another search's widest neighbour: for any learner, trees included.

        A coordinate is a covariate, which goes to an end of its bounds or to where a scoring record has it, the action,
        the end of the outcome, or the record that leaves. The best of a handful of changes is kept if it widens.

        Args:
            start: Where to start.
            count: Refits.
            generator: Of the changes tried.
        """
        here, width = start.widest, start.width
        for done in range(0, count, _PROPOSALS):
            changed = self._changed(here, min(_PROPOSALS, count - done), generator)
            widths = self.add(changed)
            best = int(widths.argmax())
            if float(widths[best]) > width:
                here, width = changed[best : best + 1], float(widths[best])

    def found(self) -> Found:
        """Return the widest neighbour in plain types."""
        k = self.widest
        return Found(
            self.search,
            self.width,
            self.movement,
            self.count,
            int(k.index),
            k.x[0].tolist(),
            self.refits.facts.actions[int(k.arm)],
            float(k.y),
        )

    def _changed(self, here: Replacements, count: int, generator: torch.Generator) -> Replacements:
        """Copies of one replacement, each with one coordinate changed."""
        facts, score = self.refits.facts, self.refits.score
        domain, q = facts.domain, facts.domain.dimension

        def draw(most: int) -> int:
            return int(torch.randint(most, (1,), generator=generator))

        copies = here[torch.zeros(count, dtype=torch.int64)]
        for k in range(count):
            j = draw(q + 3)
            if j < q:
                places = (domain.covariate_low[j], domain.covariate_high[j], score.x[draw(score.n), j])
                copies.x[k, j] = places[draw(3)]
            elif j == q:
                copies.arm[k] = (copies.arm[k] + 1 + draw(facts.arms - 1)) % facts.arms
            elif j == q + 1:
                copies.y[k] = domain.outcome_low if copies.y[k] == domain.outcome_high else domain.outcome_high
            else:
                copies.index[k] = draw(self.refits.train.n)
        return copies
