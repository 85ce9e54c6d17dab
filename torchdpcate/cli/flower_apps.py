"""The Flower apps of ``torchdpcate sites``: the client carries a message to its site's run, the server adds up."""

import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from torchdpcate.cli.site_link import carried

_BODY = "sites"
_LAST = 30.0  # seconds for a message whose answers do not matter
_POLL = 0.1  # seconds between questions for answers, of the SuperLink on this machine

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Return the answer of this site's run, whose socket is in the SuperNode's configuration."""
    body: dict[str, Any] = dict(message.content[_BODY])
    said = carried(str(context.node_config["socket"]), body["message"], body["wait"])
    return Message(RecordDict({_BODY: ConfigRecord({"message": said})}), reply_to=message)


@server.main()
def coordinate(grid: Grid, context: Context) -> None:
    """Bring all sites through one composition; the outcome is a file that the command waits for."""
    from torchdpcate.cli.coordinator import coordinated

    config = context.run_config
    folder, wait, sizes = Path(str(config["folder"])), float(config["wait"]), json.loads(str(config["sizes"]))
    try:
        nodes = _nodes(grid, len(sizes), wait)
        coordinated(partial(_asked, grid, nodes, wait), sizes, folder)
        outcome = ""
    except Exception as error:
        outcome = str(error) or type(error).__name__
    (folder / "outcome.tmp").write_text(outcome, encoding="utf-8")
    (folder / "outcome.tmp").rename(folder / "outcome")


def _nodes(grid: Grid, sites: int, wait: float) -> list[int]:
    """Return the SuperNodes, of which there must be one a site."""
    end = time.monotonic() + wait
    while len(nodes := list(grid.get_node_ids())) != sites:
        if time.monotonic() > end:
            raise ValueError(f"sites: {len(nodes)} of {sites} sites came within {wait:g} s; nothing is released")
        time.sleep(_POLL)
    return nodes


def _asked(grid: Grid, nodes: Iterable[int], wait: float, number: int, asked: bytes, last: bool) -> dict[int, bytes]:
    """Return the answers of those SuperNodes that gave one in time."""
    content = RecordDict({_BODY: ConfigRecord({"message": asked, "wait": wait})})
    messages = [Message(content, node, "query", group_id=str(number)) for node in nodes]
    left, found = set(grid.push_messages(messages)), dict[int, bytes]()
    end = time.monotonic() + (_LAST if last else 2 * wait)
    while left and time.monotonic() < end:
        time.sleep(_POLL)
        for reply in grid.pull_messages(left):
            left.discard(reply.metadata.reply_to_message_id)
            if reply.has_content():
                body: dict[str, Any] = dict(reply.content[_BODY])
                found[reply.metadata.src_node_id] = body["message"]
    return found
