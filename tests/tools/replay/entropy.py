"""The fresh-noise check: nothing that an outsider could set or copy may bring the same noise twice."""

import multiprocessing
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.tools.replay.check import Pipeline
from tests.tools.replay.tape import Call, RecordingNoise, mapped, watched
from torchdpcate.data.records import CausalData
from torchdpcate.errors import NumericalError
from torchdpcate.privacy.noise import NoiseSource

Source = Callable[[], NoiseSource]
"""Makes the noise source of one run, as that run would."""

_NUMBERS = 32  # numbers compared of each kind: at 6 bits a number or more, honest ones meet below once in 2^190
_ADDED = ("gaussian", "fine_gaussian", "laplace", "k_norm", "root_polytope")
_SECONDS = 60.0  # that a forked process may take


@dataclass(frozen=True)
class Repetition:
    """Noise that came twice, or from where anybody may look.

    Attributes:
        kind: What was drawn.
        place: The method of the source, or the place in the code that drew.
        how: Under which circumstances.
    """

    kind: str
    place: str
    how: str


def check_fresh_noise(
    pipeline: Pipeline, records: CausalData, seed: int, source: Source = NoiseSource.system
) -> list[Repetition]:
    """Report noise of a pipeline that repeats when every seed is set alike, and what is wrong with its source.

    The pipeline runs twice on the same records, with torch, NumPy, Python and Lightning seeded by ``seed`` before each
    run. Draws, streams and charged outputs that are the same are reported; so is a run that drew nothing from the
    source it was given. Single numbers, coins and selections repeat by chance and are not compared; ``check_source``
    draws enough of them.

    Args:
        pipeline: What is checked.
        records: The records.
        seed: The seed, such as the experiment's.
        source: Makes the noise source of each run.

    Returns:
        What was found; nothing, if the noise is fresh.

    Example:
        >>> records = CausalData.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], [0.0, 1.0, 2.0])
        >>> total = lambda records, noise: noise.released(records.y.sum() + noise.gaussian(2, scale=1.0))
        >>> check_fresh_noise(total, records, seed=0)
        []
        >>> [found.kind for found in check_fresh_noise(total, records, 0, lambda: NoiseSource.fixed(0))][-2:]
        ['gaussian', 'released']
    """
    first, second = (_by_place(_tape(pipeline, records, seed, source)) for _ in range(2))
    if not first:
        return [Repetition("nothing", "pipeline", "the pipeline draws nothing from the noise source it is given")]
    repeated = [
        Repetition(*key, "the same in two runs with the same seeds")
        for key, calls in first.items()
        if _repeats(calls, second.get(key, []))
    ]
    return [*check_source(source, seed), *repeated]


def check_source(source: Source, seed: int = 0) -> list[Repetition]:
    """Report what a noise source repeats: with the same seeds, in forked processes, or from a global generator.

    Each kind of draw is compared between two calls; between two sources made under the same seeds; between a process
    and two children forked from it at the same time, who inherit the source. The global generators must not move.
    Where a platform cannot fork, the children are left out. A stream of ``generator`` is copied by a fork like any
    other object: what is checked is that a child's *next* stream is another.

    Args:
        source: Makes the noise source.
        seed: The seed for the global generators.

    Returns:
        What was found.

    Raises:
        NumericalError: A forked process gave no answer.

    Example:
        >>> check_source(NoiseSource.system)
        []
        >>> {found.how for found in check_source(lambda: NoiseSource.fixed(0)) if found.kind != "permutation"} == {
        ...     "the same under the same seeds", "the same in a process and a child forked from it",
        ...     "the same in two processes forked at the same time"}
        True
    """
    with _seeded(seed):
        inherited = source()
        before = _global_states()
        first = _draws(inherited)
        found = [
            Repetition("noise", name, "moves a global generator, whose seed is known")
            for name, state in _global_states().items()
            if state != before[name]
        ]
        found += _alike(first, _draws(inherited), "the same at two calls")
    with _seeded(seed):
        found += _alike(first, _draws(source()), "the same under the same seeds")
    if "fork" in multiprocessing.get_all_start_methods():
        one, two, parent = _in_children(source())
        found += _alike(parent, one, "the same in a process and a child forked from it")
        found += _alike(one, two, "the same in two processes forked at the same time")
    return found


def _draws(noise: NoiseSource) -> dict[str, Tensor]:
    """Enough of each kind of draw that no two are alike by chance."""
    even = torch.zeros(2**6, dtype=torch.float64)
    stream = noise.generator()
    return {
        "gaussian": noise.gaussian(_NUMBERS, 1.0),
        "fine_gaussian": noise.fine_gaussian(_NUMBERS, 1.0),
        "laplace": noise.laplace(_NUMBERS, 1.0),
        "k_norm": noise.k_norm(_NUMBERS, 2, 1.0),
        "root_polytope": noise.root_polytope(_NUMBERS, 1.0),
        "select": torch.tensor([noise.select(even, 1.0) for _ in range(_NUMBERS)]).double(),
        "gumbel": torch.tensor([noise.select(even, 1.0, law="gumbel") for _ in range(_NUMBERS)]).double(),
        "uniform": noise.uniform(_NUMBERS),
        "coins": noise.coins(6 * _NUMBERS, 0.5).double(),
        "chosen": noise.chosen(100 * _NUMBERS, 0.05).double(),
        "generator": torch.rand(_NUMBERS, generator=stream, dtype=torch.float64),
        "permutation": noise.permutation(_NUMBERS).double(),
    }


def _alike(first: dict[str, Tensor], second: dict[str, Tensor], how: str) -> list[Repetition]:
    return [Repetition(kind, f"NoiseSource.{kind}", how) for kind in first if torch.equal(first[kind], second[kind])]


def _in_children(noise: NoiseSource) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Draws of two child processes that inherit the source at the same time, and the parent's afterwards."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    children = []
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(noise, start, sender), daemon=True)
        process.start()
        sender.close()
        children.append((process, receiver))
    answers: list[dict[str, list[float]]] = []
    for process, receiver in children:
        if receiver.poll(_SECONDS):
            answers.append(receiver.recv())
        else:
            process.kill()
        process.join()
    if len(answers) < len(children):
        raise NumericalError(f"a forked process drew no noise within {_SECONDS:g} seconds; nothing was compared")
    one, two = ({kind: torch.tensor(v, dtype=torch.float64) for kind, v in answer.items()} for answer in answers)
    return one, two, _draws(noise)


def _child(noise: NoiseSource, start: Any, sender: Connection) -> None:
    torch.set_num_threads(1)  # the parent's other threads do not live here
    start.wait()
    sender.send({kind: values.tolist() for kind, values in _draws(noise).items()})


def _tape(pipeline: Pipeline, records: CausalData, seed: int, source: Source) -> Sequence[Call]:
    with _seeded(seed):
        noise = RecordingNoise(source())
        with watched(noise):
            pipeline(records, noise)
    return noise.tape


def _by_place(tape: Sequence[Call]) -> dict[tuple[str, str], list[Tensor]]:
    """The numbers of each call at one place; coins, selections, single numbers and orders of few records are left out.

    Additive noise is taken in units of its own size: its scale may be private, and then differs between two runs.
    """
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for call in tape:
        leaves: list[Any] = []
        mapped(call.output, leaves.append)
        parts = [leaf.double().flatten() for leaf in leaves if isinstance(leaf, Tensor)]
        least = _NUMBERS if call.kind == "permutation" else 2
        if call.kind in (*_ADDED, "permutation", "uniform", "generator", "released") and sum(map(len, parts)) >= least:
            numbers = torch.cat(parts)
            found[call.kind, call.place].append(numbers / numbers.norm() if call.kind in _ADDED else numbers)
    return found


def _repeats(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether one of the calls is the same in both runs, up to the rounding of the units."""
    pairs = zip(first, second, strict=False)
    return any(one.shape == other.shape and torch.allclose(one, other, 1e-12, 1e-12) for one, other in pairs)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Every seed that an experiment sets, set; all put back afterwards."""
    from lightning.pytorch import seed_everything
    from lightning.pytorch.utilities.seed import isolate_rng

    names = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
    before = {name: os.environ.get(name) for name in names}
    try:
        with isolate_rng():
            seed_everything(seed, workers=True, verbose=False)
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _global_states() -> dict[str, Any]:
    """The states of the generators that everybody shares."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is the suspect
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"]),
        "random": random.getstate(),
    }
    if torch.cuda.is_available():
        states["torch.cuda"] = b"".join(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())
    return states
