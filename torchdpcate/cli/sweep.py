"""What the runs of a sweep, or of several, over the same records have spent together."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchdpcate.cli.curator import summary_path
from torchdpcate.cli.task import words
from torchdpcate.errors import InputError
from torchdpcate.privacy.accounting import compose
from torchdpcate.privacy.events import ApproximateEvent, Event, PureEvent
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import LEDGER

_NOT_OF_A_RUN = {"run_dir", "force"}


def run_words() -> dict[str, str]:
    """Return the words that choose what a run does, as values by their keys."""
    return {key: value for key, value in words().items() if key not in _NOT_OF_A_RUN and not key.startswith("hydra")}


Spent = tuple[float, float] | None
"""Epsilon and delta of a whole run; None where it has no proved claim."""

_LARGEST_DELTA = 0.5  # beyond it a composition is of no use


def total_line(runs: Sequence[Spent]) -> str:
    r"""Return one line with what runs over the same records have spent together.

    Each run as a whole is :math:`(\epsilon_i, \delta_i)`-DP for a replaced record, in whichever of its blocks the
    record lies; blocks differ between seeds, so that runs are composed and not blocks. Together they are
    :math:`(\sum \epsilon_i, \sum \delta_i)`-DP, also if a run was chosen after seeing others; and if all settings were
    fixed beforehand, what the composition of these guarantees comes to at twice the delta.

    Args:
        runs: Epsilon and delta of each run.

    Example:
        >>> total_line([(1.0, 1e-5), (0.5, 0.0)])
        '2 runs over the same records have spent epsilon 1.5, delta 1e-05 together'
        >>> total_line([(1.0, 1e-5), None])
        '2 runs over the same records: no total is known, for 1 of them has no proved claim'
    """
    known = [spent for spent in runs if spent is not None]
    what = f"{len(runs)} runs over the same records"
    if len(known) < len(runs):
        return f"{what}: no total is known, for {len(runs) - len(known)} of them has no proved claim"
    epsilon, delta = sum(e for e, _ in known), sum(d for _, d in known)
    line = f"{what} have spent epsilon {epsilon:.4g}, delta {delta:.3g} together"
    if not 0 < 2 * delta < _LARGEST_DELTA:
        return line
    composed = compose([(_event(*spent), 1) for spent in known if spent[0] > 0], 2 * delta)
    if composed > 0.999 * epsilon:
        return line
    return (
        f"{line}; by composition, if all settings were fixed beforehand, epsilon {composed:.4g}, delta {2 * delta:.3g}"
    )


def spent_of(run: Path) -> Spent:
    """Return what a run's ledger has spent; (0, 0) where it has none, as of a run that was refused."""
    ledger = run / "curator" / LEDGER
    if not ledger.is_file():
        return 0.0, 0.0
    loaded = Ledger.load(ledger)
    total = loaded.spent()["total"]
    if total["epsilon"] is None or total["delta"] is None:
        return None
    return loaded.unit.cost(total["epsilon"], total["delta"])


def table_totals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for every real table of which several runs are reported; nothing of generated data.

    Args:
        rows: Runs as `read_summary` returns them.
    """
    tables: dict[str, list[Spent]] = {}
    for row in rows:
        if row["generated"] is False:
            epsilon, delta = row["spent_epsilon"], row["spent_delta"]
            known = epsilon is not None and delta == delta
            tables.setdefault(row["data"], []).append((epsilon, delta) if known else None)
    return [f"{data}: {total_line(runs)}" for data, runs in tables.items() if len(runs) > 1]


def _is_generated(run: Path) -> bool | None:
    try:
        return json.loads(summary_path(run).read_text(encoding="utf-8"))["generated"] is True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def say_total(folder: Path) -> None:
    """Print what a sweep has spent on a real table, the runs that ended on their way included.

    Such a run has no summary; it counts as one on generated records only if the others of the sweep are.

    Args:
        folder: The sweep's.
    """
    known = {path.parents[1]: _is_generated(path.parents[1]) for path in sorted(folder.glob(f"*/curator/{LEDGER}"))}
    rest = set(known.values()) - {None} == {True}
    real = [run for run, generated in known.items() if not (rest if generated is None else generated)]
    if len(real) < 2:
        return
    try:
        print(f"sweep: {total_line([spent_of(run) for run in real])}")
    except InputError as error:
        print(f"sweep: what was spent is not known ({error})")


def _event(epsilon: float, delta: float) -> Event:
    return ApproximateEvent(epsilon, delta) if delta else PureEvent(epsilon)
