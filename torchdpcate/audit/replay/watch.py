"""Notes on a tape what a run does around its noise source: charges, DP-SGD runs, draws from its streams."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch.overrides import TorchFunctionMode

from torchdpcate.audit.replay.tape import Call, Difference, RecordingNoise
from torchdpcate.nuisance.dp_sgd import DPSGD
from torchdpcate.privacy.ledger import Ledger

_CHANGES = ("charge", "advance", "settle", "reopen")
_DRAWS = ("gaussian", "fine_gaussian", "laplace", "k_norm", "root_polytope", "select")
# what chooses records for a batch adds no noise to what comes of it
_COINS = ("uniform_", "bernoulli", "bernoulli_", "randperm", "randint")


@contextmanager
def watched(noise: RecordingNoise) -> Iterator[None]:
    """Write on the tape of ``noise`` every change of a ledger, every start of DP-SGD and every draw from a stream.

    It changes ``Ledger`` and ``DPSGD`` for the length of the block: one run at a time in a process.

    Args:
        noise: What the run draws from.

    Example:
        >>> import torch
        >>> from torchdpcate.privacy import PrivacyBudget, PureEvent
        >>> noise = RecordingNoise()
        >>> with watched(noise):
        ...     entry = Ledger({"all": PrivacyBudget(1.0, 0.0)}).charge("all", "mean", PureEvent(0.5))
        ...     draw = torch.rand(3, generator=noise.generator())
        >>> [call.kind for call in noise.tape]
        ['charge', 'generator', 'draw']
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

    Args:
        tape: All calls of a run.

    Returns:
        What breaks the rule; ``on_d`` says how, ``on_neighbour`` what was wanted.

    Example:
        >>> noise = RecordingNoise()
        >>> _ = noise.released(noise.gaussian(1, scale=1.0))
        >>> [found.kind for found in unpaid(noise.tape)]
        ['unpaid gaussian', 'unpaid output']
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
