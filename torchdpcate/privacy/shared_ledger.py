"""One ledger over all runs on the same records: what a run may cost is reserved before it starts."""

import hmac
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchdpcate._files import PRIVATE, write_text
from torchdpcate._text import plain
from torchdpcate.errors import BudgetError, InputError
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import analytic_gaussian_sigma
from torchdpcate.privacy.charge import Charge
from torchdpcate.privacy.events import ApproximateEvent, Event, GaussianEvent, PureEvent
from torchdpcate.privacy.filters import Filter, GaussianFilter, make_filter
from torchdpcate.privacy.guarantee import Level, weakest
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import Book, Entry, change, is_begun
from torchdpcate.privacy.unit import RECORD, PrivacyUnit
from torchdpcate.registry import refuse_strings

_RECORDS, _PERSONS = "records", "persons by "
_DIGITS = 32  # of the keyed fingerprint, hexadecimal


class FileFingerprint(str):
    """What identifies records by the files that hold them: the same whatever columns and rows of them a fit uses."""


class SharedLedger:
    """The total of all runs on the same records, each of which has a ledger of its own.

    A run's privacy budget as a whole is one charge here, made before the run's own ledger is, so that a run that was
    killed keeps it. Budgets of later runs may depend on what earlier ones released: the charges pass a privacy filter,
    and one beyond the total is refused (docs/guarantees/composition.md). Runs in other processes may charge at the same
    time.

    The file knows its records by a keyed fingerprint, whose random key lies beside it (``PATH.key``): who has the file
    alone can try no conjecture of the records. Both are the curator's.

    Args:
        path: Where it is kept; made if it is not there.
        records: What identifies the records: ``file_fingerprint(files)``, or ``fingerprint(X, A, Y)`` of the arrays
            that every fit is given. All runs on the same records must give the same one. Of the latter each fit is
            checked to be on these records; of files only the caller knows that it is.
        total: What all runs may cost together; None takes that of the file.
        unit: Who is protected by the total. Runs may take another number of each person's records, but all must name
            the same column of persons, or none.
        filter: ``sums``: epsilons and deltas of runs add up. ``gaussian``: squares of mu add up, which is less; a run
            may then have nothing but Gaussian noise, or a budget of delta = 0. None takes that of the file, and
            ``sums`` for a new one.

    Raises:
        InputError: A ledger of other records, of another total or filter, of one run, a new one without a total, or a
            file or key that is missing or damaged.

    Example:
        >>> import tempfile
        >>> place = tempfile.mkdtemp() + "/shared.sqlite"
        >>> shared = SharedLedger(place, "a fingerprint", PrivacyBudget(2.0, 0.0))
        >>> reservation = shared.reserve(PrivacyBudget(1.5, 0.0), "first run")
        >>> shared.left()
        PrivacyBudget(epsilon=0.5, delta=0.0)
    """

    def __init__(
        self,
        path: str | os.PathLike,
        records: str,
        total: PrivacyBudget | None = None,
        filter: str | None = None,
        unit: PrivacyUnit = RECORD,
    ) -> None:
        refuse_strings(SharedLedger, {"total": total, "unit": unit})
        self.path = Path(os.path.realpath(path))
        if total is None and not is_begun(self.path):
            raise InputError(f"shared ledger {path}: is new; state the total of all runs, epsilon and delta")

        def new() -> Book:
            book = Book({_RECORDS: total}, True, make_filter(filter or "sums"))  # type: ignore[dict-item]
            name = f"{_protected(unit)} {_keyed(self._key(new=True), records)}"  # no key where the rest is refused
            return replace(book, blocks=dict.fromkeys([name], book.blocks[_RECORDS]))

        change(self.path, lambda book: book, new)
        self._take_up()
        self._by_files = isinstance(records, FileFingerprint)
        self._check_unit(unit)
        if self._block.rpartition(" ")[2] != _keyed(self._key(), records):
            raise InputError(f"shared ledger {path}: is of other records; give each table's runs one of their own")
        if total not in (None, self.total) or filter not in (None, self.filter.kind):
            known = f"its total is {_cost(self.total.epsilon, self.total.delta)}, its filter is {self.filter.kind}"
            raise InputError(f"shared ledger {path}: {known}, as when it was made; state the same or none")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SharedLedger":
        """Return a shared ledger to look at, whatever its records are; runs need the constructor.

        Raises:
            InputError: It is missing, damaged, or the ledger of one run.
        """
        shared = cls.__new__(cls)
        shared.path = Path(os.path.realpath(path))
        shared._by_files = False
        shared._take_up()
        return shared

    def _take_up(self) -> None:
        """Take the ledger of the file, which has one block."""
        self._ledger = Ledger.load(self.path)
        self._block, *more = self._ledger.blocks
        if more or not self._block.startswith((f"{_RECORDS} ", _PERSONS)):
            raise InputError(f"shared ledger {self.path}: is the ledger of one run; choose another path")

    @property
    def total(self) -> PrivacyBudget:
        """What all runs may cost together."""
        return self._ledger.blocks[self._block]

    @property
    def protected(self) -> str:
        """Who is protected by the total: records, or persons by a column."""
        return self._block.rpartition(" ")[0]

    @property
    def filter(self) -> Filter:
        """How the runs' costs add up."""
        return self._ledger.filter

    @property
    def runs(self) -> tuple[Entry, ...]:
        """The runs in the order in which they began; one that gave its reservation back has ``reserved = 0``."""
        return self._ledger.entries

    def left(self) -> PrivacyBudget | None:
        """Return what the next run may cost; None if next to nothing.

        With ``filter=gaussian`` it is that of a run with nothing but Gaussian noise.
        """
        return self._ledger.remaining(self._block, gaussian=isinstance(self.filter, GaussianFilter))

    def run(self, path: str | os.PathLike | None = None, label: str = "run") -> "RunLedger":
        """Return what a learner takes as its ``ledger_path``, so that its fit counts here.

        Args:
            path: File of the run's own ledger; None keeps it in memory.
            label: What the run is called here.
        """
        return RunLedger(self, None if path is None else Path(path), label)

    def check_records(self, found: Callable[[], str] | None) -> None:
        """Refuse a fit on other records than those of this ledger, if it knows them by what fits are given.

        Args:
            found: Returns ``fingerprint(X, A, Y)`` of what the fit was given; None of a stream, which has none.

        Raises:
            InputError: They are other records, or a stream's, which files alone identify.
        """
        if self._by_files:
            return
        remedy = "give it records=file_fingerprint(files), which holds for all rows and columns of these files"
        if found is None:
            raise InputError(f"shared ledger {self.path}: a stream is not known by its arrays; {remedy}")
        if _keyed(self._key(), found()) != self._block.rpartition(" ")[2]:
            raise InputError(
                f"shared ledger {self.path}: this fit is on other records, or other columns of them, than the "
                f"fingerprint of the ledger; make a ledger for other records, and where fits differ in columns {remedy}"
            )

    def reserve(self, budget: PrivacyBudget, label: str, unit: PrivacyUnit = RECORD) -> "Reservation":
        """Charge all that a run may cost, before anything of it is.

        Args:
            budget: The run's budget, by record.
            label: What it is called.
            unit: Who is protected by the run.

        Raises:
            BudgetError: It exceeds what the total leaves; nothing is charged then.
            InputError: The total protects others.
        """
        self._check_unit(unit)
        try:
            entry = self._ledger.charge(self._block, Charge.of(plain(label)), self._event(budget, unit), 1, planned=1)
        except BudgetError:
            left, cost = self.left(), unit.cost(budget.epsilon, budget.delta)
            what = "nothing" if left is None else f"epsilon = {left.epsilon:.6g}, delta = {left.delta:.6g}"
            raise BudgetError(
                f"shared ledger {self.path}: a run of epsilon = {cost[0]:g}, delta = {cost[1]:g} exceeds "
                f"what the total of epsilon = {self.total.epsilon:g}, delta = {self.total.delta:g} leaves, {what}; "
                "lower the run's budget, or stop: what was spent on these records does not come back"
            ) from None
        return Reservation(self._ledger, entry)

    def run_filter(self, budget: PrivacyBudget, filter: str) -> str | Filter:
        """Return how the own ledger of a run counts: with Gaussian noise alone where this one counts by mu.

        Args:
            budget: The run's budget.
            filter: How it would count by itself.
        """
        alone = isinstance(self.filter, GaussianFilter) and budget.delta > 0
        return GaussianFilter(alone=True) if alone else filter

    def _event(self, budget: PrivacyBudget, unit: PrivacyUnit) -> Event:
        """Return what a run is as one charge: of all records of a person, where persons are protected."""
        epsilon, delta = unit.cost(budget.epsilon, budget.delta)
        if budget.delta == 0:
            return PureEvent(epsilon)
        if isinstance(self.filter, GaussianFilter):  # run_filter sees to it that the run is no more than this
            return GaussianEvent(analytic_gaussian_sigma(budget.epsilon, budget.delta) / unit.records)
        return ApproximateEvent(epsilon, delta)

    def _key(self, new: bool = False) -> bytes:
        """Return the key beside the file; a new one for a new file."""
        path = self.path.with_name(f"{self.path.name}.key")
        if new and path.exists():
            raise InputError(
                f"shared ledger {self.path}: is missing and its key is there; restore it, or remove {path.name} too if "
                "no run was made"
            )
        if new:
            write_text(path, secrets.token_hex(32) + "\n", PRIVATE)
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            key = b""
        if len(key) != 32:
            why = "damaged" if path.exists() else "missing"
            raise InputError(f"shared ledger {self.path}: its key {path.name} is {why}; restore it from a copy")
        return key

    def _check_unit(self, unit: PrivacyUnit) -> None:
        """Refuse another unit than that of the total."""
        if self.protected != _protected(unit):
            raise InputError(
                f"shared ledger {self.path}: its total protects {self.protected}, this run {_protected(unit)}; what "
                "each costs the other is not known: state the same unit"
            )


@dataclass(frozen=True)
class RunLedger:
    """Where the ledger of a run is kept, and the shared one in which the run counts.

    Attributes:
        shared: The shared one.
        path: File of the run's own; None keeps it in memory.
        label: What the run is called in the shared one.
    """

    shared: SharedLedger
    path: Path | None = None
    label: str = "run"


class Reservation:
    """A run's charge in a shared ledger, from before it starts.

    Args:
        ledger: The shared ledger's own.
        entry: Number of the charge.
    """

    def __init__(self, ledger: Ledger, entry: int) -> None:
        self._ledger = ledger
        self._entry = entry
        self._level = Level.CERTIFIED
        self._open = True

    def words(self) -> tuple[int, str]:
        """Return which of the ledger's runs this is, counted from 1, and what is known of all of them in words."""
        number = sum(entry.reserved > 0 for entry in self._ledger.entries[: self._entry + 1])
        (total,), spent = self._ledger.blocks.values(), self._ledger.spent()["total"]
        known = "not known" if spent["epsilon"] is None else _cost(spent["epsilon"], spent["delta"])
        return number, (
            f"run {number} of a ledger over the same records: in all {known} spent, of at most "
            f"{_cost(total.epsilon, total.delta)}, also where a run was chosen by what others showed; runs beside that "
            "ledger are not counted"
        )

    def note(self, level: Level) -> None:
        """Say how far the run's claim is proved, where that is less than what was said before."""
        level = weakest([level, self._level])
        if level is not self._level:
            self._ledger.weaken(self._entry, level)
            self._level = level

    def settle(self) -> None:
        """Say that the run was fitted: all of its budget is spent, for its releases may use what the fit left."""
        if self._open:
            self._ledger.settle(self._entry, 1)
        self._open = False

    def give_back(self) -> None:
        """Take the charge back, of a run that has charged nothing and drawn no noise; nothing once it is settled."""
        if self._open:
            self._ledger.cancel(self._entry)
        self._open = False


def _protected(unit: PrivacyUnit) -> str:
    return f"{_PERSONS}{unit.column}" if unit.is_person else _RECORDS


def _cost(epsilon: float, delta: float) -> str:
    return f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"


def _keyed(key: bytes, records: str) -> str:
    return hmac.new(key, records.encode(), "sha256").hexdigest()[:_DIGITS]
