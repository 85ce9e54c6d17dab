"""``torchdpcate domain``: the draft of a domain file, from the names and types of a table's columns."""

import sys

from torchdpcate.data.domain_file import draft_domain, write_draft
from torchdpcate.data.facts import OPEN


def domain(table: str, output: str | None = None, treatment: str | None = None, outcome: str | None = None) -> None:
    """Write the draft, or print it.

    Args:
        table: csv or parquet.
        output: The yaml file to write, not there yet; None prints the draft.
        treatment: Name of the treatment's column.
        outcome: Name of the outcome's column.

    Raises:
        InputError: No such table or column, or a file that is there.
    """
    draft = draft_domain(table, treatment, outcome)
    if output is None:
        sys.stdout.write(draft)
        return
    print(f"written: {write_draft(draft, output)}")
    print(f"Replace each {OPEN} in it by a public fact and say where it comes from; train refuses it until then.")
