"""``torchdpcate domain``: the draft of a table's domain file, to be filled in."""

import sys

from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data.domain_draft import check_new, draft_domain, write_draft
from torchdpcate.data.facts import OPEN


def domain(
    table: str,
    output: str | None = None,
    treatment: str | None = None,
    outcome: str | None = None,
    covariates: str | None = None,
    form: CsvForm = PLAIN,
) -> None:
    """Write the domain file, or print its draft. Names and types of columns are read, and nothing else of the table.

    Args:
        table: The table.
        output: The yaml file to write, not there yet; None prints the draft.
        treatment: Name of the treatment's column.
        outcome: Name of the outcome's column.
        covariates: Names of the covariates' columns, separated by commas.
        form: How the table is written, if it is csv.

    Raises:
        InputError: No such table or column, or a file that is there: then nothing is written.
    """
    chosen = None if covariates is None else [name.strip() for name in covariates.split(",") if name.strip()]
    if output is not None:
        check_new(output)
    draft = draft_domain(table, treatment, outcome, chosen, form)
    if output is None:
        sys.stdout.write(draft)
        return
    print(f"written: {write_draft(draft, output)}")
    print(f"Replace each {OPEN} in it by a public fact and say where it comes from; train refuses it until then.")
