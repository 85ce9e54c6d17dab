"""torchrun, which would run the program once for each process."""

import os

from torchdpcate.errors import InputError


def refuse_torchrun() -> None:
    """Refuse to be one of several processes that torchrun has started with the same words.

    Raises:
        InputError: It is; each would charge the budget and release something of its own.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and count != "1":
        raise InputError(
            f"torchrun: each of its {count} processes would fit, charge and release on its own; start one process"
        )
