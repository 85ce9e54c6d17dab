"""``curator/report.html``: a report's tables and figures, spent budgets and planned noise on one page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from torchdpcate.cli.task import NoiseCheck, TaskSpec
from torchdpcate.evaluation.curator_figures import BudgetBar, noise_figure, spent_figure
from torchdpcate.pages.curator import Part, Table, curator_page
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.ledger_file import BlockAccount, Book, parse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURATOR_PAGE = "report.html"
_MOST_BARS = 12  # runs whose budget is drawn; every run is in the table of runs
_BUDGET = "requested_epsilon"


@dataclass(frozen=True)
class FamilyReport:
    """What a report says of the runs of one family of tasks.

    Attributes:
        family: The family.
        runs: One row a run, with its ``method``.
        tables: Headings, notes and tables of texts.
        figures: Figures by their captions, besides those that are made here.
    """

    family: type[TaskSpec]
    runs: pd.DataFrame
    tables: Sequence[tuple[str, str, pd.DataFrame]]
    figures: "Mapping[str, Figure]"


def make_curator_page(name: str, reports: Sequence[FamilyReport], totals: Sequence[str]) -> str:
    """Return the curator's page of runs.

    Args:
        name: Of the folder of the runs.
        reports: What is said of each family.
        totals: Lines about what several runs on the same records have spent.

    Raises:
        InputError: A damaged ledger, or a damaged file of the curator's.
    """
    runs = pd.concat([report.runs for report in reports])
    parts = [part for report in reports for part in _parts(report)]
    return curator_page(f"{name}: {len(runs)} run{'s' * (len(runs) > 1)}", totals, [*parts, _budgets(runs)])


def _parts(report: FamilyReport) -> Iterator[Part]:
    """Return the parts about a family: its tables and figures, and plans against what came out."""
    family, runs = report.family, report.runs
    shown = ["run", "method", "n", "seed", _BUDGET, *family.summary_keys(), "seconds"]
    known = runs[[name for name in shown if name in runs and runs[name].notna().any()]]
    tables = [_table(heading, note, table) for heading, note, table in report.tables]
    each = _table("Run by run", "", known.map(_short))
    figures = {**report.figures, **family.curator_figures(runs)}
    yield Part(family.heading, [*tables, each], figures)
    for check in family.noise_checks:
        yield from _noise(runs, check)


def _noise(runs: pd.DataFrame, check: NoiseCheck) -> Iterator[Part]:
    """Return the part about a plan, where runs know both sides of it."""
    if not {check.planned, check.realised} <= set(runs):
        return
    found = runs.assign(planned=runs[check.planned], realised=runs[check.realised] * check.scale, line=runs["method"])
    found = found[(found["planned"] > 0) & (found["realised"] > 0)]
    if found.empty:
        return
    means = found.groupby(["data", "n", "method", _BUDGET])[["planned", "realised"]].mean()
    means["realised / planned"] = means["realised"] / means["planned"]
    table = _table("Planned and realised, means over runs", "", means.reset_index().map(_short))
    caption = f"Planned and realised: {check.of}"
    figures = {caption: noise_figure(found, check.of)} if len(found) > 1 else {}
    yield Part(f"Planned against realised: {check.of}", [table], figures, note=check.note)


def _budgets(runs: pd.DataFrame) -> Part:
    """Return the part about what was spent, of runs that still have their ledgers."""
    first = runs.sort_values(["seed", _BUDGET], kind="stable") if len(runs) > _MOST_BARS else runs
    bars: list[BudgetBar] = []
    rows: list[list[str]] = []
    for run, folder in zip(first["run"], first["folder"], strict=True):
        path = folder / "curator" / "ledger.json"
        if not path.is_file() or len(rows) >= _MOST_BARS:
            continue
        for bar, row in _accounts(run, path):
            bars.append(bar)
            rows.append(row)
    if not bars:
        return Part("Budget")
    heads = ("run", "block", "epsilon allowed", "delta allowed", "epsilon spent", "level", "steps")
    left = len(runs) - len({row[0] for row in rows})
    note = "By record. A block's steps compose: each alone, as drawn, adds up to more than the block has spent."
    note += f" {left} further runs are not shown." if left else ""
    caption = "Spent budgets, by block of records and by step"
    return Part("Budget", [Table("By block of records", "", heads, rows)], {caption: spent_figure(bars)}, note)


def _accounts(run: str, path: Path) -> Iterator[tuple[BudgetBar, list[str]]]:
    """Return each block of a ledger as a bar, and as a row of a table."""
    book = parse(path)
    for block, budget in book.blocks.items():
        spent = BlockAccount.of(book, block, book.entries).spent(book.private)
        steps = _steps(book, block)
        label = run if len(book.blocks) == 1 else f"{run}, {block}"
        row = [run, block, _short(budget.epsilon), f"{budget.delta:g}", _short(spent["epsilon"]), str(spent["level"])]
        yield BudgetBar(label, budget.epsilon, spent["epsilon"], steps), [*row, str(len(steps))]


def _steps(book: Book, block: str) -> dict[str, float]:
    """Return what each step of a block would cost alone at the block's delta; nothing of what claims nothing."""
    charges: dict[str, list] = {}
    for entry in book.entries:
        if entry.block == block and entry.count:
            charges.setdefault(entry.label, []).append((entry.event, entry.count))
    alone = {label: compose(events, book.blocks[block].delta) for label, events in charges.items()}
    return {label: epsilon for label, epsilon in alone.items() if math.isfinite(epsilon)}


def _table(heading: str, note: str, table: pd.DataFrame) -> Table:
    heads = [str(name).replace("_", " ") for name in table.columns]
    return Table(heading, note, heads, table.astype(str).to_numpy().tolist())


def _short(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
