"""``torchdpcate domain``: the domain file of a table, by questions in a terminal, else a draft to be filled in."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

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
from torchdpcate.data.facts import OPEN
from torchdpcate.errors import InputError

LATER, SKIP = "?", "-"


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
            before = [fact for found in answers.get(name, {}).values() for fact in found.items()]
            if not entry.question or not {*entry.after} <= {*before}:
                continue
            given = _given(entry, answer, say)
            if given is None:
                return False
            answers.setdefault(name, {})[place] = given
        return True

    treatment = treatment or _column("Treatment: which column says who was treated", kinds, answer, say, ())
    about(treatment, treatment_entries(kinds[treatment]))
    outcome = outcome or _column("Outcome: which column is the effect measured by", kinds, answer, say, (treatment,))
    about(outcome, outcome_entries(kinds))
    about("", design_entries(kinds, cluster_columns(kinds, (treatment, outcome))))
    known = Draft(kinds, treatment, outcome, answers=answers)
    chosen = _chosen(known, answer, say) if covariates is None else [n for n in covariates if n not in known.taken]
    say(f"\nCovariates: {SKIP} leaves one out, such as one that the treatment may have changed.")
    kept = [name for name in chosen if about(name, covariate_entries(kinds[name], name))]
    text = replace(known, covariates=kept).text()
    return Asked(text, sum(line.partition("#")[0].count(OPEN) for line in text.splitlines()))


def _given(entry: Entry, answer: Callable[[str], str], say: Callable[[str], object]) -> Mapping[str, str] | None:
    """Return the entries that an answer gives, none where it is left for later; None where the column is left out."""
    while True:
        said = answer(f"  {entry.question}: ").strip()
        if said == SKIP:
            return None
        if said == LATER or (not said and entry.default is not None):
            return {}
        try:
            return entry.read(said)
        except InputError as error:
            say(f"  {error}")


def _column(
    question: str,
    kinds: Mapping[str, str],
    answer: Callable[[str], str],
    say: Callable[[str], object],
    taken: Sequence[str],
) -> str:
    """Ask for a column of the table until there is one of this name."""
    while True:
        name = answer(f"\n{question}: ").strip()
        try:
            if not name or name in taken:
                raise InputError("give a column that has no part yet")
            Draft(kinds, name)
        except InputError as error:
            say(f"  {str(error).removeprefix('treatment = ')}")
        else:
            return name


def _chosen(draft: Draft, answer: Callable[[str], str], say: Callable[[str], object]) -> list[str]:
    """Ask which columns are covariates; those that are none by name or type are named."""
    for name, kind in draft.kinds.items():
        why = left_out(name, kind)
        if name and why and name not in draft.taken:
            say(f"  left out: {name}, {why}; {TO_USE[why]}")
    many = draft.candidates
    while True:
        said = answer(
            "\nCovariates: known before the treatment, and the effect may differ by them. Each adds noise: a few that "
            f"matter, separated by commas{f' (Enter for all {len(many)})' if many else ''}: "
        )
        names = [name.strip() for name in said.split(",") if name.strip()] or many
        try:
            replace(draft, covariates=names).text()
        except InputError as error:
            say(f"  {error}")
        else:
            return names


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
            kinds = table_columns(table, form)
            form = _labelled(form, answer or input) if file_kind(table) == CSV else form
            asked = ask_domain(kinds, answer or input, print, treatment, outcome, chosen)
            output = output or _new_name(answer or input)
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


def _new_name(answer: Callable[[str], str]) -> str:
    """Ask for a file that is not there yet."""
    while True:
        name = answer("File to write (Enter for domain.yaml): ").strip() or "domain.yaml"
        try:
            check_new(name)
        except InputError as error:
            print(error)
        else:
            return name


def _labelled(form: CsvForm, answer: Callable[[str], str]) -> CsvForm:
    """Ask for rows that are no records, which the table's reader is then told of."""
    while not form.skip_after_header:
        said = answer("Rows below the names of columns that are no records, such as labels or units (Enter for 0): ")
        if said.strip() in ("", "0"):
            break
        if said.strip().isdecimal():
            return replace(form, skip_after_header=int(said))
        print("give a number")
    return form


def _end(asked: Asked, output: str, table: str, form: CsvForm) -> None:
    text = asked.text
    print(f"written: {write_draft(text, output)}")
    if asked.open:
        print(f"Left for later: {asked.open} times {OPEN}; train refuses the file until they are replaced.")
    else:
        settings = "".join(f" data.{name}={asdict(form)[name]}" for name in form.changed)
        print(f"Next: torchdpcate plan data=table data.path={table}{settings} data.domain={output} n=NUMBER")
