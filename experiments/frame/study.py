"""What a study of a paper is: it lists cells, computes one, and says which published number a finding belongs to."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from experiments.frame.table import Row, Summary

Cell = Mapping[str, str | int | float | bool]
"""What makes a unit of work: JSON scalars by name. A cell with other settings, or other repeats, is another cell."""

PRINTED, CERTIFIED, FREE, OTHER = "printed", "certified", "non-private", "other"
"""Roles: the paper's mechanism as printed; the library's, for the column beside it; no privacy; anything else."""

NO_PRIVACY = "inf"
"""Epsilon of what is not private, as in the published files."""


@dataclass(frozen=True)
class Place:
    """Where a number belongs.

    Attributes:
        table: Published table or figure: the csv file's name without its ending, or a name of the study's own.
        setting: Law, scenario or data set.
        n: Records, as words.
        epsilon: Budget as words; ``inf`` without privacy.
        variant: What else makes a row of that table (the paper's method, a parameter); empty where a finding belongs
            beside all variants.
        metric: What is measured.
    """

    table: str
    setting: str
    n: str
    epsilon: str
    variant: str
    metric: str


@dataclass(frozen=True)
class Found:
    """What a cell found for one place.

    Attributes:
        place: Where it belongs.
        role: ``printed``, ``certified``, ``non-private`` or ``other``.
        method: Name of the method.
        level: What its guarantee really is: ``certified``, ``conditional``, ``heuristic``, ``none holds``, or
            ``not private``.
        values: One a repeat; cells of other repeats add theirs.
    """

    place: Place
    role: str
    method: str
    level: str
    values: Sequence[float]


@dataclass(frozen=True)
class Settings:
    """What the command line asks for.

    Attributes:
        quick: Few repeats and small sizes, at most two minutes on one core.
        papers: Folder of the published numbers; None if it is not there.
        data: Folder of the data sets; None if it is not there.
    """

    quick: bool = False
    papers: Path | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Published:
    """One printed cell.

    Attributes:
        place: Where it belongs.
        method: The paper's name of the method.
        qualifier: ``=``, ``approx``, ``>=``, ``<`` or ``range``.
        value: The number; nan for a range.
        error: Standard error of the paper's mean; nan if not printed.
        repeats: The paper's; 0 if not stated.
        low: Lower end of a range or interval; nan if there is none.
        high: Upper end.
    """

    place: Place
    method: str
    qualifier: str
    value: float
    error: float
    repeats: int
    low: float
    high: float


class Study(ABC):
    """One paper's tables and figures; ``experiments/<name>/study.py`` holds an instance called ``STUDY``.

    Attributes:
        name: What ``torchdpcate study`` calls it, and the package under experiments/.
        title: Of the page.
        published: Csv files of the published numbers, below the folder of papers.
        about: Paragraphs for the head of the page: what was chosen where the paper leaves it open.
        renamed: Columns of the published files by other names than the frame's, and the frame's names.
        given: What a column of the frame says in all lines, where the published files lack it.
        stand_ins: Tables whose data or methods are not the paper's, so that a difference to its numbers says nothing.
        unlisted: Metrics of other methods that the page leaves to found.csv and figures.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    published: ClassVar[tuple[str, ...]] = ()
    about: ClassVar[str] = ""
    renamed: ClassVar[Mapping[str, str]] = {}
    given: ClassVar[Mapping[str, str]] = {}
    stand_ins: ClassVar[frozenset[str]] = frozenset()
    unlisted: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def cells(self, settings: Settings) -> Iterable[Cell]:
        """Return all cells, those first that say most: a run may be stopped after some minutes."""

    @abstractmethod
    def compute(self, cell: Cell, settings: Settings) -> Iterable[Found]:
        """Return what one cell finds; it depends on the cell and the data alone."""

    def place(self, file: str, line: Mapping[str, str]) -> Place | None:
        """Return where a line of a published file belongs; None leaves it out.

        Args:
            file: The csv file's name without its ending.
            line: Its values by column.
        """
        return Place(file, line["setting"], line["n"], line["epsilon"], line["method"], line["metric"])

    def order(self, place: Place) -> tuple[float, ...]:
        """Return what published cells are sorted by; as the files have them by default."""
        return ()

    def missing(self, settings: Settings) -> list[str]:
        """Return what is left out for want of data or a library, one sentence each."""
        return []

    def page(self, found: "Sequence[Summary]", notes: Sequence[str]) -> str | None:
        """Return table.md where it is not a table of published numbers; None takes that.

        Args:
            found: All that was found.
            notes: Sentences on what this run is and what it lacks.
        """
        return None

    def draw(self, rows: "Sequence[Row]", found: "Sequence[Summary]", folder: Path) -> None:
        """Draw figures into a folder.

        Args:
            rows: Published numbers with ours beside them.
            found: All that was found.
            folder: Where figures go.
        """
        return None


def seed_of(*words: object) -> int:
    """Return a public seed that depends on these words alone."""
    return zlib.crc32(", ".join(map(str, words)).encode())


def batches(repeats: int, size: int) -> list[tuple[int, int]]:
    """Return repeats in batches, as pairs of the first and how many."""
    return [(first, min(size, repeats - first)) for first in range(0, repeats, size)]
