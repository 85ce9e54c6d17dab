"""A user's own table in parts on a Ray cluster: each actor reads and sums its part, and nothing but sums leaves it."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple, Self

import torch

from torchdpcate._files import private_folder
from torchdpcate._process import BATCH
from torchdpcate._text import plain
from torchdpcate.data._csv import PLAIN, CsvForm
from torchdpcate.data._frames import MOST_BYTES, PARQUET, file_kind, files_of, groups_in_metadata
from torchdpcate.data.checked import Outcomes
from torchdpcate.data.domain import Domain
from torchdpcate.data.facts import check_integer
from torchdpcate.data.records import NOTHING_CLIPPED, CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.streams import RECORDS, CachedStream, PartedStream, RecordStream
from torchdpcate.data.table_stream import Counted, RowGroups, TableStream
from torchdpcate.errors import InputError, TorchDPCateError

AUTO = "auto"
"""The cluster that runs on this machine."""

_PORT = 6379
_ANSWER, _CONNECT = 5.0, 60.0  # seconds
_STORE = 80 << 20  # bytes of shared memory: sums alone pass through it
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
_PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='fatal')"


def load_ray() -> Any:
    """Return the package, with its statistics of use off.

    Raises:
        InputError: It is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError("data.engine = ray: needs Ray (extra ray); pip install ray") from None
    return ray


class RayCluster:
    """A connection to a cluster, closed by ``close``; a cluster of its own ends then.

    One of its own listens on the network as any does: it accepts nobody without a random token that this process and
    its workers alone know, has no dashboard, and its files are in a folder of the owner alone. A process that is
    connected to a cluster already stays so, and uses it.

    Args:
        address: ``HOST:PORT``, ``"auto"`` for a cluster that runs on this machine; None makes one of its own.
        cpus: Workers of one of its own; None for as many as the machine has processors.

    Raises:
        InputError: Ray is not installed, the cluster cannot be reached, or the process is connected to another.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self._own, self._folder = False, ""
        loaded = sys.modules.get("ray")
        if loaded is not None and loaded.is_initialized():
            if address is not None:
                raise InputError(f"data.address = {address}: this process is connected to a cluster; leave it out")
            self.ray = load_ray()
            return
        host = None if address is None else _reached(address)
        if host is None and loaded is None:
            os.environ.update({name: os.environ.get(name, value) for name, value in _TOKEN.items()})
        if host is None and os.environ.get("RAY_AUTH_MODE") != "token":
            raise InputError(
                "data.address: Ray was imported without a token, and its own cluster would obey whoever reaches it; "
                "import it later, or set RAY_AUTH_MODE=token first"
            )
        self.ray, self._own = load_ray(), True
        with _signals_kept():
            if host is None:
                self._start(cpus or os.cpu_count() or 1)
            else:
                self._connect(host)

    @property
    def cpus(self) -> int:
        """How many workers it has room for."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def close(self) -> None:
        """End the connection, and the cluster if it is one of its own."""
        if self._own:
            self._own = False
            with _signals_kept():
                self.ray.shutdown()
            if self._folder:
                rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, cpus: int) -> None:
        # Ray opens its folder to all, and the names of its sockets must be short: hence a folder in one of the owner's
        self._folder = tempfile.mkdtemp(prefix="tdp-")
        place = Path(self._folder)
        settings = {"include_dashboard": False, "object_store_memory": _STORE, "num_cpus": cpus}
        places = {"_temp_dir": str(place / "r"), "object_spilling_directory": str(place / "s")}
        try:
            self.ray.init(address="local", log_to_driver=False, logging_level="error", **settings, **places)
        except Exception as error:
            rmtree(self._folder, ignore_errors=True)
            raise InputError(f"ray: a cluster on this machine does not start: {_first(error)}") from None

    def _connect(self, address: str) -> None:
        try:  # Ray itself tries for minutes, and may end the process
            if address != AUTO:
                command = [sys.executable, "-c", _PROBE, address]
                subprocess.run(command, timeout=_CONNECT, capture_output=True, check=True)
            self.ray.init(address=address, log_to_driver=False, logging_level="error")
        except subprocess.CalledProcessError as error:
            raise _unreachable(address, error.stderr.decode(errors="replace").strip().splitlines()[-1:]) from None
        except subprocess.TimeoutExpired:
            raise _unreachable(address, [f"no answer of a cluster in {_CONNECT:g} seconds"]) from None
        except Exception as error:
            raise _unreachable(address, [_first(error)]) from None


def _reached(address: str) -> str:
    """Return an address with its port, where somebody listens."""
    if address == AUTO:
        return address
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(_PORT))
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(f"data.address = {address}: give HOST:PORT of the head node, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, [str(error)]) from None
    return f"{host}:{port}"


def _unreachable(address: str, why: list[str]) -> InputError:
    words = plain(" ".join(why))[:200] or "no answer"
    return InputError(f"data.address = {address}: no cluster can be reached ({words}); check that ray status shows it")


def _first(error: Exception) -> str:
    return plain(next(iter(str(error).splitlines()), type(error).__name__))[:200]


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(TypeError):  # of a handler that was not set by Python
            signal.signal(signal.SIGTERM, before)


_TABLE = "table"  # what a part holds: its rows of the files
_DEATHS = 3
_ROOM = 60.0  # seconds until all actors have a place


class Span(NamedTuple):
    """A part of some files.

    Attributes:
        paths: The files, by their positions.
        groups: Row groups of each.
        rows: Number of rows.
    """

    paths: tuple[int, ...]
    groups: tuple[RowGroups, ...]
    rows: int


def spans(groups: Sequence[Sequence[int]], parts: int) -> list[Span]:
    """Return consecutive spans of row groups of about equal length, by public sizes; fewer than asked for if they must.

    Args:
        groups: Rows of each row group of each file.
        parts: How many spans are asked for.

    Example:
        >>> spans([[10, 10], [10, 10, 20]], 3)[1]
        Span(paths=(1,), groups=(RowGroups(groups=range(0, 2), before=0),), rows=20)
    """
    n, done = sum(map(sum, groups)), 0
    found: list[dict[int, RowGroups]] = [{} for _ in range(parts)]
    sizes = [0] * parts
    for path, rows in enumerate(groups):
        for group, size in enumerate(rows):
            part = min(parts - 1, int((done + size / 2) * parts / max(1, n)))
            known = found[part].get(path, RowGroups(range(group, group), sum(rows[:group])))
            found[part][path] = known._replace(groups=range(known.groups.start, group + 1))
            sizes[part], done = sizes[part] + size, done + size
    return [Span(tuple(of), tuple(of.values()), size) for of, size in zip(found, sizes, strict=True) if of]


class RayTable(TableStream):
    """Records of files, counted and checked in parts on a Ray cluster, for a copy in parts of which sums are taken.

    ``close``, or the end of a ``with`` block, ends the actors, and the cluster if it is one of its own.

    Each part is read by an actor where all files are parquet, have as many row groups, and name no clusters of records;
    their sizes are public, as n is. Other files are read here. A part has 4,096 records at least, so that the sum of
    parts rounds by no more than a stream's does, see ``most_additions``.

    What the cluster's operators can see is in docs/SECURITY.md.

    Args:
        path: As of ``TableStream``, as the other arguments are that it has.
        domain: The domain file.
        out_of_bounds: ``"refuse"`` or ``"clip"``.
        address: See ``RayCluster``.
        parts: How many; None for as many as the cluster has processors and the table records.
        most_bytes: What a row group may unpack to.
        form: How csv files are written.

    Raises:
        InputError: See ``TableStream`` and ``RayCluster``; or more parts than the cluster or the table has room for.

    Example:
        >>> with RayTable(["a.parquet", "b.parquet"], "trial.yaml", parts=2) as table:  # doctest: +SKIP
        ...     with table.copied("curator") as parts:
        ...         learner.fit_stream(parts)
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        domain: TableSchema | Domain | Mapping[str, Any] | str | Path,
        out_of_bounds: str = "refuse",
        address: str | None = None,
        parts: int | None = None,
        most_bytes: int = MOST_BYTES,
        form: CsvForm = PLAIN,
    ) -> None:
        if parts is not None:
            check_integer("data.parts", parts)
        files = files_of(path)
        cluster = RayCluster(address, parts)
        self._parts, self._actors = parts, _Actors(cluster)
        self._finish = weakref.finalize(self, self._actors.close)
        try:
            if parts is not None and parts > cluster.cpus:
                raise InputError(f"data.parts = {parts}: the cluster has {cluster.cpus} processors; give no more parts")
            super().__init__([Path(file).absolute() for file in files], domain, out_of_bounds, 65536, most_bytes, form)
        except BaseException:
            self._finish()
            raise

    def __iter__(self) -> Iterator[CausalData]:
        """Refuse: records are summed in parts.

        Raises:
            InputError: Always.
        """
        raise InputError("stream: is read in parts; give fit_stream its copy: with table.copied(FOLDER) as parts")

    def first(self) -> CausalData:
        """See ``RecordStream``: read here."""
        return next(super().__iter__())

    def ask(self, function: Callable[[Any], Any]) -> list[Any]:
        """See ``RecordStream``: of the parts of the files, or read here where they have not as many."""
        return self._actors.each(("ask", function, _TABLE)) if self._reads else [function(_Here(self))]

    def close(self) -> None:
        """See the class."""
        self._finish()

    @contextmanager
    def copied(self, folder: str | Path) -> Iterator["RayParts"]:
        """Give a copy on disk in parts, for many sums.

        Args:
            folder: The curator's, of this process, and of each part where its machine has it; the parts of other
                machines are in their folder of temporary files. Their copies are readable by their owner alone.

        Raises:
            InputError: It cannot be written, files have changed, or actors died too often.
        """
        folder = Path(folder).absolute()
        try:
            if self._reads:
                with self._actors.holding(RECORDS, self._actors.numbered(partial(_copied, folder)), _TABLE):
                    yield RayParts(self, self._actors)
                return
            with CachedStream(_Here(self), folder) as whole:
                if not self._actors.count:
                    self._actors.start(self._wanted(self.n))
                cuts = [self.n * part // self._actors.count for part in range(self._actors.count + 1)]
                rows = [range(*ends) for ends in pairwise(cuts)]
                made = self._actors.numbered(partial(_spanned, folder, whole), rows)
                with self._actors.holding(RECORDS, made, None):
                    yield RayParts(self, self._actors)
        finally:
            for name in self._actors.names():  # of actors that have died here
                rmtree(folder / name, ignore_errors=True)

    def _count(self) -> Counted:
        """Read everything once, in parts where the files have some."""
        found = self._spans()
        self._reads = found is not None
        if found is None:
            return super()._count()
        self._actors.start(len(found))
        settings = self.schema, self.most_bytes, self.form
        parts = [([self.paths[i] for i in span.paths], span, *settings) for span in found]
        self._actors.hold(_TABLE, [partial(_read, *part) for part in parts], None)
        counts = self._actors.each(("ask", _counted, _TABLE))
        # an actor that is started again need not count again, and refuses files that have changed
        again = [partial(_read, *part, counted) for part, counted in zip(parts, counts, strict=True)]
        self._actors.remember(_TABLE, again)
        return _joined(counts, found, self.schema)

    def _spans(self) -> list[Span] | None:
        """Return the parts of the files; None where they have not as many."""
        if self.schema.cluster is not None or any(file_kind(path) != PARQUET for path in self.paths):
            return None
        groups = [groups_in_metadata(path) for path in self.paths]
        wanted = self._wanted(sum(map(sum, groups)))
        found = spans(groups, wanted)
        enough = len(found) == wanted and (wanted == 1 or min(span.rows for span in found) >= BATCH)
        return found if enough and all(groups) else None

    def _wanted(self, n: int) -> int:
        """Return the number of parts that n records have."""
        most = max(1, n // BATCH)
        if self._parts is not None and self._parts > most:
            raise InputError(
                f"data.parts = {self._parts}: a part has {BATCH:,} records or more, and there are {n:,}; give at "
                f"most {most}"
            )
        return self._parts or min(most, max(1, self._actors.cluster.cpus))


class RayParts(PartedStream):
    """The copy of a table, each part in an actor; see ``RayTable.copied``.

    Args:
        table: The table.
        actors: Hold its parts.
    """

    batch_rows = BATCH

    def __init__(self, table: RayTable, actors: "_Actors") -> None:
        self.schema, self.n, self.clipped = table.schema, table.n, table.clipped
        self._table, self._actors = table, actors

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return self._actors.count

    def ask(self, function: Callable[[Any], Any], of: str = RECORDS) -> list[Any]:
        if not self._actors.holds(of):
            raise InputError("stream: the copy of its parts was removed; ask within the block of copied(), or anew")
        return self._actors.each(("ask", function, of))

    def holding(
        self, name: str, function: Callable[[Any], AbstractContextManager[Any]], of: str = RECORDS
    ) -> AbstractContextManager[None]:
        return self._actors.holding(name, [function] * self._actors.count, of)

    def first(self) -> CausalData:
        """See ``RecordStream``: read here."""
        return self._table.first()


class _Part:
    """What runs in an actor: things by their names, made and asked by functions.

    No error leaves it but in the library's words, and no warning is written: Ray would write others into its logs, with
    the values that they show.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        self._held: dict[str, tuple[AbstractContextManager[Any], Any]] = {}

    def answer(self, request: tuple[str, ...]) -> tuple[Any, str | None]:
        """Return what a method returns, or what is wrong."""
        try:
            return getattr(self, request[0])(*request[1:]), None
        except TorchDPCateError as error:
            return type(error), str(error)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}, line {where.lineno}"
            return InputError, f"ray: {type(error).__name__} in a part ({place}); data.engine=null shows more"

    def ready(self) -> None:
        """Answer."""

    def ask(self, function: Callable[[Any], Any], of: str) -> Any:
        """Return what a function makes of what is held."""
        return function(self._held[of][1])

    def hold(self, name: str, function: Callable[..., AbstractContextManager[Any]], of: str | None) -> None:
        """Hold what a function makes, of what is held."""
        context = function() if of is None else function(self._held[of][1])
        self._held[name] = context, context.__enter__()

    def drop(self, name: str) -> None:
        """End what is held."""
        self._held.pop(name)[0].__exit__(None, None, None)


class _Actors:
    """The actors of all parts: one that dies is started again, and made to hold what it held.

    Args:
        cluster: Where they run.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster, self._actors, self._deaths = cluster, list[Any](), Counter[int]()
        self._holds: dict[str, tuple[Sequence[Callable[..., Any]], str | None]] = {}
        self._token = secrets.token_hex(4)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._actors)

    def start(self, count: int) -> None:
        """Start actors.

        Raises:
            InputError: The cluster has no room for them.
        """
        self._actors = [self._new() for _ in range(count)]
        ready = [actor.answer.remote(("ready",)) for actor in self._actors]
        _, waiting = self.cluster.ray.wait(ready, num_returns=count, timeout=_ROOM)
        if waiting:
            raise InputError(
                f"ray: {len(waiting)} of {count} parts have no processor after {_ROOM:g} seconds; give fewer by "
                "data.parts, or wait until the cluster is free"
            )

    def numbered(self, function: Callable[..., Any], *each: Sequence[Any]) -> list[Callable[..., Any]]:
        """Return a function for each part, with its name and its own arguments."""
        return [partial(function, *own) for own in zip(self.names(), *each, strict=True)]

    def names(self) -> list[str]:
        """Return a name of each part, its own among all runs."""
        return [f"{self._token}-part{part}" for part in range(self.count)]

    def each(self, request: tuple[Any, ...]) -> list[Any]:
        """Return the answers of all parts to the same request."""
        return self._answers([request] * self.count)

    def hold(self, name: str, functions: Sequence[Callable[..., Any]], of: str | None) -> None:
        """Let each part hold what its function makes."""
        self._answers([("hold", name, function, of) for function in functions])
        self._holds[name] = functions, of

    def holds(self, name: str) -> bool:
        """Return whether the parts hold something of a name."""
        return name in self._holds

    def remember(self, name: str, functions: Sequence[Callable[..., Any]]) -> None:
        """Let actors that are started again hold what other functions make."""
        self._holds[name] = functions, self._holds[name][1]

    @contextmanager
    def holding(self, name: str, functions: Sequence[Callable[..., Any]], of: str | None) -> Iterator[None]:
        """Hold it while the block runs."""
        self.hold(name, functions, of)
        try:
            yield
        finally:
            del self._holds[name]
            # of one that has died nothing is held, and the others must not be ended while they remove their files
            dropped = [actor.answer.remote(("drop", name)) for actor in self._actors]
            self.cluster.ray.wait(dropped, num_returns=self.count, timeout=_ROOM)

    def close(self) -> None:
        """End all actors, and the connection."""
        if self.cluster.ray.is_initialized():
            for actor in self._actors:
                self.cluster.ray.kill(actor)
        self._actors = []
        self.cluster.close()

    def _answers(self, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        waiting = [actor.answer.remote(request) for actor, request in zip(self._actors, requests, strict=True)]
        return [self._answer(part, *asked) for part, asked in enumerate(zip(requests, waiting, strict=True))]

    def _answer(self, part: int, request: tuple[Any, ...], waiting: Any) -> Any:
        """Return the answer of one part, which is started again where it has died."""
        ray = self.cluster.ray
        while True:
            try:
                if waiting is None:
                    self._actors[part] = self._new()
                    for name, (functions, of) in self._holds.items():
                        self._got(self._actors[part].answer.remote(("hold", name, functions[part], of)))
                    waiting = self._actors[part].answer.remote(request)
                return self._got(waiting)
            except ray.exceptions.RayActorError as error:
                waiting = None
                self._deaths[part] += 1
                if self._deaths[part] == _DEATHS:
                    why = plain(next(iter(str(error).strip().splitlines()), ""))[:100]
                    raise InputError(
                        f"ray: the actor of part {part + 1} of {self.count} died {_DEATHS} times ({why}); give more "
                        "parts or memory, and start anew: what was spent is in the ledger"
                    ) from None

    def _got(self, waiting: Any) -> Any:
        try:
            value, error = self.cluster.ray.get(waiting)
        except self.cluster.ray.exceptions.RayTaskError as failed:
            name = type(failed.cause).__name__
            raise InputError(f"ray: {name} of a worker; install the same torchdpcate on all machines") from None
        if error is not None:
            raise value(error)
        return value

    def _new(self) -> Any:
        return self.cluster.ray.remote(num_cpus=1, max_restarts=0)(_Part).remote()


class _TablePart(TableStream):
    """Rows of files that are counted and checked together with those of other parts.

    Args:
        paths: The files.
        counted: What was found when they were read first; None where this is that time.
        settings: Of ``TableStream``.
    """

    def __init__(self, paths: Sequence[str | Path], counted: Counted | None = None, **settings: Any) -> None:
        self._known = counted
        super().__init__(paths, **settings)

    def _count(self) -> Counted:
        return super()._count() if self._known is None else self._known

    def _check(self) -> None:
        """Nothing: an arm may have no record here."""


class _Here(RecordStream):
    """All records of a table, read here."""

    def __init__(self, table: RayTable) -> None:
        self.schema, self.n, self.clipped, self._table = table.schema, table.n, table.clipped, table

    def __iter__(self) -> Iterator[CausalData]:
        return TableStream.__iter__(self._table)


@contextmanager
def _read(
    paths: Sequence[str | Path],
    span: Span,
    schema: TableSchema,
    most_bytes: int,
    form: CsvForm,
    counted: Counted | None = None,
) -> Iterator[_TablePart]:
    yield _TablePart(paths, counted, domain=schema, most_bytes=most_bytes, form=form, groups=span.groups)


def _counted(part: _TablePart) -> Counted:
    return part.counted


def _joined(counts: Sequence[Counted], found: Sequence[Span], schema: TableSchema) -> Counted:
    """Return what all parts found, with the seals of the files in their order."""
    outcomes, clipped, seals = Outcomes(schema), NOTHING_CLIPPED, dict[int, tuple[int, ...]]()
    for counted, span in zip(counts, found, strict=True):
        outcomes.join(counted.outcomes)
        clipped += counted.clipped
        seals |= zip(span.paths, counted.seals, strict=True)
    sizes = torch.stack([counted.sizes for counted in counts]).sum(0)
    return Counted(sizes, clipped, outcomes, Counter(), [seals[path] for path in sorted(seals)])


@contextmanager
def _own_folder(folder: Path, name: str) -> Iterator[Path]:
    """Make a folder that its owner alone can read, in another one or, where that is not there, for temporary files."""
    place = folder / name if folder.is_dir() else Path(tempfile.gettempdir()) / f"torchdpcate-{name}"
    rmtree(place, ignore_errors=True)  # of an actor that has died
    private_folder(place)
    try:
        yield place
    finally:
        rmtree(place, ignore_errors=True)


@contextmanager
def _copied(folder: Path, name: str, part: _TablePart) -> Iterator[CachedStream]:
    with _own_folder(folder, name) as place, CachedStream(part, place) as copy:
        yield copy


@contextmanager
def _spanned(folder: Path, whole: CachedStream, name: str, rows: range) -> Iterator[CachedStream]:
    with _own_folder(folder, name) as place:
        yield whole.span(rows, place)
