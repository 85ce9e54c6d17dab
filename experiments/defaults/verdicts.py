"""Each target, whether it was reached, and the cells where it was not."""

from collections.abc import Iterator

from experiments.defaults.formats import number, with_error
from experiments.defaults.summaries import Cells
from experiments.defaults.targets import MET, MISSED, NEAR, Verdict, all_cells
from experiments.tables import paragraph, table

GROUPS = {
    "designs": "Niu's designs: mean squared error",
    "ratios": "Datasets 1 and 2, ACIC: RMSE over the private constant's, epsilon = 1",
    "large": "270,000 records, epsilon = 8: RMSE over the non-private fit's with the same features",
    "constant": "Every cell: RMSE at most 1.1 times the private constant's and a tenth of the residual's scale",
}


def made(cells: Cells) -> str:
    """Return the tables of targets, as text."""
    verdicts = all_cells(cells)
    parts = ["## Targets\n", table(list(_summary(verdicts))), paragraph(_WORDS)]
    for group, title in GROUPS.items():
        own = [verdict for verdict in verdicts if verdict.group == group]
        shown = own if group != "constant" else [verdict for verdict in own if verdict.word != MET]
        if shown:
            what = " (the others are met)" if group == "constant" else ""
            parts += [f"### {title}{what}\n", table(list(_cells(shown)))]
    return "\n".join(parts)


def _summary(verdicts: list[Verdict]) -> Iterator[list[str]]:
    yield ["target", "cells", MET, NEAR, MISSED]
    for group, title in GROUPS.items():
        own = [verdict.word for verdict in verdicts if verdict.group == group]
        yield [title, str(len(own)), *(str(own.count(word)) for word in (MET, NEAR, MISSED))]


def _cells(verdicts: list[Verdict]) -> Iterator[list[str]]:
    yield ["data", "records", "epsilon", "at most", "seen", ""]
    for v in verdicts:
        yield [v.data, f"{v.n:,}", f"{v.epsilon:g}", number(v.limit), with_error(v.seen, v.error), v.word]


_WORDS = (
    "*Within noise*: above the limit by less than two standard errors. Every number is a mean over the seeds; "
    "table.csv has them all."
)
