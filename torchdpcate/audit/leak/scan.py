"""Leak scan: does a run's ``release/`` hold anything of its curator's?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchdpcate.audit.leak.chance import KINDS, Coincidences
from torchdpcate.audit.leak.curator import Curator, read_curator
from torchdpcate.audit.leak.files import read_folder
from torchdpcate.audit.leak.release_checks import (
    copied_files,
    drawn_curves,
    read_stated,
    records_asked_for,
    too_little_noise,
)
from torchdpcate.audit.leak.search import (
    Finding,
    Released,
    gather,
    make_pool,
    named_findings,
    number_findings,
    other_units,
    word_findings,
)
from torchdpcate.audit.leak.vectors import copied_records, copied_vectors
from torchdpcate.errors import AuditFailure

FALSE_ALARM = 1e-6
"""Bound of the probability that the scan of a folder with nothing in it reports a leak by chance."""

# How that is divided; with the two searches of complete vectors and records and the check of noise it adds up to one.
_SHARES = {
    "the curator's single numbers": 0.25,
    "the same in other units": 0.05,
    "the curator's vectors": 0.3,
    "these in other units": 0.05,
    "the records": 0.2,
}
_COMPLETE, _NOISE = 0.05, 0.05
_SHOWN = 20  # lines of a table


@dataclass(frozen=True)
class Comparison:
    """One search and its outcome.

    Attributes:
        against: What the release's numbers were held against.
        pairs: Pairs compared.
        expected: Expected chance matches, one a kind of released number (``KINDS``).
        matches: Matches among them.
    """

    against: str
    pairs: int
    expected: tuple[float, ...]
    matches: tuple[int, ...]


@dataclass(frozen=True)
class LeakReport:
    """What a scan found.

    Attributes:
        leaks: What chance does not explain.
        suspects: Short numbers that equal a curator's; chance may explain them, though it seldom does.
        notes: What could not be compared, and unusual files.
        comparisons: The searches.
        left_out: How many numbers were left out of them, and why.
    """

    leaks: tuple[Finding, ...]
    suspects: tuple[Finding, ...]
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    left_out: dict[str, int]


def scan(run: str | Path) -> LeakReport:
    r"""Search ``release/`` of a run for curator numbers, records, and words that have no business there.

    Everything in the folder is read: tensors, metadata, JSON, text, tables, archives, text of figures, names; the
    released curve's companions in ``effect.png``. A file that cannot be read to the end is a leak, because
    it cannot be checked. Read numbers are compared with

    - every number of ``curator/`` and ``summary.json`` that is no setting, public fact or private release,
    - these times and over n and the outcome range, whatever the sign,
    - the records, loaded again from ``curator/config.yaml``: as encoded, scaled by their bounds, and all columns
      of their table,

    and a match is a released number that is the other one rounded to its own grid (``grid_step``): to the last bits,
    through float32, or to the digits printed. Complete vectors of equal length are compared, in any unit, with the
    noise itself too; numbers that stand together, with the records one by one; released coefficients must be
    as far from the noise-free ones as their stated noise.

    Left out and counted, because chance explains their matches: numbers of four digits or fewer (small integers,
    ages and other coarse grids, shares k/n of few records); numbers equal to a public one (settings, bounds,
    categories, queries, sizes, the ledger's); short roundings of longer numbers of the same release. Short
    numbers that stand by the name of what they equal ("treated: 185") are leaks all the same; without the name
    they are listed as suspects.

    Guarantee:
        A folder whose numbers are noisy or public raises an alarm by chance with probability below 1e-6 a scan:
        each search has a share of it, spent by ``Coincidences.beyond_chance``, with the chance of each match
        estimated from the curator's numbers nearby. Words, paths, names and unreadable files involve no chance.
        Legitimate noise below a millionth of the values it hides is reported as none.
        No finding does not prove that there is no leak: sums of few records, functions of several numbers, single
        numbers at float32 precision among many, and pixels are beyond it.

    Args:
        run: Run folder with ``release/`` and ``curator/``.

    Raises:
        InputError: No run.

    Example:
        >>> scan("nowhere")
        Traceback (most recent call last):
        torchdpcate.errors.InputError: run = nowhere: has no folder release; give a run's own, with release and curator
    """
    run = Path(run)
    curator = read_curator(run)
    contents = read_folder(run / "release")
    stated = read_stated(run / "release")
    if stated is not None:
        curator.outcome_range = stated.outcome_range
        curator.public.append(np.array([curator.outcome_range]))
    released = gather(contents, curator)

    comparisons, leaks, suspects, left_out = _numbers(released, curator)
    leaks += too_little_noise(stated, curator, FALSE_ALARM * _NOISE)
    leaks += word_findings(contents, curator) + copied_files(run) + drawn_curves(run, curator)
    leaks += [Finding(name, "the file", "cannot be checked", why) for name, why in contents.unreadable.items()]
    notes = [*curator.notes, *contents.unusual]
    notes += records_asked_for(stated, curator)
    leaks = _once(leaks)
    known = {(leak.file, leak.place) for leak in leaks}
    suspects = [suspect for suspect in _once(suspects) if (suspect.file, suspect.place) not in known]
    return LeakReport(tuple(leaks), tuple(suspects), tuple(notes), tuple(comparisons), left_out)


def _numbers(
    released: Released, curator: Curator
) -> tuple[list[Comparison], list[Finding], list[Finding], dict[str, int]]:
    """Hold the release's numbers against every kind of curator number, by name, one by one and as vectors."""
    scalars = {name: np.array(value) for name, value in curator.scalars.items()}
    pools = [
        make_pool(numbers, curator)
        for numbers in (
            scalars,
            other_units(scalars, curator),
            curator.vectors,
            other_units(curator.vectors, curator),
            curator.records,
        )
    ]
    outcome, leaks, suspects = named_findings(released, curator)
    comparisons = [_row("these by their names", outcome)]
    for (against, share), pool in zip(_SHARES.items(), pools, strict=True):
        outcome, beyond, unlikely = number_findings(released, pool, FALSE_ALARM * share)
        comparisons.append(_row(against, outcome))
        leaks, suspects = leaks + beyond, suspects + unlikely
    copies: list[Finding] = []
    for against, search in (("complete vectors", copied_vectors), ("complete records", copied_records)):
        pairs, found = search(released, curator, FALSE_ALARM * _COMPLETE)
        comparisons.append(Comparison(against, pairs, (0.0,) * len(KINDS), (len(found), 0, 0)))
        copies += found
    hidden, fine = int(released.hidden.sum()), len(released.fine)
    left_out = {
        "public or repeated numbers of the release": hidden,
        "short numbers of the release": len(released.values) - hidden - fine,
        "public curator numbers": sum(pool.public for pool in pools[::2]),
        "short curator numbers": sum(pool.coarse for pool in pools[::2]),
    }
    copied = {(copy.file, copy.place) for copy in copies}
    single = [leak for leak in leaks if (leak.file, leak.place) not in copied]
    return comparisons, copies + single, suspects, left_out


def _row(against: str, outcome: Coincidences) -> Comparison:
    return Comparison(against, outcome.pairs, tuple(outcome.expected), tuple(outcome.found))


def _once(findings: list[Finding]) -> list[Finding]:
    """Drop what was found at the same place with the same value before."""
    return list({(f.file, f.place, f.value): f for f in reversed(findings)}.values())[::-1]


def leak_report(run: str) -> None:
    """Scan a run folder and print what was found.

    Args:
        run: Run folder.

    Raises:
        InputError: No run.
        AuditFailure: A leak.
    """
    report = scan(run)
    _print(report)
    if report.leaks:
        first = report.leaks[0]
        more = f" (and {len(report.leaks) - 1} more, see above)" if len(report.leaks) > 1 else ""
        raise AuditFailure(f"run = {run}: release/{first.file}, {first.place}: {first.what} ({first.value}){more}")


def _print(report: LeakReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console()
    searches = Table("held against", "pairs", "by chance", "found", title="leak scan", caption=" / ".join(KINDS))
    for row in report.comparisons:
        expected = " / ".join(f"{value:.2g}" for value in row.expected)
        searches.add_row(row.against, f"{row.pairs:,}", expected, " / ".join(map(str, row.matches)))
    console.print(searches)
    for title, findings in (("leaks", report.leaks), ("may be chance: look at these", report.suspects)):
        if findings:
            names = ("file", "place", "what", "value", "by chance")
            table = Table(*(Column(name, overflow="fold") for name in names), title=title)
            for f in findings[:_SHOWN]:
                cells = (escape(text) for text in (f.file, f.place, f.what, f.value))
                table.add_row(*cells, f"{f.chance:.1g}" if f.chance else "no")
            console.print(table)
    found = f"{len(report.leaks)} found" if report.leaks else "nothing found that chance does not explain"
    left = ", ".join(f"{count:,} {what}" for what, count in report.left_out.items())
    console.print(f"leaks: {found} (false alarms: less than one in 10^6 scans). Left out: {left}.", highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
