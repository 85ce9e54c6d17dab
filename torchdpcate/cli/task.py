"""What a family of tasks says of itself: what it builds, how its runs are shown and compared, and what users chose."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from torchdpcate.cli.overrides import all_tasks, target_of
from torchdpcate.errors import InputError, NumericalError, reason_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from torchdpcate.data.streams import RecordStream
    from torchdpcate.data.study import PublicStudy, StreamedStudy, Study
    from torchdpcate.estimators.planned_noise import PlannedNoise
    from torchdpcate.privacy.budget import PrivacyBudget
    from torchdpcate.release.file import Release


# Elsewhere in a summary, or of no consequence for what is released.
_ELSEWHERE = {
    "task", "data", "data.n", "data.stream", "learner", "release", "mechanism", "privacy.epsilon", "seed", "run_dir",
    "force", "budget.shared", "budget.total.epsilon", "budget.total.delta", "budget.total.filter",
}  # fmt: skip
_SHARED = {
    "seed": "seed",
    "queries": "queries.count",
    "queries_path": "queries.path",
}
"""Arguments of sources of data, and the settings that they stand for."""
_IDLE = ("trainer", "hydra")
Figures = Mapping[str, Callable[[], "Figure"]]
"""Figures by their files, and how each is made."""
_NUMBERS = 1000  # of a composed release, a covariate: far more than its plan requests


def data_source(config: DictConfig, *, public_queries: bool = False) -> Any:
    """Return the source of the data, which takes the seed and the queries from other settings.

    Args:
        config: The composed configuration.
        public_queries: Whether the queries are published.
    """
    bases = get_class(config.data._target_).__mro__[:-1]
    known = {name for base in bases for name in inspect.signature(base).parameters}
    found = {name: OmegaConf.select(config, setting) for name, setting in _SHARED.items() if name in known}
    if "public_queries" in known:
        found["public_queries"] = public_queries
    given = {name: value for name, value in found.items() if value is not None and name not in config.data}
    return instantiate(config.data, _convert_="all", **given)


def is_generated(config: DictConfig) -> bool:
    """Return whether the records are drawn from a known law, so that they belong to no person."""
    from torchdpcate.data.study import GeneratedStudy

    return issubclass(get_class(config.data._target_), GeneratedStudy)


def choices(config: DictConfig, groups: Iterable[str]) -> dict[str, str | None]:
    """Return the choice of every group by its name; None of a group that the run has no use for.

    Args:
        config: The composed configuration.
        groups: Names of the groups.
    """
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    return {name: str(chosen.get(name) or _class(config, name)) if name in config else None for name in groups}


def words() -> dict[str, str]:
    """Return the words of the command line that choose something, as values by their keys."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return dict(word.lstrip("+~").partition("=")[::2] for word in given)


def settings(summarised: Collection[str] = ()) -> dict[str, str]:
    """Return every word of the command line that may change a release, as a value by its key.

    Args:
        summarised: Keys of words that the task's summary has under keys of their own.
    """
    known = _ELSEWHERE.union(summarised)
    return {key: value for key, value in words().items() if key not in known and key.split(".")[0] not in _IDLE}


def _class(config: DictConfig, group: str) -> str:
    """Return the class that a group's settings belong to."""
    node = config[group]
    return str(node.get("_target_", group)).rpartition(".")[2] if isinstance(node, DictConfig) else str(node)


@dataclass(frozen=True)
class Measure:
    """A number by which runs are compared.

    Attributes:
        key: Its key in a summary.
        title: Its name in tables.
        note: What the table's numbers are.
        references: What it is held against, names by their keys in a summary.
        drawn: Whether it is drawn against budget.
        public: Whether it follows from the release.
    """

    key: str
    title: str
    note: str
    references: Mapping[str, str] = field(default_factory=dict)
    drawn: bool = True
    public: bool = False

    @property
    def heading(self) -> str:
        """Heading of its table."""
        return f"{self.title[0].upper()}{self.title[1:]} against budget"

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the measure and of what it is held against."""
        return (self.key, *self.references)


class TaskSpec(ABC):
    """A family of tasks whose runs are comparable; an object of it is one run of a task.

    ``conf/task/<task>.yaml``, or a choice that it brings, names the family by ``task._target_``.
    `torchdpcate.cli.run.run` calls the methods in the order in which they stand here.

    Args:
        name: Name of the task.

    Attributes:
        heading: Heading of the table of all methods.
        note: What its columns are.
        settings: What distinguishes methods besides their mechanism, as a summary names it.
        comparable: The family in whose tables its runs stand; None for its own.
        summarised: Further words of the command line that a summary has under keys of their own.
        measures: What runs are compared by.
        numbers: Further numbers of a summary that are listed.
        also_shown: Further numbers that are printed of a run, and how they are called, by their keys in a summary.
        config: The composed configuration; set by the runner, as the others below.
        study: The data.
        folder: The run's folder.
        learner: The learner, with ``ledger_`` and ``sizes_`` once it is fitted.
        planned: The noise to expect.
        release: What was released.
        unwritten: What could not be written beside the release, and why, in words.
        taken: Which way to the same answer was taken, by public facts, and why, in words; empty where there is one.
    """

    heading: ClassVar[str]
    note: ClassVar[str]
    settings: ClassVar[tuple[str, ...]]
    comparable: ClassVar["type[TaskSpec] | None"] = None
    summarised: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[tuple[Measure, ...]]
    numbers: ClassVar[tuple[str, ...]] = ()
    also_shown: ClassVar[Mapping[str, str]] = {}

    config: DictConfig
    study: "Study | StreamedStudy | Any"
    folder: Path
    learner: Any
    planned: "PlannedNoise"
    release: "Release"
    taken = ""
    _keeps = True  # whether what `make` returns may leave losses and networks

    def __init__(self, name: str) -> None:
        self.name = name
        self.unwritten = list[str]()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Go on without a file or a number beside a release that is written and paid for, and note what is missing.

        Args:
            what: What the block writes, in words.
        """
        try:
            yield
        except BrokenPipeError:  # who reads what is printed went away
            raise
        except Exception as error:
            self.unwritten.append(f"{what} ({reason_of(error)})")

    @classmethod
    def summary_keys(cls) -> tuple[str, ...]:
        """Return the keys of all numbers in a summary but budgets and counts."""
        return (*(key for measure in cls.measures for key in measure.keys), *cls.numbers)

    @classmethod
    def shown(cls) -> dict[str, str]:
        """Return how the numbers are called that are printed of a run, by their keys in a summary."""
        found: dict[str, str] = {}
        for measure in cls.measures:
            found[measure.key] = measure.title if measure.public else f"unreleased: {measure.title}"
            found |= {name: f"unreleased: {measure.title}, {held}" for name, held in measure.references.items()}
        return {**found, **cls.also_shown}

    def checked(self, config: DictConfig) -> DictConfig:
        """Return the configuration with what this task fills in; refuse what no class below would ever see.

        Raises:
            InputError: Such a setting.
        """
        return config

    @property
    def publishes_queries(self) -> bool:
        """Whether the queries are part of what is released, so that they may be no person's record."""
        return False

    def load(self) -> "Study | StreamedStudy":
        """Return the data: the records, or where they are read batch by batch."""
        source = data_source(self.config, public_queries=self.publishes_queries)
        if getattr(source, "stream", False):
            self._check_stream(source)
            return source.open()
        return source.load()

    def public(self) -> "PublicStudy":
        """Return what is public of the data, for a plan: no record is read."""
        source = data_source(self.config, public_queries=self.publishes_queries)
        if getattr(source, "stream", False):
            self._check_stream(source)
        return source.public()

    def _check_stream(self, source: Any) -> None:
        """Refuse a stream, before anything is read, where all records are needed at once."""
        from torchdpcate.privacy.budget import PrivacyBudget

        source.check_stream()
        if self.config.compare:
            raise InputError("compare = true: fits all records once more, which data.stream=true never holds at once")
        self.study = source.public()
        self.suited().make(PrivacyBudget(self.config.privacy.epsilon, self.config.privacy.delta)).check_stream()

    def suited(self) -> "TaskSpec":
        """Return the task that runs on the arms of ``study``: this one, or another with its name, study and settings.

        Raises:
            InputError: Settings that are of two arms alone.
        """
        return self

    @abstractmethod
    def make(self, budget: "PrivacyBudget | None", **rest: Any) -> Any:
        """Return the learner, not fitted.

        Args:
            budget: Privacy budget; None fits without privacy.
            rest: Further arguments of the learner: its noise and the file of its ledger.
        """

    @property
    def trainer(self) -> Any:
        """What makes the trainer of networks; losses and networks go into the curator's folder and nowhere else."""
        given, folder = self.config.trainer, str((self.folder / "curator" / "logs").absolute())
        if not self._keeps:
            return instantiate(given, logger=None, enable_checkpointing=False)
        writes = given.logger is not None or given.enable_checkpointing
        # not a partial function of one, which is not known as the library's: its charges are conditional
        return instantiate(given, log_folder=folder) if writes else instantiate(given)

    def learner_of(self, budget: "PrivacyBudget", **rest: Any) -> Any:
        """Return the learner, not fitted, of which a unit of the data costs at most a budget.

        Args:
            budget: Of a record, or of a person with all of their records.
            rest: Further arguments of the learner.
        """
        unit = self.study.unit
        learner = self.make(unit.record_budget(budget), **rest)
        return learner.protect(unit) if unit.is_person else learner

    def planned_noise(self, learner: Any, n: int, budget: "PrivacyBudget") -> "PlannedNoise":
        """Return the noise to expect, beside the budget of a unit rather than of a record."""
        from dataclasses import replace

        return replace(self.noise_of(learner, n), budget=budget)

    def check(self) -> None:
        """Refuse what can be refused before anything is spent."""
        self.learner.check(self.n)

    @property
    def n(self) -> int:
        """Number of records, public."""
        assert self.study.n is not None
        return self.study.n

    @property
    def mechanism_name(self) -> str:
        """What the mechanism of the release is called."""
        return str(self.learner.mechanism)

    def noise_of(self, learner: Any, n: int) -> "PlannedNoise":
        """Return the noise to expect of a learner's release of n records; no record is looked at.

        Args:
            learner: As ``make`` returns it.
            n: Number of records.
        """
        return learner.expected_noise(n)

    def certified_ways(self) -> list[str]:
        """Return a line about certified ways to the question, of a release of a lesser level or error; else none."""
        return []

    def size(self) -> int:
        """Return more numbers than the release can hold, as far as is known: requested before the fit, and after it."""
        return _NUMBERS * (1 + self.study.domain.dimension)

    def fit(self) -> None:
        """Fit the learner on the records; a stream by a copy, which is removed then."""
        study: Any = self.study
        records = study.records
        if not self.streams:
            self.learner.fit(records.x, records.a, study.outcomes, **study.own)
            return
        from torchdpcate._files import private_folder

        private_folder(self.folder / "curator")
        with records.copied(self.folder / "curator") as copy:
            self._fit_stream(copy)

    def _fit_stream(self, stream: "RecordStream") -> None:
        """Fit the learner on a stream, which is not there later."""
        self.learner.fit_stream(stream)

    @cached_property
    def nonprivate(self) -> Any:
        """The same learner without privacy, fitted on the same records; None where it is not asked for, or fails.

        No network of it is kept.
        """
        if not self.config.compare:
            return None
        study: Any = self.study
        self._keeps = False
        learner = self.make(None)
        self._keeps = True
        try:
            return learner.fit(study.records.x, study.records.a, study.outcomes, **study.own)
        except NumericalError:  # a comparison must not end a run that has paid
            return None

    def close(self) -> None:
        """Give back what the data hold, such as the parts of a stream."""
        if "study" in vars(self) and self.streams:
            self.study.records.close()  # type: ignore[union-attr]

    @property
    def streams(self) -> bool:
        """Whether the records are read batch by batch."""
        from torchdpcate.data.study import StreamedStudy

        return isinstance(self.study, StreamedStudy)

    def released(self) -> "Release":
        """Release, and return what was released."""
        return self.learner.release()

    def choices(self) -> dict[str, str | None]:
        """Return the summary's words of what the user chose, one for each of ``settings``."""
        return choices(self.config, [name for name in self.settings if name not in ("learner", "release")])

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """Return the summary's numbers of what came out."""

    def exact(self) -> "dict[str, Tensor]":
        """Return coefficients without noise, by which released ones are checked, and what their curvature is at most.

        ``theta_without_noise`` [p], and ``hessian_bound`` [] of objective perturbation; nothing of other kinds.
        """
        return {}

    def share(self) -> None:  # noqa: B027 - most have nobody to send it to
        """Send the release to whom it is owed; nobody by default."""

    def write(self, summary: Mapping[str, Any]) -> "Figures":
        """Write further tables into ``curator/``, each an ``attempt``; what readers get follows from the release.

        Args:
            summary: The summary.

        Returns:
            The curator's figures.
        """
        return {}

    def closing(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the lines that are printed at the end of a run, after its table."""
        return self.certified_ways()


def family_of(task: str) -> type[TaskSpec]:
    """Return the family of a task.

    Raises:
        KeyError: No such task.

    Example:
        >>> family_of("owl").settings
        ('learner', 'features', 'weights', 'outcome')
    """
    if task not in all_tasks():
        raise KeyError(task)
    return get_class(target_of(task))


def tasks_of(family: type[TaskSpec]) -> list[str]:
    """Return the names of a family's tasks, and of those whose runs stand in its tables."""
    families = {task: family_of(task) for task in all_tasks()}
    return [task for task, own in families.items() if family in (own, own.comparable)]
