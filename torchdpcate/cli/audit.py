"""``torchdpcate audit``: attacks on our own claims, and the search of a run's release for what must not be there."""

import os
import textwrap
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from torchdpcate.audit.attack import AuditResult
from torchdpcate.audit.report import AuditSettings, audit_all, find, make_folder, read_report, registry, write_report
from torchdpcate.cli.parser import nearest
from torchdpcate.cli.tables import facts, terminal_width
from torchdpcate.errors import AuditFailure, InputError
from torchdpcate.privacy.budget import integer

_HELP = """usage: torchdpcate audit mechanism=NAME [folder=FOLDER] [epsilon=1] [delta=1e-5] [confidence=0.95] [trials=N]
       torchdpcate audit --all [folder=FOLDER] [processes=N] [epsilon=1] ...
       torchdpcate audit leak RUN [reference=FILE]

Attack a mechanism on its worst-case neighbours: a lower bound on epsilon beside the claim. Exit code 1 if the bound
exceeds the claim. --all attacks every mechanism and writes a page, its numbers and a figure into the folder, where
mechanism=NAME folder=FOLDER makes one mechanism's row anew; by default as many processes share the work as there are
processors, up to 8.
leak makes everything in the release folder of a run, or of a sweep, again from its release file and compares; reference
is the public table that report was given.

mechanisms:
"""
_REFERENCE = "reference="
_MOST = 8  # processes, by default: each may take 2 GB
KEYS = ("mechanism", "folder", "processes", *AuditSettings.__dataclass_fields__)


def audit(words: list[str]) -> None:
    """Run the command.

    Args:
        words: Command-line words after ``audit``.

    Raises:
        InputError: A user's mistake.
        AuditFailure: A bound exceeds its claim, or a release holds something of the curator's.
    """
    if not words or {"-h", "--help"} & set(words):
        named = registry()
        print(_HELP + facts((f"  {name}", f"{case.attack}: {case.pair}") for name, case in named.items()))
        return
    if words[0] == "leak":
        _leak(words[1:])
        return
    if words[0] == "spillover":
        raise InputError(
            "audit spillover: no score rests on what other records taught; the paper's: torchdpcate study spillover"
        )
    given, every = _parse([word for word in words if word != "--all"]), "--all" in words
    if every == ("mechanism" in given):
        raise InputError("audit: give either mechanism=NAME or --all")
    if "processes" in given and not every:
        raise InputError("processes: one mechanism is one process's work; use --all")
    processes = integer("processes", given.pop("processes", min(_MOST, os.cpu_count() or 1)), least=1)
    written = every or "folder" in given
    folder, name = Path(str(given.pop("folder", "audit"))), given.pop("mechanism", None)
    settings = AuditSettings(**given)  # type: ignore[arg-type]
    cases = list(registry().values()) if every else [find(str(name))]
    report: dict[str, AuditResult] = {}
    if written:  # before minutes of work that could then not be written
        report = {} if every else read_report(cases[0].name, settings, folder)
        make_folder(folder)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("audit", total=None)
        results = audit_all(
            cases,
            settings,
            on_progress=lambda label, done, total: progress.update(bar, description=label, completed=done, total=total),
            processes=processes,
        )
    _show(results)
    if written:
        report |= {result.mechanism: result for result in results}
        for path in write_report(list(report.values()), settings, folder):
            print(f"written: {path}")
    refuted = [result for result in results if result.refuted]
    if refuted:
        found = "; ".join(f"{r.mechanism}: bound {r.bound:.4g} above the claim {r.claimed:.4g}" for r in refuted)
        raise AuditFailure(f"claim refuted at confidence {settings.confidence:g}: {found}")


def _leak(words: list[str]) -> None:
    from torchdpcate.cli.derived import leaks

    places = [word for word in words if not word.startswith(_REFERENCE)]
    given = [word.removeprefix(_REFERENCE) for word in words if word.startswith(_REFERENCE)]
    if len(places) != 1 or len(given) > 1:
        raise InputError("audit leak: give one run folder, and reference=FILE if report was given one")
    found = leaks(places[0], *given)
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise AuditFailure(f"{places[0]}: {found[0]}{more}")
    print(f"{places[0]}: all that is to be published follows from release files, and nothing else is there")


def _parse(words: list[str]) -> dict[str, object]:
    """Return the settings given as KEY=VALUE."""
    given: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            near = nearest(key, (*KEYS, "leak", "--all"), "no word is near it")
            raise InputError(
                f"audit: {word}: {near}; give --all, leak RUN, or KEY=VALUE with a key of {', '.join(KEYS)}"
            )
        if key in given or word.endswith("="):
            raise InputError(f"audit: {word}: give each key once, with a value")
        try:
            given[key] = value if key == "folder" else OmegaConf.from_dotlist([word])[key]
        except OmegaConfBaseException as error:
            raise InputError(f"audit: {word}: {error}") from None
    return given


def _show(results: list[AuditResult]) -> None:
    others = (Column(name, overflow="fold") for name in ("attack", "level", "claim", "bound", "runs"))
    table = Table(Column("mechanism", no_wrap=True), *others, title="torchdpcate: audited", title_justify="left")
    for r in results:
        claim = "none" if r.claimed is None else f"{r.claimed:.4g}"
        mark = " (exceeds the claim)" if r.refuted else ""
        table.add_row(r.mechanism, r.attack, r.level, claim, f"{r.bound:.4g}{mark}", f"{r.trials:,}")
    Console().print(table)
    first = results[0]
    words = (
        f"bound: lower bound on epsilon, confidence {first.confidence:g} each, replace-one adjacency; for Gaussian and "
        "DP-SGD mechanisms within the family of such mechanisms, so that only one above the claim refutes without it"
    )
    print(textwrap.fill(words, terminal_width()))
