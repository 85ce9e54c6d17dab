"""A site's end of ``torchdpcate sites``: its run answers the coordinator's messages by a socket of this machine.

Messages are JSON, so that anybody can read what leaves. This module imports nothing slow: Flower starts a process for
each message.
"""

import base64
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdpcate.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST = 100  # bytes of a socket's path, which systems limit
_OWN = 0o117  # umask of what its owner and their group may use


class SocketLink:
    """The link of a site whose Flower client brings messages to a socket; see ``composition.sites.Link``.

    Each number is drawn once: where a message of the coordinator is brought again, the same answer is.

    Args:
        name: Of the site.
        path: Of the socket, in a folder that others may not write to; made at the first message.
        wait: Seconds to wait for the coordinator's next message.

    Raises:
        InputError: A path that is too long, or there already.
    """

    def __init__(self, name: str, path: str | Path, wait: float) -> None:
        self.name, self.path, self.wait = name, Path(path).absolute(), wait
        if len(os.fsencode(self.path)) > _LONGEST:
            raise InputError(f"sites.socket = {path}: longer than {_LONGEST} bytes; choose a shorter one")
        if os.path.lexists(self.path):
            raise InputError(f"sites.socket = {path}: is there already; end the run that has it, or remove it")
        self._listening: socket.socket | None = None
        self._open: Connection | None = None
        self._round, self._last = -1, b""

    def agree(self, facts: Mapping[str, Any]) -> None:
        self._ask({"plan": facts})

    def total(self, step: str, values: "Tensor") -> "Tensor":
        import torch

        answer = self._ask({"step": step, "values": values.flatten().tolist()})
        return torch.tensor(answer["total"], dtype=torch.float64).view(values.shape)

    def finish(self, release: Path) -> None:
        """Send the release, which is public, as the last message."""
        self._say({"release": base64.b64encode(release.read_bytes()).decode("ascii")})
        self._close()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message, and return what the coordinator makes of all sites'."""
        self._say(message)
        answer = self._next()
        if "refused" in answer:
            self._close()
            raise InputError(f"{answer['refused']} (from the coordinator; what was spent is in this site's ledger)")
        return answer

    def _say(self, message: Mapping[str, Any]) -> None:
        if self._open is None:
            self._listen()
            self._next()
        assert self._open is not None
        self._last = json.dumps({"site": self.name, **message}).encode()
        _answered(self._open, self._last)
        self._open = None

    def _close(self) -> None:
        for end in (self._open, self._listening):
            if end is not None:
                end.close()
        self.path.unlink(missing_ok=True)

    def _listen(self) -> None:
        if self._listening is not None:
            return
        self._listening = socket.socket(socket.AF_UNIX)
        before = os.umask(_OWN)
        try:
            self._listening.bind(str(self.path))
        except OSError as error:
            raise InputError(f"sites.socket = {self.path}: {error.strerror}; choose another") from None
        finally:
            os.umask(before)
        self._listening.listen()
        self._listening.settimeout(self.wait)

    def _next(self) -> dict[str, Any]:
        """Wait for the coordinator's next message, and return it."""
        assert self._listening is not None
        while True:
            try:
                taken, _ = self._listening.accept()
            except TimeoutError:
                raise InputError(
                    f"sites: no word from the coordinator for {self.wait:g} s; nothing is released, and what was spent "
                    "is in the ledger"
                ) from None
            connection = Connection(taken.detach())
            asked = json.loads(connection.recv_bytes())
            if asked["round"] == self._round:
                _answered(connection, self._last)
                continue
            if asked["round"] != self._round + 1:
                raise InputError(f"sites: the coordinator is at message {asked['round']}, not {self._round + 1}")
            self._round, self._open = asked["round"], connection
            answer: dict[str, Any] = asked["answer"]
            return answer


def _answered(connection: Connection, message: bytes) -> None:
    with suppress(OSError):  # a client that went away is sent again
        connection.send_bytes(message)
    connection.close()


def carried(path: str, asked: bytes, wait: float) -> bytes:
    """Return a run's answer to the coordinator's message; says so where there is none.

    Args:
        path: Of the run's socket, which may not be there yet.
        asked: The message.
        wait: Seconds to wait for the run.
    """
    end = time.monotonic() + wait
    while True:
        try:
            with Client(path, "AF_UNIX") as connection:
                connection.send_bytes(asked)
                return connection.recv_bytes() if connection.poll(wait) else b'{"stopped": "gave no answer"}'
        except (FileNotFoundError, ConnectionRefusedError):
            if json.loads(asked)["round"] > 0 or time.monotonic() > end:
                return b'{"stopped": "has no run"}'
            time.sleep(0.2)
        except (EOFError, OSError):
            return b'{"stopped": "has stopped"}'
