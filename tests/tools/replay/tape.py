"""A tape of one run: its draws, charges and outputs, in order, and what a run does around its noise source."""

import copy
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import torchdpcate
from torchdpcate.fit.dp_sgd import DPSGD
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.noise import NoiseSource

_PACKAGE = Path(torchdpcate.__file__).parent
_PLUMBING = {str(_PACKAGE / p) for p in ("privacy/noise.py", "privacy/ledger.py", "privacy/session.py")} | {__file__}
_FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED = {"site-packages", "dist-packages"}  # folders of libraries, also of another environment on the path


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the noise source or of the ledger."""

    kind: str
    place: str
    facts: dict[str, Any]
    output: Any = None


@dataclass(frozen=True)
class Difference:
    """Something that one record changed without a charge. Not private: it may quote records."""

    kind: str
    place: str
    on_d: str
    on_neighbour: str


class RecordingNoise(NoiseSource):
    """Hands out the noise of another source and writes every call on a tape. For audits alone."""

    def __init__(self, inner: NoiseSource | None = None, keep_order: bool = False) -> None:
        self.inner, self.keep_order = inner or NoiseSource.system(), keep_order
        self.private = self.inner.private
        self.tape: list[Call] = []
        self.streams: list[torch.Generator] = []

    def note(self, kind: str, facts: dict[str, Any], output: Any = None) -> Any:
        """Write a call on the tape and return what it is to hand out."""
        self.tape.append(Call(kind, place(), facts, _copied(output)))
        return output

    def gaussian(self, size: int, scale: float, step: float | None = None) -> Tensor:
        """See ``NoiseSource.gaussian``; a scale with a step that is not its own may be secret, so it is no fact."""
        public = step is None or step == self.tilt_grid(scale)
        facts = {"size": size, "scale": scale if public else "secret", "step": step}
        return self.note("gaussian", facts, self.inner.gaussian(size, scale, step))

    def laplace(self, size: int, scale: float) -> Tensor:
        """See ``NoiseSource.laplace``."""
        return self.note("laplace", {"size": size, "scale": scale}, self.inner.laplace(size, scale))

    def k_norm(self, size: int, dimension: int, scale: float, order: float = 2.0, step: float | None = None) -> Tensor:
        """See ``NoiseSource.k_norm``."""
        facts = {"size": size, "dimension": dimension, "scale": scale, "order": order, "step": step}
        return self.note("k_norm", facts, self.inner.k_norm(size, dimension, scale, order, step))

    def fine_gaussian(self, size: int, scale: float) -> Tensor:
        """See ``NoiseSource.fine_gaussian``."""
        return self.note("fine_gaussian", {"size": size, "scale": scale}, self.inner.fine_gaussian(size, scale))

    def fine_gaussian_rows(self, rows: int, size: int, scale: float) -> Iterator[Tensor]:
        """See ``NoiseSource.fine_gaussian_rows``; each row is noted when it is taken."""
        for row in self.inner.fine_gaussian_rows(rows, size, scale):
            yield self.note("fine_gaussian", {"size": size, "scale": scale}, row)

    def uniform(self, size: int) -> Tensor:
        """See ``NoiseSource.uniform``."""
        return self.note("uniform", {"size": size}, self.inner.uniform(size))

    def coins(self, size: int, probability: float) -> Tensor:
        """See ``NoiseSource.coins``."""
        return self.note("coins", {"size": size, "probability": probability}, self.inner.coins(size, probability))

    def chosen(self, size: int, probability: float) -> Tensor:
        """See ``NoiseSource.chosen``; noted as the coins that show it, of which a replay knows the number."""
        coins = torch.zeros(size, dtype=torch.bool)
        coins[self.inner.chosen(size, probability)] = True
        return self.note("coins", {"size": size, "probability": probability}, coins).nonzero().squeeze(1)

    def _bytes(self, count: int) -> bytes:
        return self.inner._bytes(count)

    def _noisy_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        facts = {"candidates": len(scores), "epsilon": epsilon, "sensitivity": sensitivity}
        return self.note("select", facts, self.inner.select(scores, epsilon, sensitivity))

    def _gumbel_max(self, scores: Tensor, epsilon: float, sensitivity: float) -> int:
        facts = {"candidates": len(scores), "epsilon": epsilon, "sensitivity": sensitivity, "law": "gumbel"}
        return self.note("select", facts, self.inner.select(scores, epsilon, sensitivity, "gumbel"))

    def generator(self, device: str | torch.device = "cpu") -> torch.Generator:
        """See ``NoiseSource.generator``; what is drawn from the stream is noted by ``watched``."""
        stream = self.inner.generator(device)
        stream.set_state(self.note("generator", {"device": stream.device.type}, stream.get_state()))
        self.streams.append(stream)
        return stream

    def permutation(self, n: int) -> Tensor:
        """See ``NoiseSource.permutation``; the order as it is, where it is to be kept."""
        return self.note("permutation", {"size": n}, torch.arange(n) if self.keep_order else self.inner.permutation(n))

    def released(self, output: Any) -> Any:
        """See ``NoiseSource.released``."""
        return self.note("released", {"form": form(output)}, output)


class ReplayingNoise(RecordingNoise):
    """Hands out what a tape holds, and notes where the run departs from it.

    Noise, streams, selections and charged outputs are those of the tape. A call that is not the next one is sought
    further on; the calls passed over, and a call that the tape does not hold, are differences.
    """

    def __init__(self, recorded: Sequence[Call], inner: NoiseSource | None = None) -> None:
        super().__init__(inner)
        self.recorded = recorded
        self.differences: list[Difference] = []
        self._next = 0

    def note(self, kind: str, facts: dict[str, Any], output: Any = None) -> Any:
        """Write the call on the tape, compare it with the recorded one and return that one's output."""
        super().note(kind, facts, output)
        call = self.tape[-1]
        recorded = self._counterpart(call)
        if recorded is None:
            self.differences.append(Difference(f"call of {kind}", call.place, "not made", "made"))
            return output
        for name, value in facts.items():
            before = recorded.facts.get(name)
            if before != value:
                self.differences.append(Difference(f"{name} of {kind}", call.place, repr(before), repr(value)))
        return _copied(recorded.output) if form(recorded.output) == form(output) else output

    def finish(self) -> None:
        """Note the calls of the tape that this run did not make."""
        self._passed_over(len(self.recorded))

    def _counterpart(self, call: Call) -> Call | None:
        for index in range(self._next, len(self.recorded)):
            recorded = self.recorded[index]
            if (recorded.kind, recorded.place) == (call.kind, call.place):
                self._passed_over(index)
                self._next = index + 1
                return recorded
        return None

    def _passed_over(self, end: int) -> None:
        missed = self.recorded[self._next : end]
        self.differences += [Difference(f"call of {call.kind}", call.place, "made", "not made") for call in missed]
        self._next = end


def form(output: Any) -> str:
    """Structure, types and shapes of an output, not its numbers."""
    return str(mapped(output, lambda v: f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else type(v).__name__))


def mapped(output: Any, function: Callable[[Any], Any]) -> Any:
    """Return an output of tuples, lists and dictionaries with a function of each thing that they hold."""
    if isinstance(output, dict):
        return {key: mapped(value, function) for key, value in output.items()}
    if isinstance(output, list | tuple):
        parts = [mapped(value, function) for value in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return function(output)


def place() -> str:
    """The innermost place outside libraries, noise source, ledger and tape, as ``file:line in function``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _short(frame.f_code.co_filename)
        if name is not None:
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "unknown"


def innermost(trace: TracebackType | None) -> str:
    """As ``place``, of an exception's traceback."""
    places = [(_short(f.f_code.co_filename), line, f.f_code.co_qualname) for f, line in walk_tb(trace)]
    return next((f"{name}:{line} in {function}" for name, line, function in reversed(places) if name), "unknown")


@cache
def _short(filename: str) -> str | None:
    """A file's name for a report; None for libraries and the audit itself."""
    path = Path(filename)
    if filename in _PLUMBING or not path.is_absolute():
        return None
    if path.is_relative_to(_PACKAGE):
        return str(path.relative_to(_PACKAGE.parent))
    return None if filename.startswith(_FOREIGN) or _INSTALLED.intersection(path.parts) else filename


def _copied(output: Any) -> Any:
    """A copy that later changes in place do not reach."""
    return mapped(output, lambda v: v.detach().clone() if isinstance(v, Tensor) else copy.deepcopy(v))


_CHANGES = ("charge", "advance", "settle", "reopen")
_DRAWS = ("gaussian", "fine_gaussian", "laplace", "k_norm", "select")
# what chooses records for a batch adds no noise to what comes of it
_COINS = ("uniform_", "bernoulli", "bernoulli_", "randperm", "randint")


@contextmanager
def watched(noise: RecordingNoise) -> Iterator[None]:
    """Write on the tape of ``noise`` every change of a ledger, every start of DP-SGD and every draw from a stream.

    It changes ``Ledger`` and ``DPSGD`` for the length of the block: one run at a time in a process.
    """
    ledgers: list[Ledger] = []

    def noted(change: str) -> Callable[..., Any]:
        original = getattr(Ledger, change)
        signature = inspect.signature(original)

        @wraps(original)
        def wrapper(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
            result = original(ledger, *args, **kwargs)
            bound = signature.bind(ledger, *args, **kwargs)
            bound.apply_defaults()
            facts = {name: value for name, value in bound.arguments.items() if name != "self"}
            if not any(ledger is known for known in ledgers):
                ledgers.append(ledger)
            number = next(i for i, known in enumerate(ledgers) if known is ledger)
            noise.note(change, {"ledger": number, **facts}, result)
            return result

        return wrapper

    with ExitStack() as undo:
        for change in _CHANGES:
            undo.enter_context(_replaced(Ledger, change, noted(change)))
        undo.enter_context(_replaced(DPSGD, "on_train_start", _noted_start(noise)))
        undo.enter_context(_Draws(noise))
        yield


def unpaid(tape: Sequence[Call]) -> list[Difference]:
    """What a tape handed out or drew without a charge before it.

    The rule: each charged event covers one output, so a mechanism of several outputs hands them out together;
    an output needs noise drawn since the one before; and an entry is never settled below what it covered.
    """
    charged: dict[tuple[int, int], int] = {}
    used: dict[tuple[int, int], int] = {}
    drawn, found = False, []
    for call in tape:
        if call.kind == "charge":
            entry = call.facts["ledger"], call.output
            charged[entry], used[entry] = call.facts["count"], 0
        elif call.kind in ("advance", "settle"):
            entry = call.facts["ledger"], call.facts["entry"]
            count = charged[entry] = call.facts["count"]
            if count < used.get(entry, 0):
                outputs = f"{used[entry]} outputs"
                found.append(Difference("settled below use", call.place, f"{count} events", f"charges for {outputs}"))
        elif call.kind == "draw":
            drawn |= call.facts["function"] not in _COINS
        elif call.kind == "uniform":
            drawn = True
        elif call.kind in _DRAWS:
            drawn = True
            if _payer(charged, used) is None:
                found.append(Difference(f"unpaid {call.kind}", call.place, "drawn", "a charge before it"))
        elif call.kind == "released":
            payer = _payer(charged, used)
            if payer is None:
                found.append(Difference("unpaid output", call.place, "handed out", "a charge of its own before it"))
            else:
                used[payer] += 1
            if not drawn:
                found.append(Difference("output without noise", call.place, "handed out", "a draw before it"))
            drawn = False
    return found


def _payer(charged: dict[tuple[int, int], int], used: dict[tuple[int, int], int]) -> tuple[int, int] | None:
    """The latest entry with an event that covers no output yet."""
    return next((entry for entry in reversed(charged) if charged[entry] > used.get(entry, 0)), None)


class _Draws(TorchFunctionMode):
    """Sees torch's own calls with ``generator=`` one of the streams that were handed out."""

    def __init__(self, noise: RecordingNoise) -> None:
        super().__init__()
        self.noise = noise

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        stream = kwargs.get("generator")
        if stream is not None and any(stream is known for known in self.noise.streams):
            named = [*((str(i), value) for i, value in enumerate(args)), *kwargs.items()]
            numbers = {name: value for name, value in named if isinstance(value, int | float)}
            facts = {"function": func.__name__, "size": result.numel(), **numbers}
            self.noise.note("draw", facts)
        return result


def _noted_start(noise: RecordingNoise) -> Callable[..., None]:
    original = DPSGD.on_train_start

    @wraps(original)
    def wrapper(self: DPSGD, trainer: Any, pl_module: Any) -> None:
        original(self, trainer, pl_module)
        dataset = getattr(trainer.train_dataloader.dataset, "dataset", None)
        records = getattr(dataset, "tensors", None)
        noise.note("dp_sgd", {"plan": self.plan.to_dict(), "mode": self.mode}, records)

    return wrapper


@contextmanager
def _replaced(owner: type, name: str, replacement: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
