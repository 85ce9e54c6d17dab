"""Gene expression with a treatment and an outcome of known law: TCGA, as in the paper on private effects."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdpcate.data.expression_file import SAMPLES, read_matrix
from torchdpcate.data.facts import to_number
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.semi_synthetic import SemiSynthetic
from torchdpcate.data.split import public_generator
from torchdpcate.data.surfaces import GeneratedSurface, Outcomes, known_propensity_of
from torchdpcate.errors import InputError


class SumOfGenes(GeneratedSurface):
    r"""Treatment by the sum of a few public covariates, constant effect: the design of Figure 7.

    With u the modifiers scaled to [-1, 1] by their public bounds, m of them,

    .. math::
        P(A = 1 | x) = \zeta + (1 - 2\zeta)\,\mathrm{sigmoid}(c \textstyle\sum_j u_j / \sqrt m), \quad
        Y = \tfrac1m \textstyle\sum_j \gamma_j u_j + A + \varepsilon .

    The paper takes the ten covariates of largest variance, which is a statistic of the records that nothing pays for,
    and does not say how the treatment follows from their sum. Here the modifiers are named in public.

    Args:
        modifiers: Covariates in this role; the first five if left out.
        noise: As ``GeneratedSurface``.
        confounding: c; 0 tosses a coin.
    """

    name = "sum"

    def __init__(self, modifiers: Sequence[str] | None = None, noise: float = 0.5, confounding: float = 1.0) -> None:
        super().__init__("constant", modifiers, noise, confounding)

    def draw(self, x: Tensor, rows: Tensor, schema: TableSchema, path: Any, seed: int) -> Outcomes:
        """Draw treatment and outcome by the formulas above."""
        drawn = super().draw(x, rows, schema, path, seed)
        if known_propensity_of(x, rows, schema, path) is not None or not self.confounding:
            return drawn
        u = self.scaled(x, schema)
        overlap = schema.domain.overlap
        pi = overlap + (1 - 2 * overlap) * torch.sigmoid(self.confounding * u.sum(1) / u.shape[1] ** 0.5)
        toss = torch.rand(len(x), generator=public_generator(seed, "treatment"), dtype=torch.float64)
        a = (toss < pi).to(torch.float64)
        return Outcomes(a, drawn.y + (a - drawn.a) * drawn.effect, drawn.effect, drawn.bounds)


class Expression(SemiSynthetic):
    """Expression of genes, one record a patient; treatment and outcome of a surface whose effect is known.

    Which genes are covariates is public: a list from elsewhere, such as a pathway or a panel. A choice by the variance
    among these records would release something of them that nothing pays for; what depends on the outcome can be found
    privately (``screen=private``).

    Args:
        path: Expression matrix, see ``read_matrix``.
        genes: File with a gene's name a line, or a list of names; None takes all of the file, for fits alone.
        samples: Where the samples stand, ``"columns"`` or ``"rows"``.
        low: Public lower bound of every value.
        high: Public upper bound of every value.
        overlap: Of the treatment.
        modifiers: Genes by whose sum treatment and outcome go; the first ten of the list if left out.
        noise: Of the outcome, see ``SumOfGenes``.
        confounding: c of ``SumOfGenes``.
        out_of_bounds: ``"refuse"`` or ``"clip"`` values outside the bounds.
        rest: As ``SemiSynthetic``.

    Raises:
        InputError: On ``load``, whatever in the files is not as declared.
    """

    def __init__(
        self,
        path: str | Path,
        genes: str | Path | Sequence[str] | None = None,
        samples: str = SAMPLES[0],
        low: float = -9.97,
        high: float = 20.0,
        overlap: float = 0.1,
        modifiers: Sequence[str] | None = None,
        noise: float = 0.5,
        confounding: float = 1.0,
        out_of_bounds: str = "clip",
        **rest: Any,
    ) -> None:
        super().__init__(path, {}, None, out_of_bounds, **rest)
        self.genes = genes
        self.samples = samples
        self.low, self.high = to_number("data.low", low), to_number("data.high", high)
        self.overlap = overlap
        self.modifiers = modifiers
        self.noise = noise
        self.confounding = confounding
        self._read: tuple[list[str], np.ndarray] | None = None

    def _handled(self) -> TableSchema:
        names = self._names()
        covariates = {gene: {"low": self.low, "high": self.high} for gene in names}
        outcome = {"name": "outcome", "low": -1, "high": 1}  # the surface brings its own bounds
        facts = {"treatment": "treatment", "outcome": outcome, "covariates": covariates, "overlap": self.overlap}
        self.surface = SumOfGenes(self.modifiers or names[:10], self.noise, self.confounding)
        return TableSchema.of(facts).handling(self.out_of_bounds)

    def _covariates(self, schema: TableSchema) -> Tensor:
        _, values = self._matrix()
        return schema.within(torch.from_numpy(np.ascontiguousarray(values)))

    def _names(self) -> list[str]:
        """Return the genes' names, public."""
        if self.genes is None:
            return self._matrix()[0]
        return self._listed()

    def _listed(self) -> list[str]:
        names = [self.genes] if isinstance(self.genes, Path) else self.genes
        if isinstance(self.genes, str | Path):
            try:
                names = Path(self.genes).read_text(encoding="utf-8").split()
            except (OSError, UnicodeError):
                raise InputError(f"data.genes = {self.genes}: no such file of names, one a line") from None
        names = [str(name) for name in names or ()]
        if not names or len(set(names)) < len(names):
            raise InputError(f"data.genes: has {len(names)} names, {len(set(names))} different; name each gene once")
        return names

    def _matrix(self) -> tuple[list[str], np.ndarray]:
        """Return names and values, read once."""
        if self._read is None:
            _, genes, values = read_matrix(str(self.path), self.samples, None if self.genes is None else self._listed())
            self._read = genes, values
        return self._read

    def public(self) -> Any:
        """Return what is public without the matrix: of a list of genes."""
        if self.genes is None:
            raise InputError("data.genes: name a list of genes; a plan does not look into the matrix for their names")
        return super().public()
