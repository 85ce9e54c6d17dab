"""Drafts of domain files: each column by name and type, and ``???`` or an answer for each public fact.

What is asked of a column stands once, in ``treatment_entries``, ``outcome_entries``, ``covariate_entries`` and
``design_entries``: drafts and questions follow from them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torchdpcate._files import write_text
from torchdpcate._text import is_plain
from torchdpcate.data._arrays import DATE, DECIMAL, MISSING
from torchdpcate.data._cells import INDICATOR, is_date
from torchdpcate.data._csv import PLAIN, CsvForm, csv_batches, csv_names, setting
from torchdpcate.data._frames import (
    CSV,
    NUMBERS,
    TRUTHS,
    WORDS,
    arrow_path,
    check_form,
    check_there,
    column_kind,
    file_kind,
    readable,
    schema_of,
)
from torchdpcate.data.assignment import REFUSED, Cluster
from torchdpcate.data.censoring import Censoring
from torchdpcate.data.covariates import Numeric
from torchdpcate.data.facts import OPEN, check_better, check_bounds, to_number
from torchdpcate.data.weights import RecordWeights
from torchdpcate.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

OTHER, TWICE, ENCODED = "neither numbers nor words", "there more than once", "not in UTF-8"
DATES, IDENTIFIER = "dates", "an identifier by its name"
TO_USE = {
    OTHER: "make a number or a category of it to use it",
    TWICE: "rename all but one to use it",
    ENCODED: "save the file as UTF-8, or give --encoding latin-1, to use it",
    DATES: "name it by --covariates to use it",
    IDENTIFIER: "it says who or where a person is; of persons with several records train with data.person; name it by "
    "--covariates if it is none",
}
"""Kinds of columns that are no covariates, and what makes one of them."""
_WORDS_OF_NAMES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_DATE_WORDS = {"date", "datetime", "timestamp", "dob", "birthdate", "birthday", "datum"}
_IDENTIFIERS = {"id", "ids", "pid", "uid", "uuid", "guid", "mrn", "ssn", "identifier", "email", "surname", "phone"}
_IDENTIFIERS |= {"rownames", "unnamed"}  # of exports from R and pandas
_WHO = {"patient", "person", "subject", "participant", "respondent"}  # as whole names
_WHOSE = (*_WHO, "pat", "subj", "row", "record", "study", "case", "user", "hadm", "stay", "student")
_WHERE = (
    *("school", "classroom", "teacher", "hospital", "ward", "clinic", "practice", "physician", "doctor", "provider"),
    *("centre", "center", "site", "cluster", "village", "household", "family", "pair", "sch", "tch", "hosp"),
)
_FORMS = "give clusters, pairs or crossover with a column, such as clusters ward 40 0.05, or pairs eye"
_FOLLOWED = {"clusters": (0, 2), "pairs": (0,), "crossover": range(1, 9)}  # words behind the column's name
_NAMING, _NAMED = ("event", "exposure", "assignment"), ("name", "pairs", "crossover", "period")
"""Entries that give further columns a part, and their keys that name these."""
_OF_NAMES = re.compile(r"(id|ids|no|nr|num|number|code|name|key|\d+)$")


MANY = 20
"""Covariates of a draft; of more columns, those that nobody has chosen are remarks in it."""
_DATES = "2015-01-01 2019-12-31 %d.%m.%Y"
_MORE = (
    "; then what other words stand for, such as ; > 89 = 90; or words alone, none = 0; mild = 1; or of dates the "
    f"first, the last and how they are written, such as {_DATES}"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]*(?: [\w.-]+)*")
_HEAD = """\
# Draft of a domain file: the table's columns by name and type, and nothing else of its records.
#
# Replace every ??? by a public fact, known without these records (a codebook, a protocol, a unit, a law), and say
# where it comes from. A bound, level or share that is read off the records is a leak that no guarantee covers.
# Delete what is no covariate, and whatever the treatment may have changed. Readers see a column as its "label: age at
# entry", and arms and categories as "labels: {1: men, 2: women}", where these are added.
"""
_OF_COVARIATES = (
    "# what an entry may have besides:",
    "#   categories: [1, 2, 3]   in the place of low and high, of a number that is a code",
    "#   typical: [ , ]   where nine of ten values lie, if the range is much wider",
    "#   scale: log   of values over decades",
    "#   kind: date   of dates, with low and high in the place of categories, and format: '%d.%m.%Y' if written so",
    "#   words: {'> 89': 90}   what words in its cells stand for; scores: {none: 0, mild: 1} of words with an order",
    "#   missing: indicator   where values may be missing",
)
_CODES = "if it holds 0 and 1, else {{name: {}, categories: [1, 2], words: {{3: 2}}}}, where 3 counts as 2"
_OF_OUTCOMES = (
    "# better: lower   # or higher: which outcomes are good, as treatment rules need to know",
    "# unit: points   # as readers are to see it, here and of covariates that are numbers",
    "# sd: 0.5   # its standard deviation as known from elsewhere, by which plans judge their noise",
    "# missing: drop   # where it may be missing; of the treatment too",
    "# words: {'> 89': 90}   # what words in its cells stand for; all words of an order: scores: {none: 0, mild: 1}",
    "# time, event: {name: status, success: 1, censored: 0}, horizon: 24   # of a time up to an event, in their place",
    "# exposure: {name: years, high: 10, mean: 2.5}   # time at risk in its own unit, of counts of a person's events",
)


@dataclass(frozen=True)
class Entry:
    """One question about a column: the entries of the domain file that its answer gives.

    Args:
        keys: The entries, ``???`` in a draft.
        question: What is asked, and what the entry is for.
        read: From an answer to entries and their text in yaml; raises an InputError that says what is wrong.
        remark: Said beside the last entry in a draft.
        default: Entries where nobody answered, or the answer is empty; None leaves them open.
        after: Entries of earlier answers, without which it is not asked.
    """

    keys: tuple[str, ...]
    question: str
    read: Callable[[str], dict[str, str]]
    remark: str = ""
    default: Mapping[str, str] | None = None
    after: tuple[tuple[str, str], ...] = ()

    def lines(self, given: Mapping[str, str], indent: str) -> Iterator[str]:
        """Yield the lines of a domain file: what was answered, or open entries."""
        entries = given or (dict.fromkeys(self.keys, OPEN) if self.default is None else self.default)
        for place, (key, value) in enumerate(entries.items()):
            last = place == len(entries) - 1 and self.remark and not given
            yield f"{indent}{key}: {value}{f'   # {self.remark}' if last else ''}\n"


def treatment_entries(kind: str) -> list[Entry]:
    """Return what is asked of the treatment's column."""
    question = "Its values, of the untreated first" + " (Enter for 0 and 1)" * (kind != WORDS)
    remark = "in the order of 0 and 1: [placebo, drug]"
    return [
        Entry(("categories",), f"{question}, such as placebo, drug", _levels, remark, None if kind == WORDS else {})
    ]


def outcome_entries(kind: str, names: Collection[str] = ()) -> list[Entry]:
    """Return what is asked of the outcome's column, in a table of these columns."""
    words = kind == WORDS
    return [
        Entry(
            ("categories",) if words else ("low", "high"),
            "Lowest and highest value that anybody may have, such as 0 100 (noise grows with the width); or its levels "
            "and those that count as 1, such as [none, mild, severe]; severe; or scores, none = 0; mild = 1; or of a "
            "time up to an event its column, its code, that of censoring (others compete), and the horizon, such as "
            "status 1 0 24, with a word event_by_horizon for whether it came",
            partial(_outcome_values, names),
            "of which success: [mild, severe] says those that count as 1; or scores: {none: 0, mild: 1} in its place"
            if words
            else "or categories: [0, 1] in the place of low and high",
        ),
        Entry(
            ("exposure",),
            "Counts over unequal follow-up: the column of time at risk, its most for anybody and a usual mean, such as "
            "years 10 2.5 (Enter where all were followed alike)",
            partial(_exposure, names),
            default={},
            after=(("low", "0"),),
        ),
        Entry(("origin",), "Where these are known from, without the records, such as a scale's manual", _origin),
        Entry(("better",), "Which outcomes are good: higher or lower (Enter where neither)", _better, default={}),
        _missing("drop"),
    ]


def covariate_entries(kind: str, name: str = "") -> list[Entry]:
    """Return what is asked of a covariate's column, of dates by its type or name."""
    return [*_of_values(DATES if left_out(name, kind) == DATES else kind), _missing(INDICATOR)]


def _missing(rule: str) -> Entry:
    return Entry(("missing",), "May it be missing: yes or no (Enter for no)", partial(_rule, rule), default={})


def _of_values(kind: str) -> list[Entry]:
    if kind == TRUTHS:
        return [Entry(("categories",), "", _levels, default={"categories": "[0, 1]"})]
    if kind == WORDS:
        return [Entry(("categories",), f"All levels that there may be, such as north, south, west{_MORE}", _values)]
    if kind == DATES:
        first = f"First and last day that there may be, and how cells are written if otherwise, such as {_DATES}"
        return [Entry(("low", "high"), first, _days, default={"kind": "date", "low": OPEN, "high": OPEN})]
    number = "Lowest and highest value that anybody may have, such as 18 90, or its codes, such as [1, 2, 3]"
    return [Entry(("low", "high"), f"{number}{_MORE}", _values)]


def cluster_columns(kinds: Mapping[str, str], taken: Sequence[str | None] = ()) -> list[str]:
    """Return the columns whose names say where records come from, which may be alike there, or treated together.

    Names and types alone are looked at, never values.

    Args:
        kinds: As of ``table_columns``.
        taken: Treatment and outcome.

    Example:
        >>> names = "wardId", "admitting hospital", "hospital_beds", "site_2", "schoolid", "family_history", "homeward"
        >>> cluster_columns(dict.fromkeys(names, "words"))
        ['wardId', 'admitting hospital', 'site_2', 'schoolid']
    """
    return [
        name for name, kind in kinds.items() if kind in (NUMBERS, WORDS) and name not in taken and _says_where(name)
    ]


def _says_where(name: str) -> bool:
    words = [word.lower() for word in _WORDS_OF_NAMES.findall(name)]
    while words and words[-1] not in _WHERE:
        rest = _OF_NAMES.sub("", words.pop())
        if rest:
            return rest in _WHERE
    return bool(words)


def design_entries(kinds: Mapping[str, str], clusters: Sequence[str] = ()) -> list[Entry]:
    """Return what is asked of the study.

    Args:
        kinds: As of ``table_columns``.
        clusters: See ``cluster_columns``.
    """
    may = [*clusters, *(name for name, kind in kinds.items() if left_out(name, kind) == IDENTIFIER)]
    return [
        Entry(
            ("propensity",),
            "In a trial, the share that its design treats, such as 0.5 (Enter where treatment was not drawn)",
            partial(_share, "propensity"),
            default={},
        ),
        Entry(
            ("assignment",),
            (f"{_alike(list(dict.fromkeys(may)))}? " if may else "")
            + "How was treatment given, if not to each record by itself (Enter): clusters NAME 40 0.05, with the most "
            "records of one and their correlation at most; pairs NAME, to one of two, such as matched people or eyes; "
            "or crossover PERSON PERIOD, in one of two periods",
            partial(_assignment, kinds),
            default={},
        ),
        Entry(
            ("overlap",),
            "Neither arm is less likely than this, whatever the covariates, such as 0.05",
            partial(_share, "overlap"),
            "neither arm is less likely than this, whatever the covariates: such as 0.05",
        ),
        Entry(
            ("origin",),
            "Where all facts of this file are known from, without the records, such as the protocol",
            _origin,
            "where the overlap comes from, and every bound above that has no origin of its own",
        ),
    ]


@dataclass(frozen=True)
class Draft:
    """A domain file as far as it is known.

    Args:
        kinds: The table's columns, and what each holds.
        treatment: The treatment's column, or None.
        outcome: The outcome's column, or None.
        covariates: Columns that were chosen, or None where nobody chose.
        answers: Entries by column, or by ``""`` of the study: those of each question in its place.
    """

    kinds: Mapping[str, str]
    treatment: str | None = None
    outcome: str | None = None
    covariates: Sequence[str] | None = None
    answers: Mapping[str, Mapping[int, Mapping[str, str]]] | None = None

    def __post_init__(self) -> None:
        chosen, what = self.covariates or (), "covariates"
        for role, name in (
            ("treatment", self.treatment),
            ("outcome", self.outcome),
            *((what, name) for name in chosen),
        ):
            if name is not None and name not in self.kinds:
                # of a file without a header, what is there would be a record's
                similar = [there for there in self.kinds if there.strip().casefold() == name.strip().casefold()]
                hint = f"{similar[0]!r} is there" if similar else "give a name in line 1 of the table"
                raise InputError(f"{role} = {name}: is no column of the table; {hint}")
            unread = (TWICE, ENCODED, OTHER) if role == what else (TWICE, ENCODED)
            if name is not None and self.kinds[name] in unread:
                raise InputError(f"{role} = {name}: the column is {self.kinds[name]}; {TO_USE[self.kinds[name]]}")
            if role == what and name in self.taken:
                raise InputError(f"{what} = {name}: is the treatment or the outcome, or has another part; leave it out")
        if self.treatment is not None and self.treatment == self.outcome:
            raise InputError(f"treatment = outcome = {self.treatment}: give each a column of its own")
        if len(set(chosen)) < len(chosen):
            raise InputError("covariates: names a column twice; give each once")

    @property
    def taken(self) -> set[str | None]:
        """Columns of treatment, outcome, event, exposure, pairs and periods."""
        import yaml

        given = [entries for own in (self.answers or {}).values() for entries in own.values()]
        found = [yaml.safe_load(entries[key]) for entries in given for key in _NAMING if key in entries]
        return {self.treatment, self.outcome, *(one[key] for one in found for key in _NAMED if key in one)}

    @property
    def candidates(self) -> list[str]:
        """Columns that may be covariates."""
        taken = self.taken
        return [name for name, kind in self.kinds.items() if name and name not in taken and not left_out(name, kind)]

    def text(self) -> str:
        """Return the text of a yaml file that ``TableSchema.from_yaml`` refuses until each ``???`` is replaced.

        Raises:
            InputError: No column can be a covariate.
        """
        chosen = self.candidates if self.covariates is None else list(self.covariates)
        if not chosen:
            raise InputError(
                "the table has no column that can be a covariate, and one is needed; where there is none, as for an "
                "average effect of a trial, add a column of zeros, with low: 0 and high: 1"
            )
        return "".join([_HEAD, *self._treatment(), *self._outcome(), *self._covariates(chosen), *self._design()])

    def _lines(self, name: str, entries: Sequence[Entry], indent: str) -> Iterator[str]:
        own = (self.answers or {}).get(name, {})
        for place, entry in enumerate(entries):
            yield from entry.lines(own.get(place, {}), indent)

    def _treatment(self) -> Iterator[str]:
        if self.treatment is None:
            yield f"treatment: {OPEN}   # a column of 0 and 1, or {{name: arm, categories: [placebo, drug]}}\n"
            return
        lines = list(self._lines(self.treatment, treatment_entries(self.kinds[self.treatment]), "  "))
        name = quoted(self.treatment)
        plain = f"treatment: {name}   # {_CODES.format(name)}\n"
        yield from [f"treatment:\n  name: {name}\n", *lines] if lines else [plain]

    def _outcome(self) -> Iterator[str]:
        name = self.outcome
        time = any("event" in entries for entries in (self.answers or {}).get(name or "", {}).values())
        yield f"outcome:\n  {'time' if time else 'name'}: {OPEN if name is None else quoted(name)}\n"
        yield from self._lines(name or "\0", outcome_entries(self.kinds.get(name or "", NUMBERS)), "  ")
        if self.answers is None:
            yield from (f"  {line}\n" for line in _OF_OUTCOMES)

    def _covariates(self, chosen: Sequence[str]) -> Iterator[str]:
        yield "covariates:\n"
        if self.answers is None:
            yield from (f"  {line}\n" for line in _OF_COVARIATES)
        if self.covariates is None and len(chosen) > MANY:
            yield f"  # {len(chosen)} columns may be covariates. Each adds noise: take the # from a few that matter,\n"
            yield "  # or draft these alone by --covariates A,B,C\n"
            for name in chosen:
                keys = ", ".join(
                    f"{key}: {OPEN}" for entry in covariate_entries(self.kinds[name], name) for key in entry.keys
                )
                yield f"  # {quoted(name)}: {{{keys}}}\n"
        else:
            for name in chosen:
                yield f"  {quoted(name)}:\n"
                yield from self._lines(name, covariate_entries(self.kinds[name], name), "    ")
        yield from self._left_out(chosen)

    def _left_out(self, chosen: Sequence[str]) -> Iterator[str]:
        for name, kind in self.kinds.items():
            why = left_out(name, kind)
            if not name:
                yield "  # left out: a column without a name, such as the numbers of rows\n"
            elif why and name not in self.taken.union(chosen):
                yield f"  # left out: {quoted(name)}, {why}; {TO_USE[why]}\n"

    def _design(self) -> Iterator[str]:
        if not (self.answers or {}).get(""):
            yield "# propensity: 0.5   # of a trial alone: the share that its design treats\n"
            yield "# treated: 0.05   # of anything else, where few or most are treated: their public share, such as "
            yield "that of another year\n"
            yield "# codes: [NA, .]   # what else means that a value is missing, in every column or in one's entry\n"
            yield "# weights: {name: w, high: 2}   # a column of weights with its public bound, as of a survey\n"
            for name in cluster_columns(self.kinds, (self.treatment, self.outcome)) or ["NAME"]:
                yield f"# {_alike([name])}? Intervals that count\n"
                yield "# each record by itself are too narrow then. Take the # off, with public bounds of a cluster's "
                yield "records and of\n# their correlation:\n"
                yield f"# assignment: {{clusters: {{name: {quoted(name)}, size: {OPEN}, correlation: {OPEN}}}}}\n"
            yield "# assignment: {pairs: NAME}   # where one of two is treated, such as matched people or eyes, or in\n"
            yield "# one of two periods {crossover: PERSON, period: NAME}\n"
        yield from self._lines("", design_entries(self.kinds), "")


def draft_domain(
    path: str | Path,
    treatment: str | None = None,
    outcome: str | None = None,
    covariates: Sequence[str] | None = None,
    form: CsvForm = PLAIN,
) -> str:
    """Return the draft of a domain file for a table: its columns by name and type, ``???`` for each public fact.

    No bound, level, count or value of the records is in it; see ``table_columns`` for how types are found.

    Args:
        path: The table.
        treatment: Name of the treatment's column; None leaves it open.
        outcome: Name of the outcome's column; None leaves it open.
        covariates: Columns to draft; None takes all that may be covariates, as remarks where they are many.
        form: How the table is written, if it is csv.

    Returns:
        Text of a yaml file that ``TableSchema.from_yaml`` refuses until each ``???`` is replaced.

    Raises:
        InputError: No such file, names of columns that may be a record's (a number, an
            empty one that is not the first), or one that cannot be shown; a treatment, an outcome or a covariate that
            is no column, or there twice.
    """
    return Draft(table_columns(path, form), treatment, outcome, covariates).text()


def write_draft(draft: str, path: str | Path) -> Path:
    """Write a draft to a file that is not there yet, whole or not at all.

    Raises:
        InputError: It is there, with what somebody filled in, or cannot be written.
    """
    path = check_new(path)
    write_text(path, draft)
    return path


def check_new(path: str | Path) -> Path:
    """Return the path of a file that is not there yet, in a folder that is.

    Raises:
        InputError: It is there, or its folder is not.
    """
    path = Path(path)
    if path.exists():
        raise InputError(f"output {str(path)!r} exists already, and may be filled in; choose another name or remove it")
    if not path.parent.is_dir():
        raise InputError(f"output {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    return path


def quoted(name: str) -> str:
    """Return a name as yaml reads it back.

    Example:
        >>> quoted("age"), quoted("no"), quoted("a: b")
        ('age', '"no"', '"a: b"')
    """
    import yaml

    if _PLAIN_NAME.fullmatch(name) and yaml.safe_load(name) == name:
        return name
    return json.dumps(name, ensure_ascii=False)


def table_columns(path: str | Path, form: CsvForm = PLAIN) -> dict[str, str]:
    """Return the columns of a table and what each holds, by its type.

    A parquet file states its types, and so do files of Stata, SPSS and SAS. Those of a csv file are by majority of the
    values at its beginning, so that no record decides alone.

    Args:
        path: The table.
        form: How it is written, if it is csv.

    Raises:
        InputError: No such file, or names of columns that may be a record's (a number, an empty one that is not the
            first), or one that cannot be shown.
    """
    check_there(path)
    kind = file_kind(path)
    check_form([path], form)
    with readable(path, form):
        return _of_csv(path, form) if kind == CSV else _of_schema(path, kind)


def left_out(name: str, kind: str) -> str:
    """Return why a column is no covariate unless it is named as one; empty if it may be one.

    Example:
        >>> left_out("patientId", "numbers"), left_out("covid", "numbers"), left_out("admission_date", "words")
        ('an identifier by its name', '', 'dates')
    """
    if kind in TO_USE:
        return kind
    words = [word.lower() for word in _WORDS_OF_NAMES.findall(name)]
    known = {f"{whose}{end}" for whose in (*_WHOSE, *_WHERE) for end in ("id", "no")}
    if (_IDENTIFIERS | known) & set(words) or (kind != TRUTHS and name.strip().lower() in _WHO):
        return IDENTIFIER
    return DATES if _DATE_WORDS & set(words) else ""


def _of_csv(path: str | Path, form: CsvForm) -> dict[str, str]:
    names = csv_names(arrow_path(path), form)
    if len(names) == 1:  # no table; its name may be a line of another kind of file
        raise InputError(
            f"data file {str(path)!r}: line 1 has no {form.separator}; write a csv with {form.separator}s between its "
            f"columns, or give {setting('separator', 'NAME')}"
        )
    before = f"; lines before it are passed over by {setting('skip_lines', 'NUMBER')}"
    _check_names(path, names, list(map(_like_a_number, names)), before)
    columns = [name for name in names if name and names.count(name) == 1]
    batches = csv_batches(arrow_path(path), columns, raw=True, form=form)
    first = next(islice(batches, 1), None) if columns else None
    if first is not None:
        _check_header(path, first)
    found = {} if first is None else {name: _by_majority(first.column(name), form) for name in columns}
    return {name: TWICE if names.count(name) > 1 else found.get(name, NUMBERS) for name in names}


def _of_schema(path: str | Path, kind: str) -> dict[str, str]:
    schema = schema_of(path, kind)
    numbers = list(map(_like_a_number, schema.names))
    if schema.names == [str(place) for place in range(len(numbers))]:
        numbers = [False] * len(numbers)  # pandas' own names
    _check_names(path, schema.names, numbers)
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    return {field.name: TWICE if field.name in twice else _by_type(field.type) for field in schema}


def _by_type(type_: "pa.DataType") -> str:
    kind = column_kind(type_)
    return kind if kind in (NUMBERS, TRUTHS, WORDS, DATES) else OTHER


def _by_majority(column: "pa.Array", form: CsvForm) -> str:
    """Return what most values are: one record with a word among numbers does not make words of them."""
    try:
        values = [value.decode("utf-8").strip() for value in column.to_pylist() if value is not None]
    except UnicodeError:
        return ENCODED
    known = [value for value in values if value.lower() not in MISSING]
    if 2 * sum(bool(DATE.fullmatch(value)) for value in known) > len(known):
        return DATES
    numbers = sum(DECIMAL.fullmatch(value) is not None or form.is_number(value) for value in known)
    return WORDS if 2 * numbers < len(known) else NUMBERS


def _like_a_number(name: str) -> bool:
    """Return whether a name is a number, or a date, a time or a share: digits, and no letter."""
    letters = any(map(str.isalpha, name))
    return DECIMAL.fullmatch(name.strip()) is not None or (not letters and any(map(str.isdigit, name)))


def _check_header(path: str | Path, first: "pa.RecordBatch") -> None:
    """Refuse names of which most are among the values of their columns, as of a table that begins with a record."""
    from pyarrow import compute

    again = [
        compute.any(compute.equal(column, name.encode())).as_py() or False
        for name, column in zip(first.schema.names, first.columns, strict=True)
    ]
    if 2 * sum(again) > len(again):
        raise InputError(
            f"data file {str(path)!r}: {sum(again)} of {len(again)} names in line 1 are values of their columns "
            "too; give the table a header, or where it is there again, delete these rows"
        )


def _check_names(path: str | Path, names: Sequence[str], numbers: Sequence[bool], remedy: str = "") -> None:
    """Refuse names that may be a record's: they are counted from 1, and not shown."""
    wrong = {
        "is a number": numbers,
        "has characters that cannot be shown": [not is_plain(name) for name in names],
        "is empty": [not name and (place > 0 or not any(names)) for place, name in enumerate(names)],
    }
    for why, found in wrong.items():
        if any(found):
            raise InputError(
                f"data file {str(path)!r}: name {found.index(True) + 1} of its columns {why}; give the table a header"
                f"{remedy}"
            )


def _origin(answer: str) -> dict[str, str]:
    return {"origin": quoted(" ".join(answer.split()))}


def _better(answer: str) -> dict[str, str]:
    return {"better": str(check_better(answer))}


def _alike(names: Sequence[str]) -> str:
    return f"Are records of the same {' or '.join(names)} alike, or were they treated together"


def _first(names: Collection[str], answer: str) -> tuple[str, list[str]]:
    """Return the column of the table whose name an answer begins with, empty if none, and the words behind it."""
    said = " ".join(answer.split())
    name = max((name for name in names if name and f"{said} ".startswith(f"{name} ")), key=len, default="")
    return name, said[len(name) :].replace(",", " ").split()


def _exposure(names: Collection[str], answer: str) -> dict[str, str]:
    """Read a column of time at risk, its bound, and its mean where that is given."""
    name, rest = _first(names, answer)
    if not name or len(rest) not in (1, 2):
        raise InputError("give a column of the table, its bound and a usual mean, such as years 10 2.5")
    facts = dict(zip(("high", "mean"), (_digits(to_number("exposure", number)) for number in rest), strict=False))
    RecordWeights.of({"name": name, **{key: float(number) for key, number in facts.items()}})  # may refuse
    return {"exposure": f"{{name: {quoted(name)}, {', '.join(f'{key}: {number}' for key, number in facts.items())}}}"}


def _assignment(names: Collection[str], answer: str) -> dict[str, str]:
    """Read how treatment was given: a word, the name of a column, and what follows it."""
    kind, _, said = " ".join(answer.split()).partition(" ")
    name, rest = _first(names, said)
    if not name or kind not in _FOLLOWED or len(rest) not in _FOLLOWED[kind]:
        raise InputError(REFUSED.get(kind, _FORMS))
    if kind == "crossover" and (period := " ".join(rest)) not in names:
        raise InputError(f"{period} is no column of the table; give that of the periods after the person's")
    if not rest or kind == "crossover":
        more = f", period: {quoted(' '.join(rest))}" if rest else ""
        return {"assignment": f"{{{kind}: {quoted(name)}{more}}}"}
    size, correlation = (to_number(what, bound) for what, bound in zip(("size", "correlation"), rest, strict=True))
    Cluster(name, int(size) if size == int(size) else size, correlation)  # type: ignore[arg-type] # may refuse
    bounds = f"size: {_digits(size)}, correlation: {_digits(correlation)}"
    return {"assignment": f"{{clusters: {{name: {quoted(name)}, {bounds}}}}}"}


def _share(entry: str, answer: str) -> dict[str, str]:
    share = to_number("this share", answer)
    if not 0 < share < 1:
        raise InputError(f"{answer} is no share; give a number between 0 and 1")
    return {entry: _digits(share)}


def _rule(rule: str, answer: str) -> dict[str, str]:
    """Read yes or no, of a column whose missing values are taken by a rule."""
    if answer.lower() not in ("y", "yes", "n", "no"):
        raise InputError("say yes or no")
    return {"missing": rule} if answer.lower().startswith("y") else {}


def _levels(answer: str, key: str = "categories") -> dict[str, str]:
    """Read levels, separated by commas, as categories."""
    levels = [level.strip() for level in answer.strip().removeprefix("[").removesuffix("]").split(",")]
    if (len(levels) < 2 and key == "categories") or not all(levels) or len(set(levels)) < len(levels):
        raise InputError("give two or more levels, each once, separated by commas")
    return {key: f"[{', '.join(map(_cell, levels))}]"}


def _values(answer: str) -> dict[str, str]:
    """Read two numbers as bounds, or levels as categories, and then what words stand for; words alone are scores."""
    parts = answer.split(";")
    values = next((part for part in parts if "=" not in part), "")
    pairs = [part.rpartition("=") for part in parts if "=" in part]
    if len(parts) != len(pairs) + bool(values.strip()):
        raise InputError("give two numbers, or levels; and after a ; words, each with = and what it stands for")
    words = ", ".join(f"{json.dumps(word.strip(), ensure_ascii=False)}: {_cell(value)}" for word, _, value in pairs)
    found = {"words" if values else "scores": f"{{{words}}}"} if pairs else {}
    numbers = values.replace(",", " ").split()
    if not pairs and len(numbers) > 1 and all(map(is_date, numbers[:2])):
        return _days(values)
    if not values or values.strip().startswith("[") or not all(map(DECIMAL.fullmatch, numbers)):
        return (_levels(values) if values else {}) | found
    if len(numbers) != 2:
        raise InputError("give two numbers, the lowest and the highest, or levels in brackets")
    low, high = check_bounds("these values", *numbers)
    return {"low": _digits(low), "high": _digits(high)} | found


def _outcome_values(names: Collection[str], answer: str) -> dict[str, str]:
    """Read what ``_values`` does, or levels and those that count as 1, or an event, two codes of it and the horizon."""
    values, _, success = answer.partition(";")
    name, rest = _first(names, values)
    if name and len(rest) in (3, 4) and "=" not in rest:
        kind, event = (
            dict(zip(["kind"], rest[3:], strict=False)),
            {"name": name, "success": rest[0], "censored": rest[1]},
        )
        Censoring.of({"time": f"time of {name}", "event": event, "horizon": rest[2], **kind})  # may refuse
        said = f"{{name: {quoted(name)}, success: {_cell(rest[0])}, censored: {_cell(rest[1])}}}"
        return {"event": said, "horizon": _digits(to_number("horizon", rest[2])), **kind}
    return _levels(values) | _levels(success, "success") if success and "=" not in success else _values(answer)


def _cell(word: str) -> str:
    """Return a number or a word as yaml reads it back."""
    return _digits(float(word)) if DECIMAL.fullmatch(word.strip()) else quoted(word.strip())


def _days(answer: str) -> dict[str, str]:
    """Read two dates as the bounds of dates, and the form of others."""
    days = answer.replace(",", " ").split()
    if len(days) < 2:
        raise InputError("give two dates, the first and the last")
    low, high, form = days[0], days[1], " ".join(days[2:])
    Numeric.of_dates("days", low, high, format=form)  # may refuse
    return {"kind": "date", "low": low, "high": high} | ({"format": json.dumps(form)} if form else {})


def _digits(number: float) -> str:
    """Return a number as yaml reads it back: 1e5 would be a word there."""
    return str(int(number)) if number == int(number) else f"{number!r}"
