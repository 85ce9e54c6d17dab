"""``torchdpcate domain``: the domain file of a table, by questions in a terminal, else a draft to be filled in."""

import sys
from collections.abc import Callable

from torchdpcate.cli.domain_questions import Asked, ask_domain
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.domain_draft import check_new, draft_domain, table_columns, write_draft
from torchdpcate.data.facts import OPEN
from torchdpcate.errors import InputError


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
            asked = ask_domain(table_columns(table, form), answer or input, print, treatment, outcome, chosen)
            output = output or _new_name(answer or input)
        except (EOFError, KeyboardInterrupt):
            print()
            raise InputError("domain: the questions were broken off; nothing is written") from None
        _end(asked, output, table)
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


def _end(asked: Asked, output: str, table: str) -> None:
    text = asked.text
    print(f"written: {write_draft(text, output)}")
    if asked.open:
        print(f"Left for later: {asked.open} times {OPEN}; train refuses the file until they are replaced.")
    else:
        print(f"Next: torchdpcate plan data=table data.path={table} data.domain={output} n=NUMBER")
