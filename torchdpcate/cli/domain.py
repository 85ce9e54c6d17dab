"""``torchdpcate domain``: the domain file of a table, by questions in a terminal, else a draft to be filled in."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple, TypeVar

from torchdpcate.cli.tables import columns
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data._frames import CSV, file_kind
from torchdpcate.data.domain_draft import (
    TO_USE,
    Draft,
    Entry,
    check_new,
    cluster_columns,
    covariate_entries,
    design_entries,
    draft_domain,
    left_out,
    outcome_entries,
    table_columns,
    treatment_entries,
    write_draft,
)
from torchdpcate.data.facts import OPEN, check_integer
from torchdpcate.errors import InputError

LATER, SKIP = "?", "-"
_ROWS, _FILE = (
    "Rows below the names of columns that are no records, such as labels or units (Enter for 0): ",
    "File to write (Enter for domain.yaml): ",
)
_Read = TypeVar("_Read")


class Asked(NamedTuple):
    """A domain file from answers, and how many of its entries are open."""

    text: str
    open: int


def ask_domain(
    kinds: Mapping[str, str],
    answer: Callable[[str], str],
    say: Callable[[str], object],
    treatment: str | None = None,
    outcome: str | None = None,
    covariates: Sequence[str] | None = None,
) -> Asked:
    """Return the domain file that the answers make.

    Args:
        kinds: The table's columns, and what each holds.
        answer: From a question to its answer.
        say: Shows a line.
        treatment: The treatment's column; None asks for it.
        outcome: The outcome's column; None asks for it.
        covariates: The covariates' columns; None asks for them.

    Raises:
        InputError: A column that is given, and is none of the table's; or no column can be a covariate.

    Example:
        >>> said = iter(["a", "", "y", "1 5", "manual", "", "", "", "", "0.1", "protocol", "x", "0, 9", "yes"])
        >>> kinds = dict.fromkeys("ayx", "numbers")
        >>> print(ask_domain(kinds, lambda question: next(said), lambda line: None).text.partition("covariates")[2])
        :
          x:
            low: 0
            high: 9
            missing: indicator
        overlap: 0.1
        origin: protocol
        <BLANKLINE>
    """
    Draft(kinds, treatment, outcome, covariates)  # refuses columns that are given
    say("Each answer is a public fact, known without these records. Names and types of columns alone are read.")
    say(f"{LATER} leaves an answer for later, Ctrl-C ends without writing.")
    if None in (treatment, outcome, covariates):
        say("")
        holds: dict[str, list[str]] = {}
        for name, kind in kinds.items():
            holds.setdefault(left_out(name, kind) or kind, []).extend([name] if name else [])
        say(columns(["holds", "columns"], [(kind, ", ".join(names)) for kind, names in holds.items() if names]))
    answers: dict[str, dict[int, Mapping[str, str]]] = {}

    def about(name: str, entries: Sequence[Entry]) -> bool:
        """Ask what is open of a column; return whether it is to be kept."""
        say(f"\n{name or 'The study'}")
        for place, entry in enumerate(entries):
            before = {fact for found in answers.get(name, {}).values() for fact in found.items()}
            if not entry.question or not before.issuperset(entry.after):
                continue
            given = _until(f"  {entry.question}: ", partial(_given, entry), answer, say)
            if given is None:
                return False
            answers.setdefault(name, {})[place] = given
        return True

    ask = partial(_until, answer=answer, say=say)
    treatment = treatment or ask("\nTreatment: which column says who was treated: ", partial(_column, kinds, ()))
    about(treatment, treatment_entries(kinds[treatment]))
    of_outcome = partial(_column, kinds, (treatment,))
    outcome = outcome or ask("\nOutcome: which column is the effect measured by: ", of_outcome)
    about(outcome, outcome_entries(kinds[outcome], kinds))
    about("", design_entries(kinds, cluster_columns(kinds, (treatment, outcome))))
    known = Draft(kinds, treatment, outcome, answers=answers)
    chosen = _chosen(known, answer, say) if covariates is None else [n for n in covariates if n not in known.taken]
    say(f"\nCovariates: {SKIP} leaves one out, such as one that the treatment may have changed.")
    kept = [name for name in chosen if about(name, covariate_entries(kinds[name], name))]
    text = replace(known, covariates=kept).text()
    return Asked(text, sum(line.partition("#")[0].count(OPEN) for line in text.splitlines()))


def _until(
    question: str, read: Callable[[str], _Read], answer: Callable[[str], str], say: Callable[[str], object] = print
) -> _Read:
    """Ask until an answer is read, and say what is wrong with others."""
    while True:
        try:
            return read(answer(question).strip())
        except InputError as error:
            say(f"  {str(error).removeprefix('treatment = ')}")


def _given(entry: Entry, said: str) -> Mapping[str, str] | None:
    """Return the entries that an answer gives, none where it is left for later; None where the column is left out."""
    if said == SKIP:
        return None
    return {} if said == LATER or (not said and entry.default is not None) else entry.read(said)


def _column(kinds: Mapping[str, str], taken: Sequence[str], name: str) -> str:
    """Return the name of a column of the table that has no part yet."""
    if not name or name in taken:
        raise InputError("give a column that has no part yet")
    Draft(kinds, name)
    return name


def _chosen(draft: Draft, answer: Callable[[str], str], say: Callable[[str], object]) -> list[str]:
    """Ask which columns are covariates; those that are none by name or type are named."""
    for name, kind in draft.kinds.items():
        why = left_out(name, kind)
        if name and why and name not in draft.taken:
            say(f"  left out: {name}, {why}; {TO_USE[why]}")
    many = draft.candidates

    def read(said: str) -> list[str]:
        names = [name.strip() for name in said.split(",") if name.strip()] or many
        replace(draft, covariates=names).text()
        return names

    question = (
        "\nCovariates: known before the treatment, and the effect may differ by them. Each adds noise: a few that "
        f"matter, separated by commas{f' (Enter for all {len(many)})' if many else ''}: "
    )
    return _until(question, read, answer, say)


def domain(
    table: str,
    output: str | None = None,
    treatment: str | None = None,
    outcome: str | None = None,
    covariates: str | None = None,
    ask: bool = True,
    form: CsvForm = PLAIN,
    answer: Callable[[str], str] | None = None,
) -> None:
    """Write the domain file, or print its draft. Names and types of columns are read, and nothing else of the table.

    Args:
        table: The table.
        output: The yaml file to write, not there yet; None prints the draft.
        treatment: Name of the treatment's column.
        outcome: Name of the outcome's column.
        covariates: Names of the covariates' columns, separated by commas.
        ask: Whether to ask for what is open, where a person sits at a terminal.
        form: How the table is written, if it is csv.
        answer: From a question to its answer; None asks at the terminal.

    Raises:
        InputError: No such table or column, a file that is there, or the questions were broken off: then nothing is
            written.
    """
    chosen = None if covariates is None else [name.strip() for name in covariates.split(",") if name.strip()]
    if output is not None:
        check_new(output)
    if ask and (answer is not None or (sys.stdin.isatty() and sys.stdout.isatty())):
        try:
            answer, kinds = answer or input, table_columns(table, form)
            if file_kind(table) == CSV and not form.skip_after_header:
                rows = _until(
                    _ROWS, lambda said: check_integer("rows", int(said) if said.isdecimal() else said or 0, 0), answer
                )
                form = replace(form, skip_after_header=rows)
            asked = ask_domain(kinds, answer, print, treatment, outcome, chosen)
            output = output or _until(_FILE, lambda said: str(check_new(said or "domain.yaml")), answer)
        except (EOFError, KeyboardInterrupt):
            print()
            raise InputError("domain: the questions were broken off; nothing is written") from None
        _end(asked, output, table, form)
        return
    draft = draft_domain(table, treatment, outcome, chosen, form)
    if output is None:
        sys.stdout.write(draft)
        return
    print(f"written: {write_draft(draft, output)}")
    print(f"Replace each {OPEN} in it by a public fact and say where it comes from; train refuses it until then.")


def _end(asked: Asked, output: str, table: str, form: CsvForm) -> None:
    print(f"written: {write_draft(asked.text, output)}")
    if asked.open:
        print(f"Left for later: {asked.open} times {OPEN}; train refuses the file until they are replaced.")
    else:
        settings = "".join(f" data.{name}={asdict(form)[name]}" for name in form.changed)
        print(f"Next: torchdpcate plan data=table data.path={table}{settings} data.domain={output} n=NUMBER")
