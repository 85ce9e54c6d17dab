"""The replay check: run a pipeline again with one record replaced and every charged output kept as it was."""

import dataclasses
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor

from torchdpcate.audit.replay.outcome import SECOND_STAGE_RECORDS, compare, leaves, outcome, records_of, rows_moved
from torchdpcate.audit.replay.tape import Difference, RecordingNoise, ReplayingNoise, innermost
from torchdpcate.audit.replay.watch import unpaid, watched
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.data.split import public_split
from torchdpcate.errors import InputError
from torchdpcate.estimators.cate.learner import CATELearner
from torchdpcate.estimators.cate.mechanisms.base import Mechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.release import Release

Pipeline = Callable[[CausalData, NoiseSource], Any]
"""Runs on records with a noise source; returns what ``outcome`` can read, such as a ``Run``."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a learner's pipeline returns.

    Attributes:
        release: What the reader gets.
        learner: The fitted learner, the curator's; its public facts are compared.
    """

    release: Release
    learner: CATELearner


@dataclass(frozen=True)
class ReplayReport:
    """What one record changed besides the charged outputs. Not private: the differences may quote records.

    Attributes:
        differences: Each once by kind and place.
        neighbours: How many neighbours were replayed.
        outputs: How many charged outputs were kept.
    """

    differences: list[Difference]
    neighbours: int
    outputs: int

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def __str__(self) -> str:
        """One line for each difference."""
        head = f"neighbours replayed: {self.neighbours}, charged outputs kept: {self.outputs}, "
        lines = [f"  {d.kind} at {d.place}: {d.on_d} on D, {d.on_neighbour} on a neighbour" for d in self.differences]
        return "\n".join([f"{head}differences: {len(lines)}", *lines])


def replay(
    pipeline: Pipeline, records: CausalData, *neighbours: CausalData, noise: NoiseSource | None = None
) -> ReplayReport:
    """Report what a pipeline shows of one record beyond the outputs that were charged.

    The pipeline runs on D, where its noise and charged outputs are recorded; again on D, which finds what does not
    repeat by itself; then on each neighbour. Noise and charged outputs are those of the first run throughout, so
    that all else a reader gets has to be the same: order, places, sizes and scales of the draws, ledger, release,
    public facts, blocks, exceptions, warnings and printed text. A scale drawn with a step of its own may be secret.
    The records keep their order: neighbours as lists that differ in one place are what a random order makes of tables.
    On any data set each output needs a charge and a draw before it (``unpaid``). The blocks that train may differ in
    one record.

    What passes is no proof: scales that are wrong on every data set alike are the attacks' business, and another
    neighbour may show more. A record that no batch of DP-SGD drew shows nothing there.

    Args:
        pipeline: What is checked; it must take all its privacy noise from the source it is given.
        records: D.
        neighbours: D with one record replaced; ``neighbours_for_replay`` gives extreme ones.
        noise: Where the first run's noise comes from; None takes the operating system's entropy.

    Raises:
        InputError: No neighbour, or one that does not differ from D in exactly one record.
        Exception: What the pipeline raises, if it raises the same on every data set.

    Example:
        >>> records = CausalData.from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], [0.0, 1.0, 2.0])
        >>> domain = Domain([0.0], [1.0], 0.0, 4.0)
        >>> leak = lambda records, noise: {"largest outcome": float(records.y.max())}
        >>> print(replay(leak, records, *neighbours_for_replay(records, domain)))
        neighbours replayed: 6, charged outputs kept: 0, differences: 1
          result at result.largest outcome: 2.0 on D, 4.0 on a neighbour
    """
    _check(records, neighbours)
    recording = RecordingNoise(noise, keep_order=True)
    _run(pipeline, records, recording)
    found = unpaid(recording.tape)
    on_d, again = _run_again(pipeline, records, recording)
    found += [dataclasses.replace(d, kind=f"not repeatable: {d.kind}") for d in again.differences]
    for neighbour in neighbours:
        seen, again = _run_again(pipeline, neighbour, recording)
        found += [*again.differences, *unpaid(again.tape), *_compare(on_d, seen)]
    if on_d.error is not None and not found:
        raise on_d.error
    once = {(d.kind, d.place): d for d in reversed(found)}
    outputs = sum(call.kind == "released" for call in recording.tape)
    return ReplayReport(list(reversed(once.values())), len(neighbours), outputs)


def learner_pipeline(
    learner: CATELearner,
    release: str = "function",
    mechanism: "str | Mechanism" = "objective",
    queries: Tensor | None = None,
) -> Pipeline:
    """Return the pipeline that fits a copy of a learner and releases from it.

    Args:
        learner: Its settings are used; it is left as it is. The ledger is kept in memory.
        release: ``function`` or ``queries``.
        mechanism: Name or mechanism.
        queries: Public queries [d, q]; None takes 16 points of the domain.

    Raises:
        InputError: ``release`` is neither.
    """
    if release not in ("function", "queries"):
        raise InputError(f"release = {release}: choose function or queries")
    points = TableSchema.of(learner.domain).grid(16) if queries is None else queries

    def pipeline(records: CausalData, noise: NoiseSource) -> Run:
        fresh = clone(learner).set_params(noise=noise, ledger_path=None)
        fresh.fit(records.x, records.a, records.y, TableSchema.of(learner.domain).own_propensity(records))
        if release == "function":
            return Run(fresh.release_function(mechanism), fresh)
        return Run(fresh.release_queries(points, mechanism), fresh)

    return pipeline


def neighbours_for_replay(
    records: CausalData, domain: Domain | TableSchema, split: float = 0.5, seed: int = 0
) -> list[CausalData]:
    """Return a few extreme neighbours of the records.

    Replaced are the first and the last record and the first one of each block; each by the lowest and the highest
    corner of the domain, with the other arm and the outcome at the same bound.

    Args:
        records: D.
        domain: Public bounds; of a schema with categories, the first and the last are the corners.
        split: The learner's.
        seed: The learner's.

    Example:
        >>> records = CausalData.from_arrays([[0.5], [0.5], [0.5]], [0, 1, 1], [2.0, 2.0, 2.0])
        >>> [n.y.tolist() for n in neighbours_for_replay(records, Domain([0.0], [1.0], 0.0, 4.0))][:2]
        [[0.0, 2.0, 2.0], [4.0, 2.0, 2.0]]
    """
    schema = TableSchema.of(domain)
    ends = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    inside = torch.cat([covariate.decode_unit(ends) for covariate in schema.covariates], dim=1)
    low, high = schema.domain.covariate_low, schema.domain.covariate_high
    corners = torch.where(inside > (low + high) / 2, high, low)  # without the rounding of the last covariate value
    outcomes = (schema.domain.outcome_low, schema.domain.outcome_high)
    first, second = public_split(records.n, split, seed)
    made = []
    for index in dict.fromkeys([0, records.n - 1, int(first[0]), int(second[0])]):
        for corner, y in zip(corners, outcomes, strict=True):
            x, a, outcome_ = records.x.clone(), records.a.clone(), records.y.clone()
            x[index], a[index], outcome_[index] = corner, 1 - a[index], y
            known = None if records.propensity is None else records.propensity.clone()
            if known is not None and schema.propensity_column is not None:
                known[index] = 1 - known[index]  # within bounds that lie evenly about a half
            made.append(CausalData(x, a, outcome_, known))
    return made


@dataclass
class _Seen:
    """What is seen of one run from outside."""

    leaves: dict[str, Any] = field(default_factory=dict)
    records: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    printed: str = ""
    error: Exception | None = None


def _run_again(pipeline: Pipeline, records: CausalData, recording: RecordingNoise) -> tuple[_Seen, ReplayingNoise]:
    replaying = ReplayingNoise(recording.tape, recording.inner)
    seen = _run(pipeline, records, replaying)
    if seen.error is None:
        replaying.finish()
    return seen, replaying


def _run(pipeline: Pipeline, records: CausalData, noise: RecordingNoise) -> _Seen:
    """Run the pipeline from the same global seeds each time; nothing that it prints gets through."""
    from lightning.pytorch.utilities.seed import isolate_rng

    seen, printed = _Seen(), io.StringIO()
    quietly = redirect_stdout(printed), redirect_stderr(printed)
    with isolate_rng(), warnings.catch_warnings(record=True) as caught, watched(noise), quietly[0], quietly[1]:
        try:
            result = pipeline(records, noise)
        except Exception as error:
            seen.error = error
    if seen.error is None:
        seen.leaves, seen.records = outcome(result), records_of(result)
    trained = [call for call in noise.tape if call.kind == "dp_sgd" and call.output is not None]
    seen.records |= {f"DP-SGD run {i} at {call.place}": tuple(call.output) for i, call in enumerate(trained)}
    seen.warnings = [f"{w.category.__name__}: {w.message}" for w in caught]
    seen.printed = printed.getvalue()
    return seen


def _compare(on_d: _Seen, on_neighbour: _Seen) -> list[Difference]:
    found = []
    raised = [_raised(seen.error) for seen in (on_d, on_neighbour)]
    if raised[0] != raised[1]:
        error = on_neighbour.error or on_d.error
        assert error is not None
        found.append(Difference("exception", innermost(error.__traceback__), *raised))
    if on_d.error is None and on_neighbour.error is None:
        found += compare(on_d.leaves, on_neighbour.leaves, "result")
    found += compare(leaves(on_d.warnings, "warnings"), leaves(on_neighbour.warnings, "warnings"), "warning")
    found += compare({"text": on_d.printed}, {"text": on_neighbour.printed}, "printed")
    return found + _moved(on_d.records, on_neighbour.records)


def _raised(error: Exception | None) -> str:
    return "no exception" if error is None else f"{type(error).__name__}: {error}"


def _moved(on_d: Mapping[str, tuple[Tensor, ...]], on_neighbour: Mapping[str, tuple[Tensor, ...]]) -> list[Difference]:
    """Blocks that differ in more than the one record, which lies in one of them (DP-SGD may train on it twice)."""
    moved = {name: rows_moved(rows, on_neighbour[name]) for name, rows in on_d.items() if name in on_neighbour}
    trained = max((count for name, count in moved.items() if name != SECOND_STAGE_RECORDS), default=0)
    if trained + moved.get(SECOND_STAGE_RECORDS, 0) <= 1:
        return []
    return [Difference("records", name, "one replaced", f"{count} differ") for name, count in moved.items() if count]


def _check(records: CausalData, neighbours: Sequence[CausalData]) -> None:
    if not neighbours:
        raise InputError("neighbours: give at least one; see neighbours_for_replay")
    before = (records.x, records.a, records.y)
    for number, neighbour in enumerate(neighbours):
        moved = rows_moved(before, (neighbour.x, neighbour.a, neighbour.y))
        if moved != 1:
            raise InputError(f"neighbours[{number}] differs from the records in {moved} of them; replace exactly one")
