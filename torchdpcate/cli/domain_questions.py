"""The questions of ``torchdpcate domain``: of a table they know names and types of its columns, and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torchdpcate.cli.tables import columns
from torchdpcate.data.domain_draft import (
    TO_USE,
    Draft,
    Entry,
    covariate_entries,
    design_entries,
    left_out,
    outcome_entries,
    treatment_entries,
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
        >>> said = iter(["a", "", "y", "0 1", "manual", "", "", "x", "0, 9", "yes", "", "0.1", "protocol"])
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
            if not entry.question:
                continue
            given = _given(entry, answer, say)
            if given is None:
                return False
            answers.setdefault(name, {})[place] = given
        return True

    treatment = treatment or _column("Treatment: which column says who was treated", kinds, answer, say, ())
    about(treatment, treatment_entries(kinds[treatment]))
    outcome = outcome or _column("Outcome: which column is the effect measured by", kinds, answer, say, (treatment,))
    about(outcome, outcome_entries(kinds[outcome]))
    chosen = _chosen(Draft(kinds, treatment, outcome), answer, say) if covariates is None else list(covariates)
    say(f"\nCovariates: {SKIP} leaves one out, such as one that the treatment may have changed.")
    kept = [name for name in chosen if about(name, covariate_entries(kinds[name]))]
    about("", design_entries())
    text = Draft(kinds, treatment, outcome, kept, answers).text()
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
        if name and why and name not in (draft.treatment, draft.outcome):
            say(f"  left out: {name}, {why}; {TO_USE[why]}")
    many = draft.candidates
    while True:
        said = answer(
            "\nCovariates: known before the treatment, and the effect may differ by them. Each adds noise: a few that "
            f"matter, separated by commas{f' (Enter for all {len(many)})' if many else ''}: "
        )
        names = [name.strip() for name in said.split(",") if name.strip()] or many
        try:
            Draft(draft.kinds, draft.treatment, draft.outcome, names).text()
        except InputError as error:
            say(f"  {error}")
        else:
            return names
