"""Both potential outcomes of a benchmark, put beside its covariates: ACIC 2016, Twins."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdpcate.data._arrays import numeric_column
from torchdpcate.data._frames import about, read_frame
from torchdpcate.data.facts import check_bounds
from torchdpcate.data.records import check_treatment
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError
from torchdpcate.papers.semi_synthetic import (
    SemiSyntheticOutcomes,
    Surface,
    draw_treatment,
    known_propensity_of,
    modifiers_of,
)


@dataclass(eq=False, repr=False)
class GivenOutcomes(Surface):
    """Both potential outcomes from columns of a file: a benchmark's own effects.

    The record's outcome is y1 where treated, else y0. Its effect is mu1 - mu0 if the means are
    given, else y1 - y0.

    Args:
        path: csv or parquet with a row per row of the covariate file; that file itself if left out.
        outcomes: Names of the columns y0 and y1.
        means: Names of the columns mu0 and mu1, or None.
        treatment: Name of the treatment's column; if None the treatment is drawn as by
            ``GeneratedSurface``, from the first five covariates.
        event_below: If given, the outcome is the event "value below this number", 0 or 1.
        bounds: Public bounds [low, high] of the outcome; those of the domain file if left out.
        confounding: Strength of a drawn treatment's dependence on covariates; 0 tosses a coin.

    Raises:
        InputError: On ``draw``, missing file or column, other number of rows, bad treatment.
    """

    name = "given"

    path: str | Path | None = None
    outcomes: Sequence[str] = ("y0", "y1")
    means: Sequence[str] | None = None
    treatment: str | None = None
    event_below: float | None = None
    bounds: Sequence[float] | None = None
    confounding: float = 1.0

    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> SemiSyntheticOutcomes:
        """Look the potential outcomes up, and draw the treatment if no column has it."""
        covariates, path = path, path if self.path is None else self.path
        values = self._read(path, rows)
        y0, y1 = (self._event(values[name]) for name in _pair(self.outcomes, "outcomes"))
        effect = y1 - y0
        if self.means is not None:
            mu0, mu1 = (values[name] for name in _pair(self.means, "means"))
            effect = mu1 - mu0
        if self.treatment is None:
            u = modifiers_of(x, schema, None)
            known = known_propensity_of(x, rows, schema, covariates)
            a = draw_treatment(u, schema.domain.overlap, self.confounding, seed, known)
        else:
            a = values[self.treatment]
            with about(path):
                check_treatment(a, f"treatment column {self.treatment!r}")
        low, high, kind = self.public_outcome(schema)
        return SemiSyntheticOutcomes(a, torch.where(a == 1, y1, y0), effect, (low, high), kind)

    def public_outcome(self, schema: TableSchema) -> tuple[float, float, str]:
        """See ``Surface.public_outcome``: an event is binary, and the domain's kind holds for its own bounds."""
        domain = schema.domain
        low, high = check_bounds("surface.bounds", *(self.bounds or (domain.outcome_low, domain.outcome_high)))
        if self.event_below is not None:
            return low, high, "binary" if (low, high) == (0.0, 1.0) else "continuous"
        return low, high, domain.outcome_kind if self.bounds is None else "continuous"

    def _read(self, path: Any, rows: Tensor) -> dict[str, Tensor]:
        names = [*self.outcomes, *(self.means or ()), *([self.treatment] if self.treatment else ())]
        frame = read_frame(path, names)
        if len(frame) <= int(rows.max()):
            raise InputError(f"{path}: {len(frame)} rows for {int(rows.max()) + 1} rows of covariates")
        with about(path):
            return {name: torch.from_numpy(numeric_column(frame[name], name))[rows] for name in names}

    def _event(self, value: Tensor) -> Tensor:
        return value if self.event_below is None else (value < self.event_below).to(torch.float64)


def _pair(names: Sequence[str], what: str) -> tuple[str, str]:
    if isinstance(names, str) or len(names) != 2:
        raise InputError(f"surface.{what} is {names}; name two columns, untreated first")
    return names[0], names[1]
