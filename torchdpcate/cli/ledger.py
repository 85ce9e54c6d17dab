"""``torchdpcate ledger``: what the runs of a shared ledger have spent together, and what is left of the total."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from torchdpcate._text import plain
from torchdpcate.privacy.ledger_file import Entry
from torchdpcate.privacy.shared_ledger import SharedLedger


def ledger(path: str) -> None:
    """Print the runs of a shared ledger with their budgets, the total and what is left of it.

    Args:
        path: The ledger's file.

    Raises:
        InputError: Not a shared ledger, or damaged.
    """
    shared = SharedLedger.load(Path(path))
    table = Table(title="torchdpcate: runs on the same records", title_justify="left")
    for heading in ("run", "budget", "state"):
        table.add_column(heading)
    for entry in shared.runs:
        numbers = {name: value for name, value in entry.event.to_dict().items() if name != "kind"}
        table.add_row(
            plain(entry.label), ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()), _state(entry)
        )
    Console(markup=False, emoji=False).print(table)
    left, total = shared.left(), shared.total
    whom = f"{plain(shared.protected)}, by filter={shared.filter.kind}"
    print(f"total: epsilon {total.epsilon:.4g}, delta {total.delta:.3g} of {whom}")
    print("left: nothing" if left is None else f"left: epsilon {left.epsilon:.4g}, delta {left.delta:.3g}")


def _state(entry: Entry) -> str:
    if not entry.reserved:
        return "given back: nothing was charged"
    return f"fitted, {entry.level.value}" if entry.used else "begun; not fitted, or still running"
