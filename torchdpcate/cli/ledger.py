"""``torchdpcate ledger``: what the runs of a shared ledger have spent together, and what is left of the total."""

from pathlib import Path

from torchdpcate._text import plain
from torchdpcate.cli.tables import columns
from torchdpcate.privacy.ledger import Ledger
from torchdpcate.privacy.ledger_file import Entry
from torchdpcate.privacy.shared_ledger import SharedLedger


def ledger(path: str, as_json: bool = False) -> None:
    """Print the runs of a shared ledger with their budgets, the total and what is left of it.

    Args:
        path: The ledger's file.
        as_json: Whether to print all entries as JSON, of any ledger.

    Raises:
        InputError: Not a shared ledger, or damaged.
    """
    if as_json:
        print(Ledger.load(path).to_json())
        return
    shared = SharedLedger.load(Path(path))
    rows = []
    for entry in shared.runs:
        numbers = {name: value for name, value in entry.event.to_dict().items() if name != "kind"}
        budget = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        rows.append((budget, _state(entry), entry.label))  # the folder last, where it may be as long as it is
    print("torchdpcate: runs on the same records")
    print(columns(("budget", "state", "run"), rows, keys=3))
    left, total = shared.left(), shared.total
    whom = f"{plain(shared.protected)}, by filter={shared.filter.kind}"
    print(f"total: epsilon {total.epsilon:.4g}, delta {total.delta:.3g} of {whom}")
    print("left: nothing" if left is None else f"left: epsilon {left.epsilon:.4g}, delta {left.delta:.3g}")


def _state(entry: Entry) -> str:
    if not entry.reserved:
        return "given back: nothing was charged"
    return f"fitted, {entry.level.value}" if entry.used else "begun; not fitted, or still running"
